//! Every operation as a value: how to call it in each way, and what every rank must get.

use comm_core::tensor::{DType, Layout, Tensor, TensorBuf};
use comm_core::{Deadline, Error};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::oracle::collective::{all_to_all, cut, rows};
use comm_testkit::oracle::reduce::{Reduction, reduce};
use comm_testkit::oracle::{Dense, shard_sizes};
use comm_testkit::values::{is_poison, poison};
use comm_testkit::{RankResult, check, check_eq, done};

use crate::support::{Any, bytes_of, is_own, same_bytes};

/// An array of elements, each as its bytes.
pub type Bytes = Dense<Vec<u8>>;

/// An array of elements, each as its bytes.
pub fn dense(shape: &[usize], bytes: &[u8], element: usize) -> Bytes {
    Dense { shape: shape.to_vec(), data: bytes.chunks_exact(element).map(<[u8]>::to_vec).collect() }
}

/// How ranks combine: what the library calls it, and what the oracle does.
pub type Operator = (ReduceOp, Reduction);

pub const SUM: Operator = (ReduceOp::Sum, Reduction::Sum);

/// Sizes that are given, or those of the rule.
pub type Sizes = Option<Vec<usize>>;

/// An operation with its arguments; dimensions before roots.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    Barrier,
    AllReduce(Operator),
    Reduce(Operator, usize),
    ReduceScatter(Operator, usize, Sizes),
    AllGather(usize),
    AllGatherEqual,
    AllGatherVec,
    Gather(usize, usize),
    Broadcast(usize),
    Scatter(usize, usize, Sizes),
    AllToAll(usize, usize, Sizes),
    /// `rows[from][to]`
    Rows(Vec<Vec<usize>>),
    /// What a rank says that it sends and awaits, whatever the others do.
    RowsOf(Vec<usize>, Vec<usize>),
}

use Call::*;

/// How an operation is called.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Way {
    Returned,
    /// Into a contiguous buffer.
    Into,
    /// Into elements of a buffer that lie apart, in another order.
    Strided,
    Started,
}

pub const WAYS: [Way; 4] = [Way::Returned, Way::Into, Way::Strided, Way::Started];

impl Call {
    pub fn name(&self) -> &'static str {
        match self {
            Barrier => "barrier",
            AllReduce(_) => "all_reduce",
            Reduce(..) => "reduce",
            ReduceScatter(..) => "reduce_scatter",
            AllGather(_) => "all_gather",
            AllGatherEqual => "all_gather_equal",
            AllGatherVec => "all_gather_into_vec",
            Gather(..) => "gather",
            Broadcast(_) => "broadcast",
            Scatter(..) => "scatter",
            AllToAll(..) => "all_to_all",
            Rows(_) | RowsOf(..) => "all_to_all_rows",
        }
    }

    /// Whether a rank brings a tensor.
    pub fn takes_input(&self, rank: usize) -> bool {
        match self {
            Barrier => false,
            Broadcast(root) | Scatter(_, root, _) => rank == *root,
            _ => true,
        }
    }

    /// What every rank must get of the inputs of all: nothing, a tensor, or the tensors of all.
    pub fn expected(&self, inputs: &[Bytes], dtype: DType) -> Any<Vec<Vec<Bytes>>> {
        let n = inputs.len();
        let all = |one: Bytes| vec![vec![one]; n];
        let each = |parts: Vec<Bytes>| parts.into_iter().map(|part| vec![part]).collect();
        let at = |root: usize, one: Bytes| {
            (0..n).map(|r| if r == root { vec![one.clone()] } else { vec![] }).collect()
        };
        let sizes_of = |sizes: &Sizes, shape: &[usize], dim: usize| {
            sizes.clone().unwrap_or_else(|| shard_sizes(shape.get(dim).copied().unwrap_or(0), n))
        };
        let combined = |(_, op): Operator| -> Any<Bytes> {
            let ranks: Vec<Vec<u8>> = inputs.iter().map(|input| input.data.concat()).collect();
            let bytes = reduce(op, dtype, &ranks).ok_or("there is no such operator")?;
            Ok(dense(&inputs[0].shape, &bytes, dtype.size()))
        };
        let whole = |dim: usize| Dense::concat(inputs, dim).ok_or("the shards do not fit together");
        const FITS: &str = "sizes that fit";
        Ok(match self {
            Barrier => vec![vec![]; n],
            AllReduce(op) => all(combined(*op)?),
            Reduce(op, root) => at(*root, combined(*op)?),
            ReduceScatter(op, dim, sizes) => {
                let sizes = sizes_of(sizes, &inputs[0].shape, *dim);
                each(cut(&combined(*op)?, *dim, &sizes).ok_or(FITS)?)
            }
            AllGather(dim) => all(whole(*dim)?),
            AllGatherEqual => all(whole(0)?),
            AllGatherVec => vec![inputs.to_vec(); n],
            Gather(dim, root) => at(*root, whole(*dim)?),
            Broadcast(root) => all(inputs[*root].clone()),
            Scatter(dim, root, sizes) => {
                let sizes = sizes_of(sizes, &inputs[*root].shape, *dim);
                each(cut(&inputs[*root], *dim, &sizes).ok_or(FITS)?)
            }
            AllToAll(from, to, sizes) => {
                let sizes = sizes_of(sizes, &whole(*from)?.shape, *to);
                each(all_to_all(inputs, *from, *to, &sizes).ok_or(FITS)?)
            }
            Rows(send) => each(rows(inputs, send).ok_or(FITS)?),
            RowsOf(..) => return Err("what others do says what is to come".into()),
        })
    }

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
        }
    }

    /// Starts it; the rest is waiting.
    #[allow(clippy::type_complexity, reason = "a value, or what will give it")]
    pub fn started(
        &self,
        group: &ThreadGroup,
        mine: Option<&Tensor>,
        at: Deadline,
    ) -> Result<Box<dyn FnOnce() -> Result<Vec<Tensor>, Error> + Send>, Error> {
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
        })
    }

    /// Whether its result can go into a buffer.
    pub fn has_into(&self) -> bool {
        !matches!(self, Barrier | AllGatherVec)
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
            Barrier | AllGatherVec => Err(Error::invalid("a case", "there is no such way")),
        }
    }
}

