//! One key in a process: a seat for each of its ranks, and who may fill it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::error::At;
use comm_core::{Deadline, Error, Result};

use super::beside::Beside;
use super::{OP, ThreadGroupKey, lock};
use crate::group::ThreadGroup;

/// The longest sleep without a look at the deadline, which may move.
const SLICE: Duration = Duration::from_millis(200);

/// How a rank has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// By returning.
    Left,
    /// By a panic.
    Lost,
}

/// A group as one rank of this process has it.
#[derive(Default)]
pub(super) enum Seat {
    #[default]
    Empty,
    /// A thread is making it.
    Making {
        /// What has become of the rank meanwhile, if it is not there any more.
        gone: Option<Gone>,
        beside: Beside,
    },
    Made(Arc<ThreadGroup>),
}

impl Seat {
    fn made(self) -> Option<Arc<ThreadGroup>> {
        if let Seat::Made(group) = self { Some(group) } else { None }
    }

    /// Whether there is no group that goes on, and nobody makes one.
    fn is_free(&self) -> bool {
        match self {
            Seat::Empty => true,
            Seat::Making { .. } => false,
            Seat::Made(group) => group.is_over(),
        }
    }
}

/// All there is of one key in a process.
pub(super) struct Entry {
    /// The name of the team.
    name: String,
    pub(super) ids: Vec<usize>,
    /// By rank. Locked for a look at most: nobody joins, drops a group or calls anybody's code meanwhile.
    pub(super) seats: Mutex<Vec<Seat>>,
    changed: Condvar,
}

pub(super) enum Found {
    Group(Arc<ThreadGroup>),
    /// It is the caller's to make.
    Nothing(Maker),
}

impl Entry {
    pub(super) fn new(name: String, key: &ThreadGroupKey) -> Entry {
        let seats = key.ids().iter().map(|_| Seat::default()).collect();
        Entry { name, ids: key.ids().to_vec(), seats: Mutex::new(seats), changed: Condvar::new() }
    }

    /// The group of a rank, or the right to make it. Waits while somebody else is making it.
    pub(super) fn find(self: &Arc<Entry>, rank: usize, beside: &Beside, deadline: Deadline) -> Result<Found> {
        let started = Instant::now();
        let mut seats = lock(&self.seats);
        loop {
            match &seats[rank] {
                Seat::Made(group) if !group.is_over() => return Ok(Found::Group(group.clone())),
                Seat::Empty | Seat::Made(_) => {
                    let maker = self.occupy(&mut seats, rank, beside.clone());
                    drop(seats);
                    return Ok(Found::Nothing(maker));
                }
                Seat::Making { .. } => {}
            }
            beside.check()?;
            let left = deadline.remaining();
            if left.is_zero() {
                return Err(self.timed_out(rank, started));
            }
            let waited = self.changed.wait_timeout(seats, left.min(SLICE));
            seats = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn occupy(self: &Arc<Entry>, seats: &mut [Seat], rank: usize, beside: Beside) -> Maker {
        let before = std::mem::replace(&mut seats[rank], Seat::Making { gone: None, beside });
        Maker { entry: self.clone(), rank, old: before.made(), made: None }
    }

    /// Makes the group for an id of this process that has not asked for it, in a thread of its own, which does `afterwards` when
    /// it has given the entry back.
    ///
    /// Whether the id is still here is asked when its seat is marked: one that is lost is taken from those that are here, and then
    /// looked for in the seats.
    pub(super) fn bring_in(
        self: &Arc<Entry>,
        id: usize,
        is_here: impl FnOnce() -> bool,
        deadline: Deadline,
        afterwards: impl FnOnce() + Send + 'static,
    ) {
        let Some(rank) = self.ids.iter().position(|&other| other == id) else { return };
        let mut seats = lock(&self.seats);
        if !seats[rank].is_free() {
            return;
        }
        let mut makers = seats.iter().filter_map(|seat| match seat {
            Seat::Making { beside, .. } => Some(beside.clone()),
            Seat::Empty | Seat::Made(_) => None,
        });
        let beside = makers.next().unwrap_or_default();
        let maker = self.occupy(&mut seats, rank, beside.clone());
        drop(seats);
        if !is_here() {
            return;
        }
        // If it fails, the id finds out when it calls. If there is no thread for it, it has to call.
        let helper = thread::Builder::new().name("comm-groups".into());
        let _ = helper.spawn(move || {
            drop(maker.make(&beside, deadline));
            afterwards();
        });
    }

    /// Whether there is no group of any rank, and nobody makes one.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.seats).iter().all(|seat| matches!(seat, Seat::Empty))
    }

    pub(super) fn is_being_made(&self) -> bool {
        lock(&self.seats).iter().any(|seat| matches!(seat, Seat::Making { .. }))
    }

    pub(super) fn take(&self, rank: usize) -> Option<Arc<ThreadGroup>> {
        let mut seats = lock(&self.seats);
        if let Seat::Made(_) = seats[rank] { std::mem::take(&mut seats[rank]).made() } else { None }
    }

    /// Tells the peers of a rank that it is gone: at once, or when the group is made that is being made for it.
    pub(super) fn end(&self, rank: usize, how: Gone) {
        let group = match &mut lock(&self.seats)[rank] {
            Seat::Making { gone, .. } => {
                *gone = Some(how);
                None
            }
            Seat::Made(group) if how == Gone::Lost => Some(group.clone()),
            seat => std::mem::take(seat).made(),
        };
        // Outside of the lock, and so is the drop of one that is left.
        if let (Gone::Lost, Some(group)) = (how, &group) {
            group.team().fail();
        }
    }

    fn timed_out(&self, rank: usize, started: Instant) -> Error {
        let (waited, team) = (started.elapsed(), self.name.clone());
        Error::Timeout {
            what: "another thread to have made the group".into(),
            waited,
            missing: Vec::new(),
            seen: 0,
            expected: 1,
            at: Box::new(At { team, rank, op: OP.into(), elapsed: waited }),
        }
    }
}

/// The right to make the group of one rank. Given up without a group, by an error or a panic, it leaves the seat empty; unused, as
/// it was.
pub(super) struct Maker {
    entry: Arc<Entry>,
    rank: usize,
    /// What was there before, and is over.
    old: Option<Arc<ThreadGroup>>,
    made: Option<Arc<ThreadGroup>>,
}

impl Maker {
    pub(super) fn make(mut self, beside: &Beside, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
        if let Some(old) = self.old.take() {
            // Somebody may hold it still, and the next one has the same name.
            old.team().free_name();
        }
        let team = beside.join(&self.entry.name, self.rank, self.entry.ids.len(), deadline)?;
        let group = Arc::new(ThreadGroup::new(team, deadline)?);
        self.made = Some(group.clone());
        Ok(group)
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        let made = self.made.take();
        let gone = {
            let mut seats = lock(&self.entry.seats);
            let gone = match seats[self.rank] {
                Seat::Making { gone, .. } => gone,
                Seat::Empty | Seat::Made(_) => None,
            };
            let kept = made.clone().filter(|_| gone != Some(Gone::Left)).or(self.old.take());
            seats[self.rank] = kept.map_or(Seat::Empty, Seat::Made);
            gone
        };
        // Outside of the lock, and so is the drop of one that is left.
        if let (Some(Gone::Lost), Some(group)) = (gone, &made) {
            group.team().fail();
        }
        drop(made);
        self.entry.changed.notify_all();
    }
}
