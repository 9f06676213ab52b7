//! The one routine that copies bytes which somebody else may be writing.
//!
//! Bytes that another process owns, or that another rank may write, are never behind a Rust reference: a reference
//! promises that they do not change, and a plain `memcpy` that races is undefined behaviour. So the bytes are copied
//! here, and looked at in the copy.
//!
//! # Why this is sound
//!
//! What inline assembly does must be something that Rust code could have done. These routines do what a loop of
//! relaxed loads and stores of `AtomicU8` would do: the processor reads and writes each byte as a whole, and the
//! compiler, which cannot look inside, assumes nothing about the order or the number of the accesses. (C++ calls this
//! a bytewise atomic memcpy.) A race with atomics, with another of these copies or with another process is therefore no
//! data race; the bytes may be torn, a mixture of old and new, and telling whether they are is the caller's business
//! (a generation read before and after, a signal that was acquired). A race with a *plain* access in this process
//! still is one, and the `unsafe` of each function is where the caller rules that out.
//!
//! Under Miri and on other processors the loop of atomics is what runs.
//!
//! There is no ordering in any of them: who needs it acquires a signal before, or releases one after.

use std::sync::atomic::{AtomicU8, Ordering};

/// Copies from shared memory into private memory.
///
/// # Safety
/// `src` is valid for reads of `dst.len()` bytes, does not overlap `dst`, and nobody in this process writes to it
/// at the same time except through atomics or this module.
///
/// ```
/// let shared = *b"bytes of a peer";
/// let mut copy = [0; 15];
/// // SAFETY: `shared` is valid for 15 bytes and nobody writes to it.
/// unsafe { comm_core::shm::copy::copy_from_shared(shared.as_ptr(), &mut copy) };
/// assert_eq!(copy, shared);
/// ```
pub unsafe fn copy_from_shared(src: *const u8, dst: &mut [u8]) {
    // SAFETY: `dst` is valid for writes of its length and nobody else's; the rest is the caller's promise.
    unsafe { shared_to_shared(src, dst.as_mut_ptr(), dst.len()) }
}

/// Copies from private memory into shared memory.
///
/// # Safety
/// `dst` is valid for writes of `src.len()` bytes, does not overlap `src`, and nobody in this process reads or writes
/// it at the same time except through atomics or this module.
///
/// ```
/// let mut shared = [0; 4];
/// // SAFETY: `shared` is valid for 4 bytes and nobody else touches it.
/// unsafe { comm_core::shm::copy::copy_to_shared(b"mine", shared.as_mut_ptr()) };
/// assert_eq!(&shared, b"mine");
/// ```
pub unsafe fn copy_to_shared(src: &[u8], dst: *mut u8) {
    // SAFETY: `src` is valid for reads of its length and does not change; the rest is the caller's promise.
    unsafe { shared_to_shared(src.as_ptr(), dst, src.len()) }
}

/// Copies between two places, either of which may be shared; into memory that is not initialised too.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, they do not overlap, and nobody in this process
/// writes to `src` or touches `dst` at the same time except through atomics or this module.
///
/// ```
/// let (shared, mut other) = ([7u8; 100], [0u8; 100]);
/// // SAFETY: both are valid for 100 bytes and nobody else touches them.
/// unsafe { comm_core::shm::copy::shared_to_shared(shared.as_ptr(), other.as_mut_ptr(), 100) };
/// assert_eq!(shared, other);
/// ```
pub unsafe fn shared_to_shared(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { imp::copy(src, dst, len) }
}

/// Sets `len` bytes of shared memory to `value`.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes, and nobody in this process touches it at the same time except through
/// atomics or this module.
///
/// ```
/// let mut shared = [1u8; 40];
/// // SAFETY: `shared` is valid for 40 bytes and nobody else touches it.
/// unsafe { comm_core::shm::copy::fill(shared.as_mut_ptr(), 0, 40) };
/// assert_eq!(shared, [0; 40]);
/// ```
pub unsafe fn fill(dst: *mut u8, value: u8, len: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { imp::fill(dst, value, len) }
}

