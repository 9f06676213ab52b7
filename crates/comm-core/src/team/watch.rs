//! One-sided waits: of a thread, and what they share with those of tasks.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::op::Note;
use super::shared::TeamShared;
use super::{Member, at};
use crate::error::{At, Error, Missing, Result};
use crate::hub::Peer;
use crate::shm::Segment;
use crate::wait::{Cell, Deadline, Next, Patience, Unmet, until};

/// Who waits for a segment looks this often whether the team goes on: the end of a team does not wake him.
const SEGMENT_SLICE: Duration = Duration::from_millis(20);

/// Who waits one-sidedly in a team, for whom, and since when.
pub(super) struct Watch<'a> {
    pub(super) shared: &'a TeamShared,
    pub(super) rank: usize,
    /// The rank whose doing is awaited, if it is one.
    pub(super) from: Option<usize>,
    pub(super) started: Instant,
}

impl Watch<'_> {
    /// Why what is waited for will not come: the team is over, or who should do it has left.
    pub(super) fn end(&self, what: &dyn Display) -> Option<Error> {
        let at = || self.at(what);
        self.shared.ended(at).or_else(|| {
            let rank = self.who_left()?;
            // He may have ended the team before he left: now that it is seen that he left, that is seen too.
            Some(self.shared.ended(at).unwrap_or_else(|| Error::PeerLeft { rank, at: Box::new(at()) }))
        })
    }

    /// This rank if it has left, or the awaited one; without one, the lowest of the others if all of them have.
    fn who_left(&self) -> Option<usize> {
        let control = self.shared.control();
        if control.head().is_some_and(|head| head.leavers.load(Ordering::Acquire) == 0) {
            return None;
        }
        let has_left = |&rank: &usize| control.left_after(rank).is_some();
        if has_left(&self.rank) {
            return Some(self.rank);
        }
        if let Some(rank) = self.from {
            // A rank may well wait for what another thread of its own does.
            return Some(rank).filter(|&rank| rank != self.rank).filter(has_left);
        }
        let mut others = (0..self.shared.size()).filter(|&rank| rank != self.rank);
        let lowest = others.clone().next()?;
        others.all(|rank| has_left(&rank)).then_some(lowest)
    }

    /// The error of a wait that gives up. It changes nothing for anybody else.
    pub(super) fn timed_out(&self, what: &dyn Display, waited: Duration, seen: u64, expected: i64) -> Error {
        let missing = self.from.map(|rank| Missing { rank, state: self.shared.state_of(rank) });
        Error::Timeout {
            what: what.to_string(),
            waited,
            missing: missing.into_iter().collect(),
            seen: seen as i64,
            expected,
            at: Box::new(self.at(what)),
        }
    }

    fn at(&self, what: &dyn Display) -> At {
        at(self.shared, self.rank, &what.to_string(), self.started)
    }
}

impl Member {
    /// Waits, as a thread, until `ready` accepts the value of a cell, and gives what it makes of it. `expected` is for
    /// messages.
    ///
    /// `from` is the rank whose doing is awaited, if it is one: it is named when the wait times out, and the wait ends
    /// when it leaves. Without one, the wait ends when all others have left.
    ///
    /// # Errors
    /// What ended the team; [`Error::PeerLeft`]; [`Error::Timeout`], which changes nothing for anybody: the same wait may
    /// be tried again. [`Error::Forked`].
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, wait::Cell};
    ///
    /// let team = Team::join("wait-example", 0, 1, Deadline::default())?;
    /// let cell = Cell::default();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| cell.set(7, team.bell()));
    ///     team.wait(&"a seven", &cell, None, 7, |v| (v == 7).then_some(()), Deadline::default())
    /// })?;
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn wait<T>(
        &self,
        what: &dyn Display,
        cell: &Cell,
        from: Option<usize>,
        expected: i64,
        mut ready: impl FnMut(u64) -> Option<T>,
        deadline: impl Into<Deadline>,
    ) -> Result<T> {
        self.alive()?;
        // A look before the clock is read: most waits are over when they begin.
        if let Some(found) = ready(cell.load()) {
            return Ok(found);
        }
        let watch = Watch { shared: self.shared(), rank: self.rank(), from, started: Instant::now() };
        let mut patience = Patience::new(deadline.into(), self.size());
        let note = Note::new(self, what, expected);
        let ended = || {
            note.waiting_for(from, cell);
            watch.end(what)
        };
        match until(cell, self.waiter(), &mut patience, || ready(cell.load()), ended) {
            Ok(found) => Ok(found),
            Err(Unmet::Ended(error)) => Err(error),
            Err(Unmet::TimedOut) => Err(watch.timed_out(what, patience.waited(), cell.load(), expected)),
        }
    }

    /// A segment of the process of another rank, waited for outside of any operation. A peer pushes a segment before it
    /// speaks of anything in it, but over a socket, so it may still be on its way.
    ///
    /// # Errors
    /// As [`wait`](Member::wait); [`Error::BadPeer`] if that rank shares this process, or is gone and never pushed it.
    pub fn peer_segment(&self, rank: usize, id: u64, deadline: impl Into<Deadline>) -> Result<Arc<Segment>> {
        self.alive()?;
        if rank >= self.size() {
            let why = format!("rank {rank} of a team of {}", self.size());
            return Err(Error::invalid("Member::peer_segment", why));
        }
        let watch =
            Watch { shared: self.shared(), rank: self.rank(), from: Some(rank), started: Instant::now() };
        let what = format!("a segment of rank {rank}");
        let mut patience = Patience::new(deadline.into(), self.size());
        let outcome = await_segment(self.shared(), rank, id, &mut patience, || watch.end(&what));
        outcome.map_err(|unmet| match unmet {
            Unmet::Ended(error) => error,
            Unmet::TimedOut => watch.timed_out(&what, patience.waited(), 0, 1),
        })
    }
}

/// Waits until the process of a rank has pushed a segment.
pub(super) fn await_segment(
    shared: &TeamShared,
    rank: usize,
    id: u64,
    patience: &mut Patience,
    ended: impl Fn() -> Option<Error>,
) -> Result<Arc<Segment>, Unmet<Error>> {
    let never =
        || Unmet::Ended(Error::bad_peer(format!("rank {rank} speaks of a segment that it has not pushed")));
    let peer: &Arc<Peer> = shared.peer_of(rank).ok_or_else(never)?;
    let mut slice = Duration::ZERO;
    loop {
        let gone = peer.is_dead();
        if let Some(segment) = peer.segment(id, slice.into()) {
            return Ok(segment);
        }
        if gone {
            // Whoever saw that death may not have come to tell this team of it.
            shared.process_died(peer.nonce());
        }
        if let Some(error) = ended() {
            return Err(Unmet::Ended(error));
        }
        if gone {
            return Err(never());
        }
        slice = match patience.next() {
            Next::Look => Duration::ZERO,
            Next::Sleep(slice) => slice.min(SEGMENT_SLICE),
            Next::GiveUp => return Err(Unmet::TimedOut),
        };
    }
}
