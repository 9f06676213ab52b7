//! How ranks meet, leave, and fail together.
//!
//! A [`Team`] is a set of ranks of one host, threads or processes or both, that joined under a name. It has a control
//! block that all of them map, and a sequence of symmetric operations in which all of them take part.
//!
//! **Leaving is not dying.** Dropping a [`Team`] between operations records the operation after which the rank left:
//! operations up to that one end normally everywhere, a later one that needs the rank fails with
//! [`Error::PeerLeft`]. Dropping it while unwinding or inside an operation, or the death of the process, makes the
//! rank lost: the team is over, and every waiting and every later call says so, with its name.
//!
//! **What ends a team** is stored once and wakes everybody: a lost peer, an [abort](Team::abort), and a time-out inside
//! a symmetric operation. A wait whose condition holds succeeds even then.
//!
//! ```
//! use comm_core::{Deadline, team::Team};
//!
//! std::thread::scope(|s| {
//!     for rank in 0..3 {
//!         s.spawn(move || {
//!             let team = Team::join("trio", rank, 3, Deadline::default()).unwrap();
//!             assert_eq!((team.rank(), team.size()), (rank, 3));
//!             team.barrier(Deadline::default()).unwrap();
//!         });
//!     }
//! });
//! ```

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::error::{At, Error, LostHow, Result};
use crate::hub::Hub;
use crate::point;
use crate::shm::{Segment, fork};
use crate::wait::{Bell, Deadline};

pub(crate) mod control;
mod desk;
mod ending;
mod exchange;
mod guard;
mod host;
#[cfg(test)]
mod hostile;
mod join;
mod messages;
mod op;
pub(crate) mod registry;
pub(crate) mod shared;
mod snapshot;
mod tasks;
#[cfg(test)]
mod tests;
mod verdict;

pub use control::{BOARD_BYTES, MAX_RANKS};
use ending::Ending;
use join::Joining;
pub use op::OpGuard;
use shared::TeamShared;
pub use snapshot::{OpenWait, RankSnapshot, TeamSnapshot, snapshots};
pub use tasks::{CellRef, TaskWait};
pub use verdict::odd_one_out;

/// One rank's membership in a team: who the others are, and the scope of every wait. Dropping it leaves.
///
/// Any thread may use it, one at a time for symmetric operations: a second that begins one gets
/// [`Error::ConcurrentUse`].
#[doc(alias = "get_comm_ctx")]
pub struct Team {
    shared: Arc<TeamShared>,
    rank: usize,
    /// The last operation that this rank finished.
    seq: AtomicU64,
    /// Whether a thread is inside an operation.
    inside: AtomicBool,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Team({:?}, rank {} of {})", self.name(), self.rank, self.size())
    }
}

impl Team {
    /// Joins the team of this name as `rank` of `size`, and waits until all are there.
    ///
    /// Names are scoped by the instance (`COMM_INSTANCE_ID`, else the launcher's job id, else this process). The first
    /// to come hosts the join; should it die before the team is complete, another takes its place.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank or a size that cannot be; [`Error::NameInUse`] if a live team has the name;
    /// [`Error::Mismatch`] on every rank if the world sizes differ (`size`) or two come as one rank (`rank`);
    /// [`Error::Timeout`] with those who are missing; [`Error::BadPeer`] if the name is held by another user or
    /// another build; [`Error::PeerLost`] if a rank dies once the team is complete; [`Error::Forked`], [`Error::Io`].
    pub fn join(name: &str, rank: usize, size: usize, deadline: impl Into<Deadline>) -> Result<Team> {
        let deadline = deadline.into();
        if size == 0 || size > MAX_RANKS {
            return Err(Error::invalid(
                "Team::join",
                format!("world size {size}: a team has 1 to {MAX_RANKS} ranks"),
            ));
        }
        if rank >= size {
            return Err(Error::invalid(
                "Team::join",
                format!("rank {rank} of {size}: ranks go from 0 to {}", size - 1),
            ));
        }
        if name.is_empty() || name.len() > 4096 {
            return Err(Error::invalid(
                "Team::join",
                format!("a name of {} bytes: it has 1 to 4096", name.len()),
            ));
        }
        let hub = Hub::get()?;
        point!("join.begin");
        let shared = Joining::new(&hub, name, rank, size, deadline)?.join()?;
        let team = Team { shared, rank, seq: AtomicU64::new(0), inside: AtomicBool::new(false) };
        let mut op = team.begin("join", deadline)?;
        let met = op.meet("the others to join", |rank| &team.shared.control().rank(rank).joined, 1);
        op.settle(met, false)?;
        point!("join.met");
        Ok(team)
    }

