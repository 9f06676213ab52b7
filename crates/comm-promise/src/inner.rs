//! A promise at its home: what its future and the holders of this process share.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;

use comm_core::error::{BrokenHow, PeerState};
use comm_core::hub::Peer;
use comm_core::wait::{Bell, Cell, Patience, guarded};
use comm_core::{Error, Kind, Result};

use crate::home::{self, Home, Site, lock, short};
use crate::letter;
use crate::lot::{Lot, Tenancy};
use crate::state::{self, End, HOME, Local, Phase, ROWS, Seat, TASKS, THREADS, Tasks, Word};
use crate::value::Codec;

/// Where the word of a promise lies.
enum Place<T> {
    /// In memory of this process.
    Own(Box<Seat>),
    /// In memory that other processes reach, and how the value is put together that one of them sets.
    Shared(Arc<Lot>, Codec<T>),
}

/// A promise at its home.
pub(crate) struct Inner<T> {
    place: Place<T>,
    generation: u64,
    tasks: Tasks,
    local: Local<Result<T>>,
    /// How many hold it in this process; they share one row.
    here: Mutex<usize>,
    future_taken: AtomicBool,
    /// Processes that have held it and are lost: of one that has set it the value is still to be read.
    lost: Mutex<Vec<Arc<Peer>>>,
}

/// What came of looking for the value.
pub(crate) enum Found<T> {
    /// It has ended, so.
    Ended(Result<T>),
    /// It is set, and a segment of who has set it is still on its way.
    OnItsWay(Arc<Peer>, u64),
}

impl<T: Send + 'static> Inner<T> {
    /// For threads of this process.
    pub(crate) fn own() -> Arc<Inner<T>> {
        let seat = Box::<Seat>::default();
        let generation = state::open(&seat.cell);
        Arc::new(Inner::with(Place::Own(seat), generation))
    }

    /// For processes of this host.
    pub(crate) fn shared(codec: Codec<T>) -> Result<Arc<Inner<T>>> {
        let lot = Arc::new(Home::get()?.open()?);
        let (row, index, generation) = (lot.row.clone(), lot.slot.index(), lot.generation);
        let inner = Arc::new(Inner::with(Place::Shared(lot, codec), generation));
        let site: Weak<dyn Site> = Arc::downgrade(&(inner.clone() as Arc<dyn Site>));
        row.enter(index, site);
        Ok(inner)
    }

    fn with(place: Place<T>, generation: u64) -> Inner<T> {
        Inner {
            place,
            generation,
            tasks: Tasks::default(),
            local: Local::default(),
            here: Mutex::new(1),
            future_taken: AtomicBool::new(false),
            lost: Mutex::default(),
        }
    }
}

impl<T> Inner<T> {
    pub(crate) fn kind(&self) -> Kind {
        match &self.place {
            Place::Own(_) => Kind::Process,
            Place::Shared(..) => Kind::Host,
        }
    }

    /// The slot, where other processes can reach it.
    pub(crate) fn lot(&self) -> Option<(&Arc<Lot>, Codec<T>)> {
        match &self.place {
            Place::Own(_) => None,
            Place::Shared(lot, codec) => Some((lot, *codec)),
        }
    }

    fn seat(&self) -> &Seat {
        match &self.place {
            Place::Own(seat) => seat,
            Place::Shared(lot, _) => &lot.slot.seat,
        }
    }

    /// What errors call it.
    pub(crate) fn name(&self) -> String {
        match &self.place {
            Place::Own(_) => "a promise of this process".into(),
            Place::Shared(lot, _) => {
                let (segment, offset) = home::place(lot.slot.chunk());
                format!("promise {segment}/{offset}/{}/{}", lot.slot.index(), self.generation)
            }
        }
    }

    /// `false` if it has been taken before.
    pub(crate) fn take_future(&self) -> bool {
        !self.future_taken.swap(true, Ordering::AcqRel)
    }

    /// Sets it, for a holder of this process.
    ///
    /// # Errors
    /// The value, and what the word is instead.
    pub(crate) fn set(&self, value: Result<T>) -> Result<(), (Result<T>, Word)> {
        self.local.set(&self.seat().cell, self.generation, value, self)
    }

    /// Whether it has ended, with a value or without.
    pub(crate) fn has_ended(&self) -> bool {
        self.end().is_some()
    }

    /// Whether a value or an error has been set.
    pub(crate) fn is_set(&self) -> bool {
        self.end().is_some_and(|word| matches!(word.phase(), Phase::Set | Phase::Returned))
    }

    /// One more holder in this process.
    ///
    /// # Errors
    /// What the word is, if it is not open any more.
    pub(crate) fn claim_here(&self) -> Result<(), Word> {
        let mut here = lock(&self.here);
        if let Some(word) = self.end() {
            return Err(word);
        }
        if *here == 0 {
            state::claim(&self.seat().cell, self.generation, HOME)?;
        }
        *here += 1;
        Ok(())
    }

