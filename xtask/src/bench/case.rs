//! What is run: an operation on so many elements, and what every rank brings to it and must get from it.

use std::ops::Range;

use clap::ValueEnum;
use comm_core::tensor::DType;
use comm_group::ReduceOp;
use comm_testkit::oracle::reduce::Reduction;
use serde::{Deserialize, Serialize};

/// The operations, by the names that nccl-tests has for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    AllReduce,
    AllGather,
    ReduceScatter,
    Alltoall,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    Sendrecv,
    Barrier,
}

impl Op {
    /// All of them, in the order in which they run.
    pub const ALL: [Op; 10] = [
        Op::AllReduce,
        Op::AllGather,
        Op::ReduceScatter,
        Op::Alltoall,
        Op::Broadcast,
        Op::Reduce,
        Op::Gather,
        Op::Scatter,
        Op::Sendrecv,
        Op::Barrier,
    ];

    /// The name on the command line and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Op::AllReduce => "all_reduce",
            Op::AllGather => "all_gather",
            Op::ReduceScatter => "reduce_scatter",
            Op::Alltoall => "alltoall",
            Op::Broadcast => "broadcast",
            Op::Reduce => "reduce",
            Op::Gather => "gather",
            Op::Scatter => "scatter",
            Op::Sendrecv => "sendrecv",
            Op::Barrier => "barrier",
        }
    }

    /// Whether it combines what the ranks bring.
    pub fn reduces(self) -> bool {
        matches!(self, Op::AllReduce | Op::ReduceScatter | Op::Reduce)
    }

    /// Whether one rank is special.
    pub fn has_root(self) -> bool {
        matches!(self, Op::Broadcast | Op::Reduce | Op::Gather | Op::Scatter)
    }

    /// Whether each rank has its share of the large buffer.
    fn shares(self) -> bool {
        matches!(self, Op::AllGather | Op::ReduceScatter | Op::Alltoall | Op::Gather | Op::Scatter)
    }

    /// What makes of bytes per time the speed that each link would need: the factors of nccl-tests.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let share = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            Op::AllReduce => 2.0 * share,
            Op::AllGather | Op::ReduceScatter | Op::Alltoall | Op::Gather | Op::Scatter => share,
            Op::Broadcast | Op::Reduce | Op::Sendrecv | Op::Barrier => 1.0,
        }
    }
}

/// The operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Redop {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
    /// A sum with a factor of 0.5
    PremulSum,
    BitAnd,
    BitOr,
    BitXor,
    And,
    Or,
}

impl Redop {
    /// The name in rows.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The library's.
    pub fn op(self) -> ReduceOp {
        match self {
            Redop::Sum => ReduceOp::Sum,
            Redop::Prod => ReduceOp::Prod,
            Redop::Min => ReduceOp::Min,
            Redop::Max => ReduceOp::Max,
            Redop::Avg => ReduceOp::Avg,
            Redop::PremulSum => ReduceOp::premul_sum(0.5),
            Redop::BitAnd => ReduceOp::BitAnd,
            Redop::BitOr => ReduceOp::BitOr,
            Redop::BitXor => ReduceOp::BitXor,
            Redop::And => ReduceOp::And,
            Redop::Or => ReduceOp::Or,
        }
    }

    /// The oracle's.
    pub fn reduction(self) -> Reduction {
        match self {
            Redop::Sum => Reduction::Sum,
            Redop::Prod => Reduction::Prod,
            Redop::Min => Reduction::Min,
            Redop::Max => Reduction::Max,
            Redop::Avg => Reduction::Avg,
            Redop::PremulSum => Reduction::PremulSum(0.5),
            Redop::BitAnd => Reduction::BitAnd,
            Redop::BitOr => Reduction::BitOr,
            Redop::BitXor => Reduction::BitXor,
            Redop::And => Reduction::And,
            Redop::Or => Reduction::Or,
        }
    }
}

/// Where inputs lie, and buffers for results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// In the shared arena, where other processes read them in place
    Arena,
    /// On the heap of their process, from where they are copied first if there are others
    Heap,
}

