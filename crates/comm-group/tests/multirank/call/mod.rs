//! Every operation as a value: how to call it in each way, and what every rank must get.

use comm_core::tensor::DType;
use comm_group::ReduceOp;
use comm_testkit::oracle::collective::{all_to_all, cut, rows};
use comm_testkit::oracle::reduce::{Reduction, reduce};
use comm_testkit::oracle::{Dense, shard_range, shard_sizes, sub_split};

use crate::support::Any;

mod check;
mod forms;

pub use check::{Expected, WAYS, Way, apart, check_in_place, check_way, check_ways, poisoned, positions};

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
    /// Along a dimension, with a sub-split or without.
    Shard(usize, Option<usize>),
    /// From a rank to a rank.
    Send(usize, usize),
    /// To the next rank, and from the one before.
    Exchange,
}

use Call::*;

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
            Shard(..) => "replicate_to_shard",
            Send(..) => "send",
            Exchange => "exchange",
        }
    }

    /// Whether a rank brings a tensor.
    pub fn takes_input(&self, rank: usize) -> bool {
        match self {
            Barrier => false,
            Broadcast(root) | Scatter(_, root, _) | Send(root, _) => rank == *root,
            _ => true,
        }
    }

    /// What every rank must get of the inputs of all: nothing, a tensor, or the tensors of all.
    pub fn expected(&self, inputs: &[Bytes], dtype: DType) -> Any<Vec<Vec<Bytes>>> {
        self.expected_by(inputs, |(_, op)| {
            let ranks: Vec<Vec<u8>> = inputs.iter().map(|input| input.data.concat()).collect();
            let bytes = reduce(op, dtype, &ranks).ok_or("there is no such operator")?;
            Ok(dense(&inputs[0].shape, &bytes, dtype.size()))
        })
    }

    /// The same of elements of any kind, with what an operator makes of those of all ranks.
    pub fn expected_by<T: Clone>(
        &self,
        inputs: &[Dense<T>],
        combined: impl Fn(Operator) -> Any<Dense<T>>,
    ) -> Any<Vec<Vec<Dense<T>>>> {
        let n = inputs.len();
        let all = |one: Dense<T>| vec![vec![one]; n];
        let each = |parts: Vec<Dense<T>>| parts.into_iter().map(|part| vec![part]).collect();
        let at = |root: usize, one: Dense<T>| {
            (0..n).map(|r| if r == root { vec![one.clone()] } else { vec![] }).collect()
        };
        let size = |of: &Dense<T>, dim: usize| of.shape.get(dim).copied().unwrap_or(0);
        let sizes_of = |sizes: &Sizes, of: &Dense<T>, dim: usize| {
            sizes.clone().unwrap_or_else(|| shard_sizes(size(of, dim), n))
        };
        let whole = |dim: usize| Dense::concat(inputs, dim).ok_or("the shards do not fit together");
        const FITS: &str = "sizes that fit";
        Ok(match self {
            Barrier => vec![vec![]; n],
            AllReduce(op) => all(combined(*op)?),
            Reduce(op, root) => at(*root, combined(*op)?),
            ReduceScatter(op, dim, sizes) => {
                let sizes = sizes_of(sizes, &inputs[0], *dim);
                each(cut(&combined(*op)?, *dim, &sizes).ok_or(FITS)?)
            }
            AllGather(dim) => all(whole(*dim)?),
            AllGatherEqual => all(whole(0)?),
            AllGatherVec => vec![inputs.to_vec(); n],
            Gather(dim, root) => at(*root, whole(*dim)?),
            Broadcast(root) => all(inputs[*root].clone()),
            Scatter(dim, root, sizes) => {
                let sizes = sizes_of(sizes, &inputs[*root], *dim);
                each(cut(&inputs[*root], *dim, &sizes).ok_or(FITS)?)
            }
            AllToAll(from, to, sizes) => {
                let sizes = sizes_of(sizes, &whole(*from)?, *to);
                each(all_to_all(inputs, *from, *to, &sizes).ok_or(FITS)?)
            }
            Rows(send) => each(rows(inputs, send).ok_or(FITS)?),
            RowsOf(..) => return Err("what others do says what is to come".into()),
            Shard(dim, None) => {
                let mine = |(rank, whole): (usize, &Dense<T>)| {
                    whole.narrow(*dim, shard_range(size(whole, *dim), n, rank))
                };
                each(inputs.iter().enumerate().map(mine).collect())
            }
            Shard(dim, Some(cut)) => {
                let ranks = sub_split(size(&inputs[0], *dim), n, *cut).ok_or("a cut inside")?;
                each(inputs.iter().zip(&ranks).map(|(whole, rank)| whole.select(*dim, rank)).collect())
            }
            Send(from, to) => at(*to, inputs[*from].clone()),
            Exchange => each((0..n).map(|rank| inputs[(rank + n - 1) % n].clone()).collect()),
        })
    }
}

/// What a rank sends, and what it awaits.
pub fn rows_of(send: &[Vec<usize>], rank: usize) -> (Vec<usize>, Vec<usize>) {
    (send[rank].clone(), send.iter().map(|row| row[rank]).collect())
}
