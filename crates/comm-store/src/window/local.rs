//! What the ranks of one process share of a window, and how its memory goes back.
//!
//! A part may be reached from any process of the team. A process says at the door of every other one that it can reach the
//! parts, and with its last handle that it is gone, and makes that one look; its own parts it keeps until all others have
//! said so, or are dead, or have left without ever having reached them. So a window is freed when the last of its ranks has left it, whoever that is.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use comm_core::hub::is_forked;
use comm_core::team::Member;

use super::expose::Exposition;
use super::part::{Door, Part};

/// What is made on a window, shared by the ranks of this process: it is there as long as one of them has the window.
pub(crate) trait Upon: Any + Send + Sync {
    /// What other processes may still use of it, when all ranks of this process have gone.
    fn leave(&self) -> Beside;
}

/// Memory beside the parts that other processes may use, and whether one of them, by its index, uses it no more.
pub(crate) struct Beside {
    pub(crate) memory: Box<dyn Send>,
    pub(crate) let_go: Box<dyn Fn(usize) -> bool + Send>,
}

pub(crate) struct Local {
    member: Arc<Member>,
    /// All parts, as they are reached from this process, by rank.
    parts: Vec<OnceLock<Part>>,
    /// Tensors that ranks of this process expose, by rank and slot: peers in this process read them where they are.
    exposed: Vec<Mutex<HashMap<usize, Exposition>>>,
    /// Whether all ranks have agreed not to make the window, so that nobody reaches anybody's part.
    refused: AtomicBool,
    upon: OnceLock<Arc<dyn Upon>>,
}

impl Local {
    pub(super) fn new(member: Arc<Member>) -> Local {
        let size = member.size();
        Local {
            member,
            parts: (0..size).map(|_| OnceLock::new()).collect(),
            exposed: (0..size).map(|_| Mutex::default()).collect(),
            refused: AtomicBool::new(false),
            upon: OnceLock::new(),
        }
    }

    pub(super) fn part(&self, rank: usize) -> Option<&Part> {
        self.parts.get(rank)?.get()
    }

    /// Sets the part of a rank, unless another rank of this process has.
    pub(super) fn set_part(&self, rank: usize, part: Part) {
        if let Some(slot) = self.parts.get(rank) {
            let _ = slot.set(part);
        }
    }

    /// What a rank of this process exposes, by slot.
    pub(super) fn exposed(&self, rank: usize) -> Option<&Mutex<HashMap<usize, Exposition>>> {
        self.exposed.get(rank)
    }

    /// Says at the doors of all other processes that this one can reach their parts.
    pub(super) fn enter(&self) {
        let Some(own) = self.own_process() else { return };
        for door in self.other_doors() {
            door.enter(own);
        }
    }

    /// What is made on the window, by the first that asks; `None` if that was something else.
    ///
    /// A rank that has not come back from making the window holds this already, so however soon others come and go, all
    /// ranks of this process share one.
    pub(crate) fn upon<T: Upon>(&self, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        let there: Arc<dyn Any + Send + Sync> = self.upon.get_or_init(|| Arc::new(make())).clone();
        there.downcast().ok()
    }

    pub(super) fn refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    fn own_process(&self) -> Option<usize> {
        self.member.process_of(self.member.rank())
    }

    /// The doors of the other processes whose parts are known here.
    fn other_doors(&self) -> impl Iterator<Item = &Door> {
        let others = self.doormen().filter(|&rank| !self.member.shares_process(rank));
        others.filter_map(|rank| self.part(rank)?.door().ok())
    }

    /// The lowest rank of each process.
    fn doormen(&self) -> impl Iterator<Item = usize> {
        let first = |p| (0..self.member.size()).find(|&rank| self.member.process_of(rank) == Some(p));
        (0..self.member.processes()).filter_map(first)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if is_forked() || *self.refused.get_mut() {
            // Of a fork's child, neither the parts nor the promise to leave them alone are its own.
            return;
        }
        let ours: Vec<Part> = (0..self.member.size())
            .filter(|&rank| self.member.shares_process(rank))
            .filter_map(|rank| self.part(rank).cloned())
            .collect();
        // What is exposed is withdrawn before it is let go of, also what was to stay exposed for good.
        for part in &ours {
            part.withdraw_all();
        }
        if let Some(own) = self.own_process() {
            self.other_doors().for_each(|door| door.leave(own));
            (0..self.member.processes()).for_each(|process| self.member.ring_process(process));
        }
        let (door, member) = (ours.first().cloned(), self.member.clone());
        let (memory, let_go) = self.upon.get().map(|upon| upon.leave()).map(|b| (b.memory, b.let_go)).unzip();
        self.member.keep((ours, memory), move |process| {
            let Some(door) = door.as_ref().and_then(|part| part.door().ok()) else { return true };
            // Who could never reach the parts does not come to the door to say that it is gone.
            let is_gone =
                door.has_left(process) || (!door.has_entered(process) && member.process_has_left(process));
            is_gone && let_go.as_ref().is_none_or(|let_go| let_go(process))
        });
    }
}
