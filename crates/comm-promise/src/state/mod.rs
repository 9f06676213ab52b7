//! The word of a promise: who may set it, whether it is set, how it ended.
//!
//! It is the value of a [`Cell`], so all there is of waiting serves it. Whoever changes it does so by compare-and-swap from
//! what he has seen, so of two who set it one succeeds, and the last holder who goes breaks it in the same step in which he
//! goes.
//!
//! ```text
//!          claim, part                              returned
//!        ┌────────────┐                          Set ───────▶ Returned
//!        ▼            │    begin        finish    ▲
//!       Open ─────────┴──────────▶ Writing ───────┘
//!        │ last part, give_up         │ the writer dies, or finds that it was given up
//!        └────────────▶ Broken ◀──────┘                        from all but Writing: retire ──▶ Free, next generation
//! ```
//!
//! Slots of shared memory are used again. The word carries how often, and a change that was meant for an earlier use is
//! refused.

use comm_core::wait::{Bell, Cell};

mod local;
#[cfg(loom)]
mod model;
mod seat;
mod word;

pub(crate) use local::Local;
pub(crate) use seat::{Seat, Tasks};
pub(crate) use word::{End, Phase, Word};

/// How many may hold a promise at once. The first row is the home's own.
pub(crate) const ROWS: usize = 8;

/// The row of the home process.
pub(crate) const HOME: usize = 0;

/// The waiter slot of threads, which sleep on the park word beside the cell, and that of tasks.
pub(crate) const THREADS: usize = 0;
pub(crate) const TASKS: usize = 1;

/// Each failed attempt is somebody else's change, of which there are few, unless a hostile peer makes them.
const ATTEMPTS: usize = 1 << 16;

/// Changes the word to what `next` makes of it, and gives what it has become.
///
/// # Errors
/// What the word is, if `next` makes nothing of it.
fn change(
    cell: &Cell,
    mut next: impl FnMut(Word) -> Option<Word>,
    bell: Option<&impl Bell>,
) -> Result<Word, Word> {
    let mut seen = cell.load();
    for _ in 0..ATTEMPTS {
        let word = next(Word(seen)).ok_or(Word(seen))?;
        let changed = match bell {
            Some(bell) => cell.replace(seen, word.0, bell),
            None => cell.replace_quietly(seen, word.0),
        };
        match changed {
            Ok(()) => return Ok(word),
            Err(now) => seen = now,
        }
    }
    Err(Word(seen))
}

/// Nobody is woken.
const QUIETLY: Option<&Silent> = None;

struct Silent;

impl Bell for Silent {
    fn ring(&self, _slot: usize, _tag: u32) {}
}

/// Opens a slot that nobody uses, held by its home, and gives its generation.
pub(crate) fn open(cell: &Cell) -> u64 {
    let opened = change(cell, |word| Some(Word::open(word.generation(), 1 << HOME)), QUIETLY);
    opened.unwrap_or_else(|word| word).generation()
}

/// One more holder, in a row that is his.
///
/// # Errors
/// What it is, if it is not open any more.
pub(crate) fn claim(cell: &Cell, generation: u64, row: usize) -> Result<Word, Word> {
    change(cell, |word| word.if_open(generation).map(|word| word.with_holder(row)), QUIETLY)
}

/// A holder goes and leaves the right to set to whoever claims next.
///
/// # Errors
/// What it is, if it is not open any more.
pub(crate) fn hand_on(cell: &Cell, generation: u64, row: usize) -> Result<Word, Word> {
    change(cell, |word| word.if_open(generation).map(|word| word.without_holder(row)), QUIETLY)
}

/// A holder goes, or is gone. The last one breaks an open promise, and one who is writing the one that he writes. If it is his link that
/// is lost he goes on writing, so that is given up, and he is left to come to its end or to his own.
///
/// # Errors
/// What it is, if he held nothing.
pub(crate) fn part(
    cell: &Cell,
    generation: u64,
    row: usize,
    how: End,
    bell: &impl Bell,
) -> Result<Word, Word> {
    let next = |word: Word| {
        if word.generation() != generation || !word.has_holder(row) {
            return None;
        }
        let rest = word.without_holder(row);
        match word.phase() {
            Phase::Open if rest.holders() == 0 => Some(rest.broken(row, how)),
            Phase::Writing if word.row() == row && how == End::LinkBroke => {
                (!word.is_given_up()).then(|| word.given_up(how))
            }
            Phase::Writing if word.row() == row => Some(rest.broken(row, how)),
            _ => Some(rest),
        }
    };
    change(cell, next, Some(bell))
}

/// A holder begins to set it: from here on nobody else does.
///
/// # Errors
/// What it is, if it is not open any more.
pub(crate) fn begin(cell: &Cell, generation: u64, row: usize) -> Result<Word, Word> {
    let next = |word: Word| {
        word.if_open(generation).filter(|word| word.has_holder(row)).map(|word| word.writing(row))
    };
    change(cell, next, QUIETLY)
}

/// What was begun is done: the value is where it belongs.
///
/// # Errors
/// What it is, if it was given up meanwhile: broken now.
pub(crate) fn finish(cell: &Cell, generation: u64, row: usize, bell: &impl Bell) -> Result<Word, Word> {
    let next = |word: Word| {
        let mine = word.generation() == generation && word.phase() == Phase::Writing && word.row() == row;
        mine.then(|| if word.is_given_up() { word.broken(row, word.how()) } else { word.set(row) })
    };
    match change(cell, next, Some(bell)) {
        Ok(word) if word.phase() == Phase::Broken => Err(word),
        outcome => outcome,
    }
}

/// The side of the future wants it no more. Who is writing right now is left to come to its end.
///
/// # Errors
/// What it is, if it has ended.
pub(crate) fn give_up(cell: &Cell, generation: u64, how: End, bell: &impl Bell) -> Result<Word, Word> {
    let next = |word: Word| match word.phase() {
        _ if word.generation() != generation => None,
        Phase::Open => Some(word.broken(HOME, how)),
        Phase::Writing if !word.is_given_up() => Some(word.given_up(how)),
        _ => None,
    };
    change(cell, next, Some(bell))
}

/// The memory of the value is not used any more.
pub(crate) fn returned(cell: &Cell, generation: u64) {
    let next =
        |word: Word| (word.generation() == generation && word.phase() == Phase::Set).then(|| word.returned());
    let _ = change(cell, next, QUIETLY);
}

/// Whether the value of this generation, and its memory, are not used any more.
pub(crate) fn is_returned(cell: &Cell, generation: u64) -> bool {
    let word = Word(cell.load());
    word.generation() != generation || word.phase() != Phase::Set
}

/// The slot is free for its next use, unless somebody is writing. Gives what it was.
///
/// # Errors
/// What it is, if somebody writes: it is to be tried again.
pub(crate) fn retire(cell: &Cell, generation: u64) -> Result<Word, Word> {
    let mut before = Word(0);
    let next = |word: Word| {
        // What it was when it was changed, not a moment earlier: who had set it by then is to be told.
        before = word;
        (word.phase() != Phase::Writing).then(|| Word::free(generation.wrapping_add(1)))
    };
    change(cell, next, QUIETLY).map(|_| before)
}

/// How it has ended, if it has.
pub(crate) fn end_of(cell: &Cell, generation: u64) -> Option<Word> {
    let word = Word(cell.load());
    let open = matches!(word.phase(), Phase::Open | Phase::Writing) && !word.is_given_up();
    (word.generation() != generation || !open).then_some(word)
}

#[cfg(all(test, not(loom)))]
mod tests;
