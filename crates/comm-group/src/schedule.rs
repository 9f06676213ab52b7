//! What an operation makes of the inputs: shapes of results, and which elements go where. From letters alone, so that all
//! ranks come to the same verdict.

use comm_core::tensor::{DType, Layout, Tile};
use comm_core::{Error, Result};

use crate::agreement::{Letter, out_code};
use crate::reduce::ReduceOp;
use crate::request::Op;
use crate::shard::shard_sizes;

/// A rectangle of a rank's input that becomes one of the result.
pub(crate) struct Move {
    pub(crate) rank: usize,
    pub(crate) from: Tile,
    pub(crate) to: Tile,
}

/// What a rank makes of the inputs.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub(crate) enum Action {
    /// Nothing: it has only been there.
    Nothing,
    /// It puts its result together.
    Copy(Vec<Move>),
    /// It takes each input as it is.
    Apart,
    /// It reduces this rectangle of all inputs.
    Reduce(ReduceOp, Tile),
    /// All reduce together, and the result is for these: all, or the root.
    ReduceAll(ReduceOp, Option<usize>),
}

/// An operation on one rank.
pub(crate) struct Schedule {
    pub(crate) dtype: DType,
    /// The shapes of the inputs, by rank; of those that have none, empty.
    pub(crate) inputs: Vec<Vec<usize>>,
    /// The shape of this rank's result, if it gets one tensor.
    pub(crate) shape: Option<Vec<usize>>,
    pub(crate) action: Action,
}

/// Plans an operation for one rank, and checks that all can do it.
///
/// # Errors
/// Those of the operation, the same on all ranks.
pub(crate) fn schedule(op: Op, letters: &[Letter], rank: usize) -> Result<Option<Schedule>> {
    if op == Op::Barrier {
        return Ok(None);
    }
    let name = op.name();
    let bad = |rank: usize| Error::bad_peer(format!("rank {rank} describes a tensor that cannot be"));
    let from = op.root().filter(|_| matches!(op, Op::Broadcast { .. } | Op::Scatter { .. }));
    let first = from.unwrap_or(0);
    let dtype = letters.get(first).and_then(|l| l.descriptor.dtype()).ok_or_else(|| bad(first))?;
    let shape_of = |(rank, letter): (usize, &Letter)| letter.descriptor.shape().ok_or_else(|| bad(rank));
    let inputs: Vec<Vec<usize>> = letters.iter().enumerate().map(shape_of).collect::<Result<_>>()?;
    for (rank, shape) in inputs.iter().enumerate() {
        check_size(name, shape, dtype).map_err(|_| bad(rank))?;
    }
    if let Some(reduce) = op.reduce() {
        reduce.check(dtype)?;
    }
    let sizes = Sizes::read(op, letters, &inputs)?;
    // Every rank looks at all results, so that one that cannot be, or a buffer of another shape, is everybody's verdict.
    for (peer, letter) in letters.iter().enumerate() {
        let Some(shape) = result_shape(op, &inputs, &sizes, peer)? else { continue };
        check_size(name, &shape, dtype)?;
        if letter.descriptor.out().is_some_and(|out| out != out_code(&shape, dtype)) {
            let (theirs, others) = ("another".into(), format!("{dtype} {shape:?}"));
            return Err(Error::Mismatch { rank: peer, field: "output", theirs, others, at: Box::default() });
        }
    }
    let shape = result_shape(op, &inputs, &sizes, rank)?;
    let action = match (&shape, op) {
        (_, Op::AllGatherVec) => Action::Apart,
        (_, Op::AllReduce(reduce)) => Action::ReduceAll(reduce, None),
        (_, Op::Reduce { op: reduce, root }) => Action::ReduceAll(reduce, Some(root)),
        (None, _) => Action::Nothing,
        (Some(_), Op::ReduceScatter { op: reduce, dim }) => {
            let (start, len) = sizes.range(rank);
            Action::Reduce(reduce, slab(name, &inputs[rank], dim, start, len)?)
        }
        (Some(shape), _) => Action::Copy(moves(op, &inputs, &sizes, rank, shape)?),
    };
    Ok(Some(Schedule { dtype, inputs, shape, action }))
}

fn check_size(op: &'static str, shape: &[usize], dtype: DType) -> Result<()> {
    if dtype.bytes_of(Layout::contiguous(shape)?.numel()).is_none() {
        return Err(Error::invalid(op, format!("a tensor of shape {shape:?} and {dtype} is too large")));
    }
    Ok(())
}

/// How the ranks share the dimension that an operation cuts.
enum Sizes {
    None,
    /// The sizes of the shards that come out.
    Shards(Vec<usize>),
    /// How many rows each rank sends to each: `rows[from][to]`.
    Rows(Vec<Vec<usize>>),
}

