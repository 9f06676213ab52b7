//! Frozen tensors: memory that many holders read.

use std::fmt;
use std::sync::Arc;

use super::foreign::Foreign;
use super::shared::SharedBytes;
use super::storage::{Memory, Storage};
use super::view::View;
use super::{DType, Element, Layout, TensorBuf, TensorError};
use crate::device::{Device, Stream};

/// A tensor whose elements do not change: dtype and [`Layout`] over shared memory.
///
/// Cheap to clone and to view; clones and views share the memory, which goes back when the last of them is
/// dropped and every stream that [used](Tensor::record_use) it is through.
///
/// Elements are read as a slice ([`as_slice`](Tensor::as_slice), if they are contiguous and the memory is this
/// process's own) or copied out ([`to_vec`](Tensor::to_vec), [`copy_bytes_to`](Tensor::copy_bytes_to), for any
/// strides and any host memory). The bytes of another process's tensor can only be copied: that process could
/// write them at any time, and a Rust reference to them would be unsound.
///
/// ```
/// use comm_core::tensor::Tensor;
///
/// let t = Tensor::from_slice(&[2, 3], &[1, 2, 3, 4, 5, 6])?;
/// let columns = t.transpose(0, 1)?;
/// assert!(columns.as_slice::<i32>().is_err()); // not contiguous
/// assert_eq!(columns.to_vec::<i32>()?, [1, 4, 2, 5, 3, 6]);
/// assert_eq!(columns.contiguous()?.as_slice::<i32>()?, [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), comm_core::tensor::TensorError>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    /// Inside the storage.
    layout: Layout,
    dtype: DType,
}

impl Tensor {
    /// A copy of `values` in row-major order.
    ///
    /// # Errors
    /// Not as many values as the shape has elements; sizes that do not fit; no memory.
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Result<Tensor, TensorError> {
        Ok(TensorBuf::from_slice(shape, values)?.freeze())
    }

    /// Elements in memory that somebody else allocated; see [`Foreign`].
    ///
    /// # Errors
    /// The layout reaches outside the memory. It is given back then.
    pub fn from_foreign(memory: Foreign, dtype: DType, layout: Layout) -> Result<Tensor, TensorError> {
        Tensor::from_memory("Tensor::from_foreign", Memory::Foreign(memory), dtype, layout)
    }

    /// Elements in a block of another process, which may write it at any time: bytes by copy only.
    pub(crate) fn from_import(
        op: &'static str,
        bytes: Box<dyn SharedBytes>,
        dtype: DType,
        layout: Layout,
    ) -> Result<Tensor, TensorError> {
        Tensor::from_memory(op, Memory::Shared { bytes, own: false }, dtype, layout)
    }

    /// Elements in some memory, whatever its bytes are now.
    pub(super) fn from_memory(
        op: &'static str,
        memory: Memory,
        dtype: DType,
        layout: Layout,
    ) -> Result<Tensor, TensorError> {
        let storage = Storage::new(memory);
        storage.check(op, &layout, dtype.size())?;
        Ok(Tensor::from_parts(storage, layout, dtype))
    }

    /// The layout lies inside the storage.
    pub(super) fn from_parts(storage: Storage, layout: Layout, dtype: DType) -> Tensor {
        Tensor { storage: Arc::new(storage), layout, dtype }
    }

