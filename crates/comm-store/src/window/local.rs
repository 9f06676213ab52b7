//! What the ranks of one process share of a window, and how its memory goes back.
//!
//! A part may be reached from any process of the team. With its last handle, a process says at the door of every other
//! process that it is gone, and makes that one look; its own parts it keeps until all others have said so, or are
//! dead. So a window is freed when the last of its ranks has left it, whoever that is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use comm_core::hub::is_forked;
use comm_core::team::Member;

use super::expose::Exposition;
use super::part::Part;

pub(super) struct Local {
    member: Arc<Member>,
    /// All parts, as they are reached from this process, by rank.
    parts: Vec<OnceLock<Part>>,
    /// Tensors that ranks of this process expose, by rank and slot: peers in this process read them where they are.
    exposed: Vec<Vec<Mutex<Exposition>>>,
    /// How many ranks of this process have made the window, knowing that all ranks of the team have.
    made: AtomicUsize,
    /// Whether all ranks have agreed not to make it, so that nobody reaches anybody's part.
    refused: AtomicBool,
}

impl Local {
    pub(super) fn new(member: Arc<Member>, slots: usize) -> Local {
        let size = member.size();
        Local {
            member,
            parts: (0..size).map(|_| OnceLock::new()).collect(),
            exposed: (0..size).map(|_| (0..slots).map(|_| Mutex::default()).collect()).collect(),
            made: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
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

    pub(super) fn slot(&self, rank: usize, slot: usize) -> Option<&Mutex<Exposition>> {
        self.exposed.get(rank)?.get(slot)
    }

    pub(super) fn made(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
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
        let is_own = |rank: usize| self.member.shares_process(rank);
        let process = |rank: usize| self.member.process_of(rank).unwrap_or_default();
        let Some(own_door) = self.doormen().find(|&rank| is_own(rank)) else { return };
        for rank in self.doormen().filter(|&rank| !is_own(rank)) {
            if let Some(door) = self.part(rank).and_then(|part| part.door().ok()) {
                door.leave(process(own_door));
                self.member.ring_process(process(rank));
            }
        }
        let ours: Vec<Part> =
            (0..self.member.size()).filter(|&r| is_own(r)).filter_map(|r| self.part(r).cloned()).collect();
        let all_made =
            self.made.load(Ordering::Relaxed) == (0..self.member.size()).filter(|&r| is_own(r)).count();
        let door = self.part(own_door).cloned();
        // Who failed while the window was made may know of a part and never come to the door.
        let member = (!all_made).then(|| self.member.clone());
        self.member.keep(ours, move |process| {
            let at_the_door = door.as_ref().is_some_and(|p| p.door().is_ok_and(|d| d.has_left(process)));
            at_the_door || member.as_ref().is_some_and(|member| member.process_has_left(process))
        });
    }
}
