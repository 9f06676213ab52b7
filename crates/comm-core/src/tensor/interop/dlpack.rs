//! DLPack 1.x, the C structure in which Python's array libraries and many others hand over tensors.
//!
//! **Out.** [`Tensor::to_dlpack`] is read-only for whoever gets it, since a tensor does not change;
//! [`TensorBuf::try_into_dlpack`] may be written. The structure keeps the memory until its deleter has run, on any
//! thread. A tensor of another process is not exported, since that process could write it under the consumer's eyes:
//! export a copy (`to_buf()`).
//!
//! **In.** [`Tensor::from_dlpack`] and [`TensorBuf::from_dlpack`] take the structure over and run its deleter once,
//! when the last tensor over the memory is gone. If they fail, nothing has happened: the structure is still the
//! caller's, and its deleter has not run.
//!
//! Only memory of the CPU goes in and out. All dtypes have a counterpart in DLPack.
//!
//! ```
//! use comm_core::tensor::{Tensor, interop::dlpack::DlPack};
//!
//! let ours = Tensor::from_slice(&[2, 3], &[1, 2, 3, 4, 5, 6])?.transpose(0, 1)?;
//! let raw = ours.to_dlpack()?.into_raw(); // for a capsule, say
//!
//! // The other library, if it is one of ours:
//! // SAFETY: `raw` came from `into_raw`, nobody else takes it, and nobody writes a frozen tensor.
//! let theirs = match unsafe { Tensor::from_dlpack(raw) } {
//!     Ok(theirs) => theirs,
//!     Err(e) => {
//!         // SAFETY: as above; who failed has not taken it.
//!         drop(unsafe { DlPack::from_raw(raw) });
//!         return Err(e);
//!     }
//! };
//! assert_eq!(theirs.as_ptr(), ours.as_ptr());
//! assert_eq!(theirs.to_vec::<i32>()?, [1, 4, 2, 5, 3, 6]);
//! # Ok::<(), comm_core::Error>(())
//! ```

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};

use super::super::foreign::Foreign;
use super::super::heap::Heap;
use super::super::layout::row_major;
use super::super::storage::{Memory, Storage};
use super::super::view::View;
use super::super::{DType, Layout, MAX_DIMS, Tensor, TensorBuf, TensorError};
use crate::device::Device;
use crate::error::{Error, Result};

#[path = "dlpack_abi.rs"]
mod abi;

pub use abi::*;

/// A DLPack structure that gives its tensor back when it is dropped, unless it was [given away](DlPack::into_raw).
///
/// ```
/// use comm_core::tensor::Tensor;
///
/// let t = Tensor::from_slice(&[2], &[1.0f32, 2.0])?;
/// let pack = t.to_dlpack()?;
/// // SAFETY: the structure lives as long as `pack`.
/// let header = unsafe { &*pack.as_raw() };
/// assert_eq!(header.dl_tensor.data.cast_const().cast(), t.as_ptr());
/// assert!(t.try_into_buf().is_err()); // `pack` holds the memory, too
/// # Ok::<(), comm_core::tensor::TensorError>(())
/// ```
pub struct DlPack(NonNull<DLManagedTensorVersioned>);

// SAFETY: whoever made it promised that the deleter may run on any thread, and there is nothing else to do with it.
unsafe impl Send for DlPack {}

impl DlPack {
    /// Takes over a structure, of any version: dropping it runs the deleter. `None` for null.
    ///
    /// # Safety
    /// The pointer is null or a structure that nobody else gives back, whose deleter may run on any thread.
    pub unsafe fn from_raw(raw: *mut DLManagedTensorVersioned) -> Option<DlPack> {
        NonNull::new(raw).map(DlPack)
    }

    /// The structure, which goes on being this value's.
    pub fn as_raw(&self) -> *mut DLManagedTensorVersioned {
        self.0.as_ptr()
    }

