//! What a step makes a rank copy from others: the table is in the [module](super).

use std::borrow::Borrow;
use std::ops::Range;

use comm_store::window::{self, Cost};

use super::extent::{Extent, held};
use super::kind::Placement;
use super::mesh::DeviceMesh;
use super::split::{self, Piece};
use super::step::StepOp;
use crate::agreement::CARRIED;
use crate::shard::shard_range;

/// Elements that the busiest rank copies when the placement on `mesh_dim` becomes `to`.
///
/// What ranks hold along a tensor dimension depends on the mesh dimensions that split it, and each splits only one: so the
/// extremes along different tensor dimensions meet in some rank, and their product is exact. Only the two tensor dimensions of an
/// all-to-all hang together, by the coordinate along `mesh_dim`.
pub(super) fn busiest<P: Borrow<Placement>>(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[P],
    mesh_dim: usize,
    to: &Placement,
    op: StepOp,
) -> u64 {
    let from = placements[mesh_dim].borrow();
    let ranks = mesh.shape()[mesh_dim];
    let changed = [from.sharded_dim(), to.sharded_dim()];
    // The largest of what does not change.
    let others = |dims: &[Option<usize>]| {
        let others = (0..shape.len()).filter(|&dim| !dims.contains(&Some(dim)));
        others
            .map(|dim| lengths(shape, mesh, placements, dim, mesh.ndim()).last().copied().unwrap_or(0))
            .product()
    };
    let parents = |dim: Option<usize>| match dim {
        Some(dim) => lengths(shape, mesh, placements, dim, mesh_dim),
        None => Vec::new(),
    };
    match op {
        StepOp::Nothing | StepOp::ReplicateToShard | StepOp::Mask => 0,
        StepOp::AllReduce => all_reduced(others(&[]), ranks, 0),
        StepOp::ReduceScatter => {
            let pieces = Pieces { placement: to, parents: &parents(changed[1]), ranks };
            reduce_scattered(pieces.longest() * others(&changed), ranks)
        }
        StepOp::AllGather => {
            let pieces = Pieces { placement: from, parents: &parents(changed[0]), ranks };
            let lacking = pieces.heads().into_iter().map(|index| pieces.most_lacking(index)).max();
            (lacking.unwrap_or(0) * others(&changed)) as u64
        }
        StepOp::AllToAll if changed[0] == changed[1] => {
            let lacking = parents(changed[0]).iter().map(|&n| most_moved(from, to, n, ranks)).max();
            (lacking.unwrap_or(0) * others(&changed)) as u64
        }
        StepOp::AllToAll => {
            let old = Pieces { placement: from, parents: &parents(changed[0]), ranks };
            let new = Pieces { placement: to, parents: &parents(changed[1]), ranks };
            let heads = old.heads().into_iter().chain(new.heads());
            let lacking = heads.map(|index| old.most_lacking(index) * new.longest_of(index)).max();
            (lacking.unwrap_or(0) * others(&changed)) as u64
        }
    }
}

/// Elements that the rank at a coordinate copies, counted from what it holds before and after.
pub(super) fn of_rank<P: Borrow<Placement>>(
    shape: &[usize],
    mesh: &DeviceMesh,
    [before, after]: [&[P]; 2],
    mesh_dim: usize,
    op: StepOp,
    coordinate: &[usize],
) -> u64 {
    let extent = |placements: &[P]| -> Extent { held(shape, mesh, placements, coordinate) };
    let ranks = mesh.shape()[mesh_dim];
    match op {
        StepOp::Nothing | StepOp::ReplicateToShard | StepOp::Mask => 0,
        StepOp::AllReduce => all_reduced(extent(after).numel(), ranks, coordinate[mesh_dim]),
        StepOp::ReduceScatter => reduce_scattered(extent(after).numel(), ranks),
        StepOp::AllGather | StepOp::AllToAll => {
            let after = extent(after);
            (after.numel() - after.common(&extent(before))) as u64
        }
    }
}

