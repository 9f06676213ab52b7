//! Owned tensors: memory that one holder reads and writes.

use std::fmt;

use super::element::{as_bytes, check};
use super::foreign::Foreign;
use super::shared::SharedBytes;
use super::storage::{Memory, Storage};
use super::view::View;
use super::{DType, Element, Layout, Tensor, TensorError};
use crate::device::Device;

/// A dense tensor that owns its bytes alone, to be written, then [frozen](TensorBuf::freeze) and shared.
///
/// ```
/// use comm_core::tensor::{DType, TensorBuf};
///
/// let mut buf = TensorBuf::zeros(&[2, 3], DType::F32)?;
/// buf.as_mut_slice::<f32>()?[4] = 1.5;
/// let t = buf.freeze();
/// assert_eq!(t.select(0, 1)?.to_vec::<f32>()?, [0.0, 1.5, 0.0]);
/// # Ok::<(), comm_core::tensor::TensorError>(())
/// ```
pub struct TensorBuf {
    /// By value: nobody else can reach it, which is what `&mut [T]` stands on.
    storage: Storage,
    /// Contiguous, and inside the storage.
    layout: Layout,
    dtype: DType,
}

impl TensorBuf {
    /// Zeros in memory of this process, 64-byte aligned. Pages are taken from the system when they are first
    /// written.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] for sizes that do not fit, [`TensorError::OutOfMemory`] if the allocator refuses.
    pub fn zeros(shape: &[usize], dtype: DType) -> Result<TensorBuf, TensorError> {
        TensorBuf::zeros_for("zeros", shape, dtype)
    }

    pub(super) fn zeros_for(
        op: &'static str,
        shape: &[usize],
        dtype: DType,
    ) -> Result<TensorBuf, TensorError> {
        let layout = Layout::contiguous_for(op, shape)?;
        let bytes = dtype.bytes_of(layout.numel()).ok_or_else(|| TensorError::overflow(op, shape))?;
        TensorBuf::over(op, Storage::heap(op, bytes)?, layout, dtype)
    }

    /// A copy of `values` in row-major order.
    ///
    /// ```
    /// use comm_core::tensor::TensorBuf;
    ///
    /// let buf = TensorBuf::from_slice(&[2, 2], &[true, false, false, true])?;
    /// assert_eq!(buf.as_slice::<bool>()?, [true, false, false, true]);
    /// assert!(TensorBuf::from_slice(&[3], &[1u8, 2]).is_err());
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Not as many values as the shape has elements; as [`TensorBuf::zeros`].
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Result<TensorBuf, TensorError> {
        const OP: &str = "from_slice";
        let expected = Layout::contiguous_for(OP, shape)?.numel();
        if values.len() != expected {
            return Err(TensorError::Length { op: OP, unit: "values", seen: values.len(), expected });
        }
        let mut buf = TensorBuf::zeros_for(OP, shape, T::DTYPE)?;
        buf.bytes_mut()?.copy_from_slice(as_bytes(values));
        Ok(buf)
    }

    /// Dense elements at the start of memory that somebody else allocated; see [`Foreign`].
    ///
    /// # Errors
    /// The memory is read-only or too small. It is given back then.
    pub fn from_foreign(memory: Foreign, shape: &[usize], dtype: DType) -> Result<TensorBuf, TensorError> {
        const OP: &str = "TensorBuf::from_foreign";
        TensorBuf::from_memory(OP, Memory::Foreign(memory), shape, dtype)
    }

    /// Dense elements at the start of a shared block that only this process writes, whatever its bytes are now.
    pub(crate) fn from_shared(
        op: &'static str,
        bytes: Box<dyn SharedBytes>,
        shape: &[usize],
        dtype: DType,
    ) -> Result<TensorBuf, TensorError> {
        TensorBuf::from_memory(op, Memory::Shared { bytes, own: true }, shape, dtype)
    }

    /// Dense elements at the start of some memory, whatever its bytes are now.
    pub(super) fn from_memory(
        op: &'static str,
        memory: Memory,
        shape: &[usize],
        dtype: DType,
    ) -> Result<TensorBuf, TensorError> {
        TensorBuf::over(op, Storage::new(memory), Layout::contiguous_for(op, shape)?, dtype)
    }

    /// The only way to a `TensorBuf`: checks what the type promises.
    fn over(
        op: &'static str,
        storage: Storage,
        layout: Layout,
        dtype: DType,
    ) -> Result<TensorBuf, TensorError> {
        if !storage.is_writable() {
            return Err(TensorError::invalid(op, "the memory is read-only; make a Tensor of it"));
        }
        storage.check(op, &layout, dtype.size())?;
        Ok(TensorBuf { storage, layout, dtype })
    }

    /// Whether a storage that a tensor has to itself may be written by a buffer of this layout.
    pub(super) fn can_own(storage: &mut Storage, layout: &Layout) -> bool {
        layout.is_contiguous() && storage.is_writable() && storage.is_idle()
    }

    /// A buffer that [can own](TensorBuf::can_own) the storage; the layout lies inside it.
    pub(super) fn from_parts(storage: Storage, layout: Layout, dtype: DType) -> TensorBuf {
        TensorBuf { storage, layout, dtype }
    }

