//! One rank of a team, as everything that stands on the team holds it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::ending::Ending;
use super::shared::TeamShared;
use super::{AbortHandle, Team, at};
use crate::error::{Error, LostHow, Result};
use crate::hub::{Hub, refuse_forked};
use crate::point;
use crate::shm::fork;
use crate::wait::{Bell, Deadline};

/// A rank of a team: who the others are, and the scope of every wait.
///
/// A [`Team`] owns the membership and lends it by [`Deref`](std::ops::Deref); what stands on the team, as a window does,
/// keeps a handle of its own. A handle that outlives the [`Team`] belongs to a rank that has left: what it begins is
/// [`Error::PeerLeft`] with the rank's own number.
#[doc(alias = "get_comm_ctx")]
#[doc(alias = "CommContext")]
pub struct Member {
    pub(super) shared: Arc<TeamShared>,
    pub(super) rank: usize,
    /// The last operation that this rank finished.
    pub(super) seq: AtomicU64,
    /// Whether a thread is inside an operation.
    pub(super) inside: AtomicBool,
    /// Whether this rank holds the name of the team no longer.
    pub(super) nameless: AtomicBool,
    /// For a team that was made of another one: which rank of that each rank of this one is.
    pub(super) origin: Vec<usize>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({:?}, rank {} of {})", self.name(), self.rank, self.size())
    }
}

impl Member {
    /// Says to all that this rank is lost, as one whose thread has panicked: the team is over. For what holds the team in
    /// another thread than the one that panics, and would leave it in good order.
    pub fn fail(&self) {
        if !fork::is_forked() && !self.has_left() {
            self.shared.end(&Ending::Lost { rank: self.rank, how: LostHow::Panicked });
        }
    }

    /// Whether this rank is in a team that goes on; `op` is who asks. For what touches memory of others without waiting.
    ///
    /// # Errors
    /// What ended the team; [`Error::PeerLeft`] with this rank, if it has left; [`Error::Forked`].
    pub fn check(&self, op: &str) -> Result<()> {
        self.alive()?;
        let at = || at(&self.shared, self.rank, op, Instant::now());
        if let Some(error) = self.shared.ended(at) {
            return Err(error);
        }
        if self.has_left() {
            return Err(Error::PeerLeft { rank: self.rank, at: Box::new(at()) });
        }
        Ok(())
    }

    /// Whether something has ended the team. A rank that has left in good order has not.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    ///
    /// let team = Team::join("over-example", 0, 1, Deadline::default())?;
    /// assert!(!team.is_over());
    /// team.abort("enough");
    /// assert!(team.is_over());
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn is_over(&self) -> bool {
        self.shared.is_over()
    }

    /// Holds the name of a team that is over no longer for this rank, so that the next team can have it while there are
    /// still handles of this one. The name is free when all ranks have done so, left or died. Does nothing while the team
    /// goes on.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    ///
    /// let old = Team::join("heirloom", 0, 1, Deadline::default())?;
    /// old.abort("enough");
    /// old.free_name();
    /// let new = Team::join("heirloom", 0, 1, Deadline::default())?;
    /// assert_ne!(old.id(), new.id());
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn free_name(&self) {
        if !fork::is_forked() && self.is_over() {
            self.let_name_go();
        }
    }

    pub(super) fn let_name_go(&self) {
        if !self.nameless.swap(true, Ordering::AcqRel) {
            self.shared.release_name();
        }
    }

    /// Something that the ranks of this process share, made by the first that asks for this type and key; gone with the
    /// last handle. `make` does not share anything itself.
    pub fn share<T: Any + Send + Sync>(&self, key: u64, make: impl FnOnce() -> T) -> Arc<T> {
        self.shared.share(key, make)
    }

    /// Keeps memory that other processes of the team may use, until each of them is dead or `let_go` says of it, by its
    /// index, that it uses the memory no more. It is looked at whenever a process [rings](Member::ring_process).
    pub fn keep(&self, memory: impl Send + 'static, let_go: impl Fn(usize) -> bool + Send + 'static) {
        self.shared.keep(Box::new(memory), Box::new(let_go));
    }

    /// Makes a process of the team look at what it [keeps](Member::keep). Does nothing for this one.
    pub fn ring_process(&self, process: usize) {
        if process != self.shared.own_process() && process < self.shared.processes() && !fork::is_forked() {
            self.shared.ring_process(process);
        }
    }

    /// How many processes the team has.
    pub fn processes(&self) -> usize {
        self.shared.processes()
    }

    /// Whether all ranks of a process have left the team.
    pub fn process_has_left(&self, process: usize) -> bool {
        let mut ranks = (0..self.size()).filter(|&rank| self.shared.process_of(rank) == process);
        ranks.all(|rank| self.shared.control().left_after(rank).is_some())
    }

