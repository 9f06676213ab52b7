//! Host memory of this process.

use std::alloc::{self, Layout as AllocLayout};
use std::ptr::NonNull;

use super::TensorError;

/// Alignment of the first byte: a cache line, and the widest vector register.
pub(super) const ALIGN: usize = 64;

/// What `calloc` aligns to. Asking the allocator for more makes it clear the memory by hand instead of taking
/// fresh pages that are zero already, so the rest of [`ALIGN`] is made up for by a few more bytes.
const BASE_ALIGN: usize = 16;

/// Zeroed bytes, 64-byte aligned, freed on drop.
#[derive(Debug)]
pub(super) struct Heap {
    base: NonNull<u8>,
    /// Of the whole allocation; size zero if there is none.
    layout: AllocLayout,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes belong to this value alone, like those of a `Box<[u8]>`; access goes through the storage,
// which hands out `&mut` only for exclusive ownership.
unsafe impl Send for Heap {}
// SAFETY: as above; a shared `Heap` gives out nothing but the address.
unsafe impl Sync for Heap {}

impl Heap {
    pub(super) fn zeroed(op: &'static str, len: usize) -> Result<Heap, TensorError> {
        if len == 0 {
            let dangling = Self::dangling();
            let layout = AllocLayout::new::<()>();
            return Ok(Heap { base: dangling, layout, start: dangling, len });
        }
        let refused = || TensorError::OutOfMemory { op, asked: len };
        let padded = len.checked_add(ALIGN - BASE_ALIGN).ok_or_else(refused)?;
        let layout = AllocLayout::from_size_align(padded, BASE_ALIGN).map_err(|_| refused())?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(refused)?;
        let skip = base.addr().get().wrapping_neg() % ALIGN;
        // SAFETY: `base` is 16-byte aligned, so at most 48 bytes are skipped, and as many were added.
        let start = unsafe { base.add(skip) };
        Ok(Heap { base, layout, start, len })
    }

    /// An address for no bytes at all.
    pub(super) fn dangling() -> NonNull<u8> {
        #[repr(align(64))]
        struct Line;
        NonNull::<Line>::dangling().cast()
    }

    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if self.layout.size() != 0 {
            // SAFETY: `base` came from the global allocator with this layout and is freed once.
            unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_writable_to_the_last_byte() {
        for len in [0, 1, 15, 63, 64, 65, 4096, 65537] {
            let heap = Heap::zeroed("t", len).unwrap();
            assert_eq!(heap.as_ptr().addr().get() % ALIGN, 0);
            assert_eq!(heap.len(), len);
            // SAFETY: `len` bytes from the start are this test's own.
            let bytes = unsafe { std::slice::from_raw_parts_mut(heap.as_ptr().as_ptr(), len) };
            assert!(bytes.iter().all(|&b| b == 0));
            bytes.fill(0xff);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri really allocates")]
    fn too_much_is_an_error() {
        for len in [1 << 60, isize::MAX as usize, usize::MAX] {
            assert_eq!(Heap::zeroed("t", len).unwrap_err(), TensorError::OutOfMemory { op: "t", asked: len });
        }
    }
}
