//! What a collective costs a rank.

use comm_store::window::{self, Cost};

use crate::same_device::CARRIED;

/// The collectives, for [`cost`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`ThreadGroup::barrier`](crate::ThreadGroup::barrier).
    Barrier,
    /// [`ThreadGroup::all_reduce`](crate::ThreadGroup::all_reduce).
    AllReduce,
    /// [`ThreadGroup::all_gather`](crate::ThreadGroup::all_gather) of shards of one size.
    AllGather,
    /// [`ThreadGroup::replicate_to_shard`](crate::ThreadGroup::replicate_to_shard).
    ReplicateToShard,
}

/// What an operation costs each of so many ranks, on the same device, whose large buffer has `bytes` bytes: the result of
/// an all-gather, the input of a shard, either of a reduction. Exact if the ranks divide the elements, else an upper bound.
///
/// With N bytes and P ranks, and n the bytes that a rank contributes:
///
/// | operation | rounds | bytes copied from or to others |
/// |---|---|---|
/// | barrier | 1 | 0 |
/// | all-reduce, n up to 512 | 1 | (P-1)·N |
/// | all-reduce | 3 | 2·(P-1)/P·N |
/// | all-gather, n up to 512 | 1 | (P-1)/P·N |
/// | all-gather | 2 | (P-1)/P·N |
/// | replicate-to-shard | 0 | 0 |
///
/// A round is a notify to and a wait for each of the P-1 others: nothing that needs all ranks is cheaper than a barrier.
///
/// ```
/// use comm_group::{Operation, cost};
///
/// let [barrier, sum] = [cost(Operation::Barrier, 4, 0), cost(Operation::AllReduce, 4, 1 << 20)];
/// assert_eq!((barrier.notifies, barrier.waits, barrier.rounds, barrier.bytes), (3, 3, 1, 0));
/// assert_eq!((sum.rounds, sum.bytes), (3, 2 * 3 * (1 << 20) / 4));
/// ```
#[doc(alias = "cost card")]
pub fn cost(op: Operation, ranks: usize, bytes: u64) -> Cost {
    let p = (ranks as u64).max(1);
    let share = bytes.div_ceil(p);
    let is_small = |contributed: u64| contributed <= CARRIED as u64;
    let (rounds, bytes) = match op {
        Operation::Barrier => (1, 0),
        Operation::AllReduce if is_small(bytes) => (1, (p - 1).saturating_mul(bytes)),
        Operation::AllReduce => (3, (p - 1).saturating_mul(share).saturating_mul(2)),
        Operation::AllGather => (if is_small(share) { 1 } else { 2 }, (p - 1).saturating_mul(share)),
        Operation::ReplicateToShard => (0, 0),
    };
    let round = window::cost(window::Operation::Barrier, ranks, 0);
    let rounds = (0..rounds).fold(Cost::default(), |sum, _| sum + round);
    rounds + Cost { bytes, ..Cost::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_needs_all_ranks_is_cheaper_than_a_barrier() {
        for ranks in 1..=8 {
            let floor = cost(Operation::Barrier, ranks, 0);
            for op in [Operation::AllReduce, Operation::AllGather] {
                for bytes in [0, 8, 512, 4096, 1 << 30] {
                    let cost = cost(op, ranks, bytes);
                    let dear = [
                        (cost.notifies, floor.notifies),
                        (cost.waits, floor.waits),
                        (cost.rounds, floor.rounds),
                        (cost.bytes, floor.bytes),
                    ];
                    assert!(dear.iter().all(|(a, b)| a >= b), "{op:?} of {bytes} by {ranks}: {cost}");
                }
            }
        }
        assert_eq!(cost(Operation::AllReduce, 1, 1 << 20).bytes, 0, "alone there is nobody to copy from");
        assert_eq!(cost(Operation::ReplicateToShard, 5, 1 << 20), Cost::default());
    }
}
