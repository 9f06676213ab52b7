//! What a rank asks a group for.

use comm_core::Error;
use comm_core::tensor::Tensor;

use crate::agreement::Likeness;
use crate::reduce::ReduceOp;

/// An operation, as far as ranks must agree about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Barrier,
    AllReduce(ReduceOp),
    Reduce {
        op: ReduceOp,
        root: usize,
    },
    Broadcast {
        root: usize,
    },
    AllGather {
        dim: usize,
    },
    /// Of equal shapes: along the first dimension.
    AllGatherEqual,
    /// Of any shapes: kept apart.
    AllGatherVec,
    ReduceScatter {
        op: ReduceOp,
        dim: usize,
    },
    /// From shards along the first dimension given to shards along the second.
    AllToAll {
        from: usize,
        to: usize,
    },
    /// Rows to each rank, as many as the sizes say.
    AllToAllRows,
    Gather {
        dim: usize,
        root: usize,
    },
    Scatter {
        dim: usize,
        root: usize,
    },
}

/// One of each, for what depends on the kind alone.
const KINDS: [Op; 12] = [
    Op::Barrier,
    Op::AllReduce(ReduceOp::Sum),
    Op::Reduce { op: ReduceOp::Sum, root: 0 },
    Op::Broadcast { root: 0 },
    Op::AllGather { dim: 0 },
    Op::AllGatherEqual,
    Op::AllGatherVec,
    Op::ReduceScatter { op: ReduceOp::Sum, dim: 0 },
    Op::AllToAll { from: 0, to: 0 },
    Op::AllToAllRows,
    Op::Gather { dim: 0, root: 0 },
    Op::Scatter { dim: 0, root: 0 },
];

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Barrier => "barrier",
            Op::AllReduce(_) => "all_reduce",
            Op::Reduce { .. } => "reduce",
            Op::Broadcast { .. } => "broadcast",
            Op::AllGather { .. } => "all_gather",
            Op::AllGatherEqual => "all_gather_equal",
            Op::AllGatherVec => "all_gather_into_vec",
            Op::ReduceScatter { .. } => "reduce_scatter",
            Op::AllToAll { .. } => "all_to_all",
            Op::AllToAllRows => "all_to_all_rows",
            Op::Gather { .. } => "gather",
            Op::Scatter { .. } => "scatter",
        }
    }

    pub(crate) fn code(self) -> u32 {
        match self {
            Op::Barrier => 1,
            Op::AllReduce(_) => 2,
            Op::AllGather { .. } => 3,
            Op::Reduce { .. } => 4,
            Op::Broadcast { .. } => 5,
            Op::AllGatherEqual => 6,
            Op::AllGatherVec => 7,
            Op::ReduceScatter { .. } => 8,
            Op::AllToAll { .. } => 9,
            Op::AllToAllRows => 10,
            Op::Gather { .. } => 11,
            Op::Scatter { .. } => 12,
        }
    }

    pub(crate) fn name_of(code: u32) -> String {
        let kind = KINDS.into_iter().find(|op| op.code() == code);
        kind.map_or_else(|| format!("operation {code}"), |op| op.name().to_string())
    }

    /// The dimensions that it is about.
    pub(crate) fn dims(self) -> (usize, usize) {
        match self {
            Op::AllGather { dim }
            | Op::ReduceScatter { dim, .. }
            | Op::Gather { dim, .. }
            | Op::Scatter { dim, .. } => (dim, 0),
            Op::AllToAll { from, to } => (from, to),
            _ => (0, 0),
        }
    }

    pub(crate) fn root(self) -> Option<usize> {
        match self {
            Op::Reduce { root, .. }
            | Op::Broadcast { root }
            | Op::Gather { root, .. }
            | Op::Scatter { root, .. } => Some(root),
            _ => None,
        }
    }

    pub(crate) fn reduce(self) -> Option<ReduceOp> {
        match self {
            Op::AllReduce(op) | Op::Reduce { op, .. } | Op::ReduceScatter { op, .. } => Some(op),
            _ => None,
        }
    }

    /// What the tensors of an operation with this code must have in common; none if there are no tensors.
    pub(crate) fn likeness(code: u32, dim: usize) -> Option<Likeness> {
        Some(match KINDS.into_iter().find(|op| op.code() == code)? {
            Op::Barrier => return None,
            Op::Broadcast { .. } | Op::Scatter { .. } => Likeness::Root,
            Op::AllGatherVec => Likeness::DType,
            Op::AllGather { .. } | Op::Gather { .. } | Op::AllToAll { .. } => Likeness::But(dim),
            Op::AllToAllRows => Likeness::But(0),
            Op::AllReduce(_) | Op::Reduce { .. } | Op::ReduceScatter { .. } | Op::AllGatherEqual => {
                Likeness::Whole
            }
        })
    }

    /// Whether a rank brings a tensor.
    pub(crate) fn takes_input(self, rank: usize) -> bool {
        match self {
            Op::Barrier => false,
            Op::Broadcast { root } | Op::Scatter { root, .. } => rank == root,
            _ => true,
        }
    }

    /// Whether a rank gets a result.
    pub(crate) fn gives_result(self, rank: usize) -> bool {
        match self {
            Op::Barrier => false,
            Op::Reduce { root, .. } | Op::Gather { root, .. } => rank == root,
            _ => true,
        }
    }
}

/// An operation with what a rank brings to it. Inputs are handles: to keep a request costs nothing.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) input: Option<Tensor>,
    /// Sizes, in elements along a dimension, that the ranks must agree about: of the shards that come out, or of the rows
    /// that are sent to each rank and then of those that come from each. None: the rule says them.
    pub(crate) sizes: Option<Vec<u64>>,
    /// Why this rank cannot do it, if that is known before: the others are told so.
    pub(crate) wrong: Option<Error>,
}

impl Request {
    pub(crate) fn new(op: Op, input: Option<&Tensor>) -> Request {
        Request { op, input: input.cloned(), sizes: None, wrong: None }
    }

    pub(crate) fn with_sizes(self, sizes: impl IntoIterator<Item = usize>) -> Request {
        Request { sizes: Some(sizes.into_iter().map(|n| n as u64).collect()), ..self }
    }

    pub(crate) fn sizes(&self) -> &[u64] {
        self.sizes.as_deref().unwrap_or_default()
    }
}
