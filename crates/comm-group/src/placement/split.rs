//! How a placement shares out the elements of one tensor dimension, by position.
//!
//! What ranks hold along a tensor dimension depends only on the mesh dimensions that split it, one after the other. The
//! lengths of the pieces that a split may make are few, however many ranks there are, so limits and costs are
//! computed from them and not rank by rank.

use std::borrow::Borrow;
use std::ops::Range;

use super::kind::Placement;
use super::mesh::DeviceMesh;
use crate::shard::{front_and_back, shard_range};

/// Positions among `n` elements: a run, and for a sub-split a second one behind it. Either may be empty.
pub(super) type Piece = [Range<usize>; 2];

/// The positions that rank `index` of a line of `ranks` holds of `n` elements.
pub(super) fn piece(placement: &Placement, n: usize, ranks: usize, index: usize) -> Piece {
    match placement {
        Placement::Replicate | Placement::Partial(_) => [0..n, n..n],
        Placement::Shard(_) => {
            let (start, len) = shard_range(n, ranks, index);
            [start..start + len, n..n]
        }
        Placement::SubSplit { cut, .. } => front_and_back(n, *cut, ranks, index),
        Placement::Uneven { sizes, .. } => {
            let start = sizes.iter().take(index).sum();
            [start..start + sizes[index], n..n]
        }
    }
}

/// How many elements that is.
pub(super) fn piece_len(placement: &Placement, n: usize, ranks: usize, index: usize) -> usize {
    match placement {
        // Without the sum over those before it.
        Placement::Uneven { sizes, .. } => sizes[index],
        _ => piece(placement, n, ranks, index).iter().map(Range::len).sum(),
    }
}

/// Pieces with the same elements in the same order are the same, however they are cut.
pub(super) fn is_same_split(a: &Placement, b: &Placement, n: usize, ranks: usize) -> bool {
    let joined = |[front, back]: Piece| match (front.is_empty(), back.is_empty()) {
        (true, true) => [0..0, 0..0],
        (true, false) => [back, 0..0],
        (false, true) => [front, 0..0],
        (false, false) if front.end == back.start => [front.start..back.end, 0..0],
        (false, false) => [front, back],
    };
    (0..ranks).all(|index| joined(piece(a, n, ranks, index)) == joined(piece(b, n, ranks, index)))
}

/// Ranks of a line, such that any other holds as many elements as the last of these before it.
pub(super) fn heads(placement: &Placement, n: usize, ranks: usize) -> Vec<usize> {
    let mut heads = vec![0];
    match placement {
        Placement::Replicate | Placement::Partial(_) => {}
        Placement::Shard(_) => heads.push(n % ranks),
        Placement::SubSplit { cut, .. } => {
            let front = n.min(cut + 1);
            heads.extend([front % ranks, (n - front) % ranks]);
        }
        Placement::Uneven { .. } => heads.extend(0..ranks),
    }
    heads
}

/// The different lengths that pieces of a tensor dimension have when the mesh dimensions before `before` have split it,
/// ascending; each is that of some rank. Or why one of the splits is impossible.
pub(super) fn lengths<P: Borrow<Placement>>(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[P],
    dim: usize,
    before: usize,
) -> Result<Vec<usize>, String> {
    let mut lengths = vec![shape[dim]];
    for (at, placement) in placements.iter().map(P::borrow).enumerate().take(before) {
        if placement.sharded_dim() != Some(dim) {
            continue;
        }
        let ranks = mesh.shape()[at];
        let mut pieces = Vec::new();
        for &n in &lengths {
            is_possible(placement, n, ranks)
                .map_err(|why| format!("{placement} on mesh dimension {at}: {why}"))?;
            let heads = heads(placement, n, ranks);
            pieces.extend(heads.into_iter().map(|index| piece_len(placement, n, ranks, index)));
        }
        pieces.sort_unstable();
        pieces.dedup();
        lengths = pieces;
    }
    Ok(lengths)
}

fn is_possible(placement: &Placement, n: usize, ranks: usize) -> Result<(), String> {
    match placement {
        Placement::SubSplit { .. } if n == 0 => Err("there is nothing to cut".into()),
        Placement::SubSplit { cut, .. } if *cut == 0 || *cut >= n => {
            Err(format!("the cut lies inside the piece that it cuts: 0 < cut < {n}"))
        }
        Placement::Uneven { sizes, .. } if sizes.len() != ranks => {
            Err(format!("{} sizes for {ranks} ranks", sizes.len()))
        }
        Placement::Uneven { sizes, .. } => {
            match sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) {
                Some(sum) if sum == n => Ok(()),
                Some(sum) => Err(format!("the sizes sum to {sum}, and there are {n} elements")),
                None => Err(format!("the sizes sum to more than {n} elements")),
            }
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Placement::{Shard, SubSplit, Uneven};

    #[test]
    fn heads_stand_for_all_ranks() {
        for n in 0..30 {
            for ranks in 1..8 {
                let mut placements = vec![Placement::Replicate, Shard(0)];
                placements.extend((1..n).map(|cut| SubSplit { dim: 0, cut }));
                for placement in placements {
                    let heads = heads(&placement, n, ranks);
                    for index in 0..ranks {
                        let head = heads.iter().copied().filter(|&head| head <= index).max().unwrap();
                        let len = |index| piece_len(&placement, n, ranks, index);
                        assert_eq!(len(index), len(head), "{placement} of {n}, rank {index} of {ranks}");
                    }
                    assert!(heads.iter().all(|&head| head < ranks));
                }
            }
        }
    }

    #[test]
    fn the_same_split_may_have_two_names() {
        let uneven = |sizes: &[usize]| Uneven { dim: 0, sizes: sizes.to_vec() };
        assert!(is_same_split(&Shard(0), &uneven(&[2, 2, 1]), 5, 3));
        assert!(!is_same_split(&Shard(0), &uneven(&[2, 1, 2]), 5, 3));
        assert!(!is_same_split(&Shard(0), &SubSplit { dim: 0, cut: 3 }, 8, 2));
        assert!(is_same_split(&Shard(0), &SubSplit { dim: 0, cut: 1 }, 2, 2), "the back is empty");
        assert!(is_same_split(&Placement::Replicate, &SubSplit { dim: 0, cut: 3 }, 8, 1));
    }
}
