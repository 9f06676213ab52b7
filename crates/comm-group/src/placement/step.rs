//! One step: which operation changes the placement on one mesh dimension, and when it may.

use std::borrow::Borrow;
use std::fmt;

use super::kind::Placement;
use super::mesh::DeviceMesh;
use super::split;

/// What the ranks of each line do in a [`Step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepOp {
    /// Nothing: every rank holds already what it will hold, with another name.
    Nothing,
    /// R to S: each rank takes its shard of what it has. Local.
    ReplicateToShard,
    /// S to R: all get the shards of all, joined in order; a sub-split is put back in order.
    AllGather,
    /// S to S: each rank gets from the others what its new shard lacks. The tensor dimension may be the same, if one of the
    /// two is uneven.
    AllToAll,
    /// P to S: each rank gets the others' contributions to its new shard, and reduces them.
    ReduceScatter,
    /// P to R: all get all contributions, reduced.
    AllReduce,
    /// R to P: the first rank of the line keeps the value, the others hold the operator's identity; of an average all keep it.
    /// Local.
    Mask,
}

impl StepOp {
    /// Whether each rank does it alone.
    pub fn is_local(self) -> bool {
        matches!(self, StepOp::Nothing | StepOp::ReplicateToShard | StepOp::Mask)
    }
}

impl fmt::Display for StepOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StepOp::Nothing => "nothing",
            StepOp::ReplicateToShard => "replicate-to-shard",
            StepOp::AllGather => "all-gather",
            StepOp::AllToAll => "all-to-all",
            StepOp::ReduceScatter => "reduce-scatter",
            StepOp::AllReduce => "all-reduce",
            StepOp::Mask => "mask",
        })
    }
}

/// A step of a [`Plan`](super::Plan): the placement on one mesh dimension changes, in all lines along it at once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The mesh dimension whose placement changes. The ranks that act together are those of a [`Line`](super::Line) along it.
    #[doc(alias = "diffDim")]
    pub mesh_dim: usize,
    /// Its placement before.
    pub from: Placement,
    /// Its placement after.
    pub to: Placement,
    /// What turns the one into the other.
    pub op: StepOp,
    /// Bytes that the busiest rank copies from others.
    pub bytes: u64,
}

/// `mesh dimension 1: S(0) -> R by all-gather, 96 bytes`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { mesh_dim, from, to, op, bytes } = self;
        write!(f, "mesh dimension {mesh_dim}: {from} -> {to} by {op}, {bytes} bytes")
    }
}

/// The operation that turns the placement on `mesh_dim` into `to` and leaves the others as they are; `None` if no single one does.
/// Placements before and after must be possible for the shape.
pub(super) fn operation<P: Borrow<Placement>>(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[P],
    mesh_dim: usize,
    to: &Placement,
) -> Option<StepOp> {
    let from = placements[mesh_dim].borrow();
    let ranks = mesh.shape()[mesh_dim];
    let is_name = [from, to].iter().all(|placement| placement.is_only_a_name(ranks));
    if is_name || is_renamed(shape, mesh, placements, mesh_dim, to) {
        return Some(StepOp::Nothing);
    }
    let op = match (from, to) {
        (Placement::Replicate, Placement::Replicate) => StepOp::Nothing,
        (Placement::Replicate, Placement::Partial(_)) => StepOp::Mask,
        (Placement::Replicate, _) => StepOp::ReplicateToShard,
        (Placement::Partial(_), Placement::Replicate) => StepOp::AllReduce,
        (Placement::Partial(_), Placement::Partial(_)) => return None,
        (Placement::Partial(_), _) => StepOp::ReduceScatter,
        (_, Placement::Replicate) => StepOp::AllGather,
        (_, Placement::Partial(_)) => return None,
        (Placement::SubSplit { .. }, _) | (_, Placement::SubSplit { .. }) => return None,
        (_, _) => StepOp::AllToAll,
    };
    (!is_covered(mesh, placements, mesh_dim, to)).then_some(op)
}

/// Whether a later mesh dimension stands in the way. What is only a name never does.
fn is_covered<P: Borrow<Placement>>(
    mesh: &DeviceMesh,
    placements: &[P],
    mesh_dim: usize,
    to: &Placement,
) -> bool {
    let changed = [placements[mesh_dim].borrow(), to];
    let later = placements.iter().map(P::borrow).zip(mesh.shape()).skip(mesh_dim + 1);
    later.filter(|&(inner, &ranks)| !inner.is_only_a_name(ranks)).any(|(inner, _)| {
        changed.iter().any(|outer| {
            let splits_the_same = outer.sharded_dim().is_some() && outer.sharded_dim() == inner.sharded_dim();
            let reduces_otherwise = match (outer.reduction(), inner.reduction()) {
                (Some(outer), Some(inner)) => outer != inner,
                _ => false,
            };
            splits_the_same || reduces_otherwise
        })
    })
}

/// Whether both placements split the same tensor dimension into the same pieces.
fn is_renamed<P: Borrow<Placement>>(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[P],
    mesh_dim: usize,
    to: &Placement,
) -> bool {
    let from = placements[mesh_dim].borrow();
    let (Some(dim), true) = (from.sharded_dim(), from.sharded_dim() == to.sharded_dim()) else {
        return false;
    };
    let ranks = mesh.shape()[mesh_dim];
    // Impossible placements are the caller's to find.
    split::lengths(shape, mesh, placements, dim, mesh_dim)
        .is_ok_and(|lengths| lengths.iter().all(|&n| split::is_same_split(from, to, n, ranks)))
}
