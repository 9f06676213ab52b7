//! Reading elements: what owned and frozen tensors share.

use std::cmp::Reverse;
use std::fmt;
use std::ptr::NonNull;

use super::element::check;
use super::walk::{Plain, Racy, Read, Walk};
use super::{DType, Element, Layout, TensorError};
use crate::device::Device;

use super::storage::Storage;

/// A borrowed tensor, owned or frozen: nobody of this process writes the storage while it exists.
///
/// The layout lies inside the storage (its makers called `Storage::check`).
pub(super) struct View<'a> {
    pub(super) storage: &'a Storage,
    pub(super) layout: &'a Layout,
    pub(super) dtype: DType,
}

impl<'a> View<'a> {
    /// Address of the element at index 0; without elements an address to take no bytes from.
    pub(super) fn start(&self) -> NonNull<u8> {
        let base = self.storage.as_ptr();
        if self.layout.numel() == 0 {
            return base;
        }
        // SAFETY: there is an element at the offset and it lies inside the storage, which was checked.
        unsafe { base.add(self.layout.offset() * self.dtype.size()) }
    }

    pub(super) fn nbytes(&self) -> usize {
        // Fits: `Storage::check` looked.
        self.layout.numel() * self.dtype.size()
    }

    pub(super) fn on_cpu(&self, op: &'static str) -> Result<(), TensorError> {
        let seen = self.storage.device();
        if seen.is_cpu() { Ok(()) } else { Err(TensorError::Device { op, seen, expected: Device::Cpu }) }
    }

    /// The bytes as a slice: contiguous, on the CPU, and ours.
    pub(super) fn bytes(&self, op: &'static str) -> Result<&'a [u8], TensorError> {
        self.on_cpu(op)?;
        if !self.storage.is_ours() {
            return Err(TensorError::NotOurs { op });
        }
        if !self.layout.is_contiguous() {
            return Err(TensorError::NotContiguous {
                op,
                shape: self.layout.shape().into(),
                strides: self.layout.strides().into(),
            });
        }
        // SAFETY: the elements are contiguous from `start` on and lie inside the storage, which lives for `'a`.
        // Its bytes are initialised, no other process writes them, and this one does not while the view exists.
        Ok(unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.nbytes()) })
    }

    /// Checks that the elements are of type `T` and aligned for it.
    pub(super) fn typed<T: Element>(&self, op: &'static str) -> Result<(), TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::DType { op, seen: self.dtype, expected: T::DTYPE });
        }
        let align = align_of::<T>();
        if self.layout.numel() != 0 && !self.start().addr().get().is_multiple_of(align) {
            return Err(TensorError::Misaligned { op, align });
        }
        Ok(())
    }

    pub(super) fn slice<T: Element>(&self, op: &'static str) -> Result<&'a [T], TensorError> {
        self.typed::<T>(op)?;
        let bytes = self.bytes(op)?;
        check::<T>(op, bytes)?;
        if bytes.is_empty() {
            return Ok(&[]);
        }
        // SAFETY: the bytes are whole elements of `T`'s size, aligned for `T` and values of it, all just checked.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), self.layout.numel()) })
    }

    /// Copies the elements into a region of other memory, in any strides.
    ///
    /// # Safety
    /// `dst` points to the first element of `layout`, which has this view's shape; every element is initialised,
    /// writable, and neither part of this view's storage nor used by anybody else during the call.
    pub(super) unsafe fn copy_into(
        &self,
        op: &'static str,
        dst: *mut u8,
        layout: &Layout,
    ) -> Result<(), TensorError> {
        self.on_cpu(op)?;
        let walk = Walk::new(self.layout, layout);
        let src = self.start().as_ptr();
        let size = self.dtype.size();
        // SAFETY: the source's elements lie inside the storage and nobody of this process writes them; if
        // others do, they are read as racy. The destination is as the caller promised.
        unsafe {
            if self.storage.is_ours() {
                walk.copy::<Plain>(size, src, dst);
            } else {
                walk.copy::<Racy>(size, src, dst);
            }
        }
        Ok(())
    }

    pub(super) fn copy_bytes_to(&self, op: &'static str, dst: &mut [u8]) -> Result<(), TensorError> {
        if dst.len() != self.nbytes() {
            let (seen, expected) = (dst.len(), self.nbytes());
            return Err(TensorError::Length { op, unit: "bytes", seen, expected });
        }
        let dense = Layout::contiguous_for(op, self.layout.shape())?;
        // SAFETY: the slice is exactly as long as the dense elements; being `&mut`, it is no part of a storage
        // that is borrowed here.
        unsafe { self.copy_into(op, dst.as_mut_ptr(), &dense) }
    }

    pub(super) fn to_vec<T: Element>(&self, op: &'static str) -> Result<Vec<T>, TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::DType { op, seen: self.dtype, expected: T::DTYPE });
        }
        let n = self.layout.numel();
        let mut values: Vec<T> = Vec::new();
        values.try_reserve_exact(n).map_err(|_| TensorError::OutOfMemory { op, asked: self.nbytes() })?;
        if let Ok(ready) = self.slice::<T>(op) {
            values.extend_from_slice(ready);
            return Ok(values);
        }
        let room = values.as_mut_ptr();
        // SAFETY: there is room for `n` elements, and the vector's length is still zero.
        let bytes = unsafe {
            std::ptr::write_bytes(room, 0, n);
            std::slice::from_raw_parts_mut(room.cast::<u8>(), self.nbytes())
        };
        self.copy_bytes_to(op, bytes)?;
        // Checked here, on our own copy: what another process writes meanwhile cannot change the verdict.
        check::<T>(op, bytes)?;
        // SAFETY: the first `n` elements are initialised, and their bytes are values of `T`.
        unsafe { values.set_len(n) };
        Ok(values)
    }

    pub(super) fn bytes_equal(&self, op: &'static str, other: &View<'_>) -> Result<bool, TensorError> {
        self.on_cpu(op)?;
        other.on_cpu(op)?;
        if self.dtype != other.dtype || self.layout.shape() != other.layout.shape() {
            return Ok(false);
        }
        let size = self.dtype.size() as isize;
        let (a, b) = (self.start().as_ptr(), other.start().as_ptr());
        let ours = (self.storage.is_ours(), other.storage.is_ours());
        // Any order tells equality, and along memory is the fastest: two transposed tensors are two runs.
        let mut order: Vec<usize> = (0..self.layout.ndim()).collect();
        order.sort_by_key(|&dim| Reverse(self.layout.strides()[dim].unsigned_abs()));
        let (left, right) = (self.layout.permute(&order)?, other.layout.permute(&order)?);
        Ok(Walk::new(&left, &right).runs(|s, d, n| {
            let len = n * self.dtype.size();
            // SAFETY: positions of a walk are those of elements, which lie inside the two storages.
            let (a, b) = unsafe { (a.offset(s * size), b.offset(d * size)) };
            // SAFETY: `len` bytes from there on are elements too; where others may write them, `ours` says so.
            unsafe { same_bytes((a, ours.0), (b, ours.1), len) }
        }))
    }
}