    /// Gives the structure away: who gets it calls its deleter, once. Until then it keeps the memory.
    pub fn into_raw(self) -> *mut DLManagedTensorVersioned {
        std::mem::ManuallyDrop::new(self).as_raw()
    }
}

impl Drop for DlPack {
    fn drop(&mut self) {
        // SAFETY: this value alone gives the structure back, and does it only here.
        unsafe { DLManagedTensorVersioned::give_back(self.0.as_ptr()) }
    }
}

impl fmt::Debug for DlPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DlPack").field(&self.0).finish()
    }
}

impl Tensor {
    /// This tensor for another library: the same memory, in any strides, flagged [`READ_ONLY`]. The structure holds
    /// the memory as a clone of this tensor would.
    ///
    /// # Errors
    /// Memory of another process ([`TensorError::NotOurs`]: export a copy, `to_buf()`) or of a device; elements that
    /// are not aligned, which others expect.
    pub fn to_dlpack(&self) -> Result<DlPack, TensorError> {
        let header = header("Tensor::to_dlpack", &self.view())?;
        Ok(export(header, READ_ONLY, self.clone()))
    }

    /// A tensor over the memory of a DLPack structure, in any strides. The structure is this tensor's from then on.
    /// If it is flagged [`IS_COPIED`] and not [`READ_ONLY`], [`Tensor::try_into_buf`] can make it writable.
    ///
    /// Misaligned elements can be copied, but not borrowed as a slice.
    ///
    /// # Errors
    /// The structure is still the caller's, who gives it back.
    /// - [`Error::Unsupported`]: another major version, an element type that is no [`DType`], flags that are not known;
    /// - [`Error::DeviceMismatch`]: not memory of the CPU;
    /// - [`Error::InvalidArgument`]: null; a number of dimensions below 0 or above [`MAX_DIMS`]; a negative size; sizes,
    ///   strides or addresses that overflow; elements without memory.
    ///
    /// # Safety
    /// `raw` is null or a DLPack structure that tells the truth: until its deleter runs, shape and strides have `ndim`
    /// numbers (or are null), and the elements with all that lies between them are initialised memory, which may be
    /// read from any thread. On success nobody else gives the structure back, nobody writes that memory before it is
    /// given back (and if it is flagged `IS_COPIED`, nobody reads it), and the deleter may run on any thread.
    pub unsafe fn from_dlpack(raw: *mut DLManagedTensorVersioned) -> Result<Tensor> {
        // SAFETY: the caller's promise.
        unsafe { import("Tensor::from_dlpack", raw) }.map(Import::into_tensor)
    }

    /// As [`Tensor::from_dlpack`], of the structure from before DLPack 1.0. It has no version and no flags: the tensor
    /// can be read only.
    ///
    /// # Errors
    /// As [`Tensor::from_dlpack`].
    ///
    /// # Safety
    /// As [`Tensor::from_dlpack`].
    pub unsafe fn from_dlpack_unversioned(raw: *mut DLManagedTensor) -> Result<Tensor> {
        // SAFETY: the caller's promise.
        unsafe { import("Tensor::from_dlpack_unversioned", raw) }.map(Import::into_tensor)
    }
}

impl TensorBuf {
    /// This buffer for another library, which may write it: the same memory, flagged [`IS_COPIED`], which says that
    /// nobody else uses it.
    ///
    /// ```
    /// use comm_core::tensor::TensorBuf;
    ///
    /// let buf = TensorBuf::from_slice(&[2], &[1u8, 2])?;
    /// let at = buf.as_ptr();
    /// let raw = buf.try_into_dlpack().unwrap().into_raw();
    /// // SAFETY: `raw` came from `into_raw`; nobody else takes it or uses its memory.
    /// let mut back = unsafe { TensorBuf::from_dlpack(raw)? };
    /// back.as_mut_slice::<u8>()?[0] = 7;
    /// assert_eq!(back.as_ptr(), at);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The buffer itself, if it is memory of a device, or its elements are not aligned.
    #[allow(clippy::result_large_err, reason = "the error is the buffer itself, moved")]
    pub fn try_into_dlpack(self) -> Result<DlPack, TensorBuf> {
        match header("TensorBuf::try_into_dlpack", &self.view()) {
            Ok(header) => Ok(export(header, IS_COPIED, self)),
            Err(_) => Err(self),
        }
    }

