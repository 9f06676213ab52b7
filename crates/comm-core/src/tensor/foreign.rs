//! Memory that somebody else allocated.

use std::fmt;
use std::ptr::NonNull;

use crate::device::Device;

/// Memory of another owner, with the function that gives it back.
///
/// Becomes a tensor with [`Tensor::from_foreign`](super::Tensor::from_foreign) or
/// [`TensorBuf::from_foreign`](super::TensorBuf::from_foreign); the deleter runs once, when the last tensor over
/// it is gone and every stream that [used](super::Tensor::record_use) it is through.
///
/// ```
/// use std::ptr::NonNull;
/// use comm_core::device::Device;
/// use comm_core::tensor::{DType, Foreign, Layout, Tensor};
///
/// let mut owner = vec![1.5f32, 2.5];
/// let start = NonNull::new(owner.as_mut_ptr()).unwrap().cast();
/// // SAFETY: the deleter owns the vector, so its 8 initialised bytes stay until it runs; nobody writes them.
/// let memory = unsafe { Foreign::read_only(start, 8, Device::Cpu, move || drop(owner)) };
/// let t = Tensor::from_foreign(memory, DType::F32, Layout::contiguous(&[2])?)?;
/// assert_eq!(t.as_slice::<f32>()?, [1.5, 2.5]);
/// # Ok::<(), comm_core::tensor::TensorError>(())
/// ```
pub struct Foreign {
    start: NonNull<u8>,
    len: usize,
    device: Device,
    exclusive: bool,
    deleter: Option<Box<dyn FnOnce() + Send>>,
}

// SAFETY: whoever made it promised that the bytes may be used from any thread until the deleter runs; the deleter
// is `Send` and is reached only by the drop.
unsafe impl Send for Foreign {}
// SAFETY: as above; a shared `Foreign` gives out nothing but numbers and the address.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Memory that stays as it is: tensors over it can be read only.
    ///
    /// # Safety
    /// Until the deleter runs, `len` bytes from `start` on are valid for reads from any thread if `device` is the
    /// CPU (else by work of that device), are initialised, and are written by nobody. `len` fits into `isize`.
    pub unsafe fn read_only(
        start: NonNull<u8>,
        len: usize,
        device: Device,
        deleter: impl FnOnce() + Send + 'static,
    ) -> Foreign {
        Foreign { start, len, device, exclusive: false, deleter: Some(Box::new(deleter)) }
    }

    /// Memory that nobody else uses: it can become a [`TensorBuf`](super::TensorBuf) and be written.
    ///
    /// # Safety
    /// Until the deleter runs, `len` bytes from `start` on are valid for reads and writes from any thread if
    /// `device` is the CPU (else by work of that device), are initialised, and are read or written by nobody
    /// else. `len` fits into `isize`.
    pub unsafe fn exclusive(
        start: NonNull<u8>,
        len: usize,
        device: Device,
        deleter: impl FnOnce() + Send + 'static,
    ) -> Foreign {
        Foreign { start, len, device, exclusive: true, deleter: Some(Box::new(deleter)) }
    }

    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the memory is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether nobody else uses the memory.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(deleter) = self.deleter.take() {
            deleter();
        }
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign")
            .field("len", &self.len)
            .field("device", &self.device)
            .field("exclusive", &self.exclusive)
            .finish_non_exhaustive()
    }
}