impl Sizes {
    fn read(op: Op, letters: &[Letter], inputs: &[Vec<usize>]) -> Result<Sizes> {
        let (name, n) = (op.name(), letters.len());
        let whole = match op {
            Op::ReduceScatter { dim, .. } => inputs[0].get(dim).copied(),
            Op::Scatter { dim, root } => inputs[root].get(dim).copied(),
            Op::AllToAll { from, to } if from == to => Some(total(name, inputs, from)?),
            Op::AllToAll { to, .. } => inputs[0].get(to).copied(),
            Op::AllToAllRows => return Sizes::rows(letters, inputs),
            _ => return Ok(Sizes::None),
        };
        let shape = &inputs[op.root().unwrap_or(0)];
        let no_dim = || Error::invalid(name, format!("no such dimension in shape {shape:?}"));
        let whole = whole.ok_or_else(no_dim)?;
        let all: Vec<&Vec<u64>> = letters.iter().map(|letter| &letter.sizes).collect();
        if let Some((odd, common)) = comm_core::team::odd_one_out(&all) {
            let text = |rank: usize| format!("{:?}", all[rank]);
            let (theirs, others) = (text(odd), text(common));
            return Err(Error::Mismatch { rank: odd, field: "sizes", theirs, others, at: Box::default() });
        }
        if all[0].is_empty() {
            return Ok(Sizes::Shards(shard_sizes(whole, n)));
        }
        let given: Option<Vec<usize>> = all[0].iter().map(|&n| usize::try_from(n).ok()).collect();
        let sum = |sizes: &Vec<usize>| sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        let fits = |sizes: &Vec<usize>| sizes.len() == n && sum(sizes) == Some(whole);
        let why = || format!("sizes {:?} for {n} ranks of a dimension of size {whole}", all[0]);
        given.filter(fits).map(Sizes::Shards).ok_or_else(|| Error::invalid(name, why()))
    }

    /// What each sends must be what the other awaits, and all that it has.
    fn rows(letters: &[Letter], inputs: &[Vec<usize>]) -> Result<Sizes> {
        const OP: &str = "all_to_all_rows";
        let n = letters.len();
        let of = |letter: &Letter| -> Option<Vec<usize>> {
            letter.sizes.iter().map(|&n| usize::try_from(n).ok()).collect()
        };
        let all: Option<Vec<Vec<usize>>> = letters.iter().map(of).collect();
        let all = all.filter(|all| all.iter().all(|sizes| sizes.len() == 2 * n));
        let all = all.ok_or_else(|| Error::bad_peer("a rank says other sizes than one for each rank"))?;
        // Who is at odds with more of the others than they are among themselves is the odd one.
        let differs = |a: usize, b: usize| all[a][b] != all[b][n + a];
        let faults: Vec<usize> =
            (0..n).map(|r| (0..n).filter(|&p| differs(r, p) || differs(p, r)).count()).collect();
        if let Some(&most) = faults.iter().max().filter(|&&most| most > 0) {
            let odd = (0..n).rev().find(|&r| faults[r] == most).unwrap_or_default();
            let peer = (0..n).find(|&p| differs(odd, p) || differs(p, odd)).unwrap_or_default();
            let text = |a: usize, b: usize| {
                format!("sends {} to and awaits {} from rank {b}", all[a][b], all[a][n + b])
            };
            let (theirs, others) = (text(odd, peer), format!("rank {peer} {}", text(peer, odd)));
            return Err(Error::Mismatch { rank: odd, field: "sizes", theirs, others, at: Box::default() });
        }
        for (rank, (sizes, shape)) in all.iter().zip(inputs).enumerate() {
            let sent = sizes[..n].iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
            if sent.is_none() || shape.first().copied() != sent {
                let why = format!("rank {rank} sends {:?} rows of a tensor of shape {shape:?}", &sizes[..n]);
                return Err(Error::invalid(OP, why));
            }
        }
        Ok(Sizes::Rows(all.into_iter().map(|sizes| sizes[..n].to_vec()).collect()))
    }

    /// Where the shard of a rank begins, and how long it is.
    fn range(&self, rank: usize) -> (usize, usize) {
        match self {
            Sizes::Shards(sizes) => (sizes[..rank].iter().sum(), sizes[rank]),
            Sizes::None | Sizes::Rows(_) => (0, 0),
        }
    }
}

/// The size of the whole along a dimension of which each rank has a shard.
fn total(op: &'static str, inputs: &[Vec<usize>], dim: usize) -> Result<usize> {
    let no_dim = || Error::invalid(op, format!("dimension {dim} of shards with shape {:?}", inputs[0]));
    let sizes: Option<Vec<usize>> = inputs.iter().map(|shape| shape.get(dim).copied()).collect();
    let sizes = sizes.ok_or_else(no_dim)?;
    let too_large = || Error::invalid(op, format!("shards of {sizes:?} along {dim} are too large together"));
    sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)).ok_or_else(too_large)
}

fn with_dim(shape: &[usize], dim: usize, size: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(there) = shape.get_mut(dim) {
        *there = size;
    }
    shape
}