    /// A holder of this process hands the right to set on.
    pub(crate) fn hand_on_here(&self) {
        self.leave(|cell| state::hand_on(cell, self.generation, HOME));
    }

    /// A holder of this process goes.
    pub(crate) fn part_here(&self, how: End) {
        self.leave(|cell| state::part(cell, self.generation, HOME, how, self));
    }

    fn leave(&self, last: impl FnOnce(&Cell) -> Result<Word, Word>) {
        // Nobody joins a promise that has no tickets, so there is no lock, under which the waker of a task would run.
        let _here = match &self.place {
            Place::Own(_) => None,
            Place::Shared(..) => {
                let mut here = lock(&self.here);
                *here = here.saturating_sub(1);
                if *here > 0 {
                    return;
                }
                Some(here)
            }
        };
        let _ = last(&self.seat().cell);
    }

    /// The side of the future wants it no more.
    pub(crate) fn give_up(&self, how: End) {
        let _ = state::give_up(&self.seat().cell, self.generation, how, self);
    }

    /// Nobody will read it: what it has ended with goes now, and does not wait for the last holder.
    pub(crate) fn discard(&self) {
        if !self.is_consumed()
            && let Some(word) = self.end()
        {
            drop(self.take(word));
        }
    }

    /// Whether its value has been read.
    pub(crate) fn is_consumed(&self) -> bool {
        self.local.is_consumed()
    }

    pub(crate) fn end(&self) -> Option<Word> {
        state::end_of(&self.seat().cell, self.generation)
    }

    /// Waits, as a thread, until it has ended. `None` when there is no patience left.
    pub(crate) fn wait(&self, patience: &mut Patience) -> Option<Word> {
        self.seat().wait(self.generation, patience)
    }

    /// Looks, as a task, whether it has ended; else the waker is left.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Word> {
        self.seat().poll(self.generation, &self.tasks, waker)
    }

    /// Nobody waits as a task any more.
    pub(crate) fn forget_task(&self) {
        drop(self.tasks.take());
    }

    /// Has a task woken when a segment comes.
    pub(crate) fn await_segment(&self, waker: &Waker) {
        if let Some((lot, _)) = self.lot() {
            lot.home.await_segment(waker);
        }
    }

    /// Takes what it has ended with, as the word says.
    pub(crate) fn take(&self, word: Word) -> Found<T> {
        let Some(mut reading) = self.local.read() else {
            return Found::Ended(Err(Error::AlreadyConsumed { what: self.name() }));
        };
        let outcome = match word.phase() {
            Phase::Set if word.generation() != self.generation => Err(self.scribbled(word)),
            Phase::Set if word.row() == HOME => reading.value().unwrap_or_else(|| Err(self.scribbled(word))),
            Phase::Set => match self.read(word) {
                Found::Ended(outcome) => outcome,
                on_its_way => return on_its_way,
            },
            Phase::Broken => Err(self.broken(word)),
            // Given up while somebody writes, who has the value back.
            Phase::Writing => Err(self.broken(word)),
            Phase::Free | Phase::Open | Phase::Returned => Err(self.scribbled(word)),
        };
        reading.consume();
        lock(&self.lost).clear();
        Found::Ended(outcome)
    }

    /// What another process has set.
    fn read(&self, word: Word) -> Found<T> {
        let Some((lot, codec)) = self.lot() else { return Found::Ended(Err(self.scribbled(word))) };
        let Some(peer) = self.holder(word.row()) else {
            let what = format!("{} has been set by nobody that this process has met", self.name());
            return Found::Ended(Err(Error::bad_peer(what)));
        };
        let letter = &lot.slot.letter;
        match letter::fetch(letter, &peer) {
            Err(letter::OnItsWay(segment)) => Found::OnItsWay(peer, segment),
            Ok(fetched) => {
                let landlord = letter::keeps(letter).then_some(peer);
                let tenancy = Arc::new(Tenancy { lot: lot.clone(), landlord });
                Found::Ended(fetched.and_then(|fetched| fetched.unpack(codec, &tenancy)))
            }
        }
    }

    /// How it broke.
    fn broken(&self, word: Word) -> Error {
        let holder = (word.row() != HOME).then(|| self.holder(word.row())).flatten();
        let pid = holder.and_then(|peer| peer.pid());
        broken(self.name(), word, pid)
    }

    /// The process of a holder, in the one place or the other: see `Home::peer_lost`.
    fn holder(&self, row: usize) -> Option<Arc<Peer>> {
        let (lot, _) = self.lot()?;
        let id = lot.slot.holder(row, self.generation)?;
        let is_it = |peer: &&Arc<Peer>| short(peer.nonce()) == id;
        // Of one that has been lost more than once the last: over that link it has sent all that there is.
        lot.home.guest(id).or_else(|| lock(&self.lost).iter().rev().find(is_it).cloned())
    }

    fn scribbled(&self, word: Word) -> Error {
        Error::bad_peer(format!("somebody has written into the slot of {}: {word:?}", self.name()))
    }

    /// With whom it lies now, in words.
    pub(crate) fn whereabouts(&self) -> String {
        let word = Word(self.seat().cell.load());
        let holders: Vec<String> = (0..ROWS)
            .filter(|&row| word.has_holder(row))
            .map(|row| match self.holder(row) {
                _ if row == HOME => "this process".to_owned(),
                Some(peer) => match (peer.pid(), peer.state()) {
                    (Some(pid), PeerState::Stopped) => format!("process {pid}, which is stopped"),
                    (Some(pid), _) => format!("process {pid}"),
                    (None, _) => "a process of another pid namespace".to_owned(),
                },
                None => "a process that is not known".to_owned(),
            })
            .collect();
        if holders.is_empty() { "nobody, for its ticket is unclaimed".into() } else { holders.join(" and ") }
    }
}