/// How an operation is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It returns a new tensor
    Return,
    /// It fills a buffer of the caller; of all_reduce there are rows in place, too
    Into,
    /// It is started and then waited for
    Start,
}

/// What all cases of a run have in common.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Common {
    pub dtype: DType,
    pub redop: Redop,
    pub root: usize,
    pub memory: Memory,
    pub mode: Mode,
}

/// One row to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    pub op: Op,
    /// The result goes where the input is.
    pub in_place: bool,
    /// Elements of the large buffer of one rank.
    pub count: usize,
}

/// Whose elements they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A rank's input.
    Rank(usize),
    /// What comes of all inputs together.
    Reduced,
}

impl Case {
    /// Elements that a rank brings; `None` if it brings no tensor.
    pub fn input(&self, common: &Common, rank: usize, ranks: usize) -> Option<usize> {
        match self.op {
            Op::AllGather | Op::Gather => Some(self.count / ranks),
            Op::Broadcast | Op::Scatter => (rank == common.root).then_some(self.count),
            Op::Barrier => None,
            _ => Some(self.count),
        }
    }

    /// What a rank must get: ranges of inputs, or of their reduction, one after the other.
    pub fn result(&self, common: &Common, rank: usize, ranks: usize) -> Vec<(Origin, Range<usize>)> {
        let (whole, share) = (0..self.count, self.count / ranks);
        let mine = rank * share..(rank + 1) * share;
        let is_root = rank == common.root;
        let all = |range: Range<usize>| (0..ranks).map(|r| (Origin::Rank(r), range.clone())).collect();
        match self.op {
            Op::AllReduce => vec![(Origin::Reduced, whole)],
            Op::ReduceScatter => vec![(Origin::Reduced, mine)],
            Op::Reduce if is_root => vec![(Origin::Reduced, whole)],
            Op::AllGather => all(0..share),
            Op::Gather if is_root => all(0..share),
            Op::Alltoall => all(mine),
            Op::Broadcast => vec![(Origin::Rank(common.root), whole)],
            Op::Scatter => vec![(Origin::Rank(common.root), mine)],
            Op::Sendrecv => vec![(Origin::Rank((rank + ranks - 1) % ranks), whole)],
            Op::Reduce | Op::Gather | Op::Barrier => Vec::new(),
        }
    }

    /// The bytes of the large buffer of one rank.
    pub fn bytes(&self, dtype: DType) -> u64 {
        (self.count as u64).saturating_mul(dtype.size() as u64)
    }

    /// About the most bytes that all ranks together hold at one time.
    pub fn memory(&self, common: &Common, ranks: usize) -> u64 {
        let one = |rank: usize| -> u64 {
            let input = self.input(common, rank, ranks).unwrap_or(0);
            let result: usize = self.result(common, rank, ranks).iter().map(|(_, range)| range.len()).sum();
            let mut elements = (input as u64).saturating_add(result as u64);
            if common.memory == Memory::Heap || self.in_place {
                // The copy that peers can reach.
                elements = elements.saturating_add(input as u64);
            }
            if self.op.reduces() {
                elements = elements.saturating_add((self.count / ranks) as u64);
            }
            elements.saturating_mul(common.dtype.size() as u64)
        };
        let sum = (0..ranks).fold(0u64, |sum, rank| sum.saturating_add(one(rank)));
        // What the allocator keeps and what the ranks need besides.
        sum.saturating_add(sum / 8)
    }
}

/// All rows of a layout: each operation with each size.
pub fn cases(ops: &[Op], sizes: &[u64], common: &Common, ranks: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for &op in ops {
        if op == Op::Barrier {
            if common.mode != Mode::Into {
                cases.push(Case { op, in_place: false, count: 0 });
            }
            continue;
        }
        let in_place: &[bool] =
            if op == Op::AllReduce && common.mode == Mode::Into { &[false, true] } else { &[false] };
        for &in_place in in_place {
            let start = cases.len();
            for &bytes in sizes {
                let case = Case { op, in_place, count: count(op, bytes, common.dtype, ranks) };
                // Small sizes may be rounded to the same.
                if cases[start..].last() != Some(&case) {
                    cases.push(case);
                }
            }
        }
    }
    cases
}

