//! The strided walk: every copy and comparison of tensors with any strides goes through here.
//!
//! A walk visits two layouts of the same shape together. First the dimensions are [merged](Walk::new): those
//! of size 1 go, and neighbours that lie like one in both layouts become one, so that a contiguous tensor is
//! a single run whatever its shape. If the last dimension has stride 1 on both sides it is a run of bytes
//! and moved whole; otherwise elements are moved one by one, in square tiles if another dimension
//! runs along memory on the source's side (a transpose), so that both sides stay in the cache.

use super::{Layout, MAX_DIMS};
use crate::shm::copy::copy_from_shared;

/// Side of a tile, in elements: a tile of 8-byte elements on both sides fits into the first-level cache.
const TILE: usize = 32;

#[derive(Debug, Clone, Copy, Default)]
struct Dim {
    size: usize,
    /// Distance between neighbours on each side, in elements.
    src: isize,
    dst: isize,
}

/// Two layouts of one shape, merged to the fewest dimensions.
#[derive(Debug)]
pub(super) struct Walk {
    dims: [Dim; MAX_DIMS],
    len: usize,
    empty: bool,
}

impl Walk {
    /// Prepares to walk `src` and `dst` together. Both have the same shape.
    pub(super) fn new(src: &Layout, dst: &Layout) -> Walk {
        debug_assert_eq!(src.shape(), dst.shape());
        let mut walk = Walk { dims: [Dim::default(); MAX_DIMS], len: 0, empty: src.numel() == 0 };
        let strides = src.strides().iter().zip(dst.strides());
        for (&size, (&src, &dst)) in src.shape().iter().zip(strides) {
            let dim = Dim { size, src, dst };
            if size == 1 {
                continue;
            }
            match walk.dims[..walk.len].last_mut() {
                Some(outer) if outer.continues_as(&dim) => *outer = Dim { size: outer.size * size, ..dim },
                _ => {
                    walk.dims[walk.len] = dim;
                    walk.len += 1;
                }
            }
        }
        walk
    }

    fn dims(&self) -> &[Dim] {
        &self.dims[..self.len]
    }

    /// Calls `f` with both positions, relative to the first element, and the number of neighbouring elements.
    /// `f` sees longer runs than 1 only where both sides have stride 1. Stops when `f` says no.
    pub(super) fn runs(&self, mut f: impl FnMut(isize, isize, usize) -> bool) -> bool {
        if self.empty {
            return true;
        }
        match self.dims().split_last() {
            Some((inner, outer)) if inner.src == 1 && inner.dst == 1 => {
                each(outer, |s, d| f(s, d, inner.size))
            }
            _ => each(self.dims(), |s, d| f(s, d, 1)),
        }
    }

    /// Copies the elements, of `SIZE` bytes each.
    ///
    /// # Safety
    /// `src` and `dst` point to the first elements of the two layouts. Every element of the source layout is
    /// readable as `R` asks, every element of the destination is initialised and writable, and nobody else
    /// reads or writes these during the call. The two do not overlap.
    unsafe fn copy_sized<R: Read, const SIZE: usize>(&self, src: *const u8, dst: *mut u8) {
        // SAFETY: `s` and `d` are positions of elements of the two layouts, and with them `n` elements from
        // there on; the caller promised that these lie in memory, so their byte offsets fit into `isize`.
        let run = |s: isize, d: isize, n: usize| unsafe {
            R::read(src.offset(s * SIZE as isize), dst.offset(d * SIZE as isize), n * SIZE);
        };
        // SAFETY: as above, for one element.
        let element = |s: isize, d: isize| unsafe {
            R::element::<SIZE>(src.offset(s * SIZE as isize), dst.offset(d * SIZE as isize));
        };
        let Some((inner, outer)) = self.dims().split_last() else { return element(0, 0) };
        if inner.src == 1 && inner.dst == 1 {
            each(outer, |s, d| {
                run(s, d, inner.size);
                true
            });
            return;
        }
        match tiled_with(inner, outer) {
            None => {
                each(outer, |s, d| {
                    for i in 0..inner.size as isize {
                        element(s + i * inner.src, d + i * inner.dst);
                    }
                    true
                });
            }
            Some(at) => {
                let other = outer[at];
                let mut rest = [Dim::default(); MAX_DIMS];
                rest[..at].copy_from_slice(&outer[..at]);
                rest[at..outer.len() - 1].copy_from_slice(&outer[at + 1..]);
                each(&rest[..outer.len() - 1], |s, d| {
                    tiles(&other, inner, |i, j| {
                        element(s + i * other.src + j * inner.src, d + i * other.dst + j * inner.dst);
                    });
                    true
                });
            }
        }
    }

