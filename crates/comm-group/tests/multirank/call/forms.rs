//! The three forms of each operation: a new tensor, the caller's buffer, started.

use comm_core::tensor::{Layout, Tensor, TensorBuf};
use comm_core::{Deadline, Error};
use comm_group::ThreadGroup;

use super::Call::{self, *};
use super::rows_of;

/// What will give the results of this rank.
type Waiting = Box<dyn FnOnce() -> Result<Vec<Tensor>, Error> + std::marker::Send>;

impl Call {
    /// Calls it, and gives what this rank gets.
    pub fn returned(
        &self,
        group: &ThreadGroup,
        mine: Option<&Tensor>,
        at: Deadline,
    ) -> Result<Vec<Tensor>, Error> {
        let input = || mine.ok_or_else(|| Error::invalid("a case", "it has no input"));
        let one = |result: Result<Tensor, Error>| result.map(|t| vec![t]);
        let maybe = |result: Result<Option<Tensor>, Error>| result.map(|t| t.into_iter().collect());
        match self {
            Barrier => group.barrier(at).map(|()| vec![]),
            AllReduce((op, _)) => one(group.all_reduce(input()?, *op, at)),
            Reduce((op, _), root) => maybe(group.reduce(input()?, *op, *root, at)),
            ReduceScatter((op, _), dim, None) => one(group.reduce_scatter(input()?, *op, *dim, at)),
            ReduceScatter((op, _), dim, Some(s)) => {
                one(group.reduce_scatter_sizes(input()?, *op, *dim, s, at))
            }
            AllGather(dim) => one(group.all_gather(input()?, *dim, at)),
            AllGatherEqual => one(group.all_gather_equal(input()?, at)),
            AllGatherVec => group.all_gather_into_vec(input()?, at),
            Gather(dim, root) => maybe(group.gather(input()?, *dim, *root, at)),
            Broadcast(root) => one(group.broadcast(mine, *root, at)),
            Scatter(dim, root, None) => one(group.scatter(mine, *dim, *root, at)),
            Scatter(dim, root, Some(s)) => one(group.scatter_sizes(mine, *dim, *root, s, at)),
            AllToAll(from, to, None) => one(group.all_to_all(input()?, *from, *to, at)),
            AllToAll(from, to, Some(s)) => one(group.all_to_all_sizes(input()?, *from, *to, s, at)),
            Rows(send) => {
                let (send, receive) = rows_of(send, group.rank());
                one(group.all_to_all_rows(input()?, &send, &receive, at))
            }
            RowsOf(send, receive) => one(group.all_to_all_rows(input()?, send, receive, at)),
            Shard(dim, sub_split) => one(group.replicate_to_shard(input()?, *dim, *sub_split)),
            Send(from, to) if group.rank() == *from => group.send(input()?, *to, at).map(|()| vec![]),
            Send(from, to) if group.rank() == *to => one(group.recv(*from, at)),
            Send(..) => Ok(vec![]),
            Exchange => {
                let (rank, n) = (group.rank(), group.size());
                one(group.exchange(input()?, (rank + 1) % n, (rank + n - 1) % n, at))
            }
        }
    }

