//! The group: what a runtime holds.

mod all_to_all;
mod forms;
mod gather;
mod message;
mod reduce;
mod scatter;

use std::fmt;
use std::sync::Arc;

use comm_core::team::{AbortHandle, Team};
use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Error, Result};
use comm_store::window::Cost;

use crate::recorder::OpRecord;
use crate::request::{Op, Request};
use crate::same_device::{Outcome, SameDevice, Target};
use crate::shard;
use crate::work::{Started, Work};
use forms::forms;

/// One rank's handle to a group of ranks that do collectives together.
///
/// Calls block until the operation is complete on this rank. All ranks make the same calls in the same order. A second
/// thread that calls while one is inside gets [`Error::ConcurrentUse`]; inputs are
/// never changed, and outputs are new tensors that alias nothing, but for
/// [`replicate_to_shard`](ThreadGroup::replicate_to_shard), which gives a view where it can.
///
/// Dropping the group leaves it, as [`Team`] does: operations so far end normally everywhere. What was [started](Work) and is not
/// over goes on in a thread of the group, for which nobody waits, and the group is left when that has done with it. A process that
/// ends before is lost to the others: [`close`](ThreadGroup::close) waits.
///
/// # Errors of operations
/// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree about the operation or what belongs to it;
/// [`Error::InvalidArgument`] for what cannot be, of which the others hear as a `Mismatch` of `arguments` where it is one
/// rank's alone; [`Error::Unsupported`] for an operator that there is not for the dtype; [`Error::DeviceMismatch`] for memory
/// of another device than the CPU. [`Error::OutOfMemory`] on the rank that has none, and [`Error::Aborted`] on the others.
/// [`Error::ConcurrentUse`]. What ends a symmetric operation. [`Error::Timeout`] also if what was
/// [started](Work) before is not over by then: nothing has begun then, and the team goes on.
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
    inner: Arc<Inner>,
}

/// What a group is, for its handle and for the threads that move what has been started.
pub(crate) struct Inner {
    team: Team,
    backend: SameDevice,
    started: Started,
}

