//! Where records lie: each rank has a log of its own, which only it extends, and which a reset begins anew.
//!
//! A log is made of chunks, each a block of the arena of windows and twice as large as the one before, up to a limit. Their
//! places stand in the rank's part of the window, from where peers map them when they first meet a record in one. A link
//! names a record among all of the team: rank, chunk, and line in the chunk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use comm_core::shm::Memory;
use comm_core::{Deadline, Error, Result};

use super::held::Held;
use super::record::{ALIGN, Record};
use crate::window::{Beside, Upon, Window};

/// How many chunks a log can have; with the sizes below far more than memory holds.
const CHUNKS: usize = 128;
const FIRST_CHUNK: u64 = 64 << 10;
const LAST_CHUNK: u64 = 64 << 20;

/// Segment and offset of a chunk, as they stand in the part.
const PLACE_WORDS: usize = 2;

/// What a rank's part of the window holds of its log.
pub(super) const PART_BYTES: usize = CHUNKS * PLACE_WORDS * size_of::<u64>();

fn chunk_bytes(chunk: usize) -> u64 {
    FIRST_CHUNK << chunk.min((LAST_CHUNK / FIRST_CHUNK).ilog2() as usize)
}

/// How many bits of a link say which line of its chunk it is, and how many in which round it was made.
const LINE_BITS: u32 = (LAST_CHUNK / ALIGN).ilog2() + 1;
const ROUND_BITS: u32 = 48 - LINE_BITS;

/// Rank, chunk, round, and offset in the chunk. Places are used again in each round: of two links to one place, who waits for
/// another head of a chain has to see that they differ.
pub(super) fn link_of(rank: usize, chunk: usize, round: u64, offset: u64) -> u64 {
    let round = round & ((1 << ROUND_BITS) - 1);
    // One more, since 0 is the end of a chain.
    (rank as u64) << 56 | (chunk as u64) << 48 | round << LINE_BITS | (offset / ALIGN + 1)
}

fn place_of(link: u64) -> Option<(usize, usize, u64)> {
    let line = (link & ((1 << LINE_BITS) - 1)).checked_sub(1)?;
    let (rank, chunk) = ((link >> 56) as usize, (link >> 48) as u8 as usize);
    (chunk < CHUNKS).then(|| (rank, chunk, line * ALIGN))
}

/// How many rounds before this one a link was made.
pub(super) fn age(link: u64, round: u64) -> u64 {
    round.wrapping_sub(link >> LINE_BITS) & ((1 << ROUND_BITS) - 1)
}

/// The rank whose log a record lies in: who published it.
pub(super) fn rank_of(link: u64) -> usize {
    (link >> 56) as usize
}

/// What the ranks of this process share of a store: the chunks as they are reached from here, and what its ranks hold ready
/// for readers, by rank and link.
pub(super) struct Shelf {
    chunks: Vec<[OnceLock<Memory>; CHUNKS]>,
    held: Vec<Mutex<HashMap<u64, Held>>>,
}

impl Shelf {
    pub(super) fn new(size: usize) -> Shelf {
        Shelf {
            chunks: (0..size).map(|_| [const { OnceLock::new() }; CHUNKS]).collect(),
            held: (0..size).map(|_| Mutex::default()).collect(),
        }
    }

    /// What a rank of this process holds ready.
    pub(super) fn held(&self, rank: usize) -> Option<&Mutex<HashMap<u64, Held>>> {
        self.held.get(rank)
    }

    /// A record, in whosever log it lies.
    ///
    /// # Errors
    /// [`Error::BadPeer`] for a link to nowhere; those of [`Member::peer_segment`].
    pub(super) fn record(&self, window: &Window, link: u64, deadline: Deadline) -> Result<Record> {
        let nowhere =
            || Error::bad_peer(format!("a chain of the store leads to {link:#x}, where nothing is"));
        let (rank, chunk, offset) = place_of(link).ok_or_else(nowhere)?;
        let slot = self.chunks.get(rank).ok_or_else(nowhere)?.get(chunk).ok_or_else(nowhere)?;
        let memory = match slot.get() {
            Some(memory) => memory,
            // Every chunk of a rank of this process is on the shelf before there is a link into it.
            None if window.context().shares_process(rank) => return Err(nowhere()),
            None => {
                let place = window.words(rank, at(chunk), PLACE_WORDS)?;
                let [id, base] = [0, 1].map(|word| place[word].load(Ordering::Acquire));
                let segment = window.context().peer_segment(rank, id, deadline)?;
                segment.range(base, chunk_bytes(chunk)).map_err(|_| nowhere())?;
                slot.get_or_init(|| Memory::There(segment, base))
            }
        };
        // A record that is cut off by the end of its chunk is found out when it is read: the segment may go on, and
        // whatever is there is a peer's to write.
        Ok(Record::new(link, memory.clone(), offset))
    }
}

