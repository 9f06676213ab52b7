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
    /// The processes of its holders, by the first half of their nonces; 0 where there is none.
    pub(crate) who: [AtomicU64; ROWS],
    /// Where its value is, or the value itself. Written by the one who sets it, before it is set.
    pub(crate) letter: [AtomicU64; LETTER_WORDS],
}

// SAFETY: repr(C), of types that are made of atomics alone; no Drop.
unsafe impl Shared for Slot {}

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
    1, // counted up when the meaning of a word changes and its place does not
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
