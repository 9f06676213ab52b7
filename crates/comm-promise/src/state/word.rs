//! The bits of the word.

use super::ROWS;

/// Where a promise stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is not used.
    Free,
    /// It can be set.
    Open,
    /// Somebody sets it.
    Writing,
    /// It has its value.
    Set,
    /// It had its value, whose memory is not used any more.
    Returned,
    /// It will not be set.
    Broken,
}

/// Why it was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Dropped,
    Panicked,
    Died,
    LinkBroke,
    Cancelled,
    Unwanted,
}

impl End {
    const ALL: [End; 6] =
        [End::Dropped, End::Panicked, End::Died, End::LinkBroke, End::Cancelled, End::Unwanted];
}

/// The word. In shared memory it may be anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

const PHASES: [Phase; 6] =
    [Phase::Free, Phase::Open, Phase::Writing, Phase::Set, Phase::Returned, Phase::Broken];
const PHASE: u64 = 0x7;
const GIVEN_UP: u64 = 0x8;
const ROW_AT: u32 = 4;
const ROW: u64 = 0x7 << ROW_AT;
const HOW_AT: u32 = 8;
const HOW: u64 = 0xf << HOW_AT;
const HOLDERS_AT: u32 = 16;
const HOLDERS: u64 = 0xff << HOLDERS_AT;
const GENERATION_AT: u32 = 24;
/// After so many uses of one slot it begins anew.
const GENERATIONS: u64 = 1 << (64 - GENERATION_AT);

const _: () = assert!(ROWS == 8, "a bit for each row, and three for the number of one");

impl Word {
    fn new(phase: Phase, generation: u64) -> Word {
        Word((generation % GENERATIONS) << GENERATION_AT | phase as u64)
    }

    pub(super) fn free(generation: u64) -> Word {
        Word::new(Phase::Free, generation)
    }

    pub(super) fn open(generation: u64, holders: u64) -> Word {
        Word(Word::new(Phase::Open, generation).0 | holders << HOLDERS_AT)
    }

    pub(crate) fn phase(self) -> Phase {
        // What nobody wrote who knew how is broken.
        PHASES.get((self.0 & PHASE) as usize).copied().unwrap_or(Phase::Broken)
    }

    pub(crate) fn is_given_up(self) -> bool {
        self.0 & GIVEN_UP != 0
    }

    /// Who sets it or has set it, or with whose end it broke.
    pub(crate) fn row(self) -> usize {
        ((self.0 & ROW) >> ROW_AT) as usize
    }

    pub(crate) fn how(self) -> End {
        End::ALL.get(((self.0 & HOW) >> HOW_AT) as usize).copied().unwrap_or(End::Dropped)
    }

    /// A bit for each holder.
    pub(crate) fn holders(self) -> u64 {
        (self.0 & HOLDERS) >> HOLDERS_AT
    }

    pub(crate) fn has_holder(self, row: usize) -> bool {
        self.holders() & 1 << row != 0
    }

    pub(crate) fn generation(self) -> u64 {
        self.0 >> GENERATION_AT
    }

    pub(super) fn if_open(self, generation: u64) -> Option<Word> {
        (self.generation() == generation && self.phase() == Phase::Open).then_some(self)
    }

    pub(super) fn with_holder(self, row: usize) -> Word {
        Word(self.0 | 1 << (HOLDERS_AT + row as u32))
    }

    pub(super) fn without_holder(self, row: usize) -> Word {
        Word(self.0 & !(1 << (HOLDERS_AT + row as u32)))
    }

    fn at(self, phase: Phase, row: usize) -> Word {
        Word(self.0 & !(PHASE | GIVEN_UP | ROW | HOW) | phase as u64 | (row as u64) << ROW_AT)
    }

    pub(super) fn writing(self, row: usize) -> Word {
        self.at(Phase::Writing, row)
    }

    pub(super) fn set(self, row: usize) -> Word {
        self.at(Phase::Set, row)
    }

    pub(super) fn returned(self) -> Word {
        self.at(Phase::Returned, self.row())
    }

    pub(super) fn broken(self, row: usize, how: End) -> Word {
        Word(self.at(Phase::Broken, row).0 | (how as u64) << HOW_AT)
    }

    pub(super) fn given_up(self, how: End) -> Word {
        Word(self.0 & !HOW | GIVEN_UP | (how as u64) << HOW_AT)
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Word")
            .field("generation", &self.generation())
            .field("phase", &self.phase())
            .field("holders", &self.holders())
            .field("row", &self.row())
            .field("how", &self.how())
            .field("given_up", &self.is_given_up())
            .finish()
    }
}
