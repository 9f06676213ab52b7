//! The control block of a team: one shared segment that every process of the team maps.
//!
//! It is made by whoever hosts the join, and made of atomics alone. A rank's lines are written by that rank, except
//! for its park word and the waiter masks; nothing read from them is trusted further than its meaning: a rank, an
//! offset or a length is checked before it is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::layout;
use crate::shm::{Access, Segment, Shared};
use crate::wait::{Cell, ParkWord, SLOTS};

/// Most ranks in a team of one host: each rank and each process is a slot of a waiter mask.
pub const MAX_RANKS: usize = SLOTS / 2;

/// 64-bit words of a set of ranks.
pub(crate) const RANK_WORDS: usize = MAX_RANKS.div_ceil(64);

/// Buckets of the map of async waits that a process has to look at again.
pub(crate) const BUCKETS: usize = 1024;

/// Bytes that a rank can say in one [`exchange`](super::Member::exchange).
pub const BOARD_BYTES: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"commteam");

/// What the whole team shares.
#[repr(C, align(64))]
pub(crate) struct Head {
    magic: AtomicU64,
    layout: AtomicU64,
    size: AtomicU64,
    processes: AtomicU64,
    id: [AtomicU64; 2],
    _room: [AtomicU64; 2],
    /// Zero while the team goes on; see `ending`.
    pub(crate) ending: AtomicU64,
    /// How many ranks have left, so that nobody looks for them while there are none.
    pub(crate) leavers: AtomicU64,
    /// Who goes on when the team shrinks; see `shrink`.
    pub(crate) successor: AtomicU64,
    _line: [AtomicU64; 5],
}

/// Text of at most `8 * N` bytes, padded with zeros.
#[repr(C)]
pub(crate) struct Text<const N: usize>([AtomicU64; N]);

