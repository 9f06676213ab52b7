//! The memory under tensors: whose it is, who may write it, and when it goes back.
//!
//! | memory | writers | `&[T]` | `&mut [T]` |
//! |---|---|---|---|
//! | heap | this process | once frozen, or through the `TensorBuf` | through the `TensorBuf` |
//! | own block of a shared segment | this process; peers map it read-only | same | same |
//! | foreign, exclusive | whoever holds the tensor | same | same |
//! | foreign, read-only | nobody | yes | never |
//! | import: a block of another process | that process, at any time | never | never |
//!
//! On a device other than the CPU there are no references at all: only its streams touch the memory.
//!
//! A storage is either owned by one `TensorBuf` (by value, so nobody else can have it) or shared by `Tensor`s
//! behind an `Arc` and then never written. These two facts are what the references above stand on.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::foreign::Foreign;
use super::heap::Heap;
use super::shared::SharedBytes;
use super::{Layout, TensorError};
use crate::device::{Device, Event, Stream};

/// Where bytes come from. A further kind of memory is a further variant here and an arm in each method below.
#[derive(Debug)]
pub(super) enum Memory {
    Heap(Heap),
    Foreign(Foreign),
    /// `own`: this process is the only one that writes it.
    Shared {
        bytes: Box<dyn SharedBytes>,
        own: bool,
    },
}

impl Memory {
    fn as_ptr(&self) -> NonNull<u8> {
        match self {
            Memory::Heap(heap) => heap.as_ptr(),
            Memory::Foreign(foreign) => foreign.as_ptr(),
            Memory::Shared { bytes, .. } => bytes.as_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Memory::Heap(heap) => heap.len(),
            Memory::Foreign(foreign) => foreign.len(),
            Memory::Shared { bytes, .. } => bytes.len(),
        }
    }

    fn device(&self) -> Device {
        match self {
            Memory::Heap(_) | Memory::Shared { .. } => Device::Cpu,
            Memory::Foreign(foreign) => foreign.device(),
        }
    }

    /// Nobody outside this process writes the bytes.
    fn is_ours(&self) -> bool {
        match self {
            Memory::Heap(_) | Memory::Foreign(_) => true,
            Memory::Shared { own, .. } => *own,
        }
    }

    /// A sole owner may write the bytes.
    fn is_writable(&self) -> bool {
        match self {
            Memory::Heap(_) => true,
            Memory::Foreign(foreign) => foreign.is_exclusive(),
            Memory::Shared { bytes, own } => *own && bytes.writable(),
        }
    }
}

/// Memory and the streams that still read it.
pub(super) struct Storage {
    /// Taken by the drop alone, which may hand it to a stream.
    memory: ManuallyDrop<Memory>,
    /// At most one event per stream: of two, the later is complete only after the earlier.
    uses: Mutex<Vec<(Stream, Event)>>,
}

impl Storage {
    pub(super) fn new(memory: Memory) -> Storage {
        Storage { memory: ManuallyDrop::new(memory), uses: Mutex::new(Vec::new()) }
    }

    pub(super) fn heap(op: &'static str, len: usize) -> Result<Storage, TensorError> {
        Ok(Storage::new(Memory::Heap(Heap::zeroed(op, len)?)))
    }

    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.memory.as_ptr()
    }

    pub(super) fn device(&self) -> Device {
        self.memory.device()
    }

    pub(super) fn is_ours(&self) -> bool {
        self.memory.is_ours()
    }

    pub(super) fn is_writable(&self) -> bool {
        self.memory.is_writable()
    }

    /// Segment id, byte offset and generation of an own arena block.
    pub(super) fn location(&self) -> Option<(u64, u64, u64)> {
        match &*self.memory {
            Memory::Shared { bytes, own: true } => bytes.location(),
            _ => None,
        }
    }

    /// Checks that a layout of elements of `size` bytes lies inside the memory.
    pub(super) fn check(&self, op: &'static str, layout: &Layout, size: usize) -> Result<(), TensorError> {
        // The number of bytes of a dense copy must fit too, or nobody could count them.
        if layout.numel().checked_mul(size).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(TensorError::overflow(op, layout.shape()));
        }
        let needs = layout.span().end as u128 * size as u128;
        let has = self.memory.len();
        if needs > has as u128 {
            let needs = u64::try_from(needs).unwrap_or(u64::MAX);
            return Err(TensorError::OutsideStorage { op, needs, has });
        }
        Ok(())
    }

    /// Notes that `stream` reads the memory in what is queued now.
    pub(super) fn record_use(&self, stream: &Stream) -> crate::Result<()> {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        // Recorded under the lock: else a second thread could replace its later event by our earlier one.
        let event = stream.record()?;
        let done = event.query()?;
        let over = match uses.iter().position(|(known, _)| known == stream) {
            Some(at) if done => Some(uses.swap_remove(at)),
            Some(at) => Some((stream.clone(), std::mem::replace(&mut uses[at].1, event))),
            None if done => None,
            None => {
                uses.push((stream.clone(), event));
                None
            }
        };
        // Whatever a driver does when its last handle goes, it does without the lock.
        drop(uses);
        drop(over);
        Ok(())
    }

    /// Whether every stream that read the memory is through. Ends their records.
    pub(super) fn is_idle(&mut self) -> bool {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        uses.retain(|(_, event)| !matches!(event.query(), Ok(true)));
        uses.is_empty()
    }
}

impl Drop for Storage {
    /// Frees the memory behind every stream that still reads it: at once if none does, else the last of those
    /// streams to get there frees it. Never blocks.
    fn drop(&mut self) {
        let idle = self.is_idle();
        // SAFETY: the only place that takes it, and nothing looks at it after the drop.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if idle {
            return;
        }
        let memory = Arc::new(memory);
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (stream, _) in uses.drain(..) {
            // A function that a broken stream drops without running must not free the memory: the device
            // may still read it. Then it is never freed, which is the lesser evil.
            let hold = ManuallyDrop::new(Arc::clone(&memory));
            if let Err(error) = stream.then(move || drop(ManuallyDrop::into_inner(hold))) {
                tracing::warn!(%error, bytes = memory.len(), "a stream that reads a tensor is broken; its memory leaks");
            }
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.memory)
    }
}

#[cfg(test)]
#[path = "storage_tests.rs"]
mod tests;
