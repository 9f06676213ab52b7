//! Going on without those who are lost: the survivors of a team agree on who they are, and are the next team.
//!
//! All of it stands in the control block of the old team, which works when the team is over. It goes in epochs:
//!
//! 1. Each caller says that it comes for the next epoch (`coming`), and waits until every member has said so, has left or is
//!    dead, or half of its time is over.
//! 2. Whoever is done waiting writes who has come into its own line, and sets one word of the block to the epoch and its
//!    rank. Of several, one succeeds, and its set is what everybody reads: there is no half-written set, whoever dies when.
//!    A set is written where that of two epochs before was; a reader looks at the word again afterwards, as with a sequence lock.
//! 3. A rank outside of the set is [excluded](Error::Excluded). The others join a team whose name is made of the old id and the
//!    epoch.
//! 4. The first to have come through sets a bit of the word: the epoch is confirmed, and there is no other successor. A rank
//!    that did not come through, because another one died meanwhile or did not come, comes for the next epoch, of which
//!    only members of this one can be.
//!
//! So there is one successor at most, however the ranks' deadlines differ.

use std::convert::Infallible;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::control::{Control, RankSet};
use super::op::Note;
use super::{Member, Team, at};
use crate::error::{Error, Missing, Result};
use crate::point;
use crate::shm::fork;
use crate::wait::{Deadline, Patience, until};

const OP: &str = "Team::shrink";

/// Less than this is not divided.
const LEAST: Duration = Duration::from_millis(100);

const CONFIRMED: u64 = 1 << 15;

/// The word of the control block. Zero at first: epoch 0, in which all are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(epoch: u64, by: usize) -> Word {
        Word(epoch << 16 | (by as u64 + 1))
    }

    fn epoch(self) -> u64 {
        self.0 >> 16
    }

    /// Whose set it is; none in the beginning.
    fn by(self) -> Option<usize> {
        (self.0 & (CONFIRMED - 1)).checked_sub(1).map(|rank| rank as usize)
    }

    fn is_confirmed(self) -> bool {
        self.0 & CONFIRMED != 0
    }

    fn confirmed(self) -> Word {
        Word(self.0 | CONFIRMED)
    }
}

/// Who goes on, as far as that has been decided.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Standing {
    word: Word,
    /// Ascending.
    members: Vec<usize>,
}

impl Control {
    fn successor(&self) -> Word {
        Word(self.head().map_or(0, |head| head.successor.load(Ordering::Acquire)))
    }

    fn standing(&self) -> Standing {
        // The word changes a few times in all, so one that does not come to rest is a peer's that scribbles: then any set will do.
        let mut left = 1000;
        loop {
            let word = self.successor();
            let all = 0..self.size();
            let members = match word.by() {
                None => all.collect(),
                Some(by) => {
                    // A rank that does not exist can only come from a peer that scribbles: then any set will do.
                    let sets = &self.rank(by.min(self.size() - 1)).proposals.0;
                    let set = RankSet::load(&sets[(word.epoch() % 2) as usize]);
                    all.filter(|&rank| set.contains(rank)).collect()
                }
            };
            fence(Ordering::Acquire);
            let now = self.successor();
            left -= 1;
            if now == word || now == word.confirmed() || left == 0 {
                return Standing { word: now, members };
            }
        }
    }

