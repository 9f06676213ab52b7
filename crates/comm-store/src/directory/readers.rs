//! How many have fetched a value and how many have finished: two halves of one cell.

use comm_core::wait::{Bell, Cell};

/// The counts of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Who may read, or has read.
    pub(crate) fetched: u32,
    /// Who reads no more.
    pub(crate) finished: u32,
}

impl Counts {
    pub(crate) fn of(word: u64) -> Counts {
        Counts { fetched: (word >> 32) as u32, finished: word as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.fetched) << 32 | u64::from(self.finished)
    }
}

/// Whether so many readers have finished.
pub(crate) fn are_through(word: u64, readers: u32) -> bool {
    Counts::of(word).finished >= readers
}

/// Lets one more reader in, unless all have come.
///
/// # Errors
/// The counts, if so many have fetched.
pub(crate) fn enter(cell: &Cell, readers: u32) -> Result<(), Counts> {
    change(cell, |counts| {
        (counts.fetched < readers).then(|| Counts { fetched: counts.fetched + 1, ..counts })
    })
}

/// Takes an [`enter`] back: the reader has not read.
pub(crate) fn turn_back(cell: &Cell) {
    let _ = change(cell, |counts| {
        (counts.finished < counts.fetched).then(|| Counts { fetched: counts.fetched - 1, ..counts })
    });
}

/// One reader has finished. The last of all wakes who waits for that; what any of them did before is seen then.
///
/// # Errors
/// The counts, if everybody who has fetched has finished.
pub(crate) fn finish(cell: &Cell, readers: u32, bell: &impl Bell) -> Result<(), Counts> {
    let mut word = cell.load();
    loop {
        let counts = Counts::of(word);
        if counts.finished >= counts.fetched {
            return Err(counts);
        }
        let next = Counts { finished: counts.finished + 1, ..counts };
        let changed = if next.finished >= readers {
            cell.replace(word, next.word(), bell)
        } else {
            // Nobody waits for less than all.
            cell.replace_quietly(word, next.word())
        };
        match changed {
            Ok(()) => return Ok(()),
            Err(now) => word = now,
        }
    }
}

fn change(cell: &Cell, next: impl Fn(Counts) -> Option<Counts>) -> Result<(), Counts> {
    let mut word = cell.load();
    loop {
        let counts = Counts::of(word);
        let Some(next) = next(counts) else { return Err(counts) };
        match cell.replace_quietly(word, next.word()) {
            Ok(()) => return Ok(()),
            Err(now) => word = now,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Silent;

    impl Bell for Silent {
        fn ring(&self, slot: usize, _tag: u32) {
            unreachable!("nobody waits, and slot {slot} rings");
        }
    }

    #[test]
    fn as_many_as_it_is_for_and_each_once() {
        let cell = Cell::default();
        assert!(are_through(cell.load(), 0) && !are_through(cell.load(), 2));
        assert_eq!(finish(&cell, 2, &Silent), Err(Counts { fetched: 0, finished: 0 }));
        assert_eq!(enter(&cell, 0), Err(Counts { fetched: 0, finished: 0 }));
        enter(&cell, 2).unwrap();
        enter(&cell, 2).unwrap();
        assert_eq!(enter(&cell, 2), Err(Counts { fetched: 2, finished: 0 }));
        turn_back(&cell);
        enter(&cell, 2).unwrap();
        finish(&cell, 2, &Silent).unwrap();
        assert!(!are_through(cell.load(), 2));
        finish(&cell, 2, &Silent).unwrap();
        assert!(are_through(cell.load(), 2));
        assert_eq!(finish(&cell, 2, &Silent), Err(Counts { fetched: 2, finished: 2 }));
        turn_back(&cell);
        assert_eq!(Counts::of(cell.load()), Counts { fetched: 2, finished: 2 }, "who has finished has read");
    }

    #[test]
    fn as_many_readers_as_there_can_be() {
        let cell = Cell::default();
        cell.set(u64::from(u32::MAX - 1) << 32 | u64::from(u32::MAX - 1), &Silent);
        enter(&cell, u32::MAX).unwrap();
        assert!(enter(&cell, u32::MAX).is_err());
        finish(&cell, u32::MAX, &Silent).unwrap();
        assert!(are_through(cell.load(), u32::MAX));
    }
}
