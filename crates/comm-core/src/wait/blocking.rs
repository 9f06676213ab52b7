//! The wait of a thread.

use super::cell::Cell;
#[cfg(loom)]
use super::model::{Next, Patience};
use super::park::ParkWord;
#[cfg(not(loom))]
use super::patience::{Next, Patience};

/// Who waits: its slot in waiter masks, and the word it sleeps on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter<'a> {
    pub(crate) slot: usize,
    pub(crate) park: &'a ParkWord,
}

impl ParkWord {
    /// Waits until `ready`, which looks at the cell, gives something: enrolled there as `slot`, and asleep here. `None` when
    /// there is no patience left.
    pub fn wait<T>(
        &self,
        cell: &Cell,
        slot: usize,
        patience: &mut Patience,
        ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        until(cell, Waiter { slot, park: self }, patience, ready, || None::<()>).ok()
    }
}

/// Why a wait ended without what it waited for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unmet<E> {
    /// The scope is over, or cannot fulfil this wait any more.
    Ended(E),
    /// The deadline has passed.
    TimedOut,
}

/// Waits until `ready` gives something.
///
/// `ready` looks at `cell`; `ended` looks at the scope. What is ready counts even when the scope is over. Whoever
/// ends a scope wakes the park word of every rank, so the waiter enrols with the cell alone.
pub(crate) fn until<T, E>(
    cell: &Cell,
    waiter: Waiter<'_>,
    patience: &mut Patience,
    mut ready: impl FnMut() -> Option<T>,
    mut ended: impl FnMut() -> Option<E>,
) -> Result<T, Unmet<E>> {
    let mut look = || {
        if let Some(found) = ready() {
            return Some(Ok(found));
        }
        let end = ended()?;
        // The end may have been declared after what we wait for: look once more, now that it is visible.
        Some(ready().ok_or(Unmet::Ended(end)))
    };
    loop {
        if let Some(outcome) = look() {
            return outcome;
        }
        match patience.next() {
            Next::Look => {}
            Next::GiveUp => return look().unwrap_or(Err(Unmet::TimedOut)),
            Next::Sleep(slice) => {
                let ticket = waiter.park.ticket();
                cell.enrol(waiter.slot);
                if let Some(outcome) = look() {
                    return outcome;
                }
                waiter.park.sleep(ticket, slice);
            }
        }
    }
}
