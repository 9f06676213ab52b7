//! Who holds which elements, by the definition of placements: lists of indices, cut and dealt out.

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::placement::{DeviceMesh, Placement};
use comm_testkit::oracle::{Dense, indices, shard_range, sub_split};
use comm_testkit::values::SplitMix64;

/// The numbers of the elements that the rank at a coordinate holds, in its order.
pub fn held(shape: &[usize], grid: &[usize], placements: &[Placement], at: &[usize]) -> Dense<usize> {
    let mut next = 0;
    let mut held = Dense::from_fn(shape, |_| {
        next += 1;
        next - 1
    });
    for ((placement, &ranks), &index) in placements.iter().zip(grid).zip(at) {
        let Some(dim) = placement.sharded_dim() else { continue };
        let n = held.shape[dim];
        let which: Vec<usize> = match placement {
            Placement::Uneven { sizes, .. } => {
                let start: usize = sizes[..index].iter().sum();
                (start..start + sizes[index]).collect()
            }
            Placement::SubSplit { cut, .. } => {
                sub_split(n, ranks, *cut).map(|ranks| ranks[index].clone()).unwrap_or_default()
            }
            _ => shard_range(n, ranks, index).collect(),
        };
        held = held.select(dim, &which);
    }
    held
}

/// A dense tensor of elements given as their bytes.
pub fn tensor(shape: &[usize], dtype: DType, elements: &[Vec<u8>]) -> Result<Tensor, Error> {
    let mut buf = TensorBuf::zeros(shape, dtype)?;
    buf.bytes_mut()?.copy_from_slice(&elements.concat());
    Ok(buf.freeze())
}

/// A mesh of some of the ranks `0..world`, in any order, whose ids are not their numbers; and its shape.
pub fn random_mesh(rng: &mut SplitMix64, world: usize) -> Result<DeviceMesh, Error> {
    let grid = loop {
        let grid: Vec<usize> = (0..1 + rng.below(3)).map(|_| 1 + rng.below(world as u64) as usize).collect();
        let size: usize = grid.iter().product();
        // Mostly of all ranks.
        if size == world || (size < world && rng.below(8) == 0) {
            break grid;
        }
    };
    let mut ranks: Vec<usize> = (0..world).collect();
    for i in (1..world).rev() {
        ranks.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let size = grid.iter().product();
    DeviceMesh::new(&grid, ranks[..size].iter().map(|&rank| id_of(rank)).collect())
}

pub fn id_of(rank: usize) -> usize {
    1000 - 7 * rank
}

/// Up to three dimensions of up to 13.
pub fn random_shape(rng: &mut SplitMix64) -> Vec<usize> {
    (0..rng.below(4)).map(|_| rng.below(14) as usize).collect()
}

/// Placements that are possible, contributions for one of `ops` among them if there are any. About a third of the shards
/// are not by the rule.
pub fn random_placements(
    rng: &mut SplitMix64,
    shape: &[usize],
    grid: &[usize],
    ops: &[comm_group::ReduceOp],
) -> Vec<Placement> {
    let mut all: Vec<Placement> = Vec::new();
    for &ranks in grid {
        let dim = rng.below(shape.len().max(1) as u64) as usize;
        let placement = match (rng.below(8), rng.choose(ops)) {
            (0 | 1, _) => Placement::Replicate,
            (2 | 3, Some(&op)) => Placement::Partial(op),
            _ if shape.is_empty() => Placement::Replicate,
            (kind, _) => {
                let sizes = pieces(shape, &grid[..all.len()], &all, dim);
                let least = sizes.iter().copied().min().unwrap_or(0);
                match kind {
                    4 if least > 1 => {
                        Placement::SubSplit { dim, cut: 1 + rng.below(least as u64 - 1) as usize }
                    }
                    5 if sizes.iter().all(|&n| n == least) => {
                        let mut sizes = vec![0; ranks];
                        (0..least).for_each(|_| sizes[rng.below(ranks as u64) as usize] += 1);
                        Placement::Uneven { dim, sizes }
                    }
                    _ => Placement::Shard(dim),
                }
            }
        };
        all.push(placement);
    }
    all
}

/// What there is to be shared out along a tensor dimension, in each line behind these.
fn pieces(shape: &[usize], grid: &[usize], placements: &[Placement], dim: usize) -> Vec<usize> {
    indices(grid).iter().map(|at| held(shape, grid, placements, at).shape[dim]).collect()
}

/// Whether each cut lies inside all that it cuts.
pub fn has_room_for_cuts(shape: &[usize], grid: &[usize], placements: &[Placement]) -> bool {
    placements.iter().enumerate().all(|(i, placement)| match *placement {
        Placement::SubSplit { dim, cut } => {
            pieces(shape, &grid[..i], &placements[..i], dim).into_iter().all(|n| 0 < cut && cut < n)
        }
        _ => true,
    })
}

/// Whether there is no plan from one to the other: a sub-split and another shard.
pub fn is_refused(grid: &[usize], from: &[Placement], to: &[Placement]) -> bool {
    let is_cut = |p: &Placement| matches!(p, Placement::SubSplit { .. });
    from.iter().zip(to).zip(grid).any(|((a, b), &ranks)| {
        let shards = a.sharded_dim().is_some() && b.sharded_dim().is_some();
        ranks > 1 && a != b && shards && (is_cut(a) || is_cut(b))
    })
}

/// Whether ranks hold contributions and not values.
pub fn is_partial(grid: &[usize], placements: &[Placement]) -> bool {
    placements.iter().zip(grid).any(|(p, &ranks)| ranks > 1 && p.reduction().is_some())
}
