//! A promise as another process holds it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use comm_core::device::Stream;
use comm_core::error::BrokenHow;
use comm_core::hub::{Hub, Peer, is_forked};
use comm_core::shm::{Memory, Pinned};
use comm_core::wait::Bell;
use comm_core::{Deadline, Error, Result, point};

use crate::error::SetError;
use crate::home::{Home, Site, short};
use crate::inner::broken;
use crate::letter::Letter;
use crate::slot::{Chunk, MAGIC, SlotAt};
use crate::state::{self, End, HOME, Phase, ROWS, TASKS, THREADS, Word};
use crate::ticket::{Said, Ticket};
use crate::value::Codec;

const OP: &str = "Promise::attach";

/// What a ticket has led to.
pub(crate) enum Attached {
    /// A promise of this process.
    Here(Arc<dyn Site>),
    /// One of another.
    There(Claim),
}

/// A promise whose future is in another process.
pub(crate) struct Claim {
    hub: Arc<Hub>,
    peer: Arc<Peer>,
    slot: SlotAt,
    said: Said,
    /// Its row in the slot; none if it had its value already when it was attached, or the right has been handed on.
    row: Option<usize>,
}

impl Claim {
    /// Claims the promise of a ticket.
    ///
    /// # Errors
    /// See [`Promise::attach`](crate::Promise::attach).
    pub(crate) fn attach<T>(ticket: &Ticket<T>, form: &str, deadline: Deadline) -> Result<Attached> {
        let home = Home::get()?;
        let hub = home.hub().clone();
        ticket.check(&hub, form)?;
        let said = ticket.said;
        if said.home == hub.nonce() {
            let site = home.find(said.segment, said.offset, said.index as usize);
            // Whatever its type: what is in the slot now may be another promise.
            let site = site.filter(|site| site.generation() == said.generation);
            return site.map(Attached::Here).ok_or_else(|| gone(&said, BrokenHow::Unwanted, None));
        }
        let Some(peer) = hub.meet(said.home, deadline)? else {
            return Err(gone(&said, BrokenHow::HomeGone, None));
        };
        let Some(segment) = peer.await_segment(said.segment, deadline) else {
            return Err(match lost(&peer) {
                Some(how) => gone(&said, how, peer.pid()),
                None => Error::bad_peer("a ticket that tells of a segment which its home has not sent"),
            });
        };
        let chunk: Pinned<Chunk> = Memory::There(segment, said.offset).pin(0)?;
        if chunk.magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::bad_peer("a ticket that tells of a place where no promises are"));
        }
        let slot = SlotAt::new(chunk, said.index as usize)
            .ok_or_else(|| Error::bad_peer("a ticket that tells of a slot which does not exist"))?;
        let mut claim = Claim { hub, peer, slot, said, row: None };
        claim.row = claim.enter()?;
        point!("promise.claimed");
        Ok(Attached::There(claim))
    }

    /// Takes a row; none if it has its value already. Who does so in the moment in which the home loses the link, and has not heard
    /// of that, is not broken with the others: the promise breaks when he drops it, as he does when he cannot set it, or dies.
    fn enter(&self) -> Result<Option<usize>> {
        let word = Word(self.slot.seat.cell.load());
        if self.is_open(word)?.is_none() {
            return Ok(None);
        }
        let me = short(self.hub.nonce());
        let is_mine = |&row: &usize| self.slot.enter(row, me, self.said.generation);
        let Some(row) = (0..ROWS).filter(|&row| row != HOME).find(is_mine) else {
            let why = format!(
                "{} is held {} times by other processes, as often as it can be",
                self.name(),
                ROWS - 1
            );
            return Err(Error::invalid(OP, why));
        };
        match state::claim(&self.slot.seat.cell, self.said.generation, row) {
            Ok(_) => Ok(Some(row)),
            Err(word) => {
                self.leave_row(row);
                self.is_open(word).map(|_| None)
            }
        }
    }

    /// Whether it can be claimed; `None` if it has its value, or somebody is about to set it.
    fn is_open(&self, word: Word) -> Result<Option<()>> {
        match word.phase() {
            _ if word.generation() != self.said.generation => Err(self.gone(BrokenHow::Unwanted)),
            Phase::Open => Ok(Some(())),
            Phase::Set | Phase::Returned | Phase::Writing => Ok(None),
            Phase::Broken => Err(broken(self.name(), word, None)),
            Phase::Free => Err(self.gone(BrokenHow::Unwanted)),
        }
    }

    fn leave_row(&self, row: usize) {
        let me = short(self.hub.nonce());
        self.slot.leave(row, me, self.said.generation);
    }

    pub(crate) fn name(&self) -> String {
        name(&self.said)
    }

    fn gone(&self, how: BrokenHow) -> Error {
        gone(&self.said, how, self.peer.pid())
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Whether a value or an error has been set. Not any more when the home has done with it.
    pub(crate) fn is_set(&self) -> bool {
        let word = Word(self.slot.seat.cell.load());
        word.generation() == self.said.generation && matches!(word.phase(), Phase::Set | Phase::Returned)
    }

    /// Whether it could be set now.
    ///
    /// # Errors
    /// Why not, with nothing as the value.
    pub(crate) fn check(&self) -> Result<usize, SetError<()>> {
        if is_forked() {
            return Err(SetError::failed((), Error::Forked));
        }
        // The home breaks it for a link that is lost, but this process may hear of that first.
        if let Some(how) = lost(&self.peer) {
            return Err(SetError::broken((), self.gone(how)));
        }
        let word = Word(self.slot.seat.cell.load());
        match self.row {
            Some(row) if word.generation() == self.said.generation && word.phase() == Phase::Open => Ok(row),
            _ => Err(self.refused(word)),
        }
    }

    fn refused(&self, word: Word) -> SetError<()> {
        match word.phase() {
            _ if word.generation() != self.said.generation => {
                SetError::broken((), self.gone(BrokenHow::Unwanted))
            }
            Phase::Broken => SetError::broken((), broken(self.name(), word, None)),
            Phase::Writing if word.is_given_up() => SetError::broken((), broken(self.name(), word, None)),
            // Others hold it; this one does no more, since the home has lost the link to this process.
            Phase::Open => SetError::broken((), self.gone(BrokenHow::LinkBroke)),
            _ => SetError::AlreadySet { value: (), what: self.name() },
        }
    }

    /// A value, ready to be set.
    pub(crate) fn pack<T>(&self, codec: Codec<T>, value: &T, through: Option<&Stream>) -> Result<Letter> {
        Letter::of_value(&self.hub, codec, value, through)
    }

    /// Sets it to what a letter says.
    ///
    /// # Errors
    /// Why not, with nothing as the value.
    pub(crate) fn set(&self, letter: Letter) -> Result<(), SetError<()>> {
        let row = self.check()?;
        point!("promise.packed");
        // Then the home has them, and the value outlives this process.
        if !self.hub.await_pushed(self.said.home, &letter.segments, Deadline::default()) {
            if let Some(how) = lost(&self.peer) {
                return Err(SetError::broken((), self.gone(how)));
            }
            let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
            let why = Error::io(format!("sending the segments of {}", self.name()), cause);
            return Err(SetError::failed((), why));
        }
        let (cell, generation) = (&self.slot.seat.cell, self.said.generation);
        state::begin(cell, generation, row).map_err(|word| self.refused(word))?;
        point!("promise.begun");
        letter.write(&self.slot.letter);
        point!("promise.writing");
        state::finish(cell, generation, row, self).map_err(|word| self.refused(word))?;
        point!("promise.set");
        if !letter.held.is_empty() {
            let (slot, peer) = (self.slot.clone(), self.peer.clone());
            let is_deserted =
                move || peer.is_past_writing() || state::is_returned(&slot.seat.cell, generation);
            self.hub.keep(letter.held, is_deserted);
        }
        Ok(())
    }

    /// Leaves the right to set it to whoever claims the ticket next.
    pub(crate) fn hand_on<T>(mut self) -> Ticket<T> {
        if let Some(row) = self.row.take() {
            // Of one who has set or broken it the name stays: the home asks for it later.
            if state::hand_on(&self.slot.seat.cell, self.said.generation, row).is_ok() {
                self.leave_row(row);
            }
        }
        Ticket::again(self.said)
    }
}