/// The shape of a rank's result; none if it does not get one tensor.
fn result_shape(op: Op, inputs: &[Vec<usize>], sizes: &Sizes, rank: usize) -> Result<Option<Vec<usize>>> {
    let name = op.name();
    Ok(Some(match op {
        Op::Barrier | Op::AllGatherVec => return Ok(None),
        _ if !op.gives_result(rank) => return Ok(None),
        Op::AllReduce(_) | Op::Reduce { .. } => inputs[rank].clone(),
        Op::Broadcast { root } => inputs[root].clone(),
        Op::AllGatherEqual if inputs[0].is_empty() => {
            return Err(Error::invalid(name, "a tensor without dimensions has none to gather along"));
        }
        Op::AllGatherEqual => with_dim(&inputs[0], 0, total(name, inputs, 0)?),
        Op::AllGather { dim } | Op::Gather { dim, .. } => {
            with_dim(&inputs[0], dim, total(name, inputs, dim)?)
        }
        Op::ReduceScatter { dim, .. } => with_dim(&inputs[0], dim, sizes.range(rank).1),
        Op::Scatter { dim, root } => with_dim(&inputs[root], dim, sizes.range(rank).1),
        Op::AllToAll { from, to } => {
            let whole = with_dim(&inputs[0], from, total(name, inputs, from)?);
            if to >= whole.len() {
                return Err(Error::invalid(
                    name,
                    format!("dimension {to} of shards with shape {:?}", inputs[0]),
                ));
            }
            with_dim(&whole, to, sizes.range(rank).1)
        }
        Op::AllToAllRows => {
            let Sizes::Rows(rows) = sizes else { return Ok(None) };
            let come = rows.iter().try_fold(0usize, |sum, sent| sum.checked_add(sent[rank]));
            let too_large = || Error::invalid(name, "too many rows come together");
            with_dim(&inputs[rank], 0, come.ok_or_else(too_large)?)
        }
    }))
}

/// All of a tensor but for one dimension, of which a range.
fn slab(op: &'static str, shape: &[usize], dim: usize, start: usize, len: usize) -> Result<Tile> {
    let mut offsets = vec![0; shape.len()];
    if let Some(offset) = offsets.get_mut(dim) {
        *offset = start;
    }
    Tile::new(op, shape, &offsets, &with_dim(shape, dim, len))
}

fn moves(op: Op, inputs: &[Vec<usize>], sizes: &Sizes, rank: usize, result: &[usize]) -> Result<Vec<Move>> {
    let name = op.name();
    // Shards that lie one after the other along a dimension of the result.
    let in_a_row = |dim: usize, from: &dyn Fn(usize) -> Result<Tile>| -> Result<Vec<Move>> {
        let mut start = 0;
        let mut all = Vec::with_capacity(inputs.len());
        for rank in 0..inputs.len() {
            let from = from(rank)?;
            let len = from.shape().get(dim).copied().unwrap_or(1);
            all.push(Move { rank, to: slab(name, result, dim, start, len)?, from });
            start += len;
        }
        Ok(all)
    };
    match op {
        Op::AllGather { dim } | Op::Gather { dim, .. } => {
            in_a_row(dim, &|rank| Tile::whole(name, &inputs[rank]))
        }
        Op::AllGatherEqual => in_a_row(0, &|rank| Tile::whole(name, &inputs[rank])),
        Op::Broadcast { root } => {
            let whole = Tile::whole(name, result)?;
            Ok(vec![Move { rank: root, from: whole, to: whole }])
        }
        Op::Scatter { dim, root } => {
            let (start, len) = sizes.range(rank);
            let from = slab(name, &inputs[root], dim, start, len)?;
            Ok(vec![Move { rank: root, from, to: Tile::whole(name, result)? }])
        }
        Op::AllToAll { from, to } if from == to => rebalance(name, inputs, sizes.range(rank), from, result),
        Op::AllToAll { from, to } => {
            let (start, len) = sizes.range(rank);
            in_a_row(from, &|peer| slab(name, &inputs[peer], to, start, len))
        }
        Op::AllToAllRows => {
            let Sizes::Rows(rows) = sizes else { return Ok(vec![]) };
            in_a_row(0, &|peer| {
                let start = rows[peer][..rank].iter().sum();
                slab(name, &inputs[peer], 0, start, rows[peer][rank])
            })
        }
        Op::Barrier | Op::AllReduce(_) | Op::Reduce { .. } | Op::AllGatherVec | Op::ReduceScatter { .. } => {
            Ok(vec![])
        }
    }
}

/// From shards of some sizes to shards of others along the same dimension: what the two have in common.
fn rebalance(
    op: &'static str,
    inputs: &[Vec<usize>],
    (start, len): (usize, usize),
    dim: usize,
    result: &[usize],
) -> Result<Vec<Move>> {
    let mut all = Vec::new();
    let mut at = 0;
    for (rank, shape) in inputs.iter().enumerate() {
        let (first, last) = (at.max(start), (at + shape[dim]).min(start + len));
        if first < last {
            let from = slab(op, shape, dim, first - at, last - first)?;
            let to = slab(op, result, dim, first - start, last - first)?;
            all.push(Move { rank, from, to });
        }
        at += shape[dim];
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