impl Upon for Shelf {
    /// Readers in other processes may still come for what is held, or read it, or walk along the chains.
    fn leave(&self) -> Beside {
        let chunks = self.chunks.iter().flatten().filter_map(OnceLock::get);
        let chunks: Vec<Memory> = chunks.filter(|memory| memory.block().is_some()).cloned().collect();
        let held =
            self.held.iter().map(|held| std::mem::take(&mut *held.lock().unwrap_or_else(|e| e.into_inner())));
        let held: Vec<Held> = held.flat_map(HashMap::into_values).collect();
        let loans: Vec<_> = held.iter().filter_map(Held::recall).collect();
        Beside {
            memory: Box::new((chunks, held)),
            let_go: Box::new(move |process| loans.iter().all(|loan| loan.is_back(process))),
        }
    }
}

/// Where the place of a chunk stands in the part.
fn at(chunk: usize) -> usize {
    chunk * PLACE_WORDS * size_of::<AtomicU64>()
}

/// Where the next record of this rank goes.
#[derive(Debug, Default)]
pub(super) struct Log {
    next: Mutex<Next>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Next {
    round: u64,
    chunk: usize,
    used: u64,
}

impl Log {
    /// Room for a record of this rank.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn append(&self, window: &Window, shelf: &Shelf, bytes: u64) -> Result<Record> {
        let rank = window.rank();
        let mut next = self.next.lock().unwrap_or_else(|e| e.into_inner());
        if next.used + bytes > chunk_bytes(next.chunk) {
            *next = Next { chunk: next.chunk + 1, used: 0, ..*next };
        }
        let chunks = shelf.chunks.get(rank).and_then(|chunks| chunks.get(next.chunk));
        let slot = chunks.ok_or_else(|| {
            let asked = bytes;
            let what = "the log of a store is full: reset it between rounds".into();
            Error::OutOfMemory { asked, limit: CHUNKS as u64 * LAST_CHUNK, what }
        })?;
        let memory = match slot.get() {
            Some(memory) => memory,
            None => {
                let block = Arc::new(window.context().hub().windows().alloc_zeroed(chunk_bytes(next.chunk))?);
                let place = window.words(rank, at(next.chunk), PLACE_WORDS)?;
                place[0].store(block.segment().id(), Ordering::Relaxed);
                place[1].store(block.offset(), Ordering::Release);
                // Only this rank makes chunks of its log, and it holds the lock.
                slot.get_or_init(|| Memory::Here(block))
            }
        };
        let offset = next.used;
        next.used += bytes;
        Ok(Record::new(link_of(rank, next.chunk, next.round, offset), memory.clone(), offset))
    }

    /// Begins anew: nobody looks at the records any more. The chunks stay.
    pub(super) fn rewind(&self) {
        let mut next = self.next.lock().unwrap_or_else(|e| e.into_inner());
        *next = Next { round: next.round + 1, chunk: 0, used: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_places() {
        for place in [(0, 0, 0), (127, 127, 64), (255, 5, (64 << 20) - 64)] {
            let (rank, chunk, offset) = place;
            let links = [0, 1, (1 << ROUND_BITS) - 1].map(|round| link_of(rank, chunk, round, offset));
            for link in links {
                assert_ne!(link, 0);
                assert_eq!(place_of(link), Some(place));
                assert_eq!(rank_of(link), rank);
            }
            assert_eq!(links.map(|link| age(link, 1)), [1, 0, 2]);
            assert!(links[0] != links[1] && links[1] != links[2], "a place of another round is another link");
            assert_eq!(link_of(rank, chunk, 1 << ROUND_BITS, offset), links[0], "rounds wrap");
        }
        assert_eq!(place_of(0), None);
        assert_eq!(place_of(7 << 56), None, "the line before the first");
        assert_eq!(place_of(200 << 48 | 1), None, "a chunk that cannot be");
    }

    #[test]
    fn chunks_double_up_to_a_limit() {
        assert_eq!([0, 1, 2].map(chunk_bytes), [64 << 10, 128 << 10, 256 << 10]);
        assert_eq!([10, 11, 60, 127].map(chunk_bytes), [64 << 20; 4]);
    }
}
