//! Collectives: all ranks of a team turn one placement of a tensor into another, together.
//!
//! | operation | from | to |
//! |---|---|---|
//! | [`ThreadGroup::all_gather`] | shards along a dimension, also uneven | the whole tensor on every rank |
//! | [`ThreadGroup::all_gather_into_vec`] | a tensor of any shape per rank | all of them on every rank, each apart |
//! | [`ThreadGroup::gather`] | shards along a dimension | the whole on the root |
//! | [`ThreadGroup::all_reduce`] | one contribution per rank | their sum, product, least, ... on every rank |
//! | [`ThreadGroup::reduce`] | one contribution per rank | the same on the root |
//! | [`ThreadGroup::reduce_scatter`] | one contribution per rank | a shard of it per rank, along any dimension |
//! | [`ThreadGroup::broadcast`] | a tensor on the root | a copy on every rank |
//! | [`ThreadGroup::scatter`] | a tensor on the root | a shard per rank |
//! | [`ThreadGroup::all_to_all`] | shards along one dimension | shards along another |
//! | [`ThreadGroup::all_to_all_rows`] | rows for each rank | the rows from each rank |
//! | [`ThreadGroup::replicate_to_shard`] | the whole tensor | this rank's shard; local, no peer takes part |
//! | [`ThreadGroup::send`], [`ThreadGroup::recv`] | a tensor on one rank | on another; nobody else takes part |
//! | [`ThreadGroup::barrier`] | | everybody has come |
//!
//! Each has three forms: `op` returns its result, `op_into` writes it into the caller's buffer, in any strides, and
//! `op_start` gives a [`Work`] to wait for, by a thread or a task.
//!
//! **Agreement.** Before a byte moves, every rank reads what all ranks are about to do. If they differ, all return the
//! same [`Error::Mismatch`](comm_core::Error::Mismatch), which names the odd rank and both values, and the next
//! operation works. So every collective synchronises at entry.
//!
//! **Costs.** Ranks speak to each other through a [window](comm_store::window) alone: signals, letters, and tensors exposed
//! in place. [`cost()`] tells what an operation takes, [`ThreadGroup::costs`] what it took.
//!
//! **Many groups.** A [`ThreadGroupManager`] makes the group of a list of ids when it is first asked for. When a rank is lost,
//! the others go on by [`ThreadGroup::shrink`].
//!
//! **What happened.** Each rank keeps its last operations ([`ThreadGroup::recent`]), and with `COMM_DUMP_DIR` set writes them
//! down when one fails and the team is over.
//!
//! **Exact order.** A reduction starts from rank 0's value and goes in rank order, so its bits depend on the inputs
//! alone: not on timing, sizes, or how ranks are spread over threads and processes. [`ReduceOp`] has the operators, their
//! dtypes and their rounding.
//!
//! ```
//! use comm_core::{Deadline, team::Team, tensor::Tensor};
//! use comm_group::{ReduceOp, ThreadGroup};
//!
//! fn rank(rank: usize) -> comm_core::Result<()> {
//!     let deadline = Deadline::default();
//!     let group = ThreadGroup::new(Team::join("sum", rank, 3, deadline)?, deadline)?;
//!     let mine = Tensor::from_slice(&[2], &[rank as f32, 1.0])?;
//!     let sum = group.all_reduce(&mine, ReduceOp::Sum, deadline)?;
//!     assert_eq!(sum.as_slice::<f32>()?, [3.0, 3.0]);
//!     Ok(())
//! }
//!
//! std::thread::scope(|s| {
//!     for r in 0..3 {
//!         s.spawn(move || rank(r).unwrap());
//!     }
//! });
//! ```
//!
//! Not here yet: other operations, results in the caller's buffer, started operations, and NCCL.

mod agreement;
mod cost;
mod dump;
mod group;
mod manager;
pub mod placement;
mod plan;
mod recorder;
mod reduce;
mod request;
mod same_device;
mod shard;
mod turn;
mod work;

pub use cost::{Operation, cost};
pub use group::ThreadGroup;
pub use manager::{DeviceKind, ThreadGroupKey, ThreadGroupManager, Watch};
pub use placement::{DeviceMesh, Placement};
pub use recorder::{OpRecord, OpState};
pub use reduce::{Factor, ReduceOp};
pub use shard::{replicate_to_shard, shard_sizes};
pub use work::Work;

/// The fault points of this crate; see [`comm_core::points`].
pub const POINTS: &[&str] = &[
    "group.made",
    "group.described",
    "group.agreed",
    "group.reduced",
    "group.gathered",
    "group.done",
    "group.posted",
    "group.claimed",
    "group.answered",
];