/// What a rank sends, and what it awaits.
pub fn rows_of(send: &[Vec<usize>], rank: usize) -> (Vec<usize>, Vec<usize>) {
    (send[rank].clone(), send.iter().map(|row| row[rank]).collect())
}

/// A buffer of poison.
pub fn poisoned(shape: &[usize], dtype: DType) -> Any<TensorBuf> {
    let mut buf = TensorBuf::zeros(shape, dtype)?;
    let bytes = buf.bytes_mut()?;
    bytes.copy_from_slice(&poison(bytes.len()));
    Ok(buf)
}

/// Elements that lie apart, the first dimension fastest and backwards, and how many elements that takes.
pub fn apart(shape: &[usize]) -> Any<(Layout, usize)> {
    let mut strides = Vec::new();
    let mut step = 2isize;
    for &size in shape {
        strides.push(step);
        step *= size.max(1) as isize;
    }
    let mut offset = 1;
    if let (Some(first), Some(&size)) = (strides.first_mut(), shape.first())
        && !shape.contains(&0)
    {
        offset += (size - 1) * first.unsigned_abs();
        *first = -*first;
    }
    Ok((Layout::new(shape, &strides, offset)?, step as usize + 2))
}

/// Calls it on this rank in one way, and checks everything that holds for any operation.
pub fn check_way(
    group: &ThreadGroup,
    call: &Call,
    way: Way,
    mine: &Tensor,
    expected: &[Bytes],
    at: Deadline,
) -> RankResult {
    let (dtype, what) = (mine.dtype(), || format!("{call:?}, {way:?}"));
    let brought = call.takes_input(group.rank()).then_some(mine);
    let before = bytes_of(mine)?;
    let unchanged = || same_bytes(&format!("{}: the input afterwards", what()), &bytes_of(mine)?, &before);
    if matches!(way, Way::Into | Way::Strided) && call.has_into() {
        // A rank that gets nothing brings a buffer all the same, of whatever shape.
        let shape = expected.first().map_or(&[3][..], |e| &e.shape);
        let (mut buf, layout) = if way == Way::Into {
            (poisoned(shape, dtype)?, Layout::contiguous(shape)?)
        } else {
            let (layout, storage) = apart(shape)?;
            (poisoned(&[storage], dtype)?, layout)
        };
        let given = (way == Way::Strided).then_some(layout);
        call.call_into(group, brought, &mut buf, given, at).map_err(|e| format!("{}: {e}", what()))?;
        unchanged()?;
        let all = buf.freeze();
        check!(!all.shares_storage(mine));
        let bytes = all.bytes()?;
        let Some(expected) = expected.first() else {
            check!(is_poison(bytes), "{}: a rank that gets nothing", what());
            return done();
        };
        // What the buffer must hold: the result where it is to go, poison elsewhere.
        let mut image = poison(bytes.len());
        for (index, element) in comm_testkit::oracle::indices(shape).iter().zip(&expected.data) {
            let start = layout.position(index)? * dtype.size();
            image[start..start + dtype.size()].copy_from_slice(element);
        }
        return same_bytes(&what(), bytes, &image);
    }
    let results = match way {
        Way::Started => call.started(group, brought, at).and_then(|wait| wait()),
        _ => call.returned(group, brought, at),
    };
    let results = results.map_err(|e| format!("{}: {e}", what()))?;
    unchanged()?;
    check_eq!(results.len(), expected.len(), "{}", what());
    for (result, expected) in results.into_iter().zip(expected) {
        check_eq!((result.shape(), result.dtype()), (&expected.shape[..], dtype), "{}", what());
        same_bytes(&what(), result.bytes()?, &expected.data.concat())?;
        is_own(result, mine)?;
    }
    done()
}

/// The same in every way.
pub fn check_ways(
    group: &ThreadGroup,
    call: &Call,
    mine: &Tensor,
    all: &[Bytes],
    at: Deadline,
) -> RankResult {
    let expected = call.expected(all, mine.dtype()).map_err(|e| format!("{call:?}: {e}"))?;
    for way in WAYS {
        check_way(group, call, way, mine, &expected[group.rank()], at)?;
    }
    done()
}
