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
//! **What ends a team** is stored once and wakes everybody: a lost peer, an [abort](Member::abort), and a time-out inside
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

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::error::{At, Error, LostHow, Result};
use crate::hub::Hub;
use crate::launch::LaunchEnv;
use crate::point;
use crate::shm::fork;
use crate::wait::Deadline;

pub(crate) mod control;
mod desk;
mod ending;
mod exchange;
mod guard;
mod host;
#[cfg(test)]
mod hostile;
mod join;
mod member;
mod messages;
mod op;
pub(crate) mod registry;
pub(crate) mod shared;
mod shrink;
mod snapshot;

mod tasks;
#[cfg(test)]
mod tests;
mod verdict;
mod watch;

pub use control::{BOARD_BYTES, MAX_RANKS};
use ending::Ending;
use join::{HEED, Joining};
pub use member::Member;
pub use op::OpGuard;
use shared::TeamShared;
pub use snapshot::{OpenWait, RankSnapshot, TeamSnapshot, snapshots};
pub use tasks::{CellRef, TaskWait};
pub use verdict::odd_one_out;

/// One rank's membership in a team. Dropping it leaves; everything else is what the [`Member`] does that it lends, and of
/// which things that stand on the team keep a clone.
///
/// Any thread may use it, one at a time for symmetric operations: a second that begins one gets
/// [`Error::ConcurrentUse`].
pub struct Team {
    member: Arc<Member>,
}

impl Deref for Team {
    type Target = Arc<Member>;

    fn deref(&self) -> &Arc<Member> {
        &self.member
    }
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
        Team::join_heeding(name, rank, size, deadline.into(), None)
    }

    fn join_heeding(
        name: &str,
        rank: usize,
        size: usize,
        deadline: Deadline,
        heed: Option<&dyn Fn() -> Result<bool>>,
    ) -> Result<Team> {
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
        Team::enter(name, rank, size, &[], deadline, heed)
    }

    /// Joins the team of this name as what the launcher says that this process is: torchrun, Open MPI, MPICH, Slurm, or a shell
    /// that sets `COMM_RANK` and `COMM_WORLD_SIZE`. See [`launch`](crate::launch).
    ///
    /// # Errors
    /// [`Error::Unavailable`] if nobody says what it is; [`Error::InvalidArgument`] if that contradicts itself, or nothing says which
    /// processes belong together (`COMM_INSTANCE_ID`, or the id of a job);
    /// [`Error::Unsupported`] if the ranks are on several hosts; as [`join`](Team::join).
    pub fn from_env(name: &str, deadline: impl Into<Deadline>) -> Result<Team> {
        let env = LaunchEnv::required()?;
        match env.local_world_size {
            Some(local) if local < env.world_size => Err(Error::Unsupported {
                backend: "team",
                op: format!("join {name:?} with {} ranks", env.world_size),
                why: format!("a team is of one host, and {} says that this one has {local}", env.launcher),
            }),
            _ if env.world_size > 1 && !Hub::get()?.instance().shared => Err(Error::invalid(
                "Team::from_env",
                format!(
                    "COMM_INSTANCE_ID is not set, and {} has no id for its job: set it to the same in all {} processes, which do \
                     not find each other else",
                    env.launcher, env.world_size
                ),
            )),
            _ => Team::join(name, env.rank, env.world_size, deadline),
        }
    }

    /// Joins, with sound arguments. `heed` is asked now and then: it says that somebody will not come, so that there is no team
    /// and those who have come do not wait for it, or gives an error that ends the join. `origin` is for a team that is made of another one.
    fn enter(
        name: &str,
        rank: usize,
        size: usize,
        origin: &[usize],
        deadline: Deadline,
        heed: Option<&dyn Fn() -> Result<bool>>,
    ) -> Result<Team> {
        let hub = Hub::get()?;
        point!("join.begin");
        let shared = Joining::new(&hub, name, rank, size, deadline, heed)?.join()?;
        let member = Member {
            shared,
            rank,
            seq: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            nameless: AtomicBool::new(false),
            origin: origin.to_vec(),
        };
        let team = Team { member: Arc::new(member) };
        let mut op = team.begin("join", deadline)?;
        if heed.is_some() {
            op.look_up_every(HEED);
        }
        // One who was welcomed may have heeded an error before it came here. Who is lost is this team's affair from here on.
        let fine = || heed.map_or(Ok(()), |heed| heed().map(drop));
        let met =
            op.meet_while("the others to join", |rank| &team.shared.control().rank(rank).joined, 1, fine);
        op.settle(met, false)?;
        point!("join.met");
        Ok(team)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if fork::is_forked() {
            // This process is not the one that joined: its peers must not hear of it.
            return;
        }
        point!("leave");
        // Taken and never given back: of a thread that begins an operation on a clone of the membership and this one,
        // one comes first.
        let entered = self.inside.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        let how = if std::thread::panicking() {
            Some(LostHow::Panicked)
        } else {
            entered.is_err().then_some(LostHow::DroppedInside)
        };
        if let Some(how) = how {
            self.shared.end(&Ending::Lost { rank: self.rank, how });
        }
        self.shared.leave(self.rank, self.seq.load(Ordering::Relaxed));
        self.let_name_go();
    }
}

/// Ends a team from any thread. It does not keep the rank in the team: once that has left, it does nothing.
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
        if let Some(shared) = self.shared.upgrade()
            && shared.control().left_after(self.rank).is_none()
        {
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