/// As many elements as the bytes are, rounded up so that each rank gets the same.
fn count(op: Op, bytes: u64, dtype: DType, ranks: usize) -> usize {
    let elements = usize::try_from(bytes.div_ceil(dtype.size() as u64)).unwrap_or(usize::MAX);
    let unit = if op.shares() { ranks } else { 1 };
    elements.div_ceil(unit).saturating_mul(unit)
}

/// `min`, and then `factor` times as much each time, up to `max`.
pub fn sizes(min: u64, max: u64, factor: u64) -> Vec<u64> {
    std::iter::successors(Some(min), |size| size.checked_mul(factor))
        .take_while(|&size| size <= max)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON: Common =
        Common { dtype: DType::F32, redop: Redop::Sum, root: 1, memory: Memory::Arena, mode: Mode::Return };

    #[test]
    fn sizes_grow_by_the_factor() {
        assert_eq!(sizes(8, 512, 4), [8, 32, 128, 512]);
        assert_eq!(sizes(8, 511, 4), [8, 32, 128]);
        assert_eq!(sizes(1, u64::MAX, u64::MAX), [1, u64::MAX]);
    }

    #[test]
    fn counts_are_rounded_so_that_all_get_the_same_and_come_once() {
        let of = |op| -> Vec<usize> {
            cases(&[op], &[4, 8, 64, 128], &COMMON, 3).iter().map(|c| c.count).collect()
        };
        assert_eq!(of(Op::AllReduce), [1, 2, 16, 32]);
        assert_eq!(of(Op::AllGather), [3, 18, 33]);
        assert_eq!(of(Op::Barrier), [0]);
    }

    #[test]
    fn in_place_is_a_way_to_call_all_reduce() {
        let common = Common { mode: Mode::Into, ..COMMON };
        let ops = [Op::AllReduce, Op::Reduce, Op::Barrier];
        let kinds: Vec<_> =
            cases(&ops, &[8], &common, 2).iter().map(|case| (case.op, case.in_place)).collect();
        assert_eq!(kinds, [(Op::AllReduce, false), (Op::AllReduce, true), (Op::Reduce, false)]);
    }

    #[test]
    fn what_ranks_bring_is_what_others_get() {
        let case = |op| Case { op, in_place: false, count: 12 };
        let moved = [Op::AllGather, Op::Alltoall, Op::Broadcast, Op::Gather, Op::Scatter, Op::Sendrecv];
        for op in moved {
            for rank in 0..3 {
                for (origin, range) in case(op).result(&COMMON, rank, 3) {
                    let Origin::Rank(from) = origin else { panic!("{op:?} reduces nothing") };
                    assert!(case(op).input(&COMMON, from, 3).is_some_and(|n| range.end <= n), "{op:?}");
                }
            }
        }
        assert_eq!(case(Op::Scatter).result(&COMMON, 2, 3), [(Origin::Rank(1), 8..12)]);
        assert_eq!(case(Op::Reduce).result(&COMMON, 0, 3), []);
    }

    #[test]
    fn the_factors_are_those_of_nccl_tests() {
        assert_eq!(Op::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Op::Alltoall.bus_factor(4), 0.75);
        assert_eq!(Op::Sendrecv.bus_factor(4), 1.0);
    }

    #[test]
    fn memory_is_counted_for_all_ranks() {
        let case = Case { op: Op::Sendrecv, in_place: false, count: 1 << 20 };
        assert_eq!(case.memory(&COMMON, 2), 2 * 2 * (4 << 20) / 8 * 9);
        let huge = Case { op: Op::AllReduce, in_place: true, count: usize::MAX };
        assert_eq!(huge.memory(&COMMON, 64), u64::MAX);
    }
}