/// One relaxed load and store a byte: the meaning of all of them, and the way where there is no assembly.
///
/// # Safety
/// As [`shared_to_shared`].
#[inline]
unsafe fn copy_bytes(src: *const u8, dst: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: byte `i` is inside both ranges, which the caller promises to be valid; AtomicU8 has the size and
        // alignment of a byte, and whoever else accesses these bytes does so atomically. The source is only loaded
        // from, which is allowed on read-only pages too.
        unsafe {
            let byte = AtomicU8::from_ptr(src.add(i).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(dst.add(i)).store(byte, Ordering::Relaxed);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
mod imp {
    use std::arch::asm;

    /// Up to here a loop beats the start-up of `rep movsb` (measured: 3 ns against 10 for 128 bytes on Zen 5, equal at
    /// 512; much more where the processor lacks fast short strings). Above, `rep movsb` beats `memcpy` too.
    const SHORT: usize = 256;

    /// # Safety
    /// As [`super::shared_to_shared`].
    #[inline]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        if len > SHORT {
            // SAFETY: by the caller's promise the bytes that are read and written are valid. `rep movsb` reads and
            // writes exactly those, upwards since the direction flag is clear on entry to asm, and changes only the
            // three registers that are declared; no flags, no stack.
            unsafe {
                asm!(
                    "rep movsb",
                    inout("rcx") len => _,
                    inout("rsi") src => _,
                    inout("rdi") dst => _,
                    options(nostack, preserves_flags),
                );
            }
        } else if len >= 16 {
            // Sixteen bytes a turn, and a last sixteen that may overlap the turn before.
            // SAFETY: with 16 <= len, the turns touch [0, (len - 1) & !15) and the tail [len - 16, len), all of it
            // inside the ranges that the caller promises. Bytes of the tail may be copied twice, each time as a whole.
            unsafe {
                asm!(
                    "movdqu {tail}, xmmword ptr [{src} + {len} - 16]",
                    "lea {i}, [{len} - 1]",
                    "and {i}, -16",
                    "jz 3f",
                    "add {src}, {i}",
                    "lea {end}, [{dst} + {i}]",
                    "neg {i}",
                    "2:",
                    "movdqu {turn}, xmmword ptr [{src} + {i}]",
                    "movdqu xmmword ptr [{end} + {i}], {turn}",
                    "add {i}, 16",
                    "jnz 2b",
                    "3:",
                    "movdqu xmmword ptr [{dst} + {len} - 16], {tail}",
                    src = inout(reg) src => _,
                    dst = in(reg) dst,
                    len = in(reg) len,
                    i = out(reg) _,
                    end = out(reg) _,
                    turn = out(xmm_reg) _,
                    tail = out(xmm_reg) _,
                    options(nostack),
                );
            }
        } else {
            // SAFETY: the caller's promise is the same.
            unsafe { super::copy_bytes(src, dst, len) }
        }
    }

    /// # Safety
    /// As [`super::fill`].
    #[inline]
    pub(super) unsafe fn fill(dst: *mut u8, value: u8, len: usize) {
        // SAFETY: as for `rep movsb` in `copy`; `rep stosb` writes `al` to exactly `len` bytes.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") len => _,
                inout("rdi") dst => _,
                in("al") value,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
mod imp {
    use std::arch::asm;

    /// # Safety
    /// As [`super::shared_to_shared`].
    #[inline]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        let whole = len & !63;
        if whole > 0 {
            // SAFETY: `whole` is a positive multiple of 64 and at most `len`: each turn reads and writes 64 bytes of
            // the ranges that the caller promises. Normal memory allows these accesses at any alignment.
            unsafe {
                asm!(
                    "2:",
                    "ldp {a:q}, {b:q}, [{src}], #32",
                    "ldp {c:q}, {d:q}, [{src}], #32",
                    "stp {a:q}, {b:q}, [{dst}], #32",
                    "stp {c:q}, {d:q}, [{dst}], #32",
                    "subs {left}, {left}, #64",
                    "b.ne 2b",
                    src = inout(reg) src => _,
                    dst = inout(reg) dst => _,
                    left = inout(reg) whole => _,
                    a = out(vreg) _,
                    b = out(vreg) _,
                    c = out(vreg) _,
                    d = out(vreg) _,
                    options(nostack),
                );
            }
        }
        // SAFETY: what is left is inside the same ranges.
        unsafe { super::copy_bytes(src.add(whole), dst.add(whole), len - whole) }
    }

    /// # Safety
    /// As [`super::fill`].
    #[inline]
    pub(super) unsafe fn fill(dst: *mut u8, value: u8, len: usize) {
        let whole = len & !15;
        if whole > 0 {
            // SAFETY: as in `copy`, with 16 bytes a turn.
            unsafe {
                asm!(
                    "dup {v:v}.16b, {value:w}",
                    "2:",
                    "str {v:q}, [{dst}], #16",
                    "subs {left}, {left}, #16",
                    "b.ne 2b",
                    dst = inout(reg) dst => _,
                    left = inout(reg) whole => _,
                    value = in(reg) u32::from(value),
                    v = out(vreg) _,
                    options(nostack),
                );
            }
        }
        // SAFETY: what is left is inside the same range.
        unsafe { super::fill_bytes(dst.add(whole), value, len - whole) }
    }
}

#[cfg(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod imp {
    pub(super) use super::{copy_bytes as copy, fill_bytes as fill};
}

/// # Safety
/// As [`fill`].
#[cfg(any(miri, loom, test, not(target_arch = "x86_64")))]
#[inline]
unsafe fn fill_bytes(dst: *mut u8, value: u8, len: usize) {
    for i in 0..len {
        // SAFETY: byte `i` is inside the range that the caller promises; the rest as in `copy_bytes`.
        unsafe { AtomicU8::from_ptr(dst.add(i)).store(value, Ordering::Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);
    type Fill = unsafe fn(*mut u8, u8, usize);

    fn lengths() -> impl Iterator<Item = usize> {
        let step = if cfg!(miri) { 37 } else { 1 };
        (0..=300).step_by(step).chain([511, 512, 513, 4095, 4096, 4097])
    }

    #[test]
    fn every_length_and_alignment_is_copied_exactly() {
        let src: Vec<u8> = (0..8192).map(|i| (i * 7 % 251) as u8).collect();
        for copy in [shared_to_shared as Copy, copy_bytes as Copy] {
            for len in lengths() {
                for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (15, 16), (63, 1)] {
                    let mut dst = vec![0xAA; len + 128];
                    // SAFETY: both vectors are longer than offset and length together, and private.
                    unsafe { copy(src.as_ptr().add(from), dst.as_mut_ptr().add(to), len) };
                    assert_eq!(dst[to..to + len], src[from..from + len], "{len} bytes, {from} to {to}");
                    assert!(
                        dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xAA),
                        "{len} bytes, outside"
                    );
                }
            }
        }
    }

    #[test]
    fn every_length_and_alignment_is_filled_exactly() {
        for fill in [fill as Fill, fill_bytes as Fill] {
            for len in lengths() {
                for to in [0, 1, 15] {
                    let mut dst = vec![0xAA; len + 64];
                    // SAFETY: the vector is longer than offset and length together, and private.
                    unsafe { fill(dst.as_mut_ptr().add(to), 3, len) };
                    assert!(dst[to..to + len].iter().all(|b| *b == 3), "{len} bytes");
                    assert!(
                        dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xAA),
                        "{len} bytes, outside"
                    );
                }
            }
        }
    }

    #[test]
    fn a_copy_that_races_is_a_mixture_of_what_was_there() {
        use std::sync::atomic::AtomicBool;
        let shared: Vec<AtomicU8> = (0..1000).map(|_| AtomicU8::new(1)).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 1;
                while !over.load(Ordering::Relaxed) {
                    value = 3 - value;
                    for byte in &shared {
                        byte.store(value, Ordering::Relaxed);
                    }
                }
            });
            let mut copy = [0; 1000];
            for _ in 0..if cfg!(miri) { 5 } else { 2000 } {
                // SAFETY: 1000 bytes that are written as atomics only.
                unsafe { copy_from_shared(shared.as_ptr().cast(), &mut copy) };
                assert!(copy.iter().all(|b| *b == 1 || *b == 2));
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
