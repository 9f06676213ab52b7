//! What a collective costs a rank.

use comm_store::window::{self, Cost};

use crate::agreement::CARRIED;

/// The collectives, for [`cost`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`ThreadGroup::barrier`](crate::ThreadGroup::barrier).
    Barrier,
    /// [`ThreadGroup::all_reduce`](crate::ThreadGroup::all_reduce).
    AllReduce,
    /// [`ThreadGroup::reduce`](crate::ThreadGroup::reduce).
    Reduce,
    /// [`ThreadGroup::reduce_scatter`](crate::ThreadGroup::reduce_scatter) into shards of one size.
    ReduceScatter,
    /// [`ThreadGroup::all_gather`](crate::ThreadGroup::all_gather) of shards of one size, however they are put together.
    AllGather,
    /// [`ThreadGroup::gather`](crate::ThreadGroup::gather) of shards of one size.
    Gather,
    /// [`ThreadGroup::broadcast`](crate::ThreadGroup::broadcast).
    Broadcast,
    /// [`ThreadGroup::scatter`](crate::ThreadGroup::scatter) of shards of one size.
    Scatter,
    /// [`ThreadGroup::all_to_all`](crate::ThreadGroup::all_to_all) of shards of one size, and
    /// [`all_to_all_rows`](crate::ThreadGroup::all_to_all_rows) of as many rows to each rank.
    AllToAll,
    /// [`ThreadGroup::replicate_to_shard`](crate::ThreadGroup::replicate_to_shard).
    ReplicateToShard,
}

/// What a collective costs each of so many ranks, on the same device, whose large buffer has `bytes` bytes: what comes of a
/// gather, what is cut into shards, either side of a reduction, a broadcast or an all-to-all. With a root the bytes are those of the
/// busiest rank. Exact if the ranks divide the elements, else an upper bound. Messages are not among them: a
/// [`send`](crate::ThreadGroup::send) has no rounds.
///
/// With N bytes and P ranks, and n the bytes that a rank contributes, up to 512 or more:
///
/// | operation | n up to 512: rounds | bytes copied to others | n larger: rounds | bytes copied from others |
/// |---|---|---|---|---|
/// | barrier | 1 | 0 | | |
/// | all-reduce | 1 | (P-1)·N | 3 | 2·(P-1)/P·N |
/// | reduce | 1 | N, not the root | 3 | 2·(P-1)/P·N, the root |
/// | reduce-scatter | 1 | (P-1)·N | 2 | (P-1)/P·N |
/// | all-gather | 1 | (P-1)/P·N | 2 | (P-1)/P·N |
/// | gather | 1 | N/P, not the root | 2 | (P-1)/P·N, the root |
/// | broadcast | 1 | (P-1)·N, the root | 2 | N, not the root |
/// | scatter | 1 | (P-1)·N, the root | 2 | N/P, not the root |
/// | all-to-all | 1 | (P-1)·N | 2 | (P-1)/P·N |
/// | replicate-to-shard | 0 | 0 | 0 | 0 |
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
    let (share, others) = (bytes.div_ceil(p), p - 1);
    // What one rank is counted for that another one causes.
    let of_another = |bytes: u64| if others > 0 { bytes } else { 0 };
    let contributed = match op {
        Operation::AllGather | Operation::Gather => share,
        _ => bytes,
    };
    let is_small = contributed <= CARRIED as u64;
    let (rounds, bytes) = match op {
        Operation::Barrier => (1, 0),
        Operation::ReplicateToShard => (0, 0),
        Operation::Reduce | Operation::Gather if is_small => (1, of_another(contributed)),
        _ if is_small => (1, others.saturating_mul(contributed)),
        Operation::AllReduce | Operation::Reduce => (3, others.saturating_mul(share).saturating_mul(2)),
        Operation::ReduceScatter | Operation::AllGather | Operation::Gather | Operation::AllToAll => {
            (2, others.saturating_mul(share))
        }
        Operation::Broadcast => (2, of_another(bytes)),
        Operation::Scatter => (2, of_another(share)),
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
            let ops = [
                Operation::AllReduce,
                Operation::Reduce,
                Operation::ReduceScatter,
                Operation::AllGather,
                Operation::Gather,
                Operation::Broadcast,
                Operation::Scatter,
                Operation::AllToAll,
            ];
            for op in ops {
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
        for op in [Operation::AllReduce, Operation::Broadcast, Operation::Scatter, Operation::Gather] {
            for bytes in [100, 1 << 20] {
                assert_eq!(cost(op, 1, bytes).bytes, 0, "alone there is nobody to copy from");
            }
        }
        assert_eq!(cost(Operation::ReplicateToShard, 5, 1 << 20), Cost::default());
    }
}
