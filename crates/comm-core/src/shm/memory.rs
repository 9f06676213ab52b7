//! Memory that several processes may write: a block of the own arena of windows, or a range of a peer's.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Block, Segment, Shared};
use crate::error::Result;

/// A range of an arena of windows, as it is reached from here. Other processes may write it at any time, so there are
/// atomics in it, and copies of it.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// use comm_core::shm::{Access, Arena, Memory};
///
/// let arena = Arena::new(Access::ReadWrite, 8 << 20, |_| {});
/// let memory = Memory::Here(Arc::new(arena.alloc_zeroed(128)?));
/// memory.typed::<AtomicU64>(64, 1)?[0].store(7, Ordering::Release);
/// let mut bytes = [0; 8];
/// memory.read(64, &mut bytes)?;
/// assert_eq!(u64::from_ne_bytes(bytes), 7);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub enum Memory {
    /// A block of this process: this rank's own, or that of a rank that is a thread beside it.
    Here(Arc<Block>),
    /// A range of a segment of another process, from this byte on.
    There(Arc<Segment>, u64),
}

impl Memory {
    /// The block, if it is of this process.
    pub fn block(&self) -> Option<&Arc<Block>> {
        match self {
            Memory::Here(block) => Some(block),
            Memory::There(..) => None,
        }
    }

    /// Atomics that lie so many bytes into it. What they say may be anything.
    ///
    /// # Errors
    /// They are not inside, or not aligned.
    pub fn typed<T: Shared>(&self, offset: u64, count: usize) -> Result<&[T]> {
        Ok(match self {
            Memory::Here(block) => block.typed_slice(offset, count)?,
            Memory::There(segment, base) => segment.typed_slice(base.saturating_add(offset), count)?,
        })
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// They do not fit.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Memory::Here(block) => block.copy_in(offset, bytes)?,
            Memory::There(segment, base) => segment.copy_in(base.saturating_add(offset), bytes)?,
        }
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// There are not so many.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self {
            Memory::Here(block) => block.copy_out(offset, bytes)?,
            Memory::There(segment, base) => segment.copy_out(base.saturating_add(offset), bytes)?,
        }
        Ok(())
    }
}

/// A value of shared type in such memory, which it keeps mapped.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// use comm_core::shm::{Access, Arena, Memory, Pinned};
///
/// let arena = Arena::new(Access::ReadWrite, 8 << 20, |_| {});
/// let block = Arc::new(arena.alloc_zeroed(128)?);
/// let word: Pinned<AtomicU64> = Memory::Here(block).pin(64)?;
/// word.store(7, Ordering::Relaxed);
/// assert_eq!(word.load(Ordering::Relaxed), 7);
/// assert!(word.memory().pin::<AtomicU64>(1).is_err(), "not aligned");
/// # Ok::<(), comm_core::Error>(())
/// ```
pub struct Pinned<T> {
    at: NonNull<T>,
    memory: Memory,
}

impl Memory {
    /// The value that lies so many bytes into it.
    ///
    /// # Errors
    /// It is not inside, or not aligned.
    pub fn pin<T: Shared>(&self, offset: u64) -> Result<Pinned<T>> {
        let at = NonNull::from(&self.typed::<T>(offset, 1)?[0]);
        Ok(Pinned { at, memory: self.clone() })
    }
}

impl<T> Pinned<T> {
    /// The memory in which it lies.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl<T: Shared> Deref for Pinned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `typed` found a valid value at this address for as long as the memory is borrowed, and what that borrow
        // stands for, a mapping that does not move, is held by the memory that lies beside the address.
        unsafe { self.at.as_ref() }
    }
}

// SAFETY: it is a shared reference to a value that is Sync, and the handle of the memory is Send.
unsafe impl<T: Shared> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Pinned<T> {}

impl<T> Clone for Pinned<T> {
    fn clone(&self) -> Self {
        Pinned { at: self.at, memory: self.memory.clone() }
    }
}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("memory", &self.memory).finish_non_exhaustive()
    }
}
