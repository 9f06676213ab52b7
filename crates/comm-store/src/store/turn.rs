//! What a rank does with its own records, and a reset of them: never both at once.
//!
//! A reset gives the memory of all records to those of the next round. Who publishes under it would hang a record on a chain
//! that has been cleared already, and who waits would leave a mark in one that is somebody else's.

use std::sync::atomic::{AtomicU32, Ordering};

/// Users of a rank's records: so many, or one that wants them for itself.
#[derive(Debug, Default)]
pub(super) struct Turn(AtomicU32);

const ALONE: u32 = u32::MAX;

impl Turn {
    /// Together with others that share, if none is alone.
    pub(super) fn share(&self) -> Option<Taken<'_>> {
        self.take(|now| (now < ALONE - 1).then(|| now + 1))
    }

    /// Without anybody else.
    pub(super) fn alone(&self) -> Option<Taken<'_>> {
        self.take(|now| (now == 0).then_some(ALONE))
    }

    fn take(&self, next: impl FnMut(u32) -> Option<u32>) -> Option<Taken<'_>> {
        // Acquire: what was done in turns before is seen.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_ok().then(|| Taken(self))
    }
}

/// A turn that goes on.
pub(super) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let less = |now| Some(if now == ALONE { 0 } else { now - 1 });
        let _ = self.0.0.fetch_update(Ordering::Release, Ordering::Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_or_together() {
        let turn = Turn::default();
        let (a, b) = (turn.share().unwrap(), turn.share().unwrap());
        assert!(turn.alone().is_none());
        drop(a);
        assert!(turn.alone().is_none());
        drop(b);
        let alone = turn.alone().unwrap();
        assert!(turn.alone().is_none() && turn.share().is_none());
        drop(alone);
        drop(turn.share().unwrap());
        drop(turn.alone().unwrap());
    }
}
