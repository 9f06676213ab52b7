//! A symmetric operation: all ranks of a team do the same thing at the same place in their sequence.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::control::Status;
use super::ending::{Ending, Waited};
use super::shared::TeamShared;
use super::{Team, at};
use crate::error::{At, Error, LostHow, Missing, Result};
use crate::shm::{Segment, fork};
use crate::wait::{Cell, Deadline, Next, Patience, Unmet, Waiter, clock, rendezvous, until};

/// Who waits for a segment looks this often whether the team goes on: the end of a team does not wake him.
const SEGMENT_SLICE: Duration = Duration::from_millis(20);

/// Being inside an operation.
///
/// It ends with [`finish`](OpGuard::finish) or [`settle`](OpGuard::settle). Dropped before, by a panic or otherwise,
/// the rank counts as lost, because its peers wait for what it will not do.
///
/// ```
/// use comm_core::{Deadline, team::Team};
///
/// let team = Team::join("guard-example", 0, 1, Deadline::default())?;
/// let op = team.begin("nothing at all", Deadline::default())?;
/// assert_eq!(op.seq(), 2, "the join was number 1");
/// assert!(team.begin("another", Deadline::default()).is_err(), "this rank is inside one");
/// op.finish();
/// team.barrier(Deadline::default())?;
/// # Ok::<(), comm_core::Error>(())
/// ```
#[must_use = "dropping an operation before it is finished means that this rank is lost"]
#[derive(Debug)]
pub struct OpGuard<'t> {
    team: &'t Team,
    op: &'static str,
    seq: u64,
    started: Instant,
    patience: Patience,
    open: bool,
}

impl Team {
    /// Begins the next operation of this rank's sequence.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`] if this rank is inside one; what ended the team, if it is over; [`Error::Forked`].
    pub fn begin(&self, op: &'static str, deadline: impl Into<Deadline>) -> Result<OpGuard<'_>> {
        self.alive()?;
        let started = Instant::now();
        let entered = self.inside.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        if entered.is_err() {
            let inside = self.status().op_name.get();
            return Err(Error::ConcurrentUse { op: op.to_string(), inside });
        }
        let seq = self.seq.load(Ordering::Relaxed) + 1;
        if let Some(error) =
            self.shared.ended(|| at(&self.shared, self.rank, &format!("{op} #{seq}"), started))
        {
            self.inside.store(false, Ordering::Release);
            return Err(error);
        }
        let status = self.status();
        status.op_name.set(op);
        status.op.store(seq << 1 | 1, Ordering::Release);
        let patience = Patience::new(deadline.into(), self.size());
        Ok(OpGuard { team: self, op, seq, started, patience, open: true })
    }

    fn status(&self) -> &Status {
        &self.shared.control().rank(self.rank).status
    }

    fn waiter(&self) -> Waiter<'_> {
        Waiter { slot: self.rank, park: &self.shared.control().rank(self.rank).park }
    }
}