/// Wakes whoever waits for it.
impl<T> Bell for Inner<T> {
    fn ring(&self, slot: usize, tag: u32) {
        match (&self.place, slot) {
            (Place::Shared(lot, _), _) => lot.ring(slot, tag),
            (Place::Own(seat), THREADS) => seat.park.wake(),
            (Place::Own(_), TASKS) => self.wake_task(),
            (Place::Own(_), _) => {}
        }
    }
}

impl<T> Inner<T> {
    fn wake_task(&self) {
        if let Some(waker) = self.tasks.take() {
            guarded(|| waker.wake());
        }
    }
}

impl<T: Send + 'static> Site for Inner<T> {
    fn look(&self) {
        self.wake_task();
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn guest_lost(&self, peer: &Arc<Peer>, how: End) {
        let Some((lot, _)) = self.lot() else { return };
        let id = short(peer.nonce());
        if (0..ROWS).any(|row| lot.slot.holder(row, self.generation) == Some(id)) {
            // Before anybody can see that it broke.
            lock(&self.lost).push(peer.clone());
        } else {
            return;
        }
        home::part(&lot.slot, self.generation, id, how, self);
        // It may have set it, taken the bits of those who wait, and died before it woke them.
        lot.ring(THREADS, 0);
        lot.ring(TASKS, 0);
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// The error of a promise that is broken.
pub(crate) fn broken(what: String, word: Word, pid: Option<u32>) -> Error {
    let how = match word.how() {
        End::Dropped => BrokenHow::Dropped,
        End::Panicked => BrokenHow::Panicked,
        End::Died => BrokenHow::Died,
        End::LinkBroke => BrokenHow::LinkBroke,
        End::Cancelled => BrokenHow::Cancelled,
        End::Unwanted => BrokenHow::Unwanted,
    };
    Error::BrokenPromise { what, how, pid }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A promise of which somebody has put the value there and not set it yet.
    fn half_set() -> Arc<Inner<&'static str>> {
        let inner = Inner::own();
        state::begin(&inner.seat().cell, inner.generation, HOME).unwrap();
        inner.local.put(Ok("value"));
        inner
    }

    fn is_given_back(inner: &Inner<&'static str>, how: End) {
        match inner.local.finish(&inner.seat().cell, inner.generation, inner) {
            Err((Ok("value"), word)) => assert_eq!(word.how(), how),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_value_that_is_cancelled_while_it_is_set_goes_back() {
        let inner = half_set();
        inner.give_up(End::Cancelled);
        let Found::Ended(outcome) = inner.take(inner.end().unwrap()) else { panic!("nothing is on its way") };
        assert!(
            matches!(outcome, Err(Error::BrokenPromise { how: BrokenHow::Cancelled, .. })),
            "{outcome:?}"
        );
        is_given_back(&inner, End::Cancelled);
        assert!(inner.is_consumed());
    }

    #[test]
    fn a_value_that_nobody_reads_any_more_when_it_is_set_goes_back() {
        let inner = half_set();
        inner.give_up(End::Unwanted);
        inner.discard();
        is_given_back(&inner, End::Unwanted);
    }

    #[test]
    fn a_value_that_is_set_is_read_once() {
        let inner = half_set();
        inner.local.finish(&inner.seat().cell, inner.generation, &*inner).unwrap();
        inner.give_up(End::Cancelled);
        let read = || match inner.take(inner.end().unwrap()) {
            Found::Ended(outcome) => outcome,
            Found::OnItsWay(..) => panic!("nothing is on its way"),
        };
        assert_eq!(read().unwrap(), "value");
        assert!(matches!(read(), Err(Error::AlreadyConsumed { .. })));
    }
}
