//! Tensors in shared segments: own ones in blocks of an arena, and those of other processes.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::shared::SharedBytes;
use super::{DType, Layout, Tensor, TensorBuf, TensorError};
use crate::error::{Error, Result};
use crate::shm::{Access, Arena, Block, Segment};

// SAFETY: a block keeps its range mapped, readable and writable, at the same place and of the same length while it
// lives; memory of a segment is initialised (zeros, or whatever was there), and its length fits into a mapping.
unsafe impl SharedBytes for Block {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr()
    }

    fn len(&self) -> usize {
        self.len() as usize
    }

    fn writable(&self) -> bool {
        true
    }

    fn location(&self) -> Option<(u64, u64, u64)> {
        Some((self.segment().id(), self.offset(), self.generation()))
    }
}

/// A range of a segment that another process made.
struct Import {
    /// Keeps the range mapped.
    segment: Arc<Segment>,
    start: NonNull<u8>,
    len: usize,
    /// What its owner goes by to know that it is read no more.
    _hold: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Import({} bytes of segment {})", self.len, self.segment.id())
    }
}

// SAFETY: it is a range of a mapping that does not move, is kept alive by the segment, and is only ever read, by the
// routine that tolerates other writers.
unsafe impl Send for Import {}
// SAFETY: as above.
unsafe impl Sync for Import {}

// SAFETY: the range was checked to lie in the segment, which is mapped readable as long as it is held; memory of a
// segment is initialised; the length fits into a mapping.
unsafe impl SharedBytes for Import {
    fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.len
    }

    fn writable(&self) -> bool {
        false
    }

    fn location(&self) -> Option<(u64, u64, u64)> {
        None
    }
}

impl TensorBuf {
    /// Zeros in a block of an arena, where peers can read them without a copy once it is frozen.
    ///
    /// # Errors
    /// Sizes that do not fit; [`Error::OutOfMemory`] if the arena's limit or the system does not allow it;
    /// [`Error::InvalidArgument`] for an arena that peers may write, whose bytes must not be behind a reference.
    ///
    /// ```
    /// use comm_core::shm::{Access, Arena};
    /// use comm_core::tensor::{DType, TensorBuf};
    ///
    /// let arena = Arena::new(Access::ReadOnly, 8 << 20, |_| {});
    /// let buf = TensorBuf::zeros_in(&arena, &[3, 5], DType::F64)?;
    /// assert!(buf.as_slice::<f64>()?.iter().all(|&x| x == 0.0));
    /// assert!(buf.block().is_some());
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn zeros_in(arena: &Arena, shape: &[usize], dtype: DType) -> Result<TensorBuf> {
        let block = arena.alloc_zeroed(bytes("TensorBuf::zeros_in", shape, dtype)?)?;
        TensorBuf::from_block(block, shape, dtype)
    }

    /// Dense elements at the start of a block, whatever its bytes are now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the block is too small, or is one that peers may write.
    pub fn from_block(block: Block, shape: &[usize], dtype: DType) -> Result<TensorBuf> {
        const OP: &str = "TensorBuf::from_block";
        if block.access() != Access::ReadOnly {
            return Err(Error::invalid(OP, "peers may write this block, so no tensor may own it"));
        }
        Ok(TensorBuf::from_shared(OP, Box::new(block), shape, dtype)?)
    }
}

impl Tensor {
    /// The same elements one after the other in a block of this arena: this tensor itself if they lie so already, else a
    /// copy.
    ///
    /// # Errors
    /// Those of [`TensorBuf::zeros_in`]; memory of a device.
    ///
    /// ```
    /// use comm_core::shm::{Access, Arena};
    /// use comm_core::tensor::{DType, TensorBuf};
    ///
    /// let [ours, other] = [(); 2].map(|()| Arena::new(Access::ReadOnly, 8 << 20, |_| {}));
    /// let t = TensorBuf::zeros_in(&ours, &[4], DType::U8)?.freeze();
    /// assert!(t.contiguous_in(&ours)?.shares_storage(&t));
    /// assert!(!t.contiguous_in(&other)?.shares_storage(&t));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn contiguous_in(&self, arena: &Arena) -> Result<Tensor> {
        if self.is_contiguous() {
            // A block of another arena would not do: that one's segments need not be known to peers.
            let here = |(id, _, _)| arena.segments().iter().any(|segment| segment.id() == id);
            if self.block().is_some_and(here) {
                return Ok(self.clone());
            }
        }
        let block = arena.alloc(bytes("Tensor::contiguous_in", self.shape(), self.dtype())?)?;
        let mut copy = TensorBuf::from_block(block, self.shape(), self.dtype())?;
        copy.copy_from(self)?;
        Ok(copy.freeze())
    }

    /// Elements in a segment that another process made, `offset` bytes into it. That process may write them at any
    /// time, so they are only ever copied out.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the layout does not lie inside the segment, or the segment is an arena of this
    /// process, whose blocks may be behind references.
    pub fn import(segment: &Arc<Segment>, offset: u64, dtype: DType, layout: Layout) -> Result<Tensor> {
        Tensor::import_held(segment, offset, dtype, layout, ())
    }

    /// As [`import`](Tensor::import), with something that is dropped when the last tensor over the memory is gone: what
    /// tells its owner that it may be used for something else.
    ///
    /// # Errors
    /// Those of [`import`](Tensor::import).
    pub fn import_held(
        segment: &Arc<Segment>,
        offset: u64,
        dtype: DType,
        layout: Layout,
        hold: impl Any + Send + Sync,
    ) -> Result<Tensor> {
        const OP: &str = "Tensor::import";
        let elements = if layout.numel() == 0 { 0 } else { layout.span().end };
        let len = dtype
            .bytes_of(elements)
            .ok_or_else(|| TensorError::Overflow { op: OP, shape: layout.shape().into() })?;
        segment.exposed(OP)?;
        let start = segment.range(offset, len as u64)?;
        let import = Import { segment: segment.clone(), start, len, _hold: Box::new(hold) };
        Ok(Tensor::from_import(OP, Box::new(import), dtype, layout)?)
    }
}

/// Bytes of a dense tensor.
fn bytes(op: &'static str, shape: &[usize], dtype: DType) -> Result<u64> {
    let numel = Layout::contiguous(shape)?.numel();
    Ok(dtype.bytes_of(numel).ok_or_else(|| TensorError::Overflow { op, shape: shape.into() })? as u64)
}
