//! Slots of shared memory: what a promise is to other processes.
//!
//! They lie in chunks of the home's arena of windows, which its peers map. A chunk is never used for anything else, so a
//! stale ticket finds a slot, if not its own.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use comm_core::layout;
use comm_core::shm::{Pinned, Shared};
use comm_core::wait::Cell;

use crate::state::{ROWS, Seat};

/// Slots of a chunk.
pub(crate) const SLOTS: usize = 256;

/// Words for what is said of the value. Small values are said in full.
pub(crate) const LETTER_WORDS: usize = 40;

/// What stands at the start of a chunk.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"promises");

/// A promise.
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) seat: Seat,
    /// The processes of its holders, see [`entry`]; 0 where there is none.
    who: [AtomicU64; ROWS],
    /// Where its value is, or the value itself. Written by the one who sets it, before it is set.
    pub(crate) letter: [AtomicU64; LETTER_WORDS],
}

// SAFETY: repr(C), of types that are made of atomics alone; no Drop.
unsafe impl Shared for Slot {}

/// How a process is entered in a row: otherwise in each use of the slot. Who comes too late for one use and takes his entry back
/// must not take that of another thread of his process for the next.
fn entry(id: u64, generation: u64) -> u64 {
    // The golden ratio's bits: the numbers of uses are small and one after the other.
    id ^ generation.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Slot {
    /// Enters a process in a row; `false` if somebody is there.
    pub(crate) fn enter(&self, row: usize, id: u64, generation: u64) -> bool {
        let entry = entry(id, generation);
        self.who[row].compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes an entry back, if it is there.
    pub(crate) fn leave(&self, row: usize, id: u64, generation: u64) {
        let entry = entry(id, generation);
        let _ = self.who[row].compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Who is entered in a row.
    pub(crate) fn holder(&self, row: usize, generation: u64) -> Option<u64> {
        let there = self.who.get(row)?.load(Ordering::Acquire);
        // The same once more undoes it.
        (there != 0).then(|| entry(there, generation))
    }

    /// Nobody is entered any more.
    pub(crate) fn vacate(&self) {
        self.who.iter().for_each(|who| who.store(0, Ordering::Relaxed));
    }
}

/// Slots, and which of them have changed for tasks of the home.
#[repr(C, align(64))]
pub(crate) struct Chunk {
    pub(crate) magic: AtomicU64,
    _room: [AtomicU64; 3],
    dirty: [AtomicU64; SLOTS / 64],
    pub(crate) slots: [Slot; SLOTS],
}

// SAFETY: repr(C), of types that are made of atomics alone; no Drop.
unsafe impl Shared for Chunk {}

/// What both ends must agree upon.
pub(crate) const LAYOUT: u64 = layout::hash(&[
    2, // counted up when the meaning of a word changes and its place does not
    size_of::<Cell>(),
    size_of::<Seat>(),
    size_of::<Slot>(),
    size_of::<Chunk>(),
    ROWS,
    LETTER_WORDS,
]);

impl Chunk {
    /// Has the home look at a slot.
    pub(crate) fn mark(&self, index: usize) {
        if let Some(word) = self.dirty.get(index / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Release);
        }
    }

    /// The slots that have been marked, which they are no more.
    pub(crate) fn take_marked(&self, mut each: impl FnMut(usize)) {
        for (i, word) in self.dirty.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                each(i * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

/// One slot of a chunk, which is kept mapped.
#[derive(Clone)]
pub(crate) struct SlotAt {
    chunk: Pinned<Chunk>,
    index: usize,
}

impl SlotAt {
    /// `None` if the chunk has no such slot.
    pub(crate) fn new(chunk: Pinned<Chunk>, index: usize) -> Option<SlotAt> {
        (index < SLOTS).then_some(SlotAt { chunk, index })
    }

    pub(crate) fn chunk(&self) -> &Pinned<Chunk> {
        &self.chunk
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Has the home look at it.
    pub(crate) fn mark(&self) {
        self.chunk.mark(self.index);
    }
}

impl Deref for SlotAt {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.chunk.slots[self.index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_late_for_one_use_leaves_the_next_alone() {
        let slot = Slot {
            seat: Seat::default(),
            who: Default::default(),
            letter: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        let (one, another) = (0x1234_5678_9abc_def0, u64::MAX);
        assert_eq!(slot.holder(3, 7), None);
        assert!(slot.enter(3, one, 7) && !slot.enter(3, another, 7) && !slot.enter(3, one, 7));
        assert_eq!(slot.holder(3, 7), Some(one));
        slot.leave(3, another, 7);
        assert_eq!(slot.holder(3, 7), Some(one));
        // Another thread of the same process, in the next use.
        slot.vacate();
        assert!(slot.enter(3, one, 8));
        slot.leave(3, one, 7);
        assert_eq!(slot.holder(3, 8), Some(one));
        slot.leave(3, one, 8);
        assert_eq!(slot.holder(3, 8), None);
        assert_eq!(slot.holder(ROWS, 8), None, "there is no such row");
    }
}