    pub(super) fn view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }

    /// Size of each dimension.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// Size in bytes.
    pub fn nbytes(&self) -> usize {
        self.view().nbytes()
    }

    /// Where the memory is.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// Segment id, byte offset of element 0 in the segment, and generation, if the memory is a block of this
    /// process's arena.
    pub fn block(&self) -> Option<(u64, u64, u64)> {
        super::frozen::block_of(&self.view())
    }

    /// The elements, in row-major order.
    ///
    /// # Errors
    /// Another element type, a bool that is neither 0 nor 1, memory of a device, or misaligned foreign memory.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.view().slice("as_slice")
    }

    /// The elements, to be written.
    ///
    /// # Errors
    /// As [`TensorBuf::as_slice`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        const OP: &str = "as_mut_slice";
        self.view().typed::<T>(OP)?;
        let n = self.numel();
        let bytes = self.bytes_mut_for(OP)?;
        check::<T>(OP, bytes)?;
        if bytes.is_empty() {
            return Ok(&mut []);
        }
        // SAFETY: the bytes are whole elements of `T`'s size, aligned for `T` and values of it, all just checked;
        // elements have no padding, so writing them leaves every byte initialised.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), n) })
    }

    /// The bytes of the elements, in this machine's byte order.
    ///
    /// # Errors
    /// Memory of a device.
    pub fn bytes(&self) -> Result<&[u8], TensorError> {
        self.view().bytes("bytes")
    }

    /// The bytes of the elements, to be written. Any bytes may be; [`DType::Bool`] is checked when it is read.
    ///
    /// # Errors
    /// Memory of a device.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], TensorError> {
        self.bytes_mut_for("bytes_mut")
    }

    fn bytes_mut_for(&mut self, op: &'static str) -> Result<&mut [u8], TensorError> {
        let view = self.view();
        view.on_cpu(op)?;
        let (start, len) = (view.start(), view.nbytes());
        // SAFETY: the elements are contiguous and inside the storage. That is writable and in this value alone
        // (no clone of it, no stream that reads it, no other process that writes it), which `self` borrows mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    /// Address of the first element, for libraries and streams that work on the memory themselves.
    pub fn as_ptr(&self) -> *const u8 {
        self.view().start().as_ptr()
    }

    /// Address of the first element, to be written through while the buffer is not otherwise used.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.view().start().as_ptr()
    }

    /// Sets every element.
    ///
    /// ```
    /// use comm_core::tensor::{DType, TensorBuf};
    ///
    /// let mut buf = TensorBuf::zeros(&[3], DType::I32)?;
    /// buf.fill(-1i32)?;
    /// assert_eq!(buf.as_slice::<i32>()?, [-1; 3]);
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Another element type, memory of a device, or misaligned foreign memory.
    pub fn fill<T: Element>(&mut self, value: T) -> Result<(), TensorError> {
        const OP: &str = "fill";
        self.view().typed::<T>(OP)?;
        // In bytes: a bool that is being replaced need not be one yet.
        for element in self.bytes_mut_for(OP)?.chunks_exact_mut(size_of::<T>()) {
            element.copy_from_slice(as_bytes(std::slice::from_ref(&value)));
        }
        Ok(())
    }

    /// Copies a tensor of the same shape and element type into this one.
    ///
    /// # Errors
    /// Another shape or element type, or memory of a device.
    pub fn copy_from(&mut self, src: &Tensor) -> Result<(), TensorError> {
        const OP: &str = "copy_from";
        if src.shape() != self.shape() {
            return Err(TensorError::Shape {
                op: OP,
                seen: src.shape().into(),
                expected: self.shape().into(),
            });
        }
        let layout = self.layout;
        self.write(OP, layout, src)
    }

    /// Copies a tensor into a region of this one: element 0 of `src` to index `start`.
    ///
    /// ```
    /// use comm_core::tensor::{DType, Tensor, TensorBuf};
    ///
    /// let mut buf = TensorBuf::zeros(&[2, 3], DType::U8)?;
    /// buf.write_at(&[0, 1], &Tensor::from_slice(&[2, 2], &[1u8, 2, 3, 4])?)?;
    /// assert_eq!(buf.as_slice::<u8>()?, [0, 1, 2, 0, 3, 4]);
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Another number of dimensions or element type, a region that reaches outside, or memory of a device.
    pub fn write_at(&mut self, start: &[usize], src: &Tensor) -> Result<(), TensorError> {
        self.write_at_for("write_at", start, src)
    }

    pub(super) fn write_at_for(
        &mut self,
        op: &'static str,
        start: &[usize],
        src: &Tensor,
    ) -> Result<(), TensorError> {
        let dims = self.shape().len();
        for (unit, seen) in [("start indices", start.len()), ("dimensions", src.shape().len())] {
            if seen != dims {
                return Err(TensorError::Length { op, unit, seen, expected: dims });
            }
        }
        let mut region = self.layout;
        for (dim, (&start, &len)) in start.iter().zip(src.shape()).enumerate() {
            region = region.narrow(dim, start, len)?;
        }
        self.write(op, region, src)
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn check_layout(&self, op: &'static str, layout: &Layout) -> Result<(), TensorError> {
        self.storage.check(op, layout, self.dtype.size())
    }

    /// The region lies in this buffer's storage, no element of it twice.
    pub(super) fn write(
        &mut self,
        op: &'static str,
        region: Layout,
        src: &Tensor,
    ) -> Result<(), TensorError> {
        if src.dtype() != self.dtype {
            return Err(TensorError::DType { op, seen: src.dtype(), expected: self.dtype });
        }
        let view = View { storage: &self.storage, layout: &region, dtype: self.dtype };
        view.on_cpu(op)?;
        let dst = view.start().as_ptr();
        // SAFETY: the region is a part of this buffer's elements, which `self` has alone and borrows mutably;
        // they are initialised like all storages. `src` is another storage, for this one has no other holder.
        unsafe { src.view().copy_into(op, dst, &region) }
    }

    /// Ends writing: the same memory as a tensor that can be shared.
    pub fn freeze(self) -> Tensor {
        Tensor::from_parts(self.storage, self.layout, self.dtype)
    }
}

impl fmt::Debug for TensorBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().debug("TensorBuf", f)
    }
}
