//! A symmetric operation: all ranks of a team do the same thing at the same place in their sequence.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::control::{ON_ANYBODY, Status};
use super::ending::{Ending, Waited};
use super::shared::TeamShared;
use super::watch::await_segment;
use super::{Member, at};
use crate::error::{At, Error, LostHow, Missing, Result};
use crate::shm::{Segment, fork};
use crate::wait::{Cell, Deadline, Patience, Unmet, Waiter, clock, rendezvous};

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
    team: &'t Member,
    op: Cow<'static, str>,
    seq: u64,
    started: Instant,
    patience: Patience,
    open: bool,
}

impl Member {
    /// Begins the next operation of this rank's sequence.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`] if this rank is inside one; what ended the team, if it is over; [`Error::PeerLeft`] with
    /// this rank, if it has left; [`Error::Forked`].
    pub fn begin(
        &self,
        op: impl Into<Cow<'static, str>>,
        deadline: impl Into<Deadline>,
    ) -> Result<OpGuard<'_>> {
        self.alive()?;
        let (op, started) = (op.into(), Instant::now());
        self.enter(&op, started)?;
        let seq = self.seq.load(Ordering::Relaxed) + 1;
        if let Some(error) =
            self.shared.ended(|| at(&self.shared, self.rank, &format!("{op} #{seq}"), started))
        {
            self.inside.store(false, Ordering::Release);
            return Err(error);
        }
        if self.has_left() {
            self.inside.store(false, Ordering::Release);
            let at = Box::new(at(&self.shared, self.rank, &op, started));
            return Err(Error::PeerLeft { rank: self.rank, at });
        }
        let status = self.status();
        status.op_name.set(&op);
        status.op.store(seq << 1 | 1, Ordering::Release);
        let patience = Patience::new(deadline.into(), self.size());
        Ok(OpGuard { team: self, op, seq, started, patience, open: true })
    }

    /// Takes this rank's place inside of operations, which [`OpGuard::close`] or whoever else takes it gives back. A rank that
    /// has left keeps it for good.
    pub(super) fn enter(&self, op: &str, started: Instant) -> Result<()> {
        let entered = self.inside.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        if entered.is_ok() {
            return Ok(());
        }
        if self.has_left() {
            let at = Box::new(at(&self.shared, self.rank, op, started));
            return Err(Error::PeerLeft { rank: self.rank, at });
        }
        Err(Error::ConcurrentUse { op: op.to_string(), inside: self.status().op_name.get() })
    }

    fn status(&self) -> &Status {
        &self.shared.control().rank(self.rank).status
    }

    pub(super) fn waiter(&self) -> Waiter<'_> {
        Waiter { slot: self.rank, park: &self.shared.control().rank(self.rank).park }
    }
}