    /// A buffer over the memory of a DLPack structure, without a copy. The structure is the buffer's from then on.
    ///
    /// # Errors
    /// As [`Tensor::from_dlpack`]; also if the structure is flagged [`READ_ONLY`], or its elements do not lie one after
    /// the other in row-major order. The structure is still the caller's then.
    ///
    /// # Safety
    /// As [`Tensor::from_dlpack`]; besides, the elements may be written, and nobody else reads or writes them before the
    /// structure is given back. A structure that is not flagged [`IS_COPIED`] does not say so by itself.
    pub unsafe fn from_dlpack(raw: *mut DLManagedTensorVersioned) -> Result<TensorBuf> {
        const OP: &str = "TensorBuf::from_dlpack";
        // SAFETY: the caller's promise.
        unsafe { import(OP, raw) }?.into_buf(OP)
    }

    /// As [`TensorBuf::from_dlpack`], of the structure from before DLPack 1.0, which cannot say that it is read-only:
    /// know it otherwise.
    ///
    /// # Errors
    /// As [`TensorBuf::from_dlpack`].
    ///
    /// # Safety
    /// As [`TensorBuf::from_dlpack`].
    pub unsafe fn from_dlpack_unversioned(raw: *mut DLManagedTensor) -> Result<TensorBuf> {
        const OP: &str = "TensorBuf::from_dlpack_unversioned";
        // SAFETY: the caller's promise.
        unsafe { import(OP, raw) }?.into_buf(OP)
    }
}

/// DLPack's name for an element type.
fn data_type(dtype: DType) -> DLDataType {
    use DType as D;
    let code = match dtype {
        D::Bool => BOOL,
        D::U8 | D::U16 | D::U32 | D::U64 => UINT,
        D::I8 | D::I16 | D::I32 | D::I64 => INT,
        D::F16 | D::F32 | D::F64 => FLOAT,
        D::BF16 => BFLOAT,
        D::F8E4M3 => FLOAT8_E4M3FN,
        D::F8E5M2 => FLOAT8_E5M2,
        D::Complex64 | D::Complex128 => COMPLEX,
    };
    // At most 16 bytes.
    DLDataType { code, bits: dtype.size() as u8 * 8, lanes: 1 }
}

/// What the elements of a type are aligned to on this system.
fn align(dtype: DType) -> usize {
    match dtype {
        DType::Complex64 | DType::Complex128 => dtype.size() / 2,
        _ => dtype.size(),
    }
}

/// What goes into a structure, but for its pointers into itself.
struct Header {
    data: *mut c_void,
    dtype: DLDataType,
    ndim: usize,
    shape: [i64; MAX_DIMS],
    strides: [i64; MAX_DIMS],
}

/// Describes elements that another library may see.
fn header(op: &'static str, view: &View<'_>) -> Result<Header, TensorError> {
    view.on_cpu(op)?;
    if !view.storage.is_ours() {
        return Err(TensorError::NotOurs { op });
    }
    let (layout, align) = (view.layout, align(view.dtype));
    let mut data: *mut c_void = ptr::null_mut();
    if layout.numel() != 0 {
        data = view.start().as_ptr().cast();
        if !data.addr().is_multiple_of(align) {
            return Err(TensorError::Misaligned { op, align });
        }
    }
    let (mut shape, mut strides) = ([0; MAX_DIMS], [0; MAX_DIMS]);
    for (to, &size) in shape.iter_mut().zip(layout.shape()) {
        // Fits: no size of a layout has more than 63 bits.
        *to = size as i64;
    }
    for (to, &stride) in strides.iter_mut().zip(layout.strides()) {
        *to = stride as i64;
    }
    Ok(Header { data, dtype: data_type(view.dtype), ndim: layout.ndim(), shape, strides })
}

