//! Where the elements of a distributed tensor lie, and the cheapest way from one placement to another.
//!
//! A tensor lives on a [`DeviceMesh`], a grid of devices, and has one [`Placement`] for each dimension of the mesh: whole on every
//! rank, in shards, or as contributions that are still to be reduced. Where elements lie and how they get elsewhere is
//! arithmetic: nothing communicates, and every rank computes the same. A [`MeshRank`] carries it out.
//!
//! | function | answers |
//! |---|---|
//! | [`validate`] | can a tensor of this shape lie on this mesh like that? |
//! | [`extent`], [`local_shape`], [`check_local_shape`] | which elements does a rank hold, and in what shape? |
//! | [`plan`] | by which steps does one list of placements become another, and what do they cost? |
//! | [`DeviceMesh::line`] | who takes part in a step? |
//!
//! | method | does |
//! |---|---|
//! | [`MeshRank::distribute`] | one rank's tensor comes to lie on the mesh |
//! | [`MeshRank::redistribute`] | it comes to lie otherwise: a plan, and then |
//! | [`MeshRank::carry_out`] | the steps of a plan, and what they have cost |
//! | [`MeshRank::collect`] | one rank gets the whole |
//! | [`MeshRank::axis`] | the group of a line, for collectives of one's own |
//!
//! From one mesh to another, and without groups, tensors go by a [`TensorStore`](comm_store::TensorStore): see [`flow`].
//! [`TensorSpec::cut`] and [`TensorSpec::join`] are for who has everything in one place.
//!
//! # What a list of placements means
//!
//! **Shards nest in mesh order.** Several mesh dimensions may share out one tensor dimension. The first splits it, the next one
//! splits each piece, and so on: `[S(0), S(0)]` on a mesh `[2, 2]` gives the four ranks the four quarters in order.
//!
//! **Reductions nest in mesh order.** With several mesh dimensions of contributions the values are
//! `op0 over dimension 0 of (op1 over dimension 1 of (...))`: the innermost one is reduced first. With the same operator the order
//! changes at most the rounding; a maximum of sums, however, is not a sum of maxima.
//!
//! # Steps, and what they cost
//!
//! A step changes the placement on one mesh dimension, in each line along it separately:
//!
//! | from, to | R | S(j) | P(b) |
//! |---|---|---|---|
//! | **R** | | [replicate-to-shard](StepOp::ReplicateToShard) | [mask](StepOp::Mask) |
//! | **S(i)** | [all-gather](StepOp::AllGather) | [all-to-all](StepOp::AllToAll) | by R |
//! | **P(a)** | [all-reduce](StepOp::AllReduce) | [reduce-scatter](StepOp::ReduceScatter) | by R |
//!
//! The cost of a step is the bytes that the busiest rank copies from others, computed from what each rank holds and not from averages.
//! Local steps cost nothing. With W ranks in the line, whose local tensor has N bytes before a reduction,
//!
//! | operation | a rank copies |
//! |---|---|
//! | all-gather, all-to-all | what it will hold and does not hold |
//! | reduce-scatter | the W-1 other contributions to its new shard |
//! | all-reduce | the W-1 other contributions to its part of the N bytes, by the shard rule, and the other parts reduced |
//!
//! Shards of a user's sizes are shards like others. Between a sub-split and another shard there is no step, and [`plan`] says
//! `Unsupported`. Where nothing changes but the name (a line of one rank, uneven sizes that are those of the rule) the step is
//! [nothing](StepOp::Nothing). One contribution to a `premul_sum` still has to be multiplied: there a line of one rank reduces, and
//! copies nothing.
//!
//! **Which steps are legal.** Ranks of a line exchange what they hold, so a step can only join or split what is innermost. On a
//! mesh dimension `d`
//!
//! - shards of a tensor dimension may begin, end or change only while no later mesh dimension shards the same tensor dimension;
//! - contributions may begin or be reduced only while no later mesh dimension holds contributions for another operator. (Some such
//!   pairs would do no harm, a sum of averages for one; they are not told apart.)
//!
//! Earlier mesh dimensions never matter, nor do later ones of a single rank (but for contributions to a `premul_sum`). Reduction and sharding of different mesh dimensions do
//! not disturb each other: the ranks of a line of contributions hold the same elements, and an operator takes them one by one. So P to
//! S(i) on `d` asks for the same as any new shard: nobody behind `d` shards `i`.
//!
//! What is in the way is moved out of the way. `[S(0), S(1)]` to `[S(1), S(0)]` must take three steps, as one of them would stand the
//! nesting on its head.
//!
//! ```
//! use comm_core::tensor::DType;
//! use comm_group::placement::{DeviceMesh, Placement::Shard, plan};
//!
//! let mesh = DeviceMesh::new(&[2, 2], (0..4).collect())?;
//! let plan = plan(&[4, 4], DType::F32, &mesh, &[Shard(0), Shard(1)], &[Shard(1), Shard(0)])?;
//! assert_eq!(
//!     plan.to_string(),
//!     "[S(0), S(1)] -> [S(1), S(0)], f32 of shape [4, 4]: 32 bytes
//!   mesh dimension 0: S(0) -> R by all-gather, 16 bytes
//!   mesh dimension 1: S(1) -> S(0) by all-to-all, 16 bytes
//!   mesh dimension 0: R -> S(1) by replicate-to-shard, 0 bytes"
//! );
//! # Ok::<(), comm_core::Error>(())
//! ```
//!
//! **Contributions of a value.** The first rank of a line keeps it, and the others hold the operator's
//! [identity](crate::ReduceOp::identity). Of an average all keep it: integers come back as they were, and floats of f32 and
//! f64 where their multiples are exact (and no sum is too large). `premul_sum` changes the value itself, so it has none.
//!
//! Not here yet: plans that weigh links of different speed, or small tensors by their rounds.

mod blocks;
mod consent;
mod distribute;
mod distributed;
mod extent;
pub mod flow;
mod groups;
mod kind;
mod mesh;
mod pieces;
mod plan;
mod rank;
mod redistribute;
mod search;
mod spec;
mod split;
mod step;
#[cfg(test)]
mod tests;
mod traffic;
mod whole;

pub use distributed::Distributed;
pub use extent::{Extent, check_local_shape, extent, local_shape};
pub use groups::Groups;
pub use kind::{Placement, validate};
pub use mesh::{DeviceMesh, Line};
pub use plan::{Plan, plan};
pub use rank::MeshRank;
pub use spec::TensorSpec;
pub use step::{Step, StepOp};
