//! Records that hang on a cell: each is put there once, and all go at once, when everybody knows that nobody looks.
//!
//! It is Treiber's stack (IBM RJ 5118, 1986) without a pop, so nothing is reused under a reader and there is no ABA. The
//! head is the value of a cell; a link of 0 is the end.

use comm_core::wait::{Bell, Cell};

/// What a look at a record says.
pub(crate) enum Step {
    /// It is the one.
    Found,
    /// It is another, and here is the one behind it.
    Behind(u64),
}

/// The first record that is the one, from `link` on and up to `end`, which is not looked at.
pub(crate) fn find<E>(
    mut link: u64,
    end: u64,
    mut look: impl FnMut(u64) -> Result<Step, E>,
) -> Result<Option<u64>, E> {
    while link != 0 && link != end {
        match look(link)? {
            Step::Found => return Ok(Some(link)),
            Step::Behind(next) => link = next,
        }
    }
    Ok(None)
}

/// Hangs a record on the cell, unless one that is the same hangs there: that one is given then. What hangs from `known` on
/// has been looked at. `set_next` writes what is behind the new record, which nobody else can see before it hangs.
pub(crate) fn push<E>(
    (head, mut known): (&Cell, u64),
    link: u64,
    bell: &impl Bell,
    mut look: impl FnMut(u64) -> Result<Step, E>,
    set_next: impl Fn(u64),
) -> Result<Option<u64>, E> {
    let mut seen = head.load();
    loop {
        if let Some(there) = find(seen, known, &mut look)? {
            return Ok(Some(there));
        }
        set_next(seen);
        match head.replace(seen, link, bell) {
            Ok(()) => return Ok(None),
            Err(now) => (known, seen) = (seen, now),
        }
    }
}
