//! A piece of an arena.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::inner::{Inner, Place};
use super::{Access, Segment, Shared, ShmError, copy};

/// A piece of an arena: returned to it when dropped.
///
/// The address is a multiple of 64. The content is whatever was there before, unless [`Arena::alloc_zeroed`] made it.
/// The block is the only owner of its bytes in this process; peers find them by (segment, offset, generation), and a
/// generation is never used twice by an arena, so a stale triple can be told. How many peers read a block will be kept
/// beside it in private memory, one row per peer process, so that a death clears exactly its own row.
///
/// A block can be sent to and used from any thread: it is a range of a mapping that does not move and that it keeps
/// mapped, and everything that its methods do through `&self` is atomic or goes through the copy routine.
///
/// [`Arena::alloc_zeroed`]: super::Arena::alloc_zeroed
///
/// ```
/// use comm_core::shm::{Access, Arena};
///
/// let arena = Arena::new(Access::ReadOnly, 8 << 20, |_| {});
/// let block = arena.alloc(1000)?;
/// block.copy_in(4, b"tensor")?;
/// let mut bytes = [0; 6];
/// block.copy_out(4, &mut bytes)?;
/// assert_eq!(&bytes, b"tensor");
/// let before = block.generation();
/// drop(block);
/// let next = arena.alloc(1000)?;
/// assert_ne!(next.generation(), before, "the same bytes, but another block");
/// # Ok::<(), comm_core::Error>(())
/// ```
pub struct Block {
    arena: Arc<Inner>,
    place: Place,
    len: u64,
}

impl Block {
    pub(super) fn new(arena: Arc<Inner>, place: Place, len: u64) -> Block {
        Block { arena, place, len }
    }

    /// The segment that it lies in.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.place.segment
    }

    /// Where it begins in its segment, in bytes; a multiple of 64.
    pub fn offset(&self) -> u64 {
        self.place.offset
    }

    /// Bytes that were asked for.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of this block among all that its arena ever made, from 1.
    pub fn generation(&self) -> u64 {
        self.place.generation
    }

    /// What peers may do with it. Bytes of a [`Access::ReadWrite`] block must not be behind a plain reference while a
    /// peer knows of them.
    pub fn access(&self) -> Access {
        self.place.segment.access()
    }

    /// Its address, valid for reads and writes of [`Block::len`] bytes while the block lives.
    ///
    /// Whoever makes a reference from it must be the block's only user in this process, as a tensor that owns the
    /// block is: the block's own methods also work through `&self`.
    pub fn ptr(&self) -> NonNull<u8> {
        self.place.segment.at(self.place.offset)
    }

    /// Copies bytes in at `offset` of the block.
    ///
    /// # Errors
    /// [`ShmError::Invalid`] if the range is not inside the block.
    pub fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), ShmError> {
        let dst = self.inside("Block::copy_in", offset, src.len() as u64)?;
        // SAFETY: the range is inside the block, which is mapped writable while it lives. In this process only the
        // holder of the block touches its bytes, through atomics and this routine (who makes references from `ptr`
        // promises not to use the block meanwhile); `src` cannot overlap it, being behind a reference.
        unsafe { copy::copy_to_shared(src, dst) };
        Ok(())
    }

    /// Copies bytes out from `offset` of the block.
    ///
    /// # Errors
    /// [`ShmError::Invalid`] if the range is not inside the block.
    pub fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), ShmError> {
        let src = self.inside("Block::copy_out", offset, dst.len() as u64)?;
        // SAFETY: as in `copy_in`, the other way round.
        unsafe { copy::copy_from_shared(src, dst) };
        Ok(())
    }

    /// A value of shared type at `offset` of the block, in place. Blocks are not zeroed unless asked.
    ///
    /// # Errors
    /// [`ShmError::Invalid`] if it is not inside the block, or `offset` is not aligned for the type.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use comm_core::shm::{Access, Arena};
    ///
    /// let slots = Arena::new(Access::ReadWrite, 8 << 20, |_| {});
    /// let slot = slots.alloc_zeroed(64)?;
    /// slot.typed::<AtomicU64>(8)?.fetch_add(1, Ordering::Release);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn typed<T: Shared>(&self, offset: u64) -> Result<&T, ShmError> {
        Ok(&self.typed_slice(offset, 1)?[0])
    }

    /// `count` values of shared type from `offset` of the block on, in place.
    ///
    /// # Errors
    /// Those of [`Block::typed`].
    pub fn typed_slice<T: Shared>(&self, offset: u64, count: usize) -> Result<&[T], ShmError> {
        self.inside("Block::typed", offset, (count as u64).saturating_mul(size_of::<T>() as u64))?;
        self.place.segment.view(self.place.offset + offset, count)
    }

    fn inside(&self, op: &'static str, offset: u64, len: u64) -> Result<*mut u8, ShmError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let why = format!("{len} bytes at offset {offset} of a block of {} bytes", self.len);
            return Err(ShmError::invalid(op, why));
        }
        Ok(self.place.segment.at(self.place.offset + offset).as_ptr())
    }
}

// A block is a range of a mapping that does not move and that it keeps mapped; see its documentation.
const _: () = {
    const fn usable_from_any_thread<T: Send + Sync>() {}
    usable_from_any_thread::<Block>();
};

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.give_back(&self.place, self.len);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("segment", &self.place.segment.id())
            .field("offset", &self.place.offset)
            .field("len", &self.len)
            .field("generation", &self.place.generation)
            .finish()
    }
}
