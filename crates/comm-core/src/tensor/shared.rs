//! Memory of shared segments, as tensors see it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a segment that other processes map too. Implemented for the segment module's types; tensors know
/// no more of them than this.
///
/// # Safety
/// While the value lives, [`len`](SharedBytes::len) bytes from [`as_ptr`](SharedBytes::as_ptr) on, always the same,
/// stay mapped, readable and initialised, and writable if [`writable`](SharedBytes::writable) says so. Its drop
/// may give them back. `len` fits into `isize`.
///
/// Who writes the bytes is decided where a tensor is made of them: an own block
/// ([`TensorBuf::from_shared`](super::TensorBuf::from_shared)) is written by its tensor alone, by no peer and by
/// nothing else in this process; an import ([`Tensor::from_import`](super::Tensor::from_import)) may be written
/// by its owner at any time, but by this process only with atomics.
pub(crate) unsafe trait SharedBytes: Send + Sync + fmt::Debug {
    /// The first byte.
    fn as_ptr(&self) -> NonNull<u8>;
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Whether this process's mapping can be written.
    fn writable(&self) -> bool;
    /// Segment id, byte offset in the segment, generation, for a block of an arena.
    fn location(&self) -> Option<(u64, u64, u64)>;
}

/// Copies bytes that another process may be writing at the same time: what arrives may be torn, but is defined.
///
/// Stand-in: to be replaced by `crate::shm::copy::copy_from_shared`, which has the same signature.
///
/// # Safety
/// `dst.len()` bytes from `src` on are readable, and nobody of this process writes them except by atomics.
pub(super) unsafe fn copy_from_shared(src: *const u8, dst: &mut [u8]) {
    for (i, byte) in dst.iter_mut().enumerate() {
        // SAFETY: byte `i` is readable (the caller's promise) and stays so during the call; a byte has no
        // alignment to keep.
        let shared = unsafe { AtomicU8::from_ptr(src.add(i).cast_mut()) };
        // Relaxed: order comes from the cell that announced the bytes; here only tearing must be defined.
        *byte = shared.load(Ordering::Relaxed);
    }
}
