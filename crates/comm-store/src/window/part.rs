//! One rank's part of a window.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use comm_core::shm::{Block, Segment, Shared};
use comm_core::team::BOARD_BYTES;
use comm_core::wait::Cell;
use comm_core::{Error, Result};

/// What every rank contributes. In memory: the cells, the slots, the bytes, each from a multiple of 64 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    cells: u64,
    slots: u64,
    bytes: u64,
}

/// What a rank says about an exposed tensor, in its own part. See `expose`.
#[repr(C, align(64))]
pub(super) struct Slot {
    /// The round in which the tensor is exposed; zero when it is not.
    pub(super) round: AtomicU64,
    pub(super) segment: AtomicU64,
    pub(super) offset: AtomicU64,
    pub(super) len: AtomicU64,
    _room: [AtomicU64; 4],
}

// SAFETY: repr(C), atomic integers alone, no Drop.
unsafe impl Shared for Slot {}

const LINE: u64 = 64;
/// Far more than memory holds, and small enough that no sum of the three wraps.
const MOST: u64 = 1 << 48;

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cells, {} slots, {} bytes", self.cells, self.slots, self.bytes)
    }
}

impl Shape {
    pub(super) fn new(cells: usize, bytes: usize, slots: usize) -> Result<Shape> {
        let shape = Shape { cells: cells as u64, slots: slots as u64, bytes: bytes as u64 };
        if [shape.cells, shape.slots, shape.bytes].iter().any(|&n| n > MOST) {
            return Err(Error::invalid("Window::alloc", format!("{shape} is more than there can be")));
        }
        Ok(shape)
    }

    pub(super) fn slots(self) -> u64 {
        self.slots
    }

    pub(super) fn len(self) -> u64 {
        self.data() + self.bytes
    }

    fn slots_at(self) -> u64 {
        self.cells * LINE
    }

    fn data(self) -> u64 {
        self.slots_at() + self.slots * LINE
    }
}

/// Where a rank's part is, as it tells its peers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) shape: Shape,
}

impl Place {
    pub(super) const BYTES: usize = 5 * 8;

    pub(super) fn to_board(self) -> [u8; BOARD_BYTES] {
        let words = [self.segment, self.offset, self.shape.cells, self.shape.slots, self.shape.bytes];
        let mut board = [0; BOARD_BYTES];
        for (chunk, word) in board.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        board
    }

    pub(super) fn from_board(board: &[u8; BOARD_BYTES]) -> Place {
        let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| board[i * 8 + k]));
        let shape = Shape { cells: word(2), slots: word(3), bytes: word(4) };
        Place { segment: word(0), offset: word(1), shape }
    }
}

/// The memory of a part.
#[derive(Clone)]
enum Memory {
    /// A block of this process: this rank's own, or that of a rank that is a thread beside it.
    Here(Arc<Block>),
    /// A range of a segment of another process.
    There(Arc<Segment>, u64),
}

/// One rank's part, mapped here.
#[derive(Clone)]
pub(super) struct Part {
    memory: Memory,
    shape: Shape,
}

impl Part {
    pub(super) fn own(block: Arc<Block>, shape: Shape) -> Part {
        Part { memory: Memory::Here(block), shape }
    }

    /// # Errors
    /// [`Error::BadPeer`] or [`Error::InvalidArgument`] if the place that the peer has told does not exist.
    pub(super) fn peer(segment: Arc<Segment>, offset: u64, shape: Shape) -> Result<Part> {
        segment.range(offset, shape.len())?;
        let part = Part { memory: Memory::There(segment, offset), shape };
        part.typed::<Slot>(part.shape.slots_at(), part.shape.slots)?;
        Ok(part)
    }

    /// Spreads the cells over the buckets in which a process looks for its tasks.
    pub(super) fn tag_cells(&self) -> Result<()> {
        for (cell, tag) in self.typed::<Cell>(0, self.shape.cells)?.iter().zip(0..) {
            cell.set_tag(tag);
        }
        Ok(())
    }

    pub(super) fn cell(&self, index: usize) -> Result<&Cell> {
        let cells = self.typed::<Cell>(0, self.shape.cells)?;
        cells.get(index).ok_or_else(|| self.outside("cell", index))
    }

    pub(super) fn slot(&self, index: usize) -> Result<&Slot> {
        let slots = self.typed::<Slot>(self.shape.slots_at(), self.shape.slots)?;
        slots.get(index).ok_or_else(|| self.outside("slot", index))
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.bytes_at(offset, bytes.len())?;
        match &self.memory {
            Memory::Here(block) => block.copy_in(at, bytes)?,
            Memory::There(segment, base) => segment.copy_in(base + at, bytes)?,
        }
        Ok(())
    }

    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let at = self.bytes_at(offset, bytes.len())?;
        match &self.memory {
            Memory::Here(block) => block.copy_out(at, bytes)?,
            Memory::There(segment, base) => segment.copy_out(base + at, bytes)?,
        }
        Ok(())
    }

    fn bytes_at(&self, offset: usize, len: usize) -> Result<u64> {
        let end = (offset as u64).checked_add(len as u64);
        if end.is_none_or(|end| end > self.shape.bytes) {
            return Err(self.outside("range that ends at byte", offset.saturating_add(len)));
        }
        Ok(self.shape.data() + offset as u64)
    }

    fn typed<T: Shared>(&self, offset: u64, count: u64) -> Result<&[T]> {
        Ok(match &self.memory {
            Memory::Here(block) => block.typed_slice(offset, count as usize)?,
            Memory::There(segment, base) => segment.typed_slice(base + offset, count as usize)?,
        })
    }

    fn outside(&self, what: &str, index: usize) -> Error {
        Error::invalid("Window", format!("no {what} {index} in a part of {}", self.shape))
    }
}
