//! The group: what a runtime holds.

use std::fmt;

use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_core::{Deadline, Result};
use comm_store::window::Cost;

use crate::reduce::ReduceOp;
use crate::same_device::SameDevice;
use crate::shard;

/// One rank's handle to a group of ranks that do collectives together.
///
/// Calls block until the operation is complete on this rank. All ranks make the same calls in the same order. A second
/// thread that calls while one is inside gets [`Error::ConcurrentUse`](comm_core::Error::ConcurrentUse); inputs are
/// never changed, and outputs are new tensors that alias nothing, but for
/// [`replicate_to_shard`](ThreadGroup::replicate_to_shard), which gives a view where it can.
///
/// Dropping the group leaves it, as [`Team`] does: operations so far end normally everywhere.
///
/// ```
/// use comm_core::{Deadline, team::Team, tensor::Tensor};
/// use comm_group::ThreadGroup;
///
/// let group = ThreadGroup::new(Team::join("one", 0, 1, Deadline::default())?, Deadline::default())?;
/// let t = Tensor::from_slice(&[2, 2], &[1, 2, 3, 4])?;
/// let whole = group.all_gather(&t, 1, Deadline::default())?;
/// assert_eq!(whole.as_slice::<i32>()?, [1, 2, 3, 4]);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[doc(alias = "SameDeviceBackend")]
pub struct ThreadGroup {
    team: Team,
    backend: SameDevice,
}

impl fmt::Debug for ThreadGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadGroup({:?})", self.team)
    }
}

impl ThreadGroup {
    /// Makes a group of all ranks of a team. All of them call it.
    ///
    /// # Errors
    /// Those of a symmetric operation, and [`Error::OutOfMemory`](comm_core::Error::OutOfMemory), which ends the team
    /// for the others.
    pub fn new(team: Team, deadline: impl Into<Deadline>) -> Result<ThreadGroup> {
        let backend = SameDevice::new(&team, deadline.into())?;
        comm_core::point!("group.made");
        Ok(ThreadGroup { team, backend })
    }

    /// This rank.
    #[doc(alias = "GetRank")]
    pub fn rank(&self) -> usize {
        self.team.rank()
    }

    /// How many ranks the group has.
    #[doc(alias = "GetWorldSize")]
    pub fn size(&self) -> usize {
        self.team.size()
    }

    /// The team.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// What this rank's operations have cost so far; what they will, [`cost`](crate::cost()) tells.
    pub fn costs(&self) -> Cost {
        self.backend.costs()
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// [`Error::Mismatch`](comm_core::Error::Mismatch) if a rank does something else; what ends a symmetric operation.
    #[doc(alias = "Barrier")]
    pub fn barrier(&self, deadline: impl Into<Deadline>) -> Result<()> {
        self.backend.barrier(deadline.into())
    }

    /// Combines the tensors of all ranks, element by element, in rank order; every rank gets the result.
    ///
    /// Any shape and strides, the same shape on all ranks; the result is contiguous. [`ReduceOp`] says which operators
    /// there are for which dtypes, and how they round.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`](comm_core::Error::Mismatch) if shape, dtype, device,
    /// operator or factor differ between ranks, [`Error::Unsupported`](comm_core::Error::Unsupported) if there is no such
    /// operator for the dtype ([`ReduceOp::check`]),
    /// [`Error::DeviceMismatch`](comm_core::Error::DeviceMismatch) for memory of another device than the CPU.
    /// [`Error::OutOfMemory`](comm_core::Error::OutOfMemory) on the rank that has none, and
    /// [`Error::Aborted`](comm_core::Error::Aborted) on the others. What ends a symmetric operation.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::{ReduceOp, ThreadGroup};
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("add", rank, 2, deadline)?, deadline)?;
    ///     let mine = Tensor::from_slice(&[2], &[1i64, 10 * rank as i64])?;
    ///     let sum = group.all_reduce(&mine, ReduceOp::Sum, deadline)?;
    ///     assert_eq!(sum.as_slice::<i64>()?, [2, 10]);
    ///     Ok(())
    /// }
    ///
    /// std::thread::scope(|s| {
    ///     for r in 0..2 {
    ///         s.spawn(move || rank(r).unwrap());
    ///     }
    /// });
    /// ```
    #[doc(alias = "AllReduce")]
    pub fn all_reduce(&self, tensor: &Tensor, op: ReduceOp, deadline: impl Into<Deadline>) -> Result<Tensor> {
        self.backend.all_reduce(tensor, op, deadline.into())
    }

    /// Puts the shards of all ranks together along `dim`, in rank order; every rank gets the whole.
    ///
    /// Any dtype and strides; shards may differ in size along `dim`, and may be empty. The result is contiguous.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`](comm_core::Error::Mismatch) if dtype, device, dimension,
    /// or shape other than along `dim` differ, [`Error::InvalidArgument`](comm_core::Error::InvalidArgument) if there is
    /// no such dimension or the whole cannot be addressed,
    /// [`Error::DeviceMismatch`](comm_core::Error::DeviceMismatch) as in [`all_reduce`](ThreadGroup::all_reduce).
    /// [`Error::OutOfMemory`](comm_core::Error::OutOfMemory) on the rank that has none, and
    /// [`Error::Aborted`](comm_core::Error::Aborted) on the others. What ends a symmetric operation.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::ThreadGroup;
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("gather", rank, 2, deadline)?, deadline)?;
    ///     // Two rows; rank 0 has one column, rank 1 has two.
    ///     let mine = Tensor::from_slice(&[2, rank + 1], &vec![rank as i32; 2 * (rank + 1)])?;
    ///     let whole = group.all_gather(&mine, 1, deadline)?;
    ///     assert_eq!(whole.shape(), [2, 3]);
    ///     assert_eq!(whole.as_slice::<i32>()?, [0, 1, 1, 0, 1, 1]);
    ///     Ok(())
    /// }
    ///
    /// std::thread::scope(|s| {
    ///     for r in 0..2 {
    ///         s.spawn(move || rank(r).unwrap());
    ///     }
    /// });
    /// ```
    #[doc(alias = "AllGather")]
    #[doc(alias = "AllGatherIntoTensor")]
    #[doc(alias = "EqualShapeAllGatherIntoTensor")]
    pub fn all_gather(&self, tensor: &Tensor, dim: usize, deadline: impl Into<Deadline>) -> Result<Tensor> {
        self.backend.all_gather(tensor, dim, deadline.into())
    }

    /// This rank's shard of a tensor that every rank has; see [`replicate_to_shard`](crate::replicate_to_shard()).
    /// Local: no peer takes part, and it works when they have left.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](comm_core::Error::InvalidArgument) if there is no such dimension, or unless the
    /// sub-split lies inside; of a sub-split, which is a copy, no memory or memory of a device.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::ThreadGroup;
    ///
    /// let team = Team::join("shard-example", 0, 1, Deadline::default())?;
    /// let group = ThreadGroup::new(team, Deadline::default())?;
    /// let t = Tensor::from_slice(&[3], &[1, 2, 3])?;
    /// assert_eq!(group.replicate_to_shard(&t, 0, None)?.as_slice::<i32>()?, [1, 2, 3]);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    #[doc(alias = "ReplicateToShard")]
    #[doc(alias = "subSplitCoordinates")]
    pub fn replicate_to_shard(
        &self,
        tensor: &Tensor,
        dim: usize,
        sub_split: Option<usize>,
    ) -> Result<Tensor> {
        shard::replicate_to_shard(tensor, dim, sub_split, self.rank(), self.size())
    }
}