impl<const N: usize> Text<N> {
    /// Stores as much of the text as fits.
    pub(crate) fn set(&self, text: &str) {
        let mut end = text.len().min(8 * N);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut chunks = text.as_bytes()[..end].chunks(8);
        for word in &self.0 {
            let mut bytes = [0; 8];
            if let Some(chunk) = chunks.next() {
                bytes[..chunk.len()].copy_from_slice(chunk);
            }
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// The text, with what is not text replaced: a peer wrote it.
    pub(crate) fn get(&self) -> String {
        let mut bytes: Vec<u8> =
            self.0.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
        bytes.truncate(bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len()));
        String::from_utf8_lossy(&bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

/// Whether a rank is there, and inside what.
#[repr(C, align(64))]
pub(crate) struct Status {
    /// Zero while the rank is a member, else one more than the last operation that it finished.
    pub(crate) left: AtomicU64,
    /// Twice the number of its last operation, plus one while it is inside.
    pub(crate) op: AtomicU64,
    pub(crate) op_name: Text<4>,
    _room: [AtomicU64; 2],
}

/// In [`Waits::on`]: no rank in particular is waited for.
pub(crate) const ON_ANYBODY: u64 = u64::MAX;

/// What a rank waits for, for watchdogs and time-outs.
#[repr(C, align(64))]
pub(crate) struct Waits {
    /// One more than the rank that is waited for, or [`ON_ANYBODY`]; zero when the rank does not sleep.
    pub(crate) on: AtomicU64,
    pub(crate) seen: AtomicU64,
    pub(crate) expected: AtomicU64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub(crate) since: AtomicU64,
    pub(crate) what: Text<4>,
}

/// What a rank has to say about the end of the team, if it is the one that ended it.
#[repr(C, align(64))]
pub(crate) struct Report {
    pub(crate) missing: [AtomicU64; RANK_WORDS],
    pub(crate) stopped: [AtomicU64; RANK_WORDS],
    pub(crate) unknown: [AtomicU64; RANK_WORDS],
    pub(crate) waited: AtomicU64,
    pub(crate) seen: AtomicU64,
    pub(crate) expected: AtomicU64,
    pub(crate) what: Text<8>,
    pub(crate) reason: Text<32>,
}

/// Whom a rank would go on with, by turns; see `shrink`.
#[repr(C, align(64))]
pub(crate) struct Proposals(pub(crate) [[AtomicU64; RANK_WORDS]; 2]);

/// All that belongs to one rank.
#[repr(C, align(64))]
pub(crate) struct RankLine {
    pub(crate) park: ParkWord,
    pub(crate) joined: Cell,
    pub(crate) posted: Cell,
    pub(crate) taken: Cell,
    /// The epoch for which the rank comes; see `shrink`.
    pub(crate) coming: Cell,
    pub(crate) board: [AtomicU64; BOARD_BYTES / 8],
    /// In what operation it says that: a hash of the name.
    pub(crate) saying: AtomicU64,
    pub(crate) status: Status,
    pub(crate) waits: Waits,
    pub(crate) report: Report,
    pub(crate) proposals: Proposals,
}

/// All that belongs to one process.
#[repr(C, align(64))]
pub(crate) struct ProcessLine {
    /// The buckets in which some cell has changed.
    pub(crate) dirty: [AtomicU64; BUCKETS / 64],
}

// SAFETY: these four, and what they are made of, are repr(C) and consist of atomic integers alone; no Drop.
unsafe impl Shared for Head {}
// SAFETY: as above.
unsafe impl Shared for RankLine {}
// SAFETY: as above.
unsafe impl Shared for ProcessLine {}

const HEAD: u64 = size_of::<Head>() as u64;
const RANK: u64 = size_of::<RankLine>() as u64;
const PROCESS: u64 = size_of::<ProcessLine>() as u64;

/// A mapped control block.
#[derive(Debug)]
pub(crate) struct Control {
    segment: Arc<Segment>,
    size: usize,
    processes: usize,
}

impl Control {
    /// The length of a block in bytes.
    pub(crate) fn len(size: usize, processes: usize) -> u64 {
        (HEAD + size as u64 * RANK + processes as u64 * PROCESS).next_multiple_of(4096)
    }

    /// Makes the block of a new team.
    pub(crate) fn create(id: TeamId, size: usize, processes: usize) -> Result<Control> {
        let segment = Segment::create(Control::len(size, processes), Access::ReadWrite)?;
        let control = Control { segment: Arc::new(segment), size, processes };
        let head = control.segment.typed::<Head>(0)?;
        head.id[0].store(id.0[0], Ordering::Relaxed);
        head.id[1].store(id.0[1], Ordering::Relaxed);
        head.size.store(size as u64, Ordering::Relaxed);
        head.processes.store(processes as u64, Ordering::Relaxed);
        head.layout.store(layout::HASH, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(control)
    }

    /// Takes a block that the host of the join has sent, and checks that it is what it says it is.
    ///
    /// # Errors
    /// [`Error::BadPeer`] naming the field.
    pub(crate) fn receive(segment: Segment, id: TeamId, size: usize, processes: usize) -> Result<Control> {
        let control = Control { segment: Arc::new(segment), size, processes };
        let head = control.segment.typed::<Head>(0)?;
        let fields = [
            ("magic", head.magic.load(Ordering::Acquire), MAGIC),
            ("layout", head.layout.load(Ordering::Relaxed), layout::HASH),
            ("size", head.size.load(Ordering::Relaxed), size as u64),
            ("processes", head.processes.load(Ordering::Relaxed), processes as u64),
            ("id", head.id[0].load(Ordering::Relaxed), id.0[0]),
            ("id", head.id[1].load(Ordering::Relaxed), id.0[1]),
        ];
        for (field, seen, expected) in fields {
            if seen != expected {
                return Err(Error::bad_peer(format!(
                    "control block with {field} {seen:#x}, expected {expected:#x}"
                )));
            }
        }
        // From here on the lines are reached without a check that could fail.
        control.segment.typed_slice::<RankLine>(HEAD, size)?;
        control.segment.typed_slice::<ProcessLine>(HEAD + size as u64 * RANK, processes)?;
        Ok(control)
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }
}

impl Control {
    pub(crate) fn head(&self) -> Option<&Head> {
        self.segment.typed(0).ok()
    }

    /// The lines of all ranks. That they lie in the segment was checked when it was made or received.
    pub(crate) fn ranks(&self) -> &[RankLine] {
        self.segment.typed_slice(HEAD, self.size).unwrap_or_default()
    }

    pub(crate) fn rank(&self, rank: usize) -> &RankLine {
        &self.ranks()[rank]
    }

    /// The lines of all processes.
    pub(crate) fn process_lines(&self) -> &[ProcessLine] {
        self.segment.typed_slice(HEAD + self.size as u64 * RANK, self.processes).unwrap_or_default()
    }

    /// The last operation that a rank finished before it left; `None` while it is a member.
    pub(crate) fn left_after(&self, rank: usize) -> Option<u64> {
        self.rank(rank).status.left.load(Ordering::Acquire).checked_sub(1)
    }
}

/// A team, by 128 random bits drawn by the host of its join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct TeamId(pub(crate) [u64; 2]);

/// A set of ranks as it is kept in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RankSet([u64; RANK_WORDS]);

impl RankSet {
    pub(crate) fn insert(&mut self, rank: usize) {
        if let Some(word) = self.0.get_mut(rank / 64) {
            *word |= 1 << (rank % 64);
        }
    }

    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.0.get(rank / 64).is_some_and(|word| word & (1 << (rank % 64)) != 0)
    }

    pub(crate) fn store(&self, words: &[AtomicU64; RANK_WORDS]) {
        words.iter().zip(self.0).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }

    pub(crate) fn load(words: &[AtomicU64; RANK_WORDS]) -> RankSet {
        RankSet(std::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
    }
}