impl<'t> OpGuard<'t> {
    /// The number of this operation in the sequence of the team: the same on all ranks. The join was number 1.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The team.
    pub fn team(&self) -> &'t Team {
        self.team
    }

    /// Sets this rank's own cell to `round` and waits until the cells of all ranks have reached it.
    ///
    /// # Errors
    /// [`Error::Timeout`] ends the team and names who has not come; what else ended the team;
    /// [`Error::PeerLeft`] if a rank has left before this operation.
    pub fn meet<'c>(&mut self, what: &str, cell_of: impl Fn(usize) -> &'c Cell, round: u64) -> Result<()> {
        self.together(what, cell_of, round, true)
    }

    /// Waits until the cells of all ranks have reached `round`.
    ///
    /// # Errors
    /// As [`meet`](OpGuard::meet).
    pub fn all_reach<'c>(
        &mut self,
        what: &str,
        cell_of: impl Fn(usize) -> &'c Cell,
        round: u64,
    ) -> Result<()> {
        self.together(what, cell_of, round, false)
    }

    fn together<'c>(
        &mut self,
        what: &str,
        cell_of: impl Fn(usize) -> &'c Cell,
        round: u64,
        announce: bool,
    ) -> Result<()> {
        let (team, seq, patience) = (self.team, self.seq, &mut self.patience);
        team.alive()?;
        let (n, waiter) = (team.size(), team.waiter());
        let _open = OpenWait { team };
        let note = Note { team, what, round };
        let ended = |rank| {
            note.waiting_for(rank, cell_of(rank));
            // Whoever has left is named, also while a slower rank is waited for.
            ended(team, seq, (0..n).filter(|&rank| cell_of(rank).load() < round))
        };
        patience.refresh();
        let outcome = if announce {
            rendezvous::meet(n, &cell_of, round, &*team.shared, waiter, patience, ended)
        } else {
            rendezvous::all_reach(n, &cell_of, round, waiter, patience, ended)
        };
        outcome.map_err(|unmet| self.unmet(unmet, what, round, cell_of, 0..n))
    }

    /// Waits until the cell of one rank has reached `round`.
    ///
    /// # Errors
    /// As [`meet`](OpGuard::meet).
    pub fn reach(&mut self, what: &str, rank: usize, cell: &Cell, round: u64) -> Result<()> {
        let (team, seq) = (self.team, self.seq);
        team.alive()?;
        let _open = OpenWait { team };
        let note = Note { team, what, round };
        let ready = || (cell.load() >= round).then_some(());
        self.patience.refresh();
        let outcome = until(cell, team.waiter(), &mut self.patience, ready, || {
            note.waiting_for(rank, cell);
            ended(team, seq, std::iter::once(rank))
        });
        outcome.map_err(|unmet| self.unmet(unmet, what, round, |_| cell, rank..rank + 1))
    }

    /// A segment of the process of another rank. A peer pushes a segment before it speaks of anything in it, but over a
    /// socket, so it may still be on its way.
    ///
    /// # Errors
    /// As [`meet`](OpGuard::meet); [`Error::BadPeer`] if that rank shares this process, or left and never pushed it.
    pub fn peer_segment(&mut self, rank: usize, id: u64) -> Result<Arc<Segment>> {
        self.team.alive()?;
        let shared = &self.team.shared;
        let never = || Error::bad_peer(format!("rank {rank} speaks of a segment that it has not pushed"));
        let peer = shared.peer_of(rank).ok_or_else(never)?;
        let what = format!("a segment of rank {rank}");
        self.patience.refresh();
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
            if let Some(error) = ended(self.team, self.seq, std::iter::once(rank)) {
                return Err(self.placed_at(error, &what));
            }
            if gone {
                return Err(never());
            }
            slice = match self.patience.next() {
                Next::Look => Duration::ZERO,
                Next::Sleep(slice) => slice.min(SEGMENT_SLICE),
                Next::GiveUp => return Err(self.give_up(&what, &[rank], 0, 1)),
            };
        }
    }

    /// Ends the operation in good order.
    pub fn finish(mut self) {
        self.close();
    }

    /// Ends the operation with its result. `agreed` says that all ranks have the same one. An error that is this rank's
    /// own (no memory, say) leaves the peers waiting, so it ends the team for all of them as [`Error::Aborted`]; if the
    /// team is over already, the error is what ended it.
    ///
    /// # Errors
    /// The result's own, or what ended the team.
    pub fn settle<T>(mut self, result: Result<T>, agreed: bool) -> Result<T> {
        let result = self.decide(result, agreed);
        self.close();
        result
    }

    /// What [`settle`](OpGuard::settle) decides, while this rank is still inside: for things to be put away between the
    /// end of the team, should there be one, and the moment at which another thread of this rank may come in.
    ///
    /// # Errors
    /// Those of [`settle`](OpGuard::settle).
    pub fn decide<T>(&self, result: Result<T>, agreed: bool) -> Result<T> {
        result.map_err(|error| {
            let shared = &self.team.shared;
            if agreed || matches!(error, Error::PeerLeft { .. }) {
                return self.placed(error);
            }
            if let Some(end) = shared.ended(|| self.place("")) {
                // An error that knows its place says more: it was made when the end was noticed.
                return if error.at().is_some() { error } else { end };
            }
            let reason = format!("{} failed: {error}", self.op);
            shared.end(&Ending::Aborted { by: self.team.rank(), reason });
            error
        })
    }

    /// The error, with its place if it has none yet.
    fn placed(&self, mut error: Error) -> Error {
        if let Some(at) = error.at_mut().filter(|at| at.op.is_empty()) {
            *at = self.place("");
        }
        error
    }

    fn place(&self, what: &str) -> At {
        let colon = if what.is_empty() { "" } else { ": " };
        let op = format!("{} #{}{colon}{what}", self.op, self.seq);
        at(&self.team.shared, self.team.rank(), &op, self.started)
    }

    fn close(&mut self) {
        self.open = false;
        if fork::is_forked() {
            // What the others see of this rank is its parent's to say.
            return;
        }
        self.team.seq.store(self.seq, Ordering::Relaxed);
        self.team.status().op.store(self.seq << 1, Ordering::Release);
        self.team.inside.store(false, Ordering::Release);
    }

    fn unmet<'c>(
        &self,
        unmet: Unmet<Error>,
        what: &str,
        round: u64,
        cell_of: impl Fn(usize) -> &'c Cell,
        ranks: std::ops::Range<usize>,
    ) -> Error {
        match unmet {
            Unmet::Ended(error) => self.placed_at(error, what),
            Unmet::TimedOut => {
                let late: Vec<usize> = ranks.filter(|&rank| cell_of(rank).load() < round).collect();
                let seen = late.first().map_or(round, |&rank| cell_of(rank).load());
                self.give_up(what, &late, seen, round)
            }
        }
    }

    /// Ends the team because these ranks did not come in time; the error says so, or what ended it before.
    fn give_up(&self, what: &str, late: &[usize], seen: u64, expected: u64) -> Error {
        let shared = &self.team.shared;
        let missing = late.iter().map(|&rank| Missing { rank, state: shared.state_of(rank) }).collect();
        let text = format!("{} #{}: {what}", self.op, self.seq);
        let waited = Waited { what: text, waited: self.patience.waited(), missing, seen, expected };
        shared.end(&Ending::TimedOut { by: self.team.rank(), waited });
        // Whoever was first to end the team is who is told of.
        let error = shared.ended(Default::default);
        let error = error.unwrap_or_else(|| Error::bad_peer("the control block of the team is damaged"));
        self.placed_at(error, what)
    }

    fn placed_at(&self, mut error: Error, what: &str) -> Error {
        if let Some(at) = error.at_mut() {
            *at = self.place(what);
        }
        error
    }
}