impl<'t> OpGuard<'t> {
    /// The number of this operation in the sequence of the team: the same on all ranks. The join was number 1.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.op
    }

    /// The team.
    pub fn team(&self) -> &'t Member {
        self.team
    }

    /// Sets this rank's own cell to `round` and waits until the cells of all ranks have reached it.
    pub(super) fn meet<'c>(
        &mut self,
        what: &str,
        cell_of: impl Fn(usize) -> &'c Cell,
        round: u64,
    ) -> Result<()> {
        self.meet_while(what, cell_of, round, || Ok(()))
    }

    /// [`meet`](OpGuard::meet), while nothing else is wrong: `fine` is asked now and then, and its error ends the wait.
    pub(super) fn meet_while<'c>(
        &mut self,
        what: &str,
        cell_of: impl Fn(usize) -> &'c Cell,
        round: u64,
        fine: impl Fn() -> Result<()>,
    ) -> Result<()> {
        self.may_come_about()?;
        cell_of(self.team.rank).set(round, &*self.team.shared);
        let all = 0..self.team.size();
        self.all_reach_while(&what, all, cell_of, round as i64, |seen| seen >= round, fine)
    }

    /// Looks up from a wait at least so often.
    pub(super) fn look_up_every(&mut self, slice: Duration) {
        self.patience.look_up_every(slice);
    }

    /// Waits until `ready` accepts the cell of each of these ranks: what that rank does, in a cell that may be anybody's.
    /// `expected` is for messages.
    ///
    /// # Errors
    /// [`Error::Timeout`] ends the team and names all who have not come; what else ended the team;
    /// [`Error::PeerLeft`] if one of them has left before this operation.
    pub fn all_reach<'c>(
        &mut self,
        what: &dyn Display,
        ranks: impl Iterator<Item = usize> + Clone,
        cell_of: impl Fn(usize) -> &'c Cell,
        expected: i64,
        ready: impl Fn(u64) -> bool,
    ) -> Result<()> {
        self.all_reach_while(what, ranks, cell_of, expected, ready, || Ok(()))
    }

    fn all_reach_while<'c>(
        &mut self,
        what: &dyn Display,
        ranks: impl Iterator<Item = usize> + Clone,
        cell_of: impl Fn(usize) -> &'c Cell,
        expected: i64,
        ready: impl Fn(u64) -> bool,
        fine: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let (team, seq, patience) = (self.team, self.seq, &mut self.patience);
        team.alive()?;
        let note = Note::new(team, what, expected);
        let late = || ranks.clone().filter(|&rank| !ready(cell_of(rank).load()));
        let ended = |rank| {
            note.waiting_for(Some(rank), cell_of(rank));
            // Whoever has left is named, also while a slower rank is waited for.
            ended(team, seq, late()).or_else(|| fine().err())
        };
        patience.refresh();
        let outcome = rendezvous::all_reach(ranks.clone(), &cell_of, &ready, team.waiter(), patience, ended);
        let failed = outcome.err().and_then(|unmet| match unmet {
            Unmet::Ended(error) => Some(self.placed_at(error, what)),
            Unmet::TimedOut => {
                let late: Vec<usize> = late().collect();
                // The last of them came just now, if there is none.
                let first = *late.first()?;
                Some(self.give_up(what, &late, cell_of(first).load() as i64, expected))
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Whether all ranks may still come to this operation: none has left before it. Who is about to leave something behind that
    /// only a rank which comes would put away asks first.
    ///
    /// # Errors
    /// [`Error::PeerLeft`], with which [`all_reach`](OpGuard::all_reach) would end; or what ended the team meanwhile.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    ///
    /// let team = Team::join("may-come-about-example", 0, 1, Deadline::default())?;
    /// let op = team.begin("something of all", Deadline::default())?;
    /// let outcome = op.may_come_about();
    /// op.settle(outcome, false)?;
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn may_come_about(&self) -> Result<()> {
        self.team.alive()?;
        left_before(self.team, self.seq, 0..self.team.size()).map_or(Ok(()), |error| Err(self.placed(error)))
    }

    /// A segment of the process of another rank. A peer pushes a segment before it speaks of anything in it, but over a
    /// socket, so it may still be on its way.
    ///
    /// # Errors
    /// As [`all_reach`](OpGuard::all_reach); [`Error::BadPeer`] if that rank shares this process, or left and never pushed
    /// it.
    pub fn peer_segment(&mut self, rank: usize, id: u64) -> Result<Arc<Segment>> {
        self.team.alive()?;
        let (team, seq) = (self.team, self.seq);
        let what = format!("a segment of rank {rank}");
        self.patience.refresh();
        let gone = || ended(team, seq, std::iter::once(rank));
        await_segment(&team.shared, rank, id, &mut self.patience, gone).map_err(|unmet| match unmet {
            Unmet::Ended(error) => self.placed_at(error, &what),
            Unmet::TimedOut => self.give_up(&what, &[rank], 0, 1),
        })
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
            if let Some(end) = shared.ended(|| self.place(&"")) {
                // An error that knows its place says more: it was made when the end was noticed.
                return if error.at().is_some() { error } else { end };
            }
            let reason = format!("{} failed: {error}", self.op);
            shared.end(&Ending::Aborted { by: self.team.rank(), reason });
            error
        })
    }

    /// The error, with its place if it has none yet.
    fn placed(&self, error: Error) -> Error {
        self.placed_at(error, &"")
    }

    fn place(&self, what: &dyn Display) -> At {
        let what = what.to_string();
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

    /// Ends the team because these ranks did not come in time; the error says so, or what ended it before.
    fn give_up(&self, what: &dyn Display, late: &[usize], seen: i64, expected: i64) -> Error {
        let shared = &self.team.shared;
        let missing = late.iter().map(|&rank| Missing { rank, state: shared.state_of(rank) }).collect();
        // The others read it too, those who are named as late among them: it says whose wait it was.
        let text = format!("{} #{} of rank {}: {what}", self.op, self.seq, self.team.rank());
        let waited = Waited { what: text, waited: self.patience.waited(), missing, seen, expected };
        shared.end(&Ending::TimedOut { by: self.team.rank(), waited });
        // Whoever was first to end the team is who is told of.
        let error = shared.ended(Default::default);
        let error = error.unwrap_or_else(|| Error::bad_peer("the control block of the team is damaged"));
        self.placed_at(error, what)
    }

    fn placed_at(&self, mut error: Error, what: &dyn Display) -> Error {
        if let Some(at) = error.at_mut().filter(|at| at.op.is_empty()) {
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
        let (seen, expected) = ((self.size() - missing.len()) as i64, self.size() as i64);
        let waited = Waited { what: what.to_string(), waited, missing, seen, expected };
        self.end(&Ending::TimedOut { by: rank, waited });
    }
}

/// What keeps one of these ranks from coming to operation `seq`.
fn ended(team: &Member, seq: u64, awaited: impl Iterator<Item = usize>) -> Option<Error> {
    team.shared.ended(Default::default).or_else(|| left_before(team, seq, awaited))
}

/// That one of these ranks has left before operation `seq`.
fn left_before(team: &Member, seq: u64, mut awaited: impl Iterator<Item = usize>) -> Option<Error> {
    let control = team.shared.control();
    if control.head().is_some_and(|head| head.leavers.load(Ordering::Acquire) == 0) {
        return None;
    }
    let rank = awaited.find(|&rank| control.left_after(rank).is_some_and(|after| after < seq))?;
    // He may have ended the team before he left: now that it is seen that he left, that is seen too.
    Some(team.shared.ended(Default::default).unwrap_or(Error::PeerLeft { rank, at: Box::default() }))
}

/// Tells the control block what this rank waits for, until the wait is over. Cheap enough to do each time that a waiter
/// looks in vain.
pub(super) struct Note<'a> {
    team: &'a Member,
    what: &'a dyn Display,
    expected: i64,
}

impl<'a> Note<'a> {
    pub(super) fn new(team: &'a Member, what: &'a dyn Display, expected: i64) -> Note<'a> {
        Note { team, what, expected }
    }

    /// `on` is the rank that is waited for; none if anybody will do.
    pub(super) fn waiting_for(&self, on: Option<usize>, cell: &Cell) {
        let waits = &self.team.shared.control().rank(self.team.rank).waits;
        waits.seen.store(cell.load(), Ordering::Relaxed);
        let on = on.map_or(ON_ANYBODY, |rank| rank as u64 + 1);
        if waits.on.load(Ordering::Relaxed) == on {
            return;
        }
        waits.expected.store(self.expected as u64, Ordering::Relaxed);
        waits.since.store(clock::now(), Ordering::Relaxed);
        waits.what.set(&self.what.to_string());
        waits.on.store(on, Ordering::Release);
    }
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        self.team.shared.control().rank(self.team.rank).waits.on.store(0, Ordering::Release);
    }
}
