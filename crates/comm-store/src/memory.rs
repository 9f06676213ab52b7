//! Memory of one process of a team that all of them may write: a block of the own arena of windows, or of a peer's.

use std::sync::{Arc, OnceLock};

use comm_core::Result;
use comm_core::shm::{Block, Segment, Shared};
use comm_core::team::CellRef;
use comm_core::wait::Cell;

/// A range of an arena of windows, as it is reached from here. Other processes may write it at any time, so there are
/// atomics in it, and copies of it.
#[derive(Clone)]
pub(crate) enum Memory {
    /// A block of this process: this rank's own, or that of a rank that is a thread beside it.
    Here(Arc<Block>),
    /// A range of a segment of another process, from this byte on.
    There(Arc<Segment>, u64),
}

impl Memory {
    /// The block, if it is of this process.
    pub(crate) fn block(&self) -> Option<&Arc<Block>> {
        match self {
            Memory::Here(block) => Some(block),
            Memory::There(..) => None,
        }
    }

    /// Atomics that lie so many bytes into it. What they say may be anything.
    ///
    /// # Errors
    /// They are not inside, or not aligned.
    pub(crate) fn typed<T: Shared>(&self, offset: u64, count: usize) -> Result<&[T]> {
        Ok(match self {
            Memory::Here(block) => block.typed_slice(offset, count)?,
            Memory::There(segment, base) => segment.typed_slice(base.saturating_add(offset), count)?,
        })
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// They do not fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Memory::Here(block) => block.copy_in(offset, bytes)?,
            Memory::There(segment, base) => segment.copy_in(base.saturating_add(offset), bytes)?,
        }
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// There are not so many.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self {
            Memory::Here(block) => block.copy_out(offset, bytes)?,
            Memory::There(segment, base) => segment.copy_out(base.saturating_add(offset), bytes)?,
        }
        Ok(())
    }
}

/// A cell in such memory, kept mapped for a task that may live longer than whatever has made it.
pub(crate) struct MemoryCell {
    memory: Memory,
    offset: u64,
}

impl MemoryCell {
    /// The cell that lies so many bytes into the memory.
    ///
    /// # Errors
    /// It is not inside, or not aligned.
    pub(crate) fn new(memory: Memory, offset: u64) -> Result<MemoryCell> {
        memory.typed::<Cell>(offset, 1)?;
        Ok(MemoryCell { memory, offset })
    }
}

impl CellRef for MemoryCell {
    fn cell(&self) -> &Cell {
        // It was there when this was made, and memory neither moves nor shrinks; a cell that nobody sets would end the wait
        // with its deadline.
        static NONE: OnceLock<Cell> = OnceLock::new();
        let cell = self.memory.typed(self.offset, 1).map(|cells: &[Cell]| &cells[0]);
        cell.unwrap_or_else(|_| NONE.get_or_init(Cell::default))
    }
}
