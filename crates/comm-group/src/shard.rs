//! Which part of a tensor a rank holds.

use std::ops::Range;

use comm_core::tensor::Tensor;
use comm_core::{Error, Result};

/// Sizes, in elements, of the shards of a dimension of size `n` on `world` ranks: `n / world` each, the first `n % world` one more.
/// With fewer elements than ranks, the last shards are empty.
///
/// ```
/// assert_eq!(comm_group::shard_sizes(11, 4), [3, 3, 3, 2]);
/// assert_eq!(comm_group::shard_sizes(2, 3), [1, 1, 0]);
/// ```
pub fn shard_sizes(n: usize, world: usize) -> Vec<usize> {
    (0..world).map(|rank| n / world + usize::from(rank < n % world)).collect()
}

/// Where the shard of a rank begins, and how long it is.
pub(crate) fn shard_range(n: usize, world: usize, rank: usize) -> (usize, usize) {
    let (each, more) = (n / world, n % world);
    (each * rank + more.min(rank), each + usize::from(rank < more))
}

/// The shard of a replicated tensor that belongs to `rank` of `world`, along dimension `dim`. Nothing is communicated.
///
/// With `sub_split = Some(c)` the dimension is cut behind index `c`, both halves are split over the ranks, and a rank
/// gets its part of the front followed by its part of the back (which balances causal attention over a context). A
/// plain shard is a view of the tensor; a sub-split one is a copy.
///
/// # Errors
/// [`Error::InvalidArgument`] if there is no such rank or dimension, or unless `0 < c < size of the dimension`.
///
/// ```
/// use comm_core::tensor::Tensor;
/// use comm_group::replicate_to_shard;
///
/// let t = Tensor::from_slice(&[8], &[0, 1, 2, 3, 4, 5, 6, 7])?;
/// assert_eq!(replicate_to_shard(&t, 0, None, 1, 2)?.to_vec::<i32>()?, [4, 5, 6, 7]);
/// assert_eq!(replicate_to_shard(&t, 0, Some(3), 1, 2)?.to_vec::<i32>()?, [2, 3, 6, 7]);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[doc(alias = "ReplicateToShard")]
#[doc(alias = "subSplitCoordinates")]
pub fn replicate_to_shard(
    tensor: &Tensor,
    dim: usize,
    sub_split: Option<usize>,
    rank: usize,
    world: usize,
) -> Result<Tensor> {
    const OP: &str = "replicate_to_shard";
    let Some(&n) = tensor.shape().get(dim) else {
        return Err(Error::invalid(
            OP,
            format!("dimension {dim} of a tensor with shape {:?}", tensor.shape()),
        ));
    };
    if rank >= world {
        return Err(Error::invalid(OP, format!("rank {rank} of {world}")));
    }
    let Some(cut) = sub_split else {
        let (start, len) = shard_range(n, world, rank);
        return Ok(tensor.narrow(dim, start, len)?);
    };
    if cut == 0 || cut >= n {
        return Err(Error::invalid(
            OP,
            format!("sub-split at {cut} of a dimension of size {n}: it lies inside"),
        ));
    }
    let [front, back] = front_and_back(n, cut, world, rank);
    let parts = [tensor.narrow(dim, front.start, front.len())?, tensor.narrow(dim, back.start, back.len())?];
    Ok(Tensor::concat(&parts, dim)?)
}

/// What a rank gets of `n` elements that are cut behind index `cut`: its shard of the front, and that of the back.
pub(crate) fn front_and_back(n: usize, cut: usize, world: usize, rank: usize) -> [Range<usize>; 2] {
    let front = n.min(cut.saturating_add(1));
    [(0, front), (front, n - front)].map(|(from, n)| {
        let (start, len) = shard_range(n, world, rank);
        from + start..from + start + len
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(n: i32, world: usize, sub_split: Option<usize>, rank: usize) -> Result<Vec<i32>> {
        let t = Tensor::from_slice(&[n as usize], &(0..n).collect::<Vec<_>>())?;
        Ok(replicate_to_shard(&t, 0, sub_split, rank, world)?.to_vec()?)
    }

    #[test]
    fn the_first_ranks_get_one_more() {
        assert_eq!(shard_sizes(11, 4), [3, 3, 3, 2]);
        assert_eq!(shard_sizes(5, 2), [3, 2]);
        assert_eq!(shard_sizes(9, 2), [5, 4]);
        assert_eq!(shard_sizes(7, 3), [3, 2, 2]);
        assert_eq!(shard_sizes(1, 3), [1, 0, 0]);
        assert_eq!(shard_sizes(0, 2), [0, 0]);
    }

    #[test]
    fn ranges_are_the_sizes_one_after_the_other() {
        for n in 0..40 {
            for world in 1..9 {
                let mut at = 0;
                for (rank, size) in shard_sizes(n, world).into_iter().enumerate() {
                    assert_eq!(shard_range(n, world, rank), (at, size));
                    at += size;
                }
                assert_eq!(at, n);
            }
        }
    }

    #[test]
    fn a_sub_split_gives_a_piece_of_both_halves() {
        assert_eq!(shard(8, 2, Some(3), 0).unwrap(), [0, 1, 4, 5]);
        assert_eq!(shard(8, 2, Some(3), 1).unwrap(), [2, 3, 6, 7]);
        assert_eq!(shard(9, 2, Some(4), 0).unwrap(), [0, 1, 2, 5, 6]);
        assert_eq!(shard(9, 2, Some(4), 1).unwrap(), [3, 4, 7, 8]);
        assert_eq!(shard(10, 3, Some(5), 0).unwrap(), [0, 1, 6, 7]);
        assert_eq!(shard(10, 3, Some(5), 1).unwrap(), [2, 3, 8]);
        assert_eq!(shard(10, 3, Some(5), 2).unwrap(), [4, 5, 9]);
        assert_eq!(shard(4, 2, Some(3), 1).unwrap(), [2, 3], "the back may be empty");
    }

    #[test]
    fn a_sub_split_outside_is_refused() {
        for cut in [0, 8, 9, usize::MAX] {
            assert!(matches!(shard(8, 2, Some(cut), 0), Err(Error::InvalidArgument { .. })), "{cut}");
        }
        let scalar = Tensor::from_slice(&[], &[1f32]).unwrap();
        assert!(replicate_to_shard(&scalar, 0, None, 0, 1).is_err(), "a scalar has no dimension");
    }
}