    /// Decides who goes on, unless somebody else has.
    fn decide(&self, before: Word, by: usize, members: &[usize]) -> bool {
        let (Some(head), next) = (self.head(), Word::new(before.epoch() + 1, by)) else { return false };
        if before.is_confirmed() {
            return false;
        }
        let mut set = RankSet::default();
        members.iter().for_each(|&rank| set.insert(rank));
        // Who reads from here what was written for another epoch sees after that a later word than the one it began with.
        fence(Ordering::Release);
        set.store(&self.rank(by).proposals.0[(next.epoch() % 2) as usize]);
        head.successor.compare_exchange(before.0, next.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Makes the set that was decided on final; `false` if another one has taken its place.
    fn confirm(&self, word: Word) -> bool {
        let Some(head) = self.head() else { return false };
        let (from, to) = (word.0, word.confirmed().0);
        let seen = head.successor.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        seen.is_ok() || seen == Err(to)
    }
}

impl Member {
    /// The team of those who are left: the survivors of a team that is over, or has been left, call this and go on in a
    /// smaller one. Their ranks are dense there, in the old order; [`origin`](Member::origin) has the old ones. The old team
    /// stays what it is, and is dropped as ever. All members of a healthy team that call it are the same team anew.
    ///
    /// Ranks that are dead, have panicked or have left are not waited for. Half of the time is for the others to call: who has not
    /// by then, on the clock of the least patient, is excluded. The other half is for joining the new team; should a
    /// survivor die meanwhile, the rest begin again, with half of what is left.
    ///
    /// # Errors
    /// [`Error::Excluded`] if the others go on without this rank; [`Error::Timeout`], or what kept the new team from
    /// coming together, when the time is over; [`Error::InvalidArgument`] if the team has a successor already;
    /// [`Error::ConcurrentUse`] while this rank is inside an operation; [`Error::PeerLeft`] with this rank, if it has left;
    /// else those of [`Team::join`].
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    ///
    /// std::thread::scope(|s| {
    ///     for rank in 0..3 {
    ///         s.spawn(move || {
    ///             let team = Team::join("shrink-example", rank, 3, Deadline::default()).unwrap();
    ///             if rank == 1 {
    ///                 return; // It leaves.
    ///             }
    ///             let smaller = team.shrink(Deadline::default()).unwrap();
    ///             assert_eq!((smaller.size(), smaller.rank()), (2, rank / 2));
    ///             assert_eq!(smaller.origin(), [0, 2]);
    ///             smaller.barrier(Deadline::default()).unwrap();
    ///         });
    ///     }
    /// });
    /// ```
    #[doc(alias = "MPIX_Comm_shrink")]
    #[doc(alias = "ncclCommShrink")]
    pub fn shrink(&self, deadline: impl Into<Deadline>) -> Result<Team> {
        self.shrink_with(deadline, |_, _| Ok(())).map(|(team, ())| team)
    }

    /// As [`shrink`](Member::shrink), with something that the new team needs before it counts, as a window. If a peer is
    /// lost while it is being made, the rest begin again.
    ///
    /// # Errors
    /// As [`shrink`](Member::shrink); those of `build` that are this rank's own.
    pub fn shrink_with<T>(
        &self,
        deadline: impl Into<Deadline>,
        mut build: impl FnMut(&Team, Deadline) -> Result<T>,
    ) -> Result<(Team, T)> {
        let deadline = deadline.into();
        let this = Shrinking::begin(self, deadline)?;
        let mut last = None;
        loop {
            let standing = this.place(last.is_some())?;
            if deadline.has_passed() {
                return Err(last.unwrap_or_else(|| this.timed_out()));
            }
            let chosen = this.choose(standing)?;
            point!("shrink.chosen");
            match this.go_on(&chosen, &mut build) {
                Ok(made) => return Ok(made),
                Err(error) if is_of_a_peer(&error) => {
                    tracing::info!(team = self.name(), %error, "the survivors begin again");
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Of a [`subset`](Member::subset) of a team, or what is left of one after it has [shrunk](Member::shrink): which rank of
    /// that team each rank of this one is. Empty for a team that was joined by its name.
    pub fn origin(&self) -> &[usize] {
        &self.origin
    }
}

/// Whether an attempt failed because of somebody else, so that another one may succeed.
fn is_of_a_peer(error: &Error) -> bool {
    matches!(
        error,
        Error::PeerLost { .. } | Error::PeerLeft { .. } | Error::Timeout { .. } | Error::Aborted { .. }
    )
}

/// One rank's attempts.
struct Shrinking<'a> {
    member: &'a Member,
    deadline: Deadline,
    started: Instant,
    /// What the rank was seen to be doing before.
    op_name: String,
}

impl<'a> Shrinking<'a> {
    fn begin(member: &'a Member, deadline: Deadline) -> Result<Shrinking<'a>> {
        member.alive()?;
        let started = Instant::now();
        let status = &member.shared().control().rank(member.rank).status;
        let op_name = status.op_name.get();
        member.enter(OP, started)?;
        let this = Shrinking { member, deadline, started, op_name };
        status.op_name.set("shrink");
        status.op.store((member.operations() + 1) << 1 | 1, Ordering::Release);
        if member.has_left() {
            let at = Box::new(this.at());
            return Err(Error::PeerLeft { rank: member.rank, at });
        }
        let standing = this.control().standing();
        if standing.word.is_confirmed() && standing.members.contains(&member.rank) {
            let why = format!("the team {:?} has gone on as the ranks {:?}", member.name(), standing.members);
            return Err(Error::invalid(OP, why));
        }
        Ok(this)
    }

    fn control(&self) -> &'a Control {
        self.member.shared().control()
    }

    fn at(&self) -> crate::error::At {
        at(self.member.shared(), self.member.rank, "shrink", self.started)
    }

    /// Who goes on, if this rank is one of them. One that has not got through to where others have is not.
    fn place(&self, is_late: bool) -> Result<Standing> {
        let standing = self.control().standing();
        if standing.members.contains(&self.member.rank) && !(is_late && standing.word.is_confirmed()) {
            return Ok(standing);
        }
        let members = standing.members.into_iter().filter(|&rank| rank != self.member.rank).collect();
        Err(Error::Excluded { rank: self.member.rank, members, at: Box::new(self.at()) })
    }

    /// Comes for the epoch after this one, and says who goes on.
    fn choose(&self, before: Standing) -> Result<Standing> {
        let (control, me) = (self.control(), self.member.rank);
        let Standing { word, members } = before;
        let next = word.epoch() + 1;
        control.rank(me).coming.set(next, &**self.member.shared());
        point!("shrink.coming");
        let mut patience = Patience::new(self.half(), self.member.size());
        let has_come = |rank: usize| rank == me || control.rank(rank).coming.load() >= next;
        for &rank in &members {
            let (what, cell) = (format!("rank {rank} to shrink the team"), &control.rank(rank).coming);
            let note = Note::new(self.member, &what, next as i64);
            let ready = || (has_come(rank) || self.is_out(rank) || control.successor() != word).then_some(());
            let look = || {
                note.waiting_for(Some(rank), cell);
                None::<Infallible>
            };
            if until(cell, self.member.waiter(), &mut patience, ready, look).is_err() {
                break;
            }
        }
        let come: Vec<usize> = members
            .into_iter()
            .filter(|&rank| has_come(rank) && (rank == me || !self.is_out(rank)))
            .collect();
        if control.decide(word, me, &come) {
            tracing::info!(team = self.member.name(), epoch = next, members = ?come, "the survivors are chosen");
            self.member.shared().wake_everybody();
        }
        self.place(control.successor().epoch() < next)
    }

    /// Whether a rank will not come.
    fn is_out(&self, rank: usize) -> bool {
        let shared = self.member.shared();
        shared.control().left_after(rank).is_some() || shared.is_gone(rank) || shared.has_panicked(rank)
    }

    /// Joins the others who were chosen.
    fn go_on<T>(
        &self,
        chosen: &Standing,
        build: &mut impl FnMut(&Team, Deadline) -> Result<T>,
    ) -> Result<(Team, T)> {
        let (control, member, epoch) = (self.control(), self.member, chosen.word.epoch());
        let members = &chosen.members;
        let rank = members.iter().position(|&rank| rank == member.rank);
        let rank = rank.ok_or_else(|| Error::bad_peer("the control block of the team is damaged"))?;
        // Once all are in the new team, it is that one's affair who is lost.
        let is_hopeless = || {
            Ok(control.successor().epoch() != epoch
                || members.iter().any(|&rank| self.is_out(rank) || control.rank(rank).coming.load() > epoch))
        };
        let limit = self.half();
        let name = member.name_of_part(&format!("survivors-{epoch}"));
        let team = Team::enter(&name, rank, members.len(), members, limit, Some(&is_hopeless))?;
        point!("shrink.joined");
        let built = build(&team, limit)?;
        point!("shrink.built");
        if !control.successor().is_confirmed() {
            team.check("shrink")?;
        }
        if !control.confirm(chosen.word) {
            return Err(self.timed_out());
        }
        Ok((team, built))
    }

    /// Half of the time that is left.
    fn half(&self) -> Deadline {
        let left = self.deadline.remaining();
        if left > LEAST { (left / 2).into() } else { self.deadline }
    }

    fn timed_out(&self) -> Error {
        let (control, me) = (self.control(), self.member.rank);
        let Standing { word, members } = control.standing();
        let late =
            members.iter().filter(|&&rank| rank != me && control.rank(rank).coming.load() <= word.epoch());
        let state = |rank| self.member.shared().state_of(rank);
        let missing: Vec<_> = late.map(|&rank| Missing { rank, state: state(rank) }).collect();
        Error::Timeout {
            what: "the survivors to be a team".into(),
            waited: self.started.elapsed(),
            seen: (members.len() - missing.len()) as i64,
            expected: members.len() as i64,
            missing,
            at: Box::new(self.at()),
        }
    }
}

impl Drop for Shrinking<'_> {
    fn drop(&mut self) {
        if fork::is_forked() {
            // What the others see of this rank is its parent's to say.
            return;
        }
        let status = &self.control().rank(self.member.rank).status;
        status.op_name.set(&self.op_name);
        status.op.store(self.member.operations() << 1, Ordering::Release);
        self.member.inside.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