/// A structure and what it points to.
struct Exported<O> {
    managed: DLManagedTensorVersioned,
    shape: [i64; MAX_DIMS],
    strides: [i64; MAX_DIMS],
    /// Keeps the memory.
    _owner: O,
}

fn export<O: Send>(header: Header, flags: u64, owner: O) -> DlPack {
    let Header { data, dtype, ndim, shape, strides } = header;
    let dl_tensor = DLTensor {
        data,
        device: DLDevice { device_type: CPU, device_id: 0 },
        ndim: ndim as i32,
        dtype,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete::<O>),
        flags,
        dl_tensor,
    };
    let all = NonNull::from(Box::leak(Box::new(Exported { managed, shape, strides, _owner: owner })));
    let raw = all.as_ptr();
    // SAFETY: the box is this function's alone until it returns, and its fields do not move.
    let managed = unsafe {
        (*raw).managed.manager_ctx = raw.cast();
        (*raw).managed.dl_tensor.shape = (&raw mut (*raw).shape).cast();
        (*raw).managed.dl_tensor.strides = (&raw mut (*raw).strides).cast();
        NonNull::new_unchecked(&raw mut (*raw).managed)
    };
    DlPack(managed)
}

/// The deleter of what [`export`] made.
///
/// # Safety
/// `raw` is null or such a structure, of the same owner type, and is given back once.
unsafe extern "C" fn delete<O>(raw: *mut DLManagedTensorVersioned) {
    if raw.is_null() {
        return;
    }
    // SAFETY: `export` put the address of the box there, which is freed only here, and once by the caller's promise.
    drop(unsafe { Box::from_raw((*raw).manager_ctx.cast::<Exported<O>>()) });
}

/// One of the two structures.
trait Managed: Sized + 'static {
    /// Flags and tensor, if the version is known.
    ///
    /// # Safety
    /// `raw` is a structure of this kind.
    unsafe fn read(op: &'static str, raw: *mut Self) -> Result<(u64, DLTensor)>;

    /// Runs the deleter, if there is one.
    ///
    /// # Safety
    /// `raw` is a structure of this kind, of any version, which is given back only once.
    unsafe fn give_back(raw: *mut Self);
}

impl Managed for DLManagedTensorVersioned {
    unsafe fn read(op: &'static str, raw: *mut Self) -> Result<(u64, DLTensor)> {
        // SAFETY: a structure by the caller's promise; the version is where it is in every version.
        let DLPackVersion { major, minor } = unsafe { (*raw).version };
        if major != VERSION.major {
            let why = format!("the tensor is of version {major}.{minor}, known is {}", VERSION.major);
            return Err(unsupported(op, why));
        }
        // SAFETY: a structure of the version that is known.
        let (flags, tensor) = unsafe { ((*raw).flags, (*raw).dl_tensor) };
        let unknown = flags & !(READ_ONLY | IS_COPIED | SUBBYTE_PADDED);
        if unknown != 0 {
            return Err(unsupported(op, format!("the flags {unknown:#x} are not known")));
        }
        Ok((flags, tensor))
    }

    unsafe fn give_back(raw: *mut Self) {
        // SAFETY: a structure by the caller's promise; the deleter is where it is in every version.
        if let Some(deleter) = unsafe { (*raw).deleter } {
            // SAFETY: what the producer made the function for; once by the caller's promise.
            unsafe { deleter(raw) }
        }
    }
}

impl Managed for DLManagedTensor {
    unsafe fn read(_: &'static str, raw: *mut Self) -> Result<(u64, DLTensor)> {
        // SAFETY: a structure by the caller's promise.
        Ok((0, unsafe { (*raw).dl_tensor }))
    }

