//! One rank's part of a window.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use comm_core::shm::{Block, Memory, Pinned, Segment, Shared};
use comm_core::team::BOARD_BYTES;
use comm_core::wait::Cell;
use comm_core::{Error, Kind, Result, layout};

use super::spec::WindowSpec;

/// Which processes reach the parts of a process, and which do so no more. At the start of every part; that of the lowest
/// rank of a process counts.
#[repr(C, align(64))]
pub(super) struct Door {
    mapped: [AtomicU64; Door::WORDS],
    gone: [AtomicU64; Door::WORDS],
    _room: [AtomicU64; 4],
}

// SAFETY: repr(C), atomic integers alone, no Drop.
unsafe impl Shared for Door {}

impl Door {
    /// A bit for each process of a team, of which there are at most as many as ranks.
    const WORDS: usize = comm_core::team::MAX_RANKS / 64;

    /// Says that a process can reach the parts, and will say when it is gone.
    pub(super) fn enter(&self, process: usize) {
        Door::set(&self.mapped, process);
    }

    pub(super) fn has_entered(&self, process: usize) -> bool {
        Door::is_set(&self.mapped, process)
    }

    /// Says that a process has touched the parts for the last time.
    pub(super) fn leave(&self, process: usize) {
        Door::set(&self.gone, process);
    }

    pub(super) fn has_left(&self, process: usize) -> bool {
        Door::is_set(&self.gone, process)
    }

    fn set(words: &[AtomicU64], process: usize) {
        if let Some(word) = words.get(process / 64) {
            // Release: what the process did with the parts was before. Pairs with the look in `is_set`.
            word.fetch_or(1 << (process % 64), Ordering::Release);
        }
    }

    fn is_set(words: &[AtomicU64], process: usize) -> bool {
        let word = words.get(process / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) & 1 << (process % 64) != 0)
    }
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

/// The layout of what lies in a part, which ranks of another build would misread.
const LAYOUT: u64 = layout::hash(&[
    1, // counted up when the meaning of a field changes and its place does not
    size_of::<Door>(),
    offset_of!(Door, mapped),
    offset_of!(Door, gone),
    size_of::<Cell>(),
    size_of::<Slot>(),
    offset_of!(Slot, round),
    offset_of!(Slot, segment),
    offset_of!(Slot, offset),
    offset_of!(Slot, len),
    Place::BYTES,
]);

/// Where a rank's part is, as it tells its peers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) spec: WindowSpec,
    pub(super) layout: u64,
    /// The kind of store that is made of it, if one is.
    pub(super) kind: Option<Kind>,
}

/// What its maker keeps in a window.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inside {
    pub(crate) layout: u64,
    pub(crate) kind: Option<Kind>,
}

impl Place {
    pub(super) fn new(segment: u64, offset: u64, spec: WindowSpec, inside: Inside) -> Place {
        Place { segment, offset, spec, layout: LAYOUT ^ inside.layout, kind: inside.kind }
    }

    pub(super) const BYTES: usize = 7 * 8;

    pub(super) fn to_board(self) -> [u8; BOARD_BYTES] {
        let spec = self.spec;
        let kind = self.kind.map_or(0, |kind| 1 + kind as u64);
        let words = [self.segment, self.offset, spec.bytes, spec.signals, spec.slots, self.layout, kind];
        let mut board = [0; BOARD_BYTES];
        for (chunk, word) in board.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        board
    }

    pub(super) fn from_board(board: &[u8; BOARD_BYTES]) -> Place {
        let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| board[i * 8 + k]));
        let spec = WindowSpec { bytes: word(2), signals: word(3), slots: word(4) };
        let kind =
            [Kind::Process, Kind::Host, Kind::Network].into_iter().find(|&kind| 1 + kind as u64 == word(6));
        Place { segment: word(0), offset: word(1), spec, layout: word(5), kind }
    }
}

/// One rank's part, mapped here.
#[derive(Clone)]
pub(super) struct Part {
    memory: Memory,
    spec: WindowSpec,
}

/// How much is copied at once where bytes go through memory of this process.
pub(super) const CHUNK: usize = 32 * 1024;