/// Wakes who waits for it at its home.
impl Bell for Claim {
    fn ring(&self, slot: usize, _tag: u32) {
        point!("promise.ringing");
        match slot {
            THREADS => self.slot.seat.park.wake(),
            TASKS => {
                self.slot.mark();
                self.peer.ring();
            }
            _ => {}
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(row) = self.row.take() else { return };
        if is_forked() {
            // The parent holds it.
            return;
        }
        point!("promise.dropped");
        let how = if std::thread::panicking() { End::Panicked } else { End::Dropped };
        if let Ok(word) = state::part(&self.slot.seat.cell, self.said.generation, row, how, self)
            && word.phase() == Phase::Open
        {
            // Others hold it, and more may come. Otherwise the home asks later who it was.
            self.leave_row(row);
        }
    }
}

fn name(said: &Said) -> String {
    format!("promise {}/{}/{}/{}", said.segment, said.offset, said.index, said.generation)
}

/// Why a home cannot be reached any more, if that is so.
fn lost(home: &Peer) -> Option<BrokenHow> {
    if home.is_dead() || home.is_past_writing() {
        Some(BrokenHow::HomeGone)
    } else {
        home.is_link_over().then_some(BrokenHow::LinkBroke)
    }
}

fn gone(said: &Said, how: BrokenHow, pid: Option<u32>) -> Error {
    Error::BrokenPromise { what: name(said), how, pid }
}