    /// A team of some ranks of this one, in the order in which they are given; called by those ranks alone.
    ///
    /// The subset has a life of its own: it goes on when a rank outside of it is lost.
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
        let [low, high] = self.shared.id().0;
        let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
        // The id alone would do; the parent's name is for whoever reads it.
        let mut parent = self.name().len().min(1024);
        while !self.name().is_char_boundary(parent) {
            parent -= 1;
        }
        let name = format!("{}/{low:016x}{high:016x}/{}", &self.name()[..parent], list.join(","));
        Team::join(&name, rank, ranks.len(), deadline)
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

    /// Something that the ranks of this process share, made by the first that asks for this type and key.
    pub fn share<T: Any + Send + Sync>(&self, key: u64, make: impl FnOnce() -> T) -> Arc<T> {
        self.shared.share(key, make)
    }

    /// Keeps memory of this process until no other process of the team can use it any more: until all of their ranks
    /// have left or died.
    pub fn keep(&self, memory: impl Send + 'static) {
        self.shared.keep(Box::new(memory));
    }

    /// A segment of the process of `rank`, waited for outside of any operation; see [`OpGuard::peer_segment`]. `None` if
    /// `rank` is of this process, if its process is dead, or if the segment has not been pushed by the deadline.
    pub fn peer_segment(&self, rank: usize, id: u64, deadline: impl Into<Deadline>) -> Option<Arc<Segment>> {
        if rank >= self.size() || fork::is_forked() {
            return None;
        }
        self.shared.peer_of(rank)?.segment(id, deadline.into())
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

    fn shared(&self) -> &Arc<TeamShared> {
        &self.shared
    }

    fn alive(&self) -> Result<()> {
        if fork::is_forked() { Err(Error::Forked) } else { Ok(()) }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if fork::is_forked() {
            // This process is not the one that joined: its peers must not hear of it.
            return;
        }
        point!("leave");
        let how = if std::thread::panicking() {
            Some(LostHow::Panicked)
        } else {
            self.inside.load(Ordering::Acquire).then_some(LostHow::DroppedInside)
        };
        if let Some(how) = how {
            self.shared.end(&Ending::Lost { rank: self.rank, how });
        }
        self.shared.leave(self.rank, self.seq.load(Ordering::Relaxed));
        self.shared.release_name();
    }
}

/// Ends a team from any thread. It does not keep the team: once all ranks of this process have left, it does nothing.
#[derive(Clone)]
pub struct AbortHandle {
    shared: Weak<TeamShared>,
    rank: usize,
}

impl AbortHandle {
    /// Ends the team, unless it is over already. Of the reason the first 256 bytes reach the other ranks.
    pub fn abort(&self, reason: &str) {
        if fork::is_forked() {
            return;
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.end(&Ending::Aborted { by: self.rank, reason: reason.to_string() });
        }
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AbortHandle(rank {})", self.rank)
    }
}

/// Where an error meets a rank.
fn at(team: &TeamShared, rank: usize, op: &str, started: Instant) -> At {
    At { team: team.name().to_string(), rank, op: op.to_string(), elapsed: started.elapsed() }
}