    /// Copies the elements of `size` bytes, a power of two up to 16.
    ///
    /// # Safety
    /// As the promises of the parameters say: `src` and `dst` point to the first elements of the two layouts.
    /// Every element of the source layout is readable as `R` asks, every element of the destination is
    /// initialised and writable, and nobody else reads or writes these during the call. The two do not overlap.
    pub(super) unsafe fn copy<R: Read>(&self, size: usize, src: *const u8, dst: *mut u8) {
        if self.empty {
            return;
        }
        // SAFETY: the caller's promises are the callee's.
        unsafe {
            match size {
                1 => self.copy_sized::<R, 1>(src, dst),
                2 => self.copy_sized::<R, 2>(src, dst),
                4 => self.copy_sized::<R, 4>(src, dst),
                8 => self.copy_sized::<R, 8>(src, dst),
                _ => {
                    debug_assert_eq!(size, 16);
                    self.copy_sized::<R, 16>(src, dst);
                }
            }
        }
    }
}

impl Dim {
    /// Whether `inner` goes on where one index of `self` ends, on both sides.
    fn continues_as(&self, inner: &Dim) -> bool {
        let extent = |stride: isize| (inner.size as isize).checked_mul(stride);
        extent(inner.src) == Some(self.src) && extent(inner.dst) == Some(self.dst)
    }
}

/// The dimension that runs closest along the source's memory, if the inner one does not.
fn tiled_with(inner: &Dim, outer: &[Dim]) -> Option<usize> {
    let along = |dim: &Dim| dim.src.unsigned_abs();
    outer
        .iter()
        .enumerate()
        .filter(|(_, dim)| along(dim) != 0 && along(dim) < along(inner))
        .min_by_key(|(_, dim)| along(dim))
        .map(|(at, _)| at)
}

/// Every pair of indices of two dimensions, tile by tile.
fn tiles(a: &Dim, b: &Dim, mut f: impl FnMut(isize, isize)) {
    for i0 in (0..a.size).step_by(TILE) {
        let i1 = a.size.min(i0 + TILE);
        for j0 in (0..b.size).step_by(TILE) {
            let j1 = b.size.min(j0 + TILE);
            for i in i0..i1 {
                for j in j0..j1 {
                    f(i as isize, j as isize);
                }
            }
        }
    }
}

/// Every index of some dimensions in row-major order, as positions on both sides, until `f` says no.
///
/// No dimension has size zero. Positions stay within those of elements, so they cannot overflow.
fn each(dims: &[Dim], mut f: impl FnMut(isize, isize) -> bool) -> bool {
    let mut index = [0usize; MAX_DIMS];
    let (mut src, mut dst) = (0isize, 0isize);
    loop {
        if !f(src, dst) {
            return false;
        }
        let mut more = false;
        for (i, dim) in index[..dims.len()].iter_mut().zip(dims).rev() {
            *i += 1;
            if *i < dim.size {
                src += dim.src;
                dst += dim.dst;
                more = true;
                break;
            }
            *i = 0;
            let back = (dim.size - 1) as isize;
            src -= back * dim.src;
            dst -= back * dim.dst;
        }
        if !more {
            return true;
        }
    }
}

/// How the source's bytes are read.
pub(super) trait Read {
    /// Copies `len` bytes.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes in the way of the implementation; `dst` is initialised and nobody
    /// else's.
    unsafe fn read(src: *const u8, dst: *mut u8, len: usize);

    /// Copies one element of `SIZE` bytes.
    ///
    /// # Safety
    /// As [`Read::read`] for `SIZE` bytes.
    unsafe fn element<const SIZE: usize>(src: *const u8, dst: *mut u8);
}

/// Bytes that nobody writes meanwhile.
pub(super) struct Plain;

impl Read for Plain {
    unsafe fn read(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: readable, writable and apart by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
    }

    unsafe fn element<const SIZE: usize>(src: *const u8, dst: *mut u8) {
        // SAFETY: as above; an array of bytes has alignment 1.
        unsafe { *dst.cast::<[u8; SIZE]>() = *src.cast::<[u8; SIZE]>() }
    }
}

/// Bytes that another process may write meanwhile.
pub(super) struct Racy;

impl Read for Racy {
    unsafe fn read(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: `dst` is initialised and nobody else's; `src` is readable, and no reference to it exists.
        unsafe { copy_from_shared(src, std::slice::from_raw_parts_mut(dst, len)) }
    }

    unsafe fn element<const SIZE: usize>(src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's promise for `SIZE` bytes is that of `read`.
        unsafe { Self::read(src, dst, SIZE) }
    }
}