impl Part {
    /// The part of a rank of this process. Its signals are spread over the buckets in which a process looks for its
    /// tasks.
    pub(super) fn own(block: Arc<Block>, spec: WindowSpec) -> Result<Part> {
        let part = Part { memory: Memory::Here(block), spec };
        for (cell, tag) in part.typed::<Cell>(spec.signals_at(), spec.signals)?.iter().zip(0..) {
            cell.set_tag(tag);
        }
        Ok(part)
    }

    /// The part of a rank of another process.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the place that the peer has told does not exist, or is no place for a part.
    pub(super) fn peer(rank: usize, segment: Arc<Segment>, offset: u64, spec: WindowSpec) -> Result<Part> {
        let part = Part { memory: Memory::There(segment.clone(), offset), spec };
        let is_sound = segment.range(offset, spec.len()).is_ok()
            && part.door().is_ok()
            && part.typed::<Cell>(spec.signals_at(), spec.signals).is_ok()
            && part.typed::<Slot>(spec.slots_at(), spec.slots).is_ok();
        if is_sound {
            Ok(part)
        } else {
            Err(Error::bad_peer(format!("rank {rank} tells of a part that cannot be")))
        }
    }

    /// The block, if it is of this process.
    pub(super) fn block(&self) -> Option<&Arc<Block>> {
        self.memory.block()
    }

    pub(super) fn door(&self) -> Result<&Door> {
        Ok(&self.typed::<Door>(0, 1)?[0])
    }

    pub(super) fn cell(&self, index: usize) -> Result<&Cell> {
        Ok(&self.typed::<Cell>(self.cell_at(index)?, 1)?[0])
    }

    /// A cell for a task.
    pub(super) fn task_cell(&self, index: usize) -> Result<Pinned<Cell>> {
        self.memory.pin(self.cell_at(index)?)
    }

    fn cell_at(&self, index: usize) -> Result<u64> {
        let at = ((index as u64) < self.spec.signals)
            .then(|| self.spec.signals_at() + index as u64 * size_of::<Cell>() as u64);
        at.ok_or_else(|| self.outside("signal", index))
    }

    pub(super) fn slot(&self, index: usize) -> Result<&Slot> {
        let slots = self.typed::<Slot>(self.spec.slots_at(), self.spec.slots)?;
        slots.get(index).ok_or_else(|| self.outside("slot", index))
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.bytes_at(offset, bytes.len())?;
        self.memory.write(at, bytes)
    }

    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let at = self.bytes_at(offset, bytes.len())?;
        self.memory.read(at, bytes)
    }

    /// Atomic integers that lie `offset` bytes into the bytes.
    pub(super) fn atomics<T: Shared>(&self, offset: usize, count: usize) -> Result<&[T]> {
        let at = self.bytes_at(offset, count.saturating_mul(size_of::<T>()))?;
        if !offset.is_multiple_of(size_of::<T>()) {
            let why = format!("byte {offset} of a part is no multiple of {}", size_of::<T>());
            return Err(Error::invalid("Window", why));
        }
        self.typed(at, count as u64)
    }

    /// Says that nothing is exposed any more.
    pub(super) fn withdraw_all(&self) {
        if let Ok(slots) = self.typed::<Slot>(self.spec.slots_at(), self.spec.slots) {
            slots.iter().for_each(|slot| slot.round.store(0, Ordering::Release));
            // Before any later write to the memory that was exposed; pairs with the fence in `Region::verify`.
            fence(Ordering::Release);
        }
    }

    /// Makes all bytes zero.
    pub(super) fn wipe(&self) -> Result<()> {
        let bytes = self.spec.bytes as usize;
        let zeros = vec![0; CHUNK.min(bytes)];
        (0..bytes).step_by(CHUNK).try_for_each(|at| self.write(at, &zeros[..CHUNK.min(bytes - at)]))
    }

    fn bytes_at(&self, offset: usize, len: usize) -> Result<u64> {
        let end = (offset as u64).checked_add(len as u64);
        if end.is_none_or(|end| end > self.spec.bytes) {
            return Err(self.outside("range that ends at byte", offset.saturating_add(len)));
        }
        Ok(self.spec.bytes_at() + offset as u64)
    }

    fn typed<T: Shared>(&self, offset: u64, count: u64) -> Result<&[T]> {
        self.memory.typed(offset, count as usize)
    }

    fn outside(&self, what: &str, index: usize) -> Error {
        Error::invalid("Window", format!("no {what} {index} in a part of {}", self.spec))
    }
}
