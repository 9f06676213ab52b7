//! Where a tensor lies, as other processes find it.

use std::any::Any;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{DType, Layout, Tensor};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::shm::{Arena, Segment};

/// The place of a tensor in a segment of the process that holds it: what goes to another process instead of its elements.
///
/// ```
/// use comm_core::shm::{Access, Arena};
/// use comm_core::tensor::Tensor;
///
/// let arena = Arena::new(Access::ReadOnly, 8 << 20, |_| {});
/// let t = Tensor::from_slice(&[2, 3], &[1, 2, 3, 4, 5, 6])?;
/// let (held, place) = t.placed_in(&arena)?;
/// assert!(!held.shares_storage(&t), "it lay on the heap");
/// // A view of what lies in the arena stays where it is.
/// let (turned, place) = held.transpose(0, 1)?.placed_in(&arena)?;
/// assert!(turned.shares_storage(&held));
/// assert_eq!(place.unwrap().layout.shape(), [3, 2]);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The segment.
    pub segment: u64,
    /// Where in it the memory begins, in bytes: with the lowest of the elements.
    pub base: u64,
    /// Type of the elements.
    pub dtype: DType,
    /// Over the memory from `base` on.
    pub layout: Layout,
}

impl Tensor {
    /// The tensor as other processes can reach it, and its place there: itself, if it lies in a block of this arena, else a
    /// contiguous copy in one. No place if there are no elements. Whoever tells others of the place keeps the tensor.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] for memory of a device; those of [`contiguous_in`](Tensor::contiguous_in).
    pub fn placed_in(&self, arena: &Arena) -> Result<(Tensor, Option<Place>)> {
        const OP: &str = "Tensor::placed_in";
        self.device().expect(Device::Cpu, OP)?;
        if self.numel() == 0 {
            return Ok((self.clone(), None));
        }
        let is_there = |(id, ..): (u64, u64, u64)| arena.segments().iter().any(|segment| segment.id() == id);
        let tensor =
            if self.block().is_some_and(is_there) { self.clone() } else { self.contiguous_in(arena)? };
        let (segment, first, _) =
            tensor.block().ok_or_else(|| Error::invalid(OP, "a tensor in no block of an arena"))?;
        // From the lowest element on: those of a flipped dimension lie before the first.
        let back = tensor.layout().offset() - tensor.layout().span().start;
        let layout = Layout::new(tensor.shape(), tensor.strides(), back)?;
        let base = first - (back * tensor.dtype().size()) as u64;
        let place = Place { segment, base, dtype: tensor.dtype(), layout };
        Ok((tensor, Some(place)))
    }
}

impl Place {
    /// The tensor, as another process reaches it that has mapped the segment. `hold` is dropped with the last tensor over
    /// the memory.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if it does not lie in the segment.
    pub fn import(&self, segment: &Arc<Segment>, hold: impl Any + Send + Sync) -> Result<Tensor> {
        let tensor = Tensor::import_held(segment, self.base, self.dtype, self.layout, hold);
        tensor.map_err(|error| Error::bad_peer(format!("a tensor that cannot be: {error}")))
    }
}
