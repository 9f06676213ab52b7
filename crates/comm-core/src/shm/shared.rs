//! Looking at shared memory in place, and reading small things out of it.

use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
};

use zerocopy::FromBytes;

use super::{Segment, ShmError, copy};

/// Types that may lie in memory which other processes write at any time.
///
/// # Safety
/// The type consists of atomic integers alone (so that every bit pattern is valid and a concurrent change is no data
/// race), has the same layout in every build that shares it (`repr(C)` or `repr(transparent)`), and has no `Drop`.
/// Code that reads it treats every value as possible: a peer may be broken or hostile.
///
/// ```
/// use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
/// use comm_core::shm::{Access, Segment, Shared};
///
/// #[repr(C)]
/// struct Slot { state: AtomicU64, readers: [AtomicU32; 4] }
/// // SAFETY: atomics only, repr(C), no padding that anybody reads, no Drop.
/// unsafe impl Shared for Slot {}
///
/// let segment = Segment::create(4096, Access::ReadWrite)?;
/// let slot = segment.typed::<Slot>(128)?;
/// slot.readers[2].fetch_add(1, Ordering::AcqRel);
/// assert!(segment.typed::<Slot>(4090).is_err());
/// # Ok::<(), comm_core::Error>(())
/// ```
pub unsafe trait Shared: Sync {}

macro_rules! shared {
    ($($atomic:ty),*) => {$(
        // SAFETY: an atomic integer: every bit pattern is valid, its layout is that of the integer, no Drop.
        unsafe impl Shared for $atomic {}
    )*};
}
shared!(AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicI8, AtomicI16, AtomicI32, AtomicI64);

// SAFETY: an array of such types is made of atomics alone and has their layout one after the other.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

impl Segment {
    /// A value of shared type at `offset`, in place.
    ///
    /// # Errors
    /// Those of [`Segment::range`]; [`ShmError::Invalid`] if `offset` is not aligned for the type, if the segment may
    /// only be read here (an atomic store would fault), or if it is an arena's (ask its [`Block`](super::Block)).
    pub fn typed<T: Shared>(&self, offset: u64) -> Result<&T, ShmError> {
        self.exposed("Segment::typed")?;
        Ok(&self.view(offset, 1)?[0])
    }

    /// `count` values of shared type from `offset` on, in place.
    ///
    /// # Errors
    /// Those of [`Segment::typed`].
    pub fn typed_slice<T: Shared>(&self, offset: u64, count: usize) -> Result<&[T], ShmError> {
        self.exposed("Segment::typed_slice")?;
        self.view(offset, count)
    }

    /// As [`Segment::typed_slice`], for the owner of the range also in an arena.
    pub(super) fn view<T: Shared>(&self, offset: u64, count: usize) -> Result<&[T], ShmError> {
        self.writable("Segment::typed")?;
        let len = (count as u64)
            .checked_mul(size_of::<T>() as u64)
            .ok_or_else(|| ShmError::invalid("Segment::typed", format!("{count} elements")))?;
        let ptr = self.range(offset, len)?.cast::<T>();
        if !ptr.is_aligned() {
            let why = format!("offset {offset} is not a multiple of {}", align_of::<T>());
            return Err(ShmError::invalid("Segment::typed", why));
        }
        // SAFETY: the range is inside the segment and aligned; it is mapped readable and writable for as long as `self`
        // is borrowed, and `len` fits into a mapping, hence into isize. Every bit pattern is a valid T, and T is made
        // of atomics, so no change under the reference is a data race: other processes change the bytes outside of this
        // program's memory model, and in this program they are only touched as atomics or by the copy routine, which
        // does what atomics of single bytes would (for an arena: as long as the block lives, whose owner has asked).
        Ok(unsafe { std::slice::from_raw_parts(ptr.as_ptr(), count) })
    }
}

/// Copies a small plain value out of a segment, once: what is looked at then cannot change any more.
///
/// The way to read headers that a peer wrote: copy, then check, then use.
///
/// # Errors
/// Those of [`Segment::copy_out`].
///
/// ```
/// use comm_core::shm::{Access, Segment, read_pod};
///
/// let segment = Segment::create(64, Access::ReadWrite)?;
/// segment.copy_in(8, &[1, 0, 0, 0, 2, 0, 0, 0])?;
/// assert_eq!(read_pod::<[u32; 2]>(&segment, 8)?, [1u32.to_le(), 2u32.to_le()]);
/// # Ok::<(), comm_core::Error>(())
/// ```
pub fn read_pod<T: FromBytes>(segment: &Segment, offset: u64) -> Result<T, ShmError> {
    let src = segment.range(offset, size_of::<T>() as u64)?;
    segment.exposed("read_pod")?;
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the source is mapped readable while `segment` is borrowed, and bears concurrent writers as in
    // `Segment::copy_out`; the destination is this function's own and has room for a T. The copy initialises every byte
    // of it, and FromBytes says that any initialised bytes are a valid T.
    unsafe {
        copy::shared_to_shared(src.as_ptr(), value.as_mut_ptr().cast(), size_of::<T>());
        Ok(value.assume_init())
    }
}