    unsafe fn give_back(raw: *mut Self) {
        // SAFETY: a structure by the caller's promise.
        if let Some(deleter) = unsafe { (*raw).deleter } {
            // SAFETY: what the producer made the function for; once by the caller's promise.
            unsafe { deleter(raw) }
        }
    }
}

fn unsupported(op: &'static str, why: String) -> Error {
    Error::Unsupported { backend: "DLPack", op: op.to_owned(), why }
}

/// A structure that has been found right and not yet been taken over.
struct Import<M> {
    raw: *mut M,
    flags: u64,
    /// All bytes that the elements are among.
    start: NonNull<u8>,
    len: usize,
    dtype: DType,
    /// Over these bytes.
    layout: Layout,
}

/// Gives a structure back on the thread on which the last tensor is dropped.
struct GiveBack<M>(*mut M);

// SAFETY: the importer's caller promised that the deleter may run on any thread.
unsafe impl<M> Send for GiveBack<M> {}

impl<M: Managed> GiveBack<M> {
    fn now(self) {
        // SAFETY: the structure was taken over when this was made, and this is consumed.
        unsafe { M::give_back(self.0) }
    }
}

/// Reads and checks a structure.
///
/// # Safety
/// As [`Tensor::from_dlpack`].
unsafe fn import<M: Managed>(op: &'static str, raw: *mut M) -> Result<Import<M>> {
    if raw.is_null() {
        return Err(Error::invalid(op, "null in the place of a tensor"));
    }
    // SAFETY: not null, so a structure by the caller's promise.
    let (flags, tensor) = unsafe { M::read(op, raw) }?;
    let DLDevice { device_type, device_id } = tensor.device;
    if device_type != CPU {
        let seen = format!("DLPack's device {device_type}:{device_id}");
        return Err(Error::DeviceMismatch { op, seen, expected: Device::Cpu.to_string() });
    }
    let dtype = DType::ALL.iter().copied().find(|&dtype| data_type(dtype) == tensor.dtype);
    let dtype = dtype.ok_or_else(|| {
        let DLDataType { code, bits, lanes } = tensor.dtype;
        unsupported(op, format!("no dtype is DLPack's type {code} of {bits} bits with {lanes} lanes"))
    })?;
    // SAFETY: shape and strides have `ndim` numbers by the caller's promise.
    let layout = unsafe { layout(op, &tensor) }?;
    let overflow = || TensorError::overflow(op, layout.shape());
    let bytes = |elements: usize| dtype.bytes_of(elements).ok_or_else(overflow);
    bytes(layout.numel())?;
    if layout.numel() == 0 {
        return Ok(Import { raw, flags, start: Heap::dangling(), len: 0, dtype, layout });
    }
    if tensor.data.is_null() {
        return Err(Error::invalid(op, format!("{} elements at address null", layout.numel())));
    }
    // The layout begins at its lowest element; `data` and `byte_offset` say where that at index 0 is.
    let (before, len) = (bytes(layout.offset())?, bytes(layout.span().end)?);
    let outside = || {
        let DLTensor { data, byte_offset, .. } = tensor;
        let (shape, strides) = (layout.shape(), layout.strides());
        let why = format!(
            "shape {shape:?} with strides {strides:?} from {byte_offset} bytes after {data:?} on leaves the address space"
        );
        Error::invalid(op, why)
    };
    let offset = usize::try_from(tensor.byte_offset).map_err(|_| outside())?;
    let lowest = tensor.data.addr().checked_add(offset).and_then(|first| first.checked_sub(before));
    if lowest.and_then(|lowest| lowest.checked_add(len)).is_none() {
        return Err(outside());
    }
    let start = tensor.data.cast::<u8>().wrapping_add(offset).wrapping_sub(before);
    let start = NonNull::new(start).ok_or_else(outside)?;
    Ok(Import { raw, flags, start, len, dtype, layout })
}

