//! The barrier that clears itself: each rank gives every peer a credit, and spends one of each.
//!
//! Rank `me` has one cell for each rank `src`, written `cells[me][src]` here. A call of [`meet`]
//!
//! 1. adds 1 to `cells[peer][me]` of every peer, in the order of ranks;
//! 2. waits for every `src` until its own `cells[me][src]` is at least 1;
//! 3. takes exactly 1 away from each of these.
//!
//! **Nobody passes early.** In call k, rank `me` has taken k-1 credits of `src`. So its cell is at least 1 only when
//! `src` has given k of them, the last as it came to its own call k. Additions carry on what the ones before them
//! released, so with that credit comes everything that `src` wrote before it came.
//!
//! **It can be used again at once.** `src` gives credit k+1 after it has returned from call k, for which it needed my
//! credit k, which I gave when I had returned from call k-1 and so had taken all of its credits up to k-1. So ranks are
//! apart by one call at most, and my cell never holds more than the credits k and k+1: it is 1 or 2 when I take one away,
//! and 0 or 1 afterwards. Nothing counts up, so nothing wraps, and there is no round number to agree upon. When
//! all ranks have returned from the same call, as many credits were taken as were given: all cells are 0.
//!
//! **Why the reset is not a store of 0.** A peer that is fast may have given its next credit between my wait and my
//! reset. Storing 0 wipes that credit out, and I wait for it forever in the next call. Taking one away leaves it.
//!
//! **Why there is a reset.** Without one the cell stays at 1 and fulfils the next call's wait before the peer has come.
//! The models in `model.rs` show both: the first ends in a deadlock, the second passes too early.
//!
//! Credits that are found to be something other than 1 or 2 were scribbled upon by a peer that is broken or hostile; that
//! is an [`OddCredit`]. Ranks that differ about the number of calls are not found out by the cells: the one that calls
//! once more waits until its deadline.

use std::fmt;

use comm_core::wait::{Bell, Cell};

use super::add;

/// A peer's cell held another number than the one or two credits that there can be when one is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OddCredit {
    /// The peer whose credits they are.
    pub(crate) src: usize,
    /// What there was before one was taken away.
    pub(crate) seen: i32,
}

impl fmt::Display for OddCredit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} credits of rank {} in a barrier, where there can be 1 or 2", self.seen, self.src)
    }
}

#[cfg(not(loom))]
impl From<OddCredit> for comm_core::Error {
    fn from(odd: OddCredit) -> Self {
        comm_core::Error::bad_peer(odd.to_string())
    }
}

/// Meets the other ranks of `0..size`, as rank `me`; see the [module](self).
///
/// `notify(peer)` adds 1 to the peer's cell for this rank. What it writes into the peer's memory before that is visible to
/// the peer once it has met this rank. `gather()` waits until this rank's cells for all others are at least 1. `take(src)` takes
/// 1 away from that cell and returns what there was before, as [`take_one`] does.
///
/// No credit is taken before all have come. After any error the credits are those of a call half done, and the cells of all
/// ranks are good for nothing: whoever calls this ends the team. If that goes on, since it is over only for what needs a rank
/// that has left, nobody may call again: a credit more, and a peer that has yet to spend those of the call before finds three.
///
/// # Errors
/// The first error of `notify`, `gather` or `take`; an [`OddCredit`].
#[doc(alias = "barrier")]
pub(crate) fn meet<E: From<OddCredit>>(
    size: usize,
    me: usize,
    notify: impl FnMut(usize) -> Result<(), E>,
    gather: impl FnOnce() -> Result<(), E>,
    mut take: impl FnMut(usize) -> Result<i32, E>,
) -> Result<(), E> {
    let peers = || (0..size).filter(|&rank| rank != me);
    peers().try_for_each(notify)?;
    gather()?;
    peers().try_for_each(|src| match take(src)? {
        1 | 2 => Ok(()),
        seen => Err(OddCredit { src, seen }.into()),
    })
}

/// Takes one credit away from a cell of this rank and returns how many there were.
pub(crate) fn take_one(cell: &Cell, bell: &impl Bell) -> i32 {
    add(cell, -1, bell)
}
