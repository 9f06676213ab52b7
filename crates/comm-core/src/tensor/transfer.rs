//! Tensors brought from one device to another.

use super::foreign::Foreign;
use super::storage::{Memory, Storage};
use super::{Layout, Place, Tensor};
use crate::device::{Device, Event, Stream};
use crate::error::{Error, Result};
use crate::shm::{Access, Arena};
use crate::wait::Deadline;

const OP: &str = "Tensor::to_device";

impl Tensor {
    /// The same elements on another device, with the same strides; this tensor itself if it is there.
    ///
    /// The copy is made by `through`, a stream of the device (of the two, the one that is not the host's) behind what it
    /// has queued, and this tensor's memory does not go back before. On a device the result may be used by whatever is
    /// queued in that stream afterwards; on the host it is there when this returns, which waits for it.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if the stream is of neither device, or another than is needed; [`Error::Unsupported`] where
    /// its driver does not copy; no memory; [`Error::Timeout`], on the way to the host.
    pub fn to_device(
        &self,
        device: Device,
        through: &Stream,
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let moved = self.bring(device, through, |bytes| {
            if device.is_cpu() {
                return Ok(Storage::heap(OP, bytes)?);
            }
            let memory = through.alloc(bytes)?;
            // SAFETY: the driver gave out `bytes` bytes for this tensor alone, until it is given back.
            let foreign = unsafe { Foreign::exclusive(memory.start, bytes, device, memory.free) };
            Ok(Storage::new(Memory::Foreign(foreign)))
        })?;
        if device.is_cpu() {
            through.record()?.synchronize(deadline)?;
        }
        Ok(moved)
    }

    /// As [`to_device`](Tensor::to_device), to the host, into a block of an arena: peers can read it there without another
    /// copy. A tensor that is on the host already is treated as by [`contiguous_in`](Tensor::contiguous_in).
    ///
    /// # Errors
    /// Those of [`to_device`](Tensor::to_device); [`Error::InvalidArgument`] for an arena that peers may write.
    pub fn to_host_in(
        &self,
        arena: &Arena,
        through: &Stream,
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        if self.device().is_cpu() {
            return self.contiguous_in(arena);
        }
        self.start_to_host_in(arena, through)?.wait(deadline)
    }

    /// As [`to_host_in`](Tensor::to_host_in), for a tensor of a device, and does not wait for the copy: whoever does can have the
    /// tensor, and others can be told where it will be.
    ///
    /// # Errors
    /// Those of [`to_device`](Tensor::to_device), but for the time-out; [`Error::InvalidArgument`] for an arena that peers may
    /// write.
    pub fn start_to_host_in(&self, arena: &Arena, through: &Stream) -> Result<Transfer> {
        let tensor = self.bring(Device::Cpu, through, |bytes| {
            let block = arena.alloc_zeroed(bytes as u64)?;
            if block.access() != Access::ReadOnly {
                return Err(Error::invalid(OP, "peers may write this arena, so no tensor may lie in it"));
            }
            Ok(Storage::new(Memory::Shared { bytes: Box::new(block), own: true }))
        })?;
        let place = tensor.placed_in(arena)?.1;
        Ok(Transfer { place, copied: through.record()?, tensor })
    }

    /// Copies the elements, and what lies between them, into memory of that many bytes on another device.
    fn bring(
        &self,
        device: Device,
        through: &Stream,
        memory: impl FnOnce(usize) -> Result<Storage>,
    ) -> Result<Tensor> {
        let far = if device.is_cpu() { self.device() } else { device };
        if through.device() != far {
            let (seen, expected) = (through.device().to_string(), format!("a stream of {far}"));
            return Err(Error::DeviceMismatch { op: OP, seen, expected });
        }
        let span = self.layout().span();
        let (first, count) = if self.numel() == 0 { (0, 0) } else { (span.start, span.len()) };
        let size = self.dtype().size();
        let bytes = count * size;
        let offset = if self.numel() == 0 { 0 } else { self.layout().offset() - first };
        let layout = Layout::new(self.shape(), self.strides(), offset)?;
        let storage = memory(bytes)?;
        let from = self.start_of_storage(first * size);
        // SAFETY: both ranges lie inside of their storages, which do not go back before the stream has passed this: each is
        // noted to be used by it below, and neither is dropped before. A frozen tensor is written by nobody of this process (and
        // the driver is to read as one who knows that another may), and the new memory is known to nobody.
        unsafe { through.copy(from, storage.as_ptr(), bytes)? };
        let (source, target) = (self.record_use(through), storage.record_use(through));
        if let Err(error) = source.and(target) {
            // Nobody can tell when the copy is done: what it touches is not given back.
            std::mem::forget((self.clone(), storage));
            return Err(error);
        }
        Ok(Tensor::from_parts(storage, layout, self.dtype()))
    }
}

/// A tensor of a device on its way to the host. Dropped, its memory goes back when the copy is done.
pub struct Transfer {
    /// Nobody gets it before the copy is done.
    tensor: Tensor,
    place: Option<Place>,
    copied: Event,
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Transfer {
    /// Where it will be; nowhere if it has no elements.
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// The tensor, when the stream has copied it.
    ///
    /// # Errors
    /// [`Error::Timeout`]; what has become of the stream.
    pub fn wait(self, deadline: impl Into<Deadline>) -> Result<Tensor> {
        self.copied.synchronize(deadline)?;
        Ok(self.tensor)
    }
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
