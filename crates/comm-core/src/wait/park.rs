//! Where a waiter sleeps: one word per rank, never the word that it waits for.

use super::sync::{AtomicU32, Ordering};

/// The word that a rank sleeps on, on a cache line of its own.
///
/// A sleeper takes a ticket, makes itself known, looks at its condition once more and sleeps only while the
/// ticket is current; a wake-up makes every ticket stale first, so one that comes in between is not lost.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ParkWord {
    turn: AtomicU32,
    #[cfg(loom)]
    futex: super::model::Futex,
}

/// The turn at which a sleeper has last looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u32);

impl ParkWord {
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.turn.load(Ordering::Acquire))
    }

    /// Makes all tickets stale and wakes whoever sleeps.
    pub(crate) fn wake(&self) {
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
