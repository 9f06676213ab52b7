//! Where one waits for the end of a promise: a thread on the park word beside the cell, a task by its waker.

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

#[cfg(not(loom))]
use comm_core::wait::Patience;
#[cfg(loom)]
use comm_core::wait::model::Patience;
use comm_core::wait::{Cell, ParkWord};

use super::{TASKS, THREADS, Word, end_of};

/// The word and the place to sleep. Lies in shared memory where the promise can be set from another process.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Seat {
    pub(crate) cell: Cell,
    pub(crate) park: ParkWord,
}

// SAFETY: repr(C), of two types that are made of atomics alone, which lie one after the other without a gap; no Drop.
#[cfg(not(loom))]
unsafe impl comm_core::shm::Shared for Seat {}

impl Seat {
    /// How it has ended, if it does while there is patience.
    pub(crate) fn wait(&self, generation: u64, patience: &mut Patience) -> Option<Word> {
        self.park.wait(&self.cell, THREADS, patience, || end_of(&self.cell, generation))
    }

    /// How it has ended; else the waker is left for when it does.
    pub(crate) fn poll(&self, generation: u64, tasks: &Tasks, waker: &Waker) -> Option<Word> {
        if let Some(word) = end_of(&self.cell, generation) {
            return Some(word);
        }
        // The waker first, then the bit, then one more look: as a thread does.
        tasks.enter(waker);
        self.cell.enrol(TASKS);
        end_of(&self.cell, generation)
    }
}

/// The task that waits: the latest one that asked.
#[derive(Debug)]
pub(crate) struct Tasks(Mutex<Option<Waker>>);

impl Default for Tasks {
    fn default() -> Tasks {
        Tasks(Mutex::new(None))
    }
}

impl Tasks {
    // Wakers are the user's code, and the last handle of a task may be one: nothing is done with them under the lock, but
    // that the one which is there is compared.

    pub(crate) fn enter(&self, waker: &Waker) {
        if self.lock().as_ref().is_some_and(|there| there.will_wake(waker)) {
            return;
        }
        let waker = waker.clone();
        let _old = self.lock().replace(waker);
    }

    /// Who waits, who is to be woken.
    pub(crate) fn take(&self) -> Option<Waker> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
