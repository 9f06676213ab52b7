//! The word that is waited for, and the mask of those who wait.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A model has few ranks, and each word more is a step more in every interleaving.
const MASK_WORDS: usize = if cfg!(loom) { 1 } else { 4 };

/// How many waiters can be told apart: one slot for each rank of a team and one for each of its processes.
pub const SLOTS: usize = MASK_WORDS * 64;

/// A 64-bit word that others wait for, alone on its cache line together with its waiter mask.
///
/// The value carries the data's release: what a rank wrote before it [`set`](Cell::set) the cell is visible to
/// whoever has [`load`](Cell::load)ed the new value. All bit patterns are valid, since peers map this memory.
///
/// A team's [`bell`](crate::team::Member::bell) wakes its ranks; without waiters nothing rings:
///
/// ```
/// use comm_core::wait::{Bell, Cell};
///
/// struct Silent;
/// impl Bell for Silent {
///     fn ring(&self, slot: usize, _tag: u32) {
///         unreachable!("nobody waits, and slot {slot} rings");
///     }
/// }
///
/// let cell = Cell::default();
/// cell.set(40, &Silent);
/// assert_eq!(cell.add(2, &Silent), 40);
/// assert_eq!(cell.load(), 42);
/// ```
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Cell {
    value: AtomicU64,
    waiters: [AtomicU64; MASK_WORDS],
    /// Which bucket of a process's async waits this cell belongs to; any value is correct, an even spread is fast.
    tag: AtomicU32,
}

// SAFETY: repr(C), made of atomic integers alone, no Drop.
#[cfg(not(loom))]
unsafe impl crate::shm::Shared for Cell {}

/// Wakes whoever owns a slot of the waiter mask. Implemented by the scope of a wait.
pub trait Bell {
    /// Wakes slot `slot` because of a cell tagged `tag`. Slots that do not exist are ignored: the mask is memory
    /// that any peer can write.
    fn ring(&self, slot: usize, tag: u32);
}

impl Cell {
    /// The value, with everything that was written before it was set.
    pub fn load(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// Stores a value and wakes those who wait for it.
    pub fn set(&self, value: u64, bell: &impl Bell) {
        self.value.store(value, Ordering::Release);
        self.announce(bell);
    }

    /// Adds to the value, wrapping, and wakes those who wait for it; returns the value before.
    pub fn add(&self, n: u64, bell: &impl Bell) -> u64 {
        let before = self.value.fetch_add(n, Ordering::Release);
        self.announce(bell);
        before
    }

    /// Stores a value if the cell holds `expected`, and wakes those who wait for it.
    ///
    /// # Errors
    /// What the cell holds instead, with everything that was written before that was set.
    pub fn replace(&self, expected: u64, value: u64, bell: &impl Bell) -> Result<(), u64> {
        self.replace_quietly(expected, value)?;
        self.announce(bell);
        Ok(())
    }

    /// As [`replace`](Cell::replace), and wakes nobody: for a change that nobody waits for.
    ///
    /// # Errors
    /// Those of [`replace`](Cell::replace).
    pub fn replace_quietly(&self, expected: u64, value: u64) -> Result<(), u64> {
        self.value.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// The tag that [`Bell::ring`] is given.
    pub fn tag(&self) -> u32 {
        self.tag.load(Ordering::Relaxed)
    }

    /// Gives the cell its tag; done once, before the cell is shared.
    pub fn set_tag(&self, tag: u32) {
        self.tag.store(tag, Ordering::Relaxed);
    }

    /// Enters a slot into the waiter mask, for the next change to ring it. The waiter looks at the cell again afterwards and only then sleeps:
    /// of this fence and the one in `announce` one comes first, so either the waiter sees the new value or the
    /// writer sees the waiter's bit.
    pub fn enrol(&self, slot: usize) {
        if let Some(word) = self.waiters.get(slot / 64) {
            word.fetch_or(1 << (slot % 64), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Wakes every enrolled slot. Taking the bits away is the writer's part alone: a waiter that is done leaves
    /// its bit behind, which costs one wake-up too many, while clearing it could take away the bit of another
    /// thread of the same rank.
    fn announce(&self, bell: &impl Bell) {
        fence(Ordering::SeqCst);
        for (i, word) in self.waiters.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                bell.ring(i * 64 + bits.trailing_zeros() as usize, self.tag());
                bits &= bits - 1;
            }
        }
    }
}