/// What the rank at a coordinate is counted for in a step: as [`of_rank`] says where inputs are read in place. Those of up to
/// [`CARRIED`] bytes are pushed to all others instead, in letters, and are in everybody's own memory then.
pub(super) fn counted<P: Borrow<Placement>>(
    shape: &[usize],
    mesh: &DeviceMesh,
    [before, after]: [&[P]; 2],
    mesh_dim: usize,
    op: StepOp,
    coordinate: &[usize],
    element: u64,
) -> Cost {
    if op.is_local() {
        return Cost::default();
    }
    let ranks = mesh.shape()[mesh_dim];
    let mine = held(shape, mesh, after, coordinate);
    let (mut pushed, mut pulled, mut is_exposed) = (0u64, 0u64, false);
    let mut peer = coordinate.to_vec();
    for index in 0..ranks {
        peer[mesh_dim] = index;
        let theirs = held(shape, mesh, before, &peer);
        let input = (theirs.numel() as u64).saturating_mul(element);
        let is_own = index == coordinate[mesh_dim];
        if input > CARRIED as u64 {
            is_exposed = true;
            if !is_own {
                pulled = pulled.saturating_add((mine.common(&theirs) as u64).saturating_mul(element));
            }
        } else if is_own {
            pushed = input.saturating_mul(ranks as u64 - 1);
        }
    }
    if is_exposed && matches!(op, StepOp::ReduceScatter | StepOp::AllReduce) {
        // All have inputs of the same size.
        pulled = of_rank(shape, mesh, [before, after], mesh_dim, op, coordinate).saturating_mul(element);
    }
    let rounds = match op {
        _ if !is_exposed => 1,
        StepOp::AllReduce => 3,
        _ => 2,
    };
    let round = window::cost(window::Operation::Barrier, ranks, 0);
    let rounds = (0..rounds).fold(Cost::default(), |sum, _| sum + round);
    rounds + Cost { bytes: pushed.saturating_add(pulled), ..Cost::default() }
}

fn all_reduced(numel: usize, ranks: usize, index: usize) -> u64 {
    let (_, own) = shard_range(numel, ranks, index);
    reduce_scattered(own, ranks).saturating_add((numel - own) as u64)
}

fn reduce_scattered(shard: usize, ranks: usize) -> u64 {
    (shard as u64).saturating_mul(ranks as u64 - 1)
}

fn lengths<P: Borrow<Placement>>(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[P],
    dim: usize,
    before: usize,
) -> Vec<usize> {
    // Placements have been checked.
    split::lengths(shape, mesh, placements, dim, before).unwrap_or_default()
}

/// The pieces that a placement makes of lists of some lengths.
struct Pieces<'a> {
    placement: &'a Placement,
    parents: &'a [usize],
    ranks: usize,
}

impl Pieces<'_> {
    /// Coordinates along the line, such that every other one has as long pieces of all parents as one of these.
    fn heads(&self) -> Vec<usize> {
        let heads = self.parents.iter().flat_map(|&n| split::heads(self.placement, n, self.ranks));
        let mut heads: Vec<usize> = heads.collect();
        heads.sort_unstable();
        heads.dedup();
        heads
    }

    fn len(&self, n: usize, index: usize) -> usize {
        split::piece_len(self.placement, n, self.ranks, index)
    }

    /// The longest piece of the rank at `index`.
    fn longest_of(&self, index: usize) -> usize {
        self.parents.iter().map(|&n| self.len(n, index)).max().unwrap_or(0)
    }

    fn longest(&self) -> usize {
        self.heads().into_iter().map(|index| self.longest_of(index)).max().unwrap_or(0)
    }

    /// The most that the rank at `index` has not.
    fn most_lacking(&self, index: usize) -> usize {
        self.parents.iter().map(|&n| n - self.len(n, index)).max().unwrap_or(0)
    }
}

/// The most elements that a rank of a line lacks when `n` are shared out anew.
fn most_moved(from: &Placement, to: &Placement, n: usize, ranks: usize) -> usize {
    let moved = |index| {
        let (old, new) = (split::piece(from, n, ranks, index), split::piece(to, n, ranks, index));
        let len = |piece: &Piece| piece.iter().map(Range::len).sum::<usize>();
        let shared =
            |a: &Range<usize>, b: &Range<usize>| a.end.min(b.end).saturating_sub(a.start.max(b.start));
        let kept: usize = old.iter().flat_map(|a| new.iter().map(move |b| shared(a, b))).sum();
        len(&new) - kept
    };
    (0..ranks).map(moved).max().unwrap_or(0)
}
