//! One key in a process: a slot for each of its ranks, and who may fill it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::error::At;
use comm_core::team::Team;
use comm_core::{Deadline, Error, Result};

use super::{OP, ThreadGroupKey, lock};
use crate::group::ThreadGroup;

/// The longest sleep without a look at the deadline, which may move.
const SLICE: Duration = Duration::from_millis(200);

/// A group as one rank of this process has it.
#[derive(Default)]
pub(super) enum Slot {
    #[default]
    Empty,
    /// A thread is making it.
    Making,
    Made(Arc<ThreadGroup>),
}

impl Slot {
    /// Whether there is no group that goes on, and nobody makes one.
    fn is_free(&self) -> bool {
        match self {
            Slot::Empty => true,
            Slot::Making => false,
            Slot::Made(group) => group.is_over(),
        }
    }
}

/// All there is of one key in a process.
pub(super) struct Entry {
    /// The name of the team.
    name: String,
    pub(super) ids: Vec<usize>,
    /// By rank. Locked for a look at most: nobody joins, drops a group or calls anybody's code meanwhile.
    pub(super) slots: Mutex<Vec<Slot>>,
    changed: Condvar,
}

pub(super) enum Found {
    Group(Arc<ThreadGroup>),
    /// It is the caller's to make.
    Nothing(Claim),
}

impl Entry {
    pub(super) fn new(name: String, key: &ThreadGroupKey) -> Entry {
        let slots = key.ids().iter().map(|_| Slot::default()).collect();
        Entry { name, ids: key.ids().to_vec(), slots: Mutex::new(slots), changed: Condvar::new() }
    }

    /// The group of a rank, or the right to make it. Waits while somebody else is making it.
    pub(super) fn find(self: &Arc<Entry>, rank: usize, deadline: Deadline) -> Result<Found> {
        let started = Instant::now();
        let mut slots = lock(&self.slots);
        loop {
            match &slots[rank] {
                Slot::Made(group) if !group.is_over() => return Ok(Found::Group(group.clone())),
                Slot::Empty | Slot::Made(_) => {
                    let claim = self.claim(&mut slots, rank);
                    drop(slots);
                    return Ok(Found::Nothing(claim));
                }
                Slot::Making => {}
            }
            let left = deadline.remaining();
            if left.is_zero() {
                return Err(self.timed_out(rank, started));
            }
            let waited = self.changed.wait_timeout(slots, left.min(SLICE));
            slots = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn claim(self: &Arc<Entry>, slots: &mut [Slot], rank: usize) -> Claim {
        let before = std::mem::replace(&mut slots[rank], Slot::Making);
        let old = if let Slot::Made(group) = before { Some(group) } else { None };
        Claim { entry: self.clone(), rank, old, made: None }
    }

    /// Makes the group for an id of this process that has not asked for it, in a thread of its own, which does `afterwards` when
    /// it has given the entry back.
    pub(super) fn bring_in(
        self: &Arc<Entry>,
        id: usize,
        deadline: Deadline,
        afterwards: impl FnOnce() + Send + 'static,
    ) {
        let Some(rank) = self.ids.iter().position(|&other| other == id) else { return };
        let mut slots = lock(&self.slots);
        if !slots[rank].is_free() {
            return;
        }
        let claim = self.claim(&mut slots, rank);
        drop(slots);
        // If it fails, the id finds out when it calls. If there is no thread for it, it has to call.
        let helper = thread::Builder::new().name("comm-groups".into());
        let _ = helper.spawn(move || {
            drop(claim.make(deadline));
            afterwards();
        });
    }

    /// Whether there is no group of any rank, and nobody makes one.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.slots).iter().all(|slot| matches!(slot, Slot::Empty))
    }

    pub(super) fn is_being_made(&self) -> bool {
        lock(&self.slots).iter().any(|slot| matches!(slot, Slot::Making))
    }

    pub(super) fn take(&self, rank: usize) -> Option<Arc<ThreadGroup>> {
        let mut slots = lock(&self.slots);
        if !matches!(slots[rank], Slot::Made(_)) {
            return None;
        }
        match std::mem::take(&mut slots[rank]) {
            Slot::Made(group) => Some(group),
            Slot::Empty | Slot::Making => None,
        }
    }

    pub(super) fn peek(&self, rank: usize) -> Option<Arc<ThreadGroup>> {
        match &lock(&self.slots)[rank] {
            Slot::Made(group) => Some(group.clone()),
            Slot::Empty | Slot::Making => None,
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

/// The right to make the group of one rank. Given up without a group, by an error or a panic, it leaves the slot empty.
pub(super) struct Claim {
    entry: Arc<Entry>,
    rank: usize,
    /// What was there before, and is over.
    old: Option<Arc<ThreadGroup>>,
    made: Option<Arc<ThreadGroup>>,
}

impl Claim {
    pub(super) fn make(mut self, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
        if let Some(old) = self.old.take() {
            // Somebody may hold it still, and the next one has the same name.
            old.team().free_name();
        }
        let team = Team::join(&self.entry.name, self.rank, self.entry.ids.len(), deadline)?;
        let group = Arc::new(ThreadGroup::new(team, deadline)?);
        self.made = Some(group.clone());
        Ok(group)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let slot = self.made.take().map_or(Slot::Empty, Slot::Made);
        lock(&self.entry.slots)[self.rank] = slot;
        self.entry.changed.notify_all();
    }
}
