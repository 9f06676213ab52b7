//! Where a waiter sleeps: one word per rank, never the word that it waits for.

use super::sync::{AtomicU32, Ordering};

/// The word that a rank sleeps on, on a cache line of its own.
///
/// A sleeper takes a ticket, makes itself known, looks at its condition once more and sleeps only while the
/// ticket is current; a wake-up makes every ticket stale first, so one that comes in between is not lost. Any bit pattern
/// is a valid word, since peers map this memory.
///
/// The ranks of a team have theirs in its control block. Who waits outside of a team brings one:
///
/// ```
/// use std::time::Duration;
/// use comm_core::wait::{Bell, Cell, ParkWord, Patience};
///
/// struct Wakes<'p>(&'p ParkWord);
/// impl Bell for Wakes<'_> {
///     fn ring(&self, _slot: usize, _tag: u32) {
///         self.0.wake();
///     }
/// }
///
/// let (cell, park) = (Cell::default(), ParkWord::default());
/// std::thread::scope(|s| {
///     s.spawn(|| cell.set(7, &Wakes(&park)));
///     let mut patience = Patience::new(Duration::from_secs(60).into(), 2);
///     let seven = || (cell.load() == 7).then_some("seven");
///     assert_eq!(park.wait(&cell, 0, &mut patience, seven), Some("seven"));
/// });
/// ```
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ParkWord {
    turn: AtomicU32,
    #[cfg(loom)]
    futex: super::model::Futex,
}

// SAFETY: repr(C), an atomic integer alone, no Drop.
#[cfg(not(loom))]
unsafe impl crate::shm::Shared for ParkWord {}

/// The turn at which a sleeper has last looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u32);

impl ParkWord {
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.turn.load(Ordering::Acquire))
    }

    /// Makes all tickets stale and wakes whoever sleeps.
    pub fn wake(&self) {
        self.turn.fetch_add(1, Ordering::Release);
        #[cfg(not(loom))]
        super::futex::wake_all(&self.turn);
        #[cfg(loom)]
        self.futex.wake_all();
    }

    /// Sleeps until woken, until `at_most` has passed, or for no reason at all.
    #[cfg(not(loom))]
    pub(crate) fn sleep(&self, ticket: Ticket, at_most: std::time::Duration) {
        super::futex::wait(&self.turn, ticket.0, at_most);
    }

    /// Sleeps until woken: a model has no time, and a wake-up that is lost is a deadlock that loom reports.
    #[cfg(loom)]
    pub(crate) fn sleep(&self, ticket: Ticket, (): ()) {
        self.futex.wait_while(|| self.ticket() == ticket);
    }
}
