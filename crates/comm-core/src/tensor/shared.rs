//! Memory of shared segments, as tensors see it.

use std::fmt;
use std::ptr::NonNull;

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
