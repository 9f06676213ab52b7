//! What operations cost, counted and foretold.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

/// What one rank does in one operation, or has done so far.
///
/// Bytes are those of payloads that the rank copies from or to another rank; signals and what ranks say to agree are not
/// counted, nor what a rank copies within its own memory.
///
/// ```
/// use comm_store::window::{Cost, Operation, cost};
///
/// assert_eq!(cost(Operation::Barrier, 4, 0), Cost { notifies: 3, waits: 3, rounds: 1, bytes: 0 });
/// assert_eq!(cost(Operation::RemoteLoad, 4, 256).bytes, 256);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Signals sent to other ranks.
    pub notifies: u64,
    /// Signals waited for.
    pub waits: u64,
    /// How often all ranks wait for each other.
    pub rounds: u64,
    /// Bytes of payload copied from or to other ranks.
    pub bytes: u64,
}

impl Sub for Cost {
    type Output = Cost;

    /// What was done between two readings.
    fn sub(self, earlier: Cost) -> Cost {
        Cost {
            notifies: self.notifies.saturating_sub(earlier.notifies),
            waits: self.waits.saturating_sub(earlier.waits),
            rounds: self.rounds.saturating_sub(earlier.rounds),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

impl Add for Cost {
    type Output = Cost;

    /// One after the other.
    fn add(self, other: Cost) -> Cost {
        Cost {
            notifies: self.notifies.saturating_add(other.notifies),
            waits: self.waits.saturating_add(other.waits),
            rounds: self.rounds.saturating_add(other.rounds),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { notifies, waits, rounds, bytes } = self;
        write!(f, "{notifies} notifies, {waits} waits, {rounds} rounds, {bytes} bytes")
    }
}

/// The operations of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`Signals::notify`](super::Signals::notify) to another rank.
    Notify,
    /// [`Signals::wait`](super::Signals::wait).
    Wait,
    /// [`Signals::barrier`](super::Signals::barrier).
    Barrier,
    /// [`View::remote_load`](super::View::remote_load) from another rank.
    RemoteLoad,
    /// [`View::remote_store`](super::View::remote_store) to another rank.
    RemoteStore,
    /// [`View::put`](super::View::put) to another rank, followed by a signal.
    Put,
    /// [`View::get`](super::View::get) from another rank, preceded by a signal.
    Get,
}

/// What an operation on `bytes` of payload costs a rank, among so many ranks.
#[doc(alias = "cost card")]
pub fn cost(op: Operation, ranks: usize, bytes: u64) -> Cost {
    let peers = (ranks as u64).saturating_sub(1);
    match op {
        Operation::Notify => Cost { notifies: 1, ..Cost::default() },
        Operation::Wait => Cost { waits: 1, ..Cost::default() },
        Operation::Barrier => Cost { notifies: peers, waits: peers, rounds: 1, bytes: 0 },
        Operation::RemoteLoad | Operation::RemoteStore => Cost { bytes, ..Cost::default() },
        Operation::Put => Cost { notifies: 1, bytes, ..Cost::default() },
        Operation::Get => Cost { waits: 1, bytes, ..Cost::default() },
    }
}

/// The counts of one rank. They are for people and tests, and order nothing.
#[derive(Debug, Default)]
pub(super) struct Counters {
    notifies: AtomicU64,
    waits: AtomicU64,
    rounds: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    pub(super) fn notified(&self) {
        self.notifies.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn waited(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn met(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Cost {
        Cost {
            notifies: self.notifies.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            rounds: self.rounds.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}
