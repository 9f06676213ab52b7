//! One call of an operation, in each of the ways in which it can be called.

use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Error, Result};
use comm_group::ThreadGroup;

use super::case::{Case, Common, Mode, Op};

/// What a call works on.
pub struct Call<'a> {
    pub group: &'a ThreadGroup,
    pub common: &'a Common,
    pub case: &'a Case,
    /// What this rank brings.
    pub input: Option<&'a Tensor>,
}

impl Call<'_> {
    /// Calls it. The result, if it is a new tensor; else it is in `out`, or there is none on this rank.
    ///
    /// # Errors
    /// What the library said.
    pub fn run(&self, out: &mut TensorBuf) -> Result<Option<Tensor>> {
        match self.common.mode {
            Mode::Return => self.returned(),
            Mode::Into => self.into(out).map(|()| None),
            Mode::Start => self.started(),
        }
    }

    fn input(&self) -> Result<&Tensor> {
        self.input.ok_or_else(|| Error::invalid("bench", "this rank has no input"))
    }

    /// Whom this rank sends to and whom it receives from.
    fn neighbours(&self) -> (usize, usize) {
        let (rank, size) = (self.group.rank(), self.group.size());
        ((rank + 1) % size, (rank + size - 1) % size)
    }

    /// One row for each rank.
    fn rows(&self) -> Vec<usize> {
        vec![1; self.group.size()]
    }

    fn returned(&self) -> Result<Option<Tensor>> {
        let Call { group, common, input, .. } = *self;
        let (root, redop, deadline) = (common.root, common.redop.op(), Deadline::default());
        match self.case.op {
            Op::AllReduce => group.all_reduce(self.input()?, redop, deadline).map(Some),
            Op::AllGather => group.all_gather(self.input()?, 0, deadline).map(Some),
            Op::ReduceScatter => group.reduce_scatter(self.input()?, redop, 0, deadline).map(Some),
            Op::Alltoall => {
                let rows = self.rows();
                group.all_to_all_rows(self.input()?, &rows, &rows, deadline).map(Some)
            }
            Op::Broadcast => group.broadcast(input, root, deadline).map(Some),
            Op::Reduce => group.reduce(self.input()?, redop, root, deadline),
            Op::Gather => group.gather(self.input()?, 0, root, deadline),
            Op::Scatter => group.scatter(input, 0, root, deadline).map(Some),
            Op::Sendrecv => {
                let (to, from) = self.neighbours();
                group.exchange(self.input()?, to, from, deadline).map(Some)
            }
            Op::Barrier => group.barrier(deadline).map(|()| None),
        }
    }

    fn into(&self, out: &mut TensorBuf) -> Result<()> {
        let Call { group, common, input, .. } = *self;
        let (root, redop, deadline) = (common.root, common.redop.op(), Deadline::default());
        match self.case.op {
            Op::AllReduce if self.case.in_place => group.all_reduce_in_place(out, redop, deadline),
            Op::AllReduce => group.all_reduce_into(self.input()?, redop, out, deadline),
            Op::AllGather => group.all_gather_into(self.input()?, 0, out, deadline),
            Op::ReduceScatter => group.reduce_scatter_into(self.input()?, redop, 0, out, deadline),
            Op::Alltoall => {
                let rows = self.rows();
                group.all_to_all_rows_into(self.input()?, &rows, &rows, out, deadline)
            }
            Op::Broadcast => group.broadcast_into(input, root, out, deadline),
            Op::Reduce => group.reduce_into(self.input()?, redop, root, out, deadline),
            Op::Gather => group.gather_into(self.input()?, 0, root, out, deadline),
            Op::Scatter => group.scatter_into(input, 0, root, out, deadline),
            Op::Sendrecv => {
                let (input, (to, from)) = (self.input()?, self.neighbours());
                // As `exchange` does, which has no buffer to fill.
                std::thread::scope(|s| {
                    let sending = s.spawn(|| group.send(input, to, deadline));
                    let received = group.recv_into(from, out, deadline);
                    let sent = sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    received.and(sent)
                })
            }
            Op::Barrier => group.barrier(deadline),
        }
    }

    fn started(&self) -> Result<Option<Tensor>> {
        let Call { group, common, input, .. } = *self;
        let (root, redop, deadline) = (common.root, common.redop.op(), Deadline::default());
        match self.case.op {
            Op::AllReduce => group.all_reduce_start(self.input()?, redop, deadline)?.wait().map(Some),
            Op::AllGather => group.all_gather_start(self.input()?, 0, deadline)?.wait().map(Some),
            Op::ReduceScatter => {
                group.reduce_scatter_start(self.input()?, redop, 0, deadline)?.wait().map(Some)
            }
            Op::Alltoall => {
                let rows = self.rows();
                group.all_to_all_rows_start(self.input()?, &rows, &rows, deadline)?.wait().map(Some)
            }
            Op::Broadcast => group.broadcast_start(input, root, deadline)?.wait().map(Some),
            Op::Reduce => group.reduce_start(self.input()?, redop, root, deadline)?.wait(),
            Op::Gather => group.gather_start(self.input()?, 0, root, deadline)?.wait(),
            Op::Scatter => group.scatter_start(input, 0, root, deadline)?.wait().map(Some),
            Op::Sendrecv => {
                let (input, (to, from)) = (self.input()?, self.neighbours());
                // What has been started goes one after the other: if all sent first, all would wait for each other.
                if group.rank().is_multiple_of(2) {
                    let sending = group.send_start(input, to, deadline)?;
                    let received = group.recv_start(from, deadline)?.wait();
                    sending.wait().and(received).map(Some)
                } else {
                    let receiving = group.recv_start(from, deadline)?;
                    let sent = group.send_start(input, to, deadline)?.wait();
                    receiving.wait().and_then(|tensor| sent.map(|()| Some(tensor)))
                }
            }
            Op::Barrier => group.barrier_start(deadline)?.wait().map(|()| None),
        }
    }
}