    pub(super) fn view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }

    /// The address so many bytes into the storage, inside of which it lies.
    pub(super) fn start_of_storage(&self, bytes: usize) -> std::ptr::NonNull<u8> {
        // SAFETY: whoever asks has taken the number from this tensor's layout, which lies inside the storage.
        unsafe { self.storage.as_ptr().add(bytes) }
    }

    /// Size of each dimension.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// Distance between neighbours in each dimension, in elements.
    pub fn strides(&self) -> &[isize] {
        self.layout.strides()
    }

    /// Shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// Size of the elements in bytes, as if they lay one after the other.
    pub fn nbytes(&self) -> usize {
        self.view().nbytes()
    }

    /// Where the memory is.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// Whether the elements lie one after the other in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Whether the memory is this process's own: whether there are ever references to it.
    pub fn is_ours(&self) -> bool {
        self.storage.is_ours()
    }

    /// Whether two tensors are clones or views over the same memory.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// Segment id, byte offset of element 0 in the segment, and generation, if the memory is a block of this
    /// process's arena. What a peer needs to find the bytes.
    pub fn block(&self) -> Option<(u64, u64, u64)> {
        block_of(&self.view())
    }

    /// Address of the element at index 0, for libraries and streams that read the memory themselves.
    pub fn as_ptr(&self) -> *const u8 {
        self.view().start().as_ptr()
    }

    /// The elements, in row-major order.
    ///
    /// # Errors
    /// Another element type; not contiguous; memory of another process or of a device; a bool that is neither 0
    /// nor 1; misaligned foreign memory.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.view().slice("as_slice")
    }

    /// The bytes of the elements in row-major order, in this machine's byte order.
    ///
    /// # Errors
    /// Not contiguous; memory of another process or of a device.
    pub fn bytes(&self) -> Result<&[u8], TensorError> {
        self.view().bytes("bytes")
    }

    /// Copies the elements out, in row-major order. Any strides, any host memory.
    ///
    /// # Errors
    /// Another element type, a bool that is neither 0 nor 1, memory of a device, or no memory.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        self.view().to_vec("to_vec")
    }

    /// Copies the bytes of the elements, in row-major order, to `dst`, which has [`Tensor::nbytes`] bytes. Any
    /// strides, any host memory. Bytes that another process writes meanwhile may arrive torn.
    ///
    /// # Errors
    /// `dst` has another length; memory of a device.
    pub fn copy_bytes_to(&self, dst: &mut [u8]) -> Result<(), TensorError> {
        self.view().copy_bytes_to("copy_bytes_to", dst)
    }

    /// Whether the other tensor has the same element type, shape and bits. Any strides, any host memory. Unlike
    /// comparing numbers this tells -0.0 from 0.0, and a NaN equals the same NaN.
    ///
    /// ```
    /// use comm_core::tensor::Tensor;
    ///
    /// let a = Tensor::from_slice(&[2, 2], &[0.0f32, f32::NAN, 1.0, 2.0])?;
    /// assert!(a.bytes_equal(&a.transpose(0, 1)?.contiguous()?.transpose(0, 1)?)?);
    /// assert!(!a.bytes_equal(&Tensor::from_slice(&[2, 2], &[-0.0f32, f32::NAN, 1.0, 2.0])?)?);
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Memory of a device.
    pub fn bytes_equal(&self, other: &Tensor) -> Result<bool, TensorError> {
        self.view().bytes_equal("bytes_equal", &other.view())
    }

    /// A dense copy in memory of this process, to be written.
    ///
    /// # Errors
    /// Memory of a device, or no memory.
    pub fn to_buf(&self) -> Result<TensorBuf, TensorError> {
        self.to_buf_for("to_buf")
    }

    fn to_buf_for(&self, op: &'static str) -> Result<TensorBuf, TensorError> {
        self.view().on_cpu(op)?;
        let mut buf = TensorBuf::zeros_for(op, self.shape(), self.dtype)?;
        self.view().copy_bytes_to(op, buf.bytes_mut()?)?;
        Ok(buf)
    }

    /// The same elements one after the other: this tensor itself if they lie so already, else a copy. The copy is
    /// in this process's memory; a contiguous tensor of another process stays there (see [`Tensor::to_buf`]).
    ///
    /// # Errors
    /// Memory of a device, or no memory.
    pub fn contiguous(&self) -> Result<Tensor, TensorError> {
        if self.is_contiguous() { Ok(self.clone()) } else { Ok(self.to_buf_for("contiguous")?.freeze()) }
    }

    /// Takes the memory back to be written, without a copy, if this is the only tensor over it, it is contiguous,
    /// the memory is writable, and no stream still reads it; otherwise returns the tensor.
    ///
    /// ```
    /// use comm_core::tensor::Tensor;
    ///
    /// let t = Tensor::from_slice(&[2], &[1u8, 2])?;
    /// let other = t.clone();
    /// let t = t.try_into_buf().unwrap_err();
    /// drop(other);
    /// let mut buf = t.try_into_buf().unwrap();
    /// buf.as_mut_slice::<u8>()?[0] = 7;
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// The tensor itself.
    #[allow(clippy::result_large_err, reason = "both sides are the tensor itself, moved")]
    pub fn try_into_buf(self) -> Result<TensorBuf, Tensor> {
        let Tensor { storage, layout, dtype } = self;
        // Nobody holds weak references, so whoever gets the storage out is its only holder.
        let mut storage = match Arc::try_unwrap(storage) {
            Ok(storage) => storage,
            Err(storage) => return Err(Tensor { storage, layout, dtype }),
        };
        if TensorBuf::can_own(&mut storage, &layout) {
            Ok(TensorBuf::from_parts(storage, layout, dtype))
        } else {
            Err(Tensor::from_parts(storage, layout, dtype))
        }
    }

    /// Notes that `stream` reads this tensor in work that is queued now: the memory will not go back before that
    /// work is done, even if every tensor over it is dropped. At most one event per stream is kept.
    ///
    /// ```
    /// use comm_core::{device::Stream, tensor::Tensor};
    ///
    /// let t = Tensor::from_slice(&[2], &[1.0, 2.0])?;
    /// let stream = Stream::current();
    /// // ... queue work that reads `t` ...
    /// t.record_use(&stream)?;
    /// drop(t); // never blocks; freed once the stream is through
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The stream cannot record an event; then keep the tensor until its work is known to be done.
    #[doc(alias = "recordStream")]
    pub fn record_use(&self, stream: &Stream) -> crate::Result<()> {
        self.storage.record_use(stream)
    }

    /// Another layout over the same memory.
    ///
    /// ```
    /// use comm_core::tensor::{Layout, Tensor};
    ///
    /// let t = Tensor::from_slice(&[4], &[1, 2, 3, 4])?;
    /// let windows = t.with_layout(Layout::new(&[3, 2], &[1, 1], 0)?)?;
    /// assert_eq!(windows.to_vec::<i32>()?, [1, 2, 2, 3, 3, 4]);
    /// assert!(t.with_layout(Layout::contiguous(&[5])?).is_err());
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// It reaches outside the memory, or the size in bytes does not fit.
    #[doc(alias = "as_strided")]
    pub fn with_layout(&self, layout: Layout) -> Result<Tensor, TensorError> {
        self.storage.check("with_layout", &layout, self.dtype.size())?;
        Ok(Tensor { storage: Arc::clone(&self.storage), layout, dtype: self.dtype })
    }
}