/// Compares bytes, each side plain (`true`) or racy.
///
/// # Safety
/// `len` bytes from both addresses on are readable; nobody writes those that are said to be plain, and nobody of
/// this process the others.
unsafe fn same_bytes(a: (*const u8, bool), b: (*const u8, bool), len: usize) -> bool {
    if a.1 && b.1 {
        // SAFETY: readable and unchanged by the caller's promise.
        return unsafe { std::slice::from_raw_parts(a.0, len) == std::slice::from_raw_parts(b.0, len) };
    }
    const CHUNK: usize = 512;
    let (mut left, mut right) = ([0; CHUNK], [0; CHUNK]);
    let mut at = 0;
    while at < len {
        let n = CHUNK.min(len - at);
        for (buffer, (src, plain)) in [(&mut left, a), (&mut right, b)] {
            // SAFETY: `at + n` is at most `len`; the buffer is this function's own.
            unsafe {
                if plain {
                    Plain::read(src.add(at), buffer.as_mut_ptr(), n);
                } else {
                    Racy::read(src.add(at), buffer.as_mut_ptr(), n);
                }
            }
        }
        if left[..n] != right[..n] {
            return false;
        }
        at += n;
    }
    true
}

/// How many elements Debug shows.
const SHOWN: usize = 8;

impl View<'_> {
    /// Bytes of the first few elements, if the host can read them.
    fn first(&self) -> Vec<[u8; 16]> {
        let mut first = Vec::new();
        if self.on_cpu("fmt").is_err() {
            return first;
        }
        let size = self.dtype.size();
        let start = self.start().as_ptr();
        Walk::new(self.layout, self.layout).runs(|at, _, n| {
            for i in 0..n.min(SHOWN - first.len()) {
                let mut bytes = [0; 16];
                // SAFETY: the position of an element, which lies inside the storage; racy reads are fine for
                // any memory that this process does not write.
                unsafe {
                    Racy::read(start.offset((at + i as isize) * size as isize), bytes.as_mut_ptr(), size)
                };
                first.push(bytes);
            }
            first.len() < SHOWN
        });
        first
    }

    pub(super) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<Shown> = self.first().into_iter().map(|bytes| Shown(self.dtype, bytes)).collect();
        let mut s = f.debug_struct(name);
        s.field("dtype", &format_args!("{}", self.dtype));
        s.field("shape", &self.layout.shape());
        s.field("strides", &self.layout.strides());
        if !self.storage.device().is_cpu() {
            return s.field("device", &format_args!("{}", self.storage.device())).finish_non_exhaustive();
        }
        let all = values.len() == self.layout.numel();
        s.field("values", &values);
        if all { s.finish() } else { s.finish_non_exhaustive() }
    }
}

/// One element's bytes, shown as its type.
struct Shown(DType, [u8; 16]);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn show<T: Element>(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
            if check::<T>("fmt", &bytes[..size_of::<T>()]).is_err() {
                return write!(f, "{:#04x}", bytes[0]);
            }
            // SAFETY: an element has at most 16 bytes, and these were just checked to be a value of `T`.
            let value: T = unsafe { bytes.as_ptr().cast::<T>().read_unaligned() };
            fmt::Debug::fmt(&value, f)
        }
        let Shown(dtype, bytes) = self;
        match dtype {
            DType::Bool => show::<bool>(bytes, f),
            DType::U8 => show::<u8>(bytes, f),
            DType::I8 => show::<i8>(bytes, f),
            DType::U16 => show::<u16>(bytes, f),
            DType::I16 => show::<i16>(bytes, f),
            DType::U32 => show::<u32>(bytes, f),
            DType::I32 => show::<i32>(bytes, f),
            DType::U64 => show::<u64>(bytes, f),
            DType::I64 => show::<i64>(bytes, f),
            DType::F16 => show::<half::f16>(bytes, f),
            DType::BF16 => show::<half::bf16>(bytes, f),
            DType::F32 => show::<f32>(bytes, f),
            DType::F64 => show::<f64>(bytes, f),
            DType::F8E4M3 => show::<float8::F8E4M3>(bytes, f),
            DType::F8E5M2 => show::<float8::F8E5M2>(bytes, f),
            DType::Complex64 => show::<num_complex::Complex<f32>>(bytes, f),
            DType::Complex128 => show::<num_complex::Complex<f64>>(bytes, f),
        }
    }
}