impl Drop for OpGuard<'_> {
    fn drop(&mut self) {
        if !self.open || fork::is_forked() {
            return;
        }
        let how = if std::thread::panicking() { LostHow::Panicked } else { LostHow::DroppedInside };
        self.team.shared.end(&Ending::Lost { rank: self.team.rank(), how });
        self.close();
    }
}

impl TeamShared {
    /// Ends the team because `rank` waited too long.
    pub(crate) fn give_up(&self, rank: usize, what: &str, waited: Duration, missing: Vec<Missing>) {
        let (seen, expected) = ((self.size() - missing.len()) as u64, self.size() as u64);
        let waited = Waited { what: what.to_string(), waited, missing, seen, expected };
        self.end(&Ending::TimedOut { by: rank, waited });
    }
}

/// What keeps one of these ranks from coming to operation `seq`.
fn ended(team: &Team, seq: u64, mut awaited: impl Iterator<Item = usize>) -> Option<Error> {
    if let Some(error) = team.shared.ended(Default::default) {
        return Some(error);
    }
    let control = team.shared.control();
    if control.head().is_some_and(|head| head.leavers.load(Ordering::Acquire) == 0) {
        return None;
    }
    let rank = awaited.find(|&rank| control.left_after(rank).is_some_and(|after| after < seq))?;
    // He may have ended the team before he left: now that it is seen that he left, that is seen too.
    Some(team.shared.ended(Default::default).unwrap_or(Error::PeerLeft { rank, at: Box::default() }))
}

/// Tells the control block what this rank waits for. Cheap enough to do each time that a waiter looks in vain.
struct Note<'a> {
    team: &'a Team,
    what: &'a str,
    round: u64,
}

impl Note<'_> {
    fn waiting_for(&self, rank: usize, cell: &Cell) {
        let waits = &self.team.shared.control().rank(self.team.rank()).waits;
        waits.seen.store(cell.load(), Ordering::Relaxed);
        if waits.on.load(Ordering::Relaxed) == rank as u64 + 1 {
            return;
        }
        waits.expected.store(self.round, Ordering::Relaxed);
        waits.since.store(clock::now(), Ordering::Relaxed);
        waits.what.set(self.what);
        waits.on.store(rank as u64 + 1, Ordering::Release);
    }
}

/// Takes the note away at the end of the wait.
struct OpenWait<'a> {
    team: &'a Team,
}

impl Drop for OpenWait<'_> {
    fn drop(&mut self) {
        self.team.shared.control().rank(self.team.rank()).waits.on.store(0, Ordering::Release);
    }
}