#[cfg(test)]
impl ThreadGroup {
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Inner {
    fn new(team: Team, backend: SameDevice) -> Arc<Inner> {
        comm_core::point!("group.made");
        let started = Started::new(team.size());
        Arc::new(Inner { team, backend, started })
    }

    pub(crate) fn team(&self) -> &Team {
        &self.team
    }

    #[cfg(test)]
    pub(crate) fn queue(&self) -> &crate::work::Queue {
        &self.started.operations
    }
}

impl fmt::Debug for ThreadGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadGroup({:?})", self.inner.team)
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What is pending may be the last to hold the group, and its thread does not panic.
            self.inner.team.fail();
        }
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
        Ok(ThreadGroup { inner: Inner::new(team, backend) })
    }

    /// This rank.
    #[doc(alias = "GetRank")]
    pub fn rank(&self) -> usize {
        self.inner.team.rank()
    }

    /// How many ranks the group has.
    #[doc(alias = "GetWorldSize")]
    pub fn size(&self) -> usize {
        self.inner.team.size()
    }

    /// The team.
    pub fn team(&self) -> &Team {
        &self.inner.team
    }

    /// Whether something has ended the team: then no operation works any more. A rank that has left in good order has not.
    pub fn is_over(&self) -> bool {
        self.inner.team.is_over()
    }

    /// What this rank's operations have cost so far; what they will, [`cost`](crate::cost()) tells.
    pub fn costs(&self) -> Cost {
        self.inner.backend.costs()
    }

    /// This rank's last operations, oldest first: 256 of them at most, those that go on included.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    /// use comm_group::{OpState, ThreadGroup};
    ///
    /// let team = Team::join("recent-example", 0, 1, Deadline::default())?;
    /// let group = ThreadGroup::new(team, Deadline::default())?;
    /// group.barrier(Deadline::default())?;
    /// let last = &group.recent()[0];
    /// assert_eq!((last.op, &last.state), ("barrier", &OpState::Done));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    #[doc(alias = "flight_recorder")]
    pub fn recent(&self) -> Vec<OpRecord> {
        self.inner.backend.recent()
    }

    /// Ends the group from any thread: every waiting and every later call, on every rank, gets
    /// [`Error::Aborted`](comm_core::Error::Aborted).
    pub fn abort_handle(&self) -> AbortHandle {
        self.inner.team.abort_handle()
    }

    /// Leaves the group when what was [started](Work) in it is over. Then this process may end, and is lost to nobody. Whether the
    /// operations have succeeded is for each [`Work`] to say.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it is not over by then. The group is dropped all the same, and left when it is over.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    /// use comm_group::ThreadGroup;
    ///
    /// let group = ThreadGroup::new(Team::join("closing", 0, 1, Deadline::default())?, Deadline::default())?;
    /// drop(group.barrier_start(Deadline::default())?); // Nobody waits for it.
    /// group.close(Deadline::default())?;
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    #[doc(alias = "ncclCommFinalize")]
    pub fn close(self, deadline: impl Into<Deadline>) -> Result<()> {
        self.inner.started.drain(&self.inner, "close", deadline.into())
    }

    /// The group of those who are left: after a peer was lost or has left, the survivors call this and go on. Ranks are dense
    /// in the old order; `group.team().origin()` has the old ones. See [`Member::shrink`](comm_core::team::Member::shrink) for
    /// whom it waits for, and how long; this group stays as it is, over or not, and is dropped as ever.
    ///
    /// What has been started in this group comes to its end first, which it does at once if the team is over; else
    /// [`Error::Timeout`] by the deadline, and nothing has begun.
    ///
    /// # Errors
    /// [`Error::Excluded`](comm_core::Error::Excluded) if the others go on without this rank; else those of
    /// [`Member::shrink`](comm_core::team::Member::shrink) and [`ThreadGroup::new`].
    ///
    /// ```
    /// use comm_core::{Deadline, Error, team::Team, tensor::Tensor};
    /// use comm_group::{ReduceOp, ThreadGroup};
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("shrinking", rank, 3, deadline)?, deadline)?;
    ///     if rank == 0 {
    ///         return Ok(()); // It leaves.
    ///     }
    ///     assert!(matches!(group.barrier(deadline), Err(Error::PeerLeft { rank: 0, .. })));
    ///     let group = group.shrink(deadline)?;
    ///     let sum = group.all_reduce(&Tensor::from_slice(&[1], &[rank as i32])?, ReduceOp::Sum, deadline)?;
    ///     assert_eq!((group.size(), sum.as_slice::<i32>()?), (2, &[3][..]));
    ///     Ok(())
    /// }
    ///
    /// std::thread::scope(|s| {
    ///     let ranks: Vec<_> = (0..3).map(|r| s.spawn(move || rank(r))).collect();
    ///     ranks.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
    /// });
    /// ```
    #[doc(alias = "ncclCommShrink")]
    #[doc(alias = "MPIX_Comm_shrink")]
    pub fn shrink(&self, deadline: impl Into<Deadline>) -> Result<ThreadGroup> {
        let deadline = deadline.into();
        self.inner.started.drain(&self.inner, "shrink", deadline)?;
        let build = |team: &Team, deadline| SameDevice::new(team, deadline);
        let (team, backend) = self.inner.team.shrink_with(deadline, build)?;
        Ok(ThreadGroup { inner: Inner::new(team, backend) })
    }

    forms! {
        /// Waits until all ranks have come here.
        ///
        /// # Errors
        /// [`Error::Mismatch`] if a rank does something else; what ends a symmetric operation.
        #[doc(alias = "Barrier")]
        barrier / barrier_start() -> (): nothing = Request::new(Op::Barrier, None)
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

/// What all operations go through.
impl ThreadGroup {
    fn call(&self, request: Request, target: Target<'_>, deadline: impl Into<Deadline>) -> Result<Outcome> {
        let deadline = deadline.into();
        self.inner.started.operations.drain(&self.inner, request.op.name(), deadline)?;
        self.inner.backend.run(request, target, deadline)
    }

    /// An operation whose result goes to the caller.
    fn into<'a>(
        &self,
        request: Request,
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        self.call(request, Target::Given(out.into()), deadline).map(drop)
    }

    fn start<T: Send + 'static>(
        &self,
        request: Request,
        deadline: impl Into<Deadline>,
        result: fn(Outcome) -> Result<T>,
    ) -> Result<Work<T>> {
        let (op, deadline) = (request.op.name(), deadline.into());
        let run = move |group: &Inner| group.backend.run(request, Target::Fresh, deadline).and_then(result);
        self.inner.started.operations.start(&self.inner, op, run)
    }
}

fn one(outcome: Outcome) -> Result<Tensor> {
    match outcome {
        Outcome::One(tensor) => Ok(tensor),
        Outcome::Nothing | Outcome::Many(_) => Err(Error::bad_peer("an operation without its result")),
    }
}

fn maybe(outcome: Outcome) -> Result<Option<Tensor>> {
    match outcome {
        Outcome::One(tensor) => Ok(Some(tensor)),
        Outcome::Nothing => Ok(None),
        Outcome::Many(_) => Err(Error::bad_peer("an operation with the results of another")),
    }
}

fn nothing(_: Outcome) -> Result<()> {
    Ok(())
}

fn many(outcome: Outcome) -> Result<Vec<Tensor>> {
    match outcome {
        Outcome::Many(tensors) => Ok(tensors),
        Outcome::Nothing | Outcome::One(_) => Err(Error::bad_peer("an operation without its results")),
    }
}