    /// Starts it; the rest is waiting.
    pub fn started(
        &self,
        group: &ThreadGroup,
        mine: Option<&Tensor>,
        at: Deadline,
    ) -> Result<Waiting, Error> {
        let input = || mine.ok_or_else(|| Error::invalid("a case", "it has no input"));
        macro_rules! one {
            ($work:expr) => {{
                let work = $work?;
                Box::new(move || work.wait().map(|t| vec![t]))
            }};
        }
        macro_rules! maybe {
            ($work:expr) => {{
                let work = $work?;
                Box::new(move || work.wait().map(|t| t.into_iter().collect()))
            }};
        }
        Ok(match self {
            Barrier => {
                let work = group.barrier_start(at)?;
                Box::new(move || work.wait().map(|()| vec![]))
            }
            AllReduce((op, _)) => one!(group.all_reduce_start(input()?, *op, at)),
            Reduce((op, _), root) => maybe!(group.reduce_start(input()?, *op, *root, at)),
            ReduceScatter((op, _), dim, None) => one!(group.reduce_scatter_start(input()?, *op, *dim, at)),
            ReduceScatter((op, _), dim, Some(s)) => {
                one!(group.reduce_scatter_sizes_start(input()?, *op, *dim, s, at))
            }
            AllGather(dim) => one!(group.all_gather_start(input()?, *dim, at)),
            AllGatherEqual => one!(group.all_gather_equal_start(input()?, at)),
            AllGatherVec => {
                let work = group.all_gather_into_vec_start(input()?, at)?;
                Box::new(move || work.wait())
            }
            Gather(dim, root) => maybe!(group.gather_start(input()?, *dim, *root, at)),
            Broadcast(root) => one!(group.broadcast_start(mine, *root, at)),
            Scatter(dim, root, None) => one!(group.scatter_start(mine, *dim, *root, at)),
            Scatter(dim, root, Some(s)) => one!(group.scatter_sizes_start(mine, *dim, *root, s, at)),
            AllToAll(from, to, None) => one!(group.all_to_all_start(input()?, *from, *to, at)),
            AllToAll(from, to, Some(s)) => {
                one!(group.all_to_all_sizes_start(input()?, *from, *to, s, at))
            }
            Rows(send) => {
                let (send, receive) = rows_of(send, group.rank());
                one!(group.all_to_all_rows_start(input()?, &send, &receive, at))
            }
            RowsOf(send, receive) => one!(group.all_to_all_rows_start(input()?, send, receive, at)),
            Send(from, to) if group.rank() == *from => {
                let work = group.send_start(input()?, *to, at)?;
                Box::new(move || work.wait().map(|()| vec![]))
            }
            Send(from, to) if group.rank() == *to => one!(group.recv_start(*from, at)),
            Send(..) => Box::new(|| Ok(vec![])),
            Shard(..) | Exchange => return Err(Error::invalid("a case", "it cannot be started")),
        })
    }

    /// Calls it with elements of a buffer for the result.
    pub fn call_into(
        &self,
        group: &ThreadGroup,
        mine: Option<&Tensor>,
        buf: &mut TensorBuf,
        layout: Option<Layout>,
        at: Deadline,
    ) -> Result<(), Error> {
        let input = || mine.ok_or_else(|| Error::invalid("a case", "it has no input"));
        let out = match layout {
            None => buf.into(),
            Some(layout) => buf.view_mut(layout)?,
        };
        match self {
            AllReduce((op, _)) => group.all_reduce_into(input()?, *op, out, at),
            Reduce((op, _), root) => group.reduce_into(input()?, *op, *root, out, at),
            ReduceScatter((op, _), dim, None) => group.reduce_scatter_into(input()?, *op, *dim, out, at),
            ReduceScatter((op, _), dim, Some(s)) => {
                group.reduce_scatter_sizes_into(input()?, *op, *dim, s, out, at)
            }
            AllGather(dim) => group.all_gather_into(input()?, *dim, out, at),
            AllGatherEqual => group.all_gather_equal_into(input()?, out, at),
            Gather(dim, root) => group.gather_into(input()?, *dim, *root, out, at),
            Broadcast(root) => group.broadcast_into(mine, *root, out, at),
            Scatter(dim, root, None) => group.scatter_into(mine, *dim, *root, out, at),
            Scatter(dim, root, Some(s)) => group.scatter_sizes_into(mine, *dim, *root, s, out, at),
            AllToAll(from, to, None) => group.all_to_all_into(input()?, *from, *to, out, at),
            AllToAll(from, to, Some(s)) => group.all_to_all_sizes_into(input()?, *from, *to, s, out, at),
            Rows(send) => {
                let (send, receive) = rows_of(send, group.rank());
                group.all_to_all_rows_into(input()?, &send, &receive, out, at)
            }
            RowsOf(send, receive) => group.all_to_all_rows_into(input()?, send, receive, out, at),
            Send(from, to) if group.rank() == *from => group.send(input()?, *to, at),
            Send(from, to) if group.rank() == *to => group.recv_into(*from, out, at),
            Send(..) => Ok(()),
            Barrier | AllGatherVec | Shard(..) | Exchange => {
                Err(Error::invalid("a case", "it takes no buffer"))
            }
        }
    }
}
