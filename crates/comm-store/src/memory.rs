//! A cell in memory that several processes write, for a task that waits for it.

use std::sync::OnceLock;

use comm_core::Result;
use comm_core::shm::Memory;
use comm_core::team::CellRef;
use comm_core::wait::Cell;

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