/// Views, which share the memory. Each is [`Layout`]'s method of the same name.
///
/// ```
/// use comm_core::tensor::Tensor;
///
/// let t = Tensor::from_slice(&[2, 4], &[0u8, 1, 2, 3, 4, 5, 6, 7])?;
/// assert_eq!(t.narrow(1, 1, 2)?.to_vec::<u8>()?, [1, 2, 5, 6]);
/// assert_eq!(t.select(0, 1)?.to_vec::<u8>()?, [4, 5, 6, 7]);
/// assert_eq!(t.step(1, 3)?.to_vec::<u8>()?, [0, 3, 4, 7]);
/// assert_eq!(t.flip(0)?.to_vec::<u8>()?, [4, 5, 6, 7, 0, 1, 2, 3]);
/// assert_eq!(t.reshape(&[8])?.shape(), &[8]);
/// assert_eq!(t.permute(&[1, 0])?.shape(), &[4, 2]);
/// assert_eq!(t.select(0, 0)?.expand(&[3, 4])?.strides(), &[0, 1]);
/// # Ok::<(), comm_core::tensor::TensorError>(())
/// ```
impl Tensor {
    /// `len` indices of one dimension, from `start` on.
    ///
    /// # Errors
    /// No such dimension, or the range reaches outside it.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.narrow(dim, start, len)?)
    }

    /// One index of one dimension, which disappears.
    ///
    /// # Errors
    /// No such dimension, or the index lies outside it.
    pub fn select(&self, dim: usize, index: usize) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.select(dim, index)?)
    }

    /// Every `step`-th index of one dimension, from 0 on.
    ///
    /// # Errors
    /// No such dimension, or a step of zero.
    pub fn step(&self, dim: usize, step: usize) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.step(dim, step)?)
    }

    /// One dimension backwards.
    ///
    /// # Errors
    /// No such dimension.
    pub fn flip(&self, dim: usize) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.flip(dim)?)
    }

    /// Two dimensions exchanged.
    ///
    /// # Errors
    /// No such dimension.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.transpose(a, b)?)
    }

    /// Dimensions in another order: dimension `i` of the result is dimension `order[i]` of this one.
    ///
    /// # Errors
    /// `order` does not name every dimension once.
    pub fn permute(&self, order: &[usize]) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.permute(order)?)
    }

    /// A dimension of size 1 removed.
    ///
    /// # Errors
    /// No such dimension, or it has another size.
    pub fn squeeze(&self, dim: usize) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.squeeze(dim)?)
    }

    /// A dimension of size 1 put in before `dim`, or at the end.
    ///
    /// # Errors
    /// `dim` is larger than the number of dimensions, or there are [`MAX_DIMS`](super::MAX_DIMS) already.
    pub fn unsqueeze(&self, dim: usize) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.unsqueeze(dim)?)
    }

    /// Another shape with the same elements in the same order.
    ///
    /// # Errors
    /// Another number of elements; [`TensorError::NoView`] if the strides do not allow it (then
    /// [`contiguous`](Tensor::contiguous) first).
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.reshape(shape)?)
    }

    /// Dimensions of size 1 repeated, and new ones put in front, with stride 0.
    ///
    /// # Errors
    /// Fewer dimensions than before, or another size where the old one is not 1.
    pub fn expand(&self, shape: &[usize]) -> Result<Tensor, TensorError> {
        self.with_layout(self.layout.expand(shape)?)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().debug("Tensor", f)
    }
}

/// Where element 0 lies in the arena, if the storage is a block of it.
pub(super) fn block_of(view: &View<'_>) -> Option<(u64, u64, u64)> {
    let (segment, offset, generation) = view.storage.location()?;
    let first = (view.layout.offset() as u64).checked_mul(view.dtype.size() as u64)?;
    Some((segment, offset.checked_add(first)?, generation))
}