/// The layout of a header over the bytes from its lowest element on.
///
/// # Safety
/// Shape and strides of the header have `ndim` numbers or are null.
unsafe fn layout(op: &'static str, tensor: &DLTensor) -> Result<Layout> {
    let ndim = usize::try_from(tensor.ndim)
        .map_err(|_| Error::invalid(op, format!("{} dimensions", tensor.ndim)))?;
    if ndim > MAX_DIMS {
        return Err(TensorError::TooManyDims { op, dims: ndim }.into());
    }
    if ndim != 0 && tensor.shape.is_null() {
        return Err(Error::invalid(op, format!("{ndim} dimensions without sizes")));
    }
    let mut shape = [0; MAX_DIMS];
    for (dim, to) in shape[..ndim].iter_mut().enumerate() {
        // SAFETY: there are `ndim` of them by the caller's promise.
        let size = unsafe { *tensor.shape.add(dim) };
        *to = usize::try_from(size)
            .map_err(|_| Error::invalid(op, format!("size {size} in dimension {dim}")))?;
    }
    let shape = &shape[..ndim];
    // Checks that products of sizes do not overflow, here and in `row_major`.
    let dense = Layout::contiguous_for(op, shape)?;
    let overflow = || TensorError::overflow(op, shape);
    let mut strides = row_major(shape);
    if !tensor.strides.is_null() {
        for (dim, to) in strides[..ndim].iter_mut().enumerate() {
            // SAFETY: there are `ndim` of them by the caller's promise.
            let stride = unsafe { *tensor.strides.add(dim) };
            *to = isize::try_from(stride).map_err(|_| overflow())?;
        }
    }
    let mut before = 0usize;
    if dense.numel() != 0 {
        for (&size, &stride) in shape.iter().zip(&strides[..ndim]).filter(|&(_, &stride)| stride < 0) {
            let reach = (size - 1).checked_mul(stride.unsigned_abs());
            before = reach.and_then(|reach| before.checked_add(reach)).ok_or_else(overflow)?;
        }
    }
    Ok(Layout::build(op, shape, &strides[..ndim], before)?)
}

impl<M: Managed> Import<M> {
    /// Takes the structure over. Cannot fail, or the structure would be given back.
    fn take(self, exclusive: bool) -> (Storage, Layout, DType) {
        let Import { raw, start, len, dtype, layout, .. } = self;
        let owner = GiveBack(raw);
        // SAFETY: the importer's caller promised that the elements and what lies between them are initialised, and until
        // the deleter runs readable and written by nobody (if `exclusive`, nobody else's). The length was checked.
        let memory = unsafe {
            if exclusive {
                Foreign::exclusive(start, len, Device::Cpu, move || owner.now())
            } else {
                Foreign::read_only(start, len, Device::Cpu, move || owner.now())
            }
        };
        (Storage::new(Memory::Foreign(memory)), layout, dtype)
    }

    fn into_tensor(self) -> Tensor {
        let alone = self.flags & (IS_COPIED | READ_ONLY) == IS_COPIED;
        let (storage, layout, dtype) = self.take(alone);
        Tensor::from_parts(storage, layout, dtype)
    }

    fn into_buf(self, op: &'static str) -> Result<TensorBuf> {
        if self.flags & READ_ONLY != 0 {
            return Err(Error::invalid(op, "the tensor is read-only; make a Tensor of it"));
        }
        if !self.layout.is_contiguous() {
            let (shape, strides) = (self.layout.shape().into(), self.layout.strides().into());
            return Err(TensorError::NotContiguous { op, shape, strides }.into());
        }
        // As other buffers have it: also where strides do not matter.
        let dense = Layout::contiguous_for(op, self.layout.shape())?;
        let (storage, _, dtype) = self.take(true);
        Ok(TensorBuf::from_parts(storage, dense, dtype))
    }
}

#[cfg(test)]
#[path = "dlpack_tests.rs"]
mod tests;