    /// A team of some ranks of this one, in the order in which they are given; called by those ranks alone.
    ///
    /// The subset has a life of its own: it goes on when a rank outside of it is lost. But while it is being joined, what
    /// ends the whole ends the join.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a rank does not exist or comes twice, or the caller is not among them; else those
    /// of [`Team::join`].
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    ///
    /// let team = Team::join("whole", 0, 1, Deadline::default())?;
    /// assert_eq!(team.subset(&[0], Deadline::default())?.size(), 1);
    /// assert!(team.subset(&[0, 0], Deadline::default()).is_err());
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn subset(&self, ranks: &[usize], deadline: impl Into<Deadline>) -> Result<Team> {
        self.alive()?;
        let refuse = |why: String| Err(Error::invalid("Team::subset", why));
        for (i, &rank) in ranks.iter().enumerate() {
            if rank >= self.size() {
                return refuse(format!("rank {rank} does not exist in a team of {}", self.size()));
            }
            if ranks[..i].contains(&rank) {
                return refuse(format!("rank {rank} comes twice"));
            }
        }
        let Some(rank) = ranks.iter().position(|&rank| rank == self.rank) else {
            return refuse(format!("the caller, rank {}, is not among {ranks:?}", self.rank));
        };
        let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
        let name = self.name_of_part(&list.join(","));
        // What ends the whole does not wake who joins a part of it.
        let heed = || self.check("subset").map(|()| false);
        Team::enter(&name, rank, ranks.len(), ranks, deadline.into(), Some(&heed))
    }

    /// Joins another team, as [`Team::join`] does; but what ends this one ends the join. For ranks of this team who meet under a
    /// name of their own: nobody waits there for a rank that is lost here.
    ///
    /// # Errors
    /// What has ended this team; else those of [`Team::join`].
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    ///
    /// let team = Team::join("main", 0, 1, Deadline::default())?;
    /// assert_eq!(team.join_beside("another", 0, 1, Deadline::default())?.size(), 1);
    /// team.abort_handle().abort("enough");
    /// assert!(team.join_beside("late", 0, 2, Deadline::default()).is_err());
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn join_beside(
        &self,
        name: &str,
        rank: usize,
        size: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Team> {
        self.alive()?;
        let heed = || self.check("join").map(|()| false);
        heed()?;
        Team::join_heeding(name, rank, size, deadline.into(), Some(&heed))
    }

    /// The name of a team that is made of this one.
    pub(super) fn name_of_part(&self, part: &str) -> String {
        let [low, high] = self.shared.id().0;
        // The id alone would do; the parent's name is for whoever reads it.
        let mut parent = self.name().len().min(1024);
        while !self.name().is_char_boundary(parent) {
            parent -= 1;
        }
        format!("{}/{low:016x}{high:016x}/{part}", &self.name()[..parent])
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// Those of any symmetric operation: what ended the team; [`Error::PeerLeft`]; [`Error::Timeout`], which ends it;
    /// [`Error::ConcurrentUse`]; [`Error::Forked`].
    #[doc(alias = "Barrier")]
    pub fn barrier(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let mut op = self.begin("barrier", deadline)?;
        let round = op.seq();
        point!("barrier.begun");
        let met =
            op.meet("the others at the barrier", |rank| &self.shared.control().rank(rank).posted, round);
        let outcome = op.settle(met, false);
        point!("barrier.met");
        outcome
    }

    /// The team's name.
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// 128 random bits that name this team among all there have ever been; the same on all ranks.
    pub fn id(&self) -> u128 {
        let [low, high] = self.shared.id().0;
        u128::from(high) << 64 | u128::from(low)
    }

    /// This rank.
    #[doc(alias = "GetRank")]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the team has, those that have left or died included.
    #[doc(alias = "GetWorldSize")]
    #[doc(alias = "nranks")]
    pub fn size(&self) -> usize {
        self.shared.size()
    }

    /// Whether a rank is a thread of this process: it has the same memory, and the same fate.
    #[doc(alias = "IsSameProcessChecker")]
    pub fn shares_process(&self, rank: usize) -> bool {
        rank < self.size() && self.shared.process_of(rank) == self.shared.own_process()
    }

    /// The index of a rank's process in the team, in the order of the lowest rank of each; `None` for no such rank.
    pub fn process_of(&self, rank: usize) -> Option<usize> {
        (rank < self.size()).then(|| self.shared.process_of(rank))
    }

    /// Ends the team: every waiting and every later call, on every rank, returns [`Error::Aborted`] with this reason.
    /// Does nothing if the team is over already.
    ///
    /// ```
    /// use comm_core::{Deadline, Error, team::Team};
    ///
    /// let team = Team::join("abort-example", 0, 1, Deadline::default())?;
    /// team.abort("no more input");
    /// let error = team.barrier(Deadline::default()).unwrap_err();
    /// assert!(matches!(error, Error::Aborted { by: 0, reason, .. } if reason == "no more input"));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn abort(&self, reason: &str) {
        self.abort_handle().abort(reason);
    }

    /// A handle that can end the team from any thread, also while this one is inside an operation.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { shared: Arc::downgrade(&self.shared), rank: self.rank }
    }

    /// How many operations this rank has finished; between operations the same number on all ranks. The join was the
    /// first.
    pub fn operations(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// What wakes the waiters of a [`Cell`](crate::wait::Cell) of this team.
    pub fn bell(&self) -> &(impl Bell + use<>) {
        &*self.shared
    }

    /// The hub of this process.
    pub fn hub(&self) -> &Arc<Hub> {
        self.shared.hub()
    }

    pub(super) fn shared(&self) -> &Arc<TeamShared> {
        &self.shared
    }

    pub(super) fn alive(&self) -> Result<()> {
        refuse_forked()
    }

    /// Whether this rank's [`Team`] has been dropped.
    pub(super) fn has_left(&self) -> bool {
        self.shared.control().left_after(self.rank).is_some()
    }
}
