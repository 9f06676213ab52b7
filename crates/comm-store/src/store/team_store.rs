//! The store of a team: keys and records in memory that all ranks reach, tensors where their producers have them.
//!
//! A key has a home by its hash: a rank, and a cell in that one's part of a window. From the cell hangs the chain of the
//! records whose keys belong there (`directory::chain`), each in the log of the rank that published it (`log`). To publish
//! is to write a record and to hang it on the chain; to fetch is to find it there, or to wait for another head. A record's
//! own cell counts its readers (`directory::readers`), and is what the producer waits for. The ranks that share a process
//! also share the tensors themselves (`log::Shelf`).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use comm_core::device::{Device, DeviceKind, Stream};
use comm_core::hub::is_forked;
use comm_core::team::Member;
use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result, point};

use super::fetched::Fetched;
use super::held::Held;
use super::log::{self, Log, Shelf};
use super::record::{self, Published, Record};
use super::stats::{Counters, Stats};
use super::turn::{Taken, Turn};
use super::{Awaitable, Kind, TensorStore, check_key};
use crate::directory::chain;
use crate::directory::readers::Counts;
use crate::window::{Inside, Window, WindowSpec};

const OPEN: &str = "TensorStore::open";
const RESET: &str = "TensorStore::reset";

/// Chains in the part of each rank. Enough for some hundred thousand keys to hang a few on each.
const CHAINS: usize = 1 << 14;

/// Behind the places of the log a part holds a bit for each of its chains, for one on which something hangs: a reset is not
/// to look at all of them.
const USED_AT: usize = log::PART_BYTES;
const USED_WORDS: usize = CHAINS / 64;

/// More records than hang on a chain: whoever has looked at so many is led about.
const LONGEST_CHAIN: usize = 1 << 24;

/// The [`TensorStore`] of a team, of either kind. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub struct TeamStore {
    pub(super) inner: Arc<Inner>,
}

/// What the handles of a store share.
pub(super) struct Inner {
    pub(super) kind: Kind,
    pub(super) shelf: Arc<Shelf>,
    pub(super) window: Window,
    pub(super) log: Log,
    /// How often it has been reset. Held for as long as records are looked at, which a reset takes away.
    pub(super) round: RwLock<u64>,
    /// How many reads of this rank have a tensor and are not finished, by record.
    pub(super) reading: Mutex<HashMap<u64, usize>>,
    pub(super) turn: Turn,
    pub(super) counters: Counters,
}

impl fmt::Debug for TeamStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TeamStore({}, {:?})", self.inner.kind, self.inner.member())
    }
}

impl TeamStore {
    /// See [`open`](super::open).
    ///
    /// # Errors
    /// Those of [`open`](super::open).
    pub fn open(member: &Arc<Member>, deadline: impl Into<Deadline>) -> Result<TeamStore> {
        let kind = if member.processes() == 1 { Kind::Process } else { Kind::Host };
        TeamStore::open_kind(member, kind, deadline)
    }

    /// See [`open_kind`](super::open_kind).
    ///
    /// # Errors
    /// Those of [`open_kind`](super::open_kind).
    pub fn open_kind(member: &Arc<Member>, kind: Kind, deadline: impl Into<Deadline>) -> Result<TeamStore> {
        let refused = match kind {
            Kind::Process if member.processes() > 1 => Some(format!(
                "the ranks of team {:?} are in {} processes; use kind host",
                member.name(),
                member.processes()
            )),
            Kind::Process | Kind::Host => None,
            _ => Some("stores across machines are not there yet".into()),
        };
        // Who asks for what cannot be comes to the others all the same: they may ask for something else, and wait for him.
        let spec = match refused {
            Some(_) => WindowSpec::bytes(0),
            None => WindowSpec::bytes(USED_AT + USED_WORDS * size_of::<u64>()).signals(CHAINS),
        };
        // Ranks that open another kind, or something else, must not meet.
        let inside = Inside { layout: record::LAYOUT, kind: Some(kind) };
        let window = Window::alloc_for(OPEN, inside, member, spec, deadline)?;
        if let Some(why) = refused {
            return Err(Error::Unsupported { backend: "store", op: format!("kind {kind}"), why });
        }
        let shelf = window.local().upon(|| Shelf::new(member.size()));
        let shelf = shelf.ok_or_else(|| Error::invalid(OPEN, "something else is made on the window"))?;
        let inner = Inner {
            kind,
            window,
            shelf,
            log: Log::default(),
            round: RwLock::default(),
            reading: Mutex::default(),
            turn: Turn::default(),
            counters: Counters::default(),
        };
        Ok(TeamStore { inner: Arc::new(inner) })
    }
}

/// A record, for how many readers it is, and in which round it was found: a reset takes it away.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) record: Record,
    pub(super) readers: u32,
    pub(super) round: u64,
}

impl Entry {
    pub(super) fn new(record: Record, published: &Published, round: u64) -> Entry {
        Entry { record, readers: published.readers, round }
    }

    /// The rank that published it.
    pub(super) fn rank(&self) -> usize {
        log::rank_of(self.record.link)
    }
}

/// A way along a chain, which somebody may have bent into a circle: it looks out for the record that it came to as its first,
/// second, fourth, eighth and so on (R. P. Brent, BIT 20, 1980).
pub(super) struct Walk {
    round: u64,
    length: usize,
    mark: u64,
    found: Option<Record>,
}

impl Walk {
    pub(super) fn in_round(round: u64) -> Walk {
        Walk { round, length: 0, mark: 0, found: None }
    }

    pub(super) fn step(&mut self, link: u64) -> Result<()> {
        if link == self.mark || self.length == LONGEST_CHAIN {
            return Err(Error::bad_peer("a chain of the store goes round in a circle"));
        }
        self.length += 1;
        if self.length.is_power_of_two() {
            self.mark = link;
        }
        Ok(())
    }
}

/// A key, and where its records hang.
pub(super) struct Key<'k> {
    pub(super) text: &'k str,
    pub(super) hash: u64,
    pub(super) home: (usize, usize),
}

impl Inner {
    pub(super) fn member(&self) -> &Arc<Member> {
        self.window.context()
    }

    pub(super) fn rank(&self) -> usize {
        self.window.rank()
    }

    /// Whether there may be readers in other processes.
    pub(super) fn is_abroad(&self) -> bool {
        self.member().processes() > 1
    }

    pub(super) fn key<'k>(&self, op: &'static str, text: &'k str) -> Result<Key<'k>> {
        if is_forked() {
            return Err(Error::Forked);
        }
        check_key(op, text)?;
        let hash = record::hash(text);
        let home = (hash as usize % self.window.nranks(), (hash >> 32) as usize % CHAINS);
        Ok(Key { text, hash, home })
    }

    /// The record of a key on the chain that begins at `head`, published in this round.
    pub(super) fn find(
        &self,
        key: &Key<'_>,
        head: u64,
        round: u64,
        deadline: Deadline,
    ) -> Result<Option<Record>> {
        let mut walk = Walk::in_round(round);
        chain::find(head, 0, |link| self.look(key, link, &mut walk, deadline))?;
        Ok(walk.found)
    }

    pub(super) fn look(
        &self,
        key: &Key<'_>,
        link: u64,
        walk: &mut Walk,
        deadline: Deadline,
    ) -> Result<chain::Step> {
        walk.step(link)?;
        match log::age(link, walk.round) {
            0 => {}
            // This rank has forgotten, and the chain's not yet: nothing is there any more.
            1 => return Ok(chain::Step::Behind(0)),
            _ => {
                return Err(Error::bad_peer(format!(
                    "a chain of the store leads to another round, by {link:#x}"
                )));
            }
        }
        let record = self.shelf.record(&self.window, link, deadline)?;
        let step = record.look(key.hash, key.text)?;
        if matches!(step, chain::Step::Found) {
            walk.found = Some(record);
        }
        Ok(step)
    }

    /// The record of a key that must be there.
    pub(super) fn known(
        &self,
        op: &'static str,
        key: &Key<'_>,
        round: u64,
        deadline: Deadline,
    ) -> Result<Record> {
        let head = self.window.cell(key.home.0, key.home.1)?.load();
        let found = self.find(key, head, round, deadline)?;
        found.ok_or_else(|| Error::UnknownKey { op, key: key.text.to_owned() })
    }

    pub(super) fn held(&self, rank: usize) -> Result<MutexGuard<'_, HashMap<u64, Held>>> {
        let held: &Mutex<_> =
            self.shelf.held(rank).ok_or_else(|| Error::bad_peer("a record of a rank that does not exist"))?;
        Ok(held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The reads of this rank that go on.
    pub(super) fn reading(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something may hang on a chain.
    pub(super) fn note_used(&self, home: (usize, usize)) -> Result<()> {
        let used = &self.window.words(home.0, USED_AT, USED_WORDS)?[home.1 / 64];
        let bit = 1 << (home.1 % 64);
        if used.load(Ordering::Relaxed) & bit == 0 {
            // Seen with the record at the latest, since that is hung up afterwards.
            used.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Holds resets off, if there has been none since an entry was found.
    pub(super) fn same_round(&self, op: &'static str, entry: &Entry) -> Result<RwLockReadGuard<'_, u64>> {
        let now = self.round.read().unwrap_or_else(PoisonError::into_inner);
        if *now == entry.round { Ok(now) } else { Err(was_reset(op)) }
    }

    /// Before this rank publishes or waits for readers.
    pub(super) fn no_reset(&self, op: &'static str) -> Result<Taken<'_>> {
        self.turn.share().ok_or_else(|| was_reset(op))
    }

    pub(super) fn reset(&self, deadline: Deadline) -> Result<()> {
        if is_forked() {
            return Err(Error::Forked);
        }
        let _alone = self.turn.alone().ok_or_else(|| Error::ConcurrentUse {
            op: RESET.to_owned(),
            inside: "TensorStore::publish, wait_consumed, or reset".to_owned(),
        })?;
        self.window.reset_by(RESET, deadline, || {
            let mut round = self.round.write().unwrap_or_else(PoisonError::into_inner);
            *round += 1;
            for (i, used) in self.window.words(self.rank(), USED_AT, USED_WORDS)?.iter().enumerate() {
                let mut bits = used.swap(0, Ordering::Relaxed);
                while bits != 0 {
                    let chain = i * 64 + bits.trailing_zeros() as usize;
                    self.window.cell(self.rank(), chain)?.set(0, self.member().bell());
                    bits &= bits - 1;
                }
            }
            self.log.rewind();
            self.reading().clear();
            point!("store.reset");
            Ok(())
        })?;
        // Only now have all forgotten: until then a rank may take what it has found, or note how far it has read it. If not
        // all have come, the team is over, and what was published stays to be found.
        let round = *self.round.read().unwrap_or_else(PoisonError::into_inner);
        let forgotten: Vec<Held> = {
            let mut held = self.held(self.rank())?;
            held.extract_if(|_, held| held.round < round).map(|(_, held)| held).collect()
        };
        let behind = forgotten.iter().try_for_each(Held::go_behind_readers);
        forgotten.into_iter().for_each(|held| held.release(self.member()));
        behind
    }
}

impl TensorStore for TeamStore {
    fn kind(&self) -> Kind {
        self.inner.kind
    }

    fn context(&self) -> &Arc<Member> {
        self.inner.member()
    }

    fn publish(
        &self,
        key: &str,
        tensor: &Tensor,
        stream: &Stream,
        readers: usize,
        to: Option<DeviceKind>,
    ) -> Result<()> {
        self.inner.publish(key, tensor, stream, readers, to)
    }

    fn fetch(&self, key: &str, stream: &Stream, deadline: Deadline) -> Result<Fetched> {
        self.inner.fetch(key, stream, None, deadline)
    }

    fn fetch_async<'s>(&'s self, key: &str, stream: &Stream, deadline: Deadline) -> Awaitable<'s, Fetched> {
        Box::pin(self.inner.clone().fetch_task(key.to_owned(), stream.clone(), deadline))
    }

    fn fetch_to_device(
        &self,
        key: &str,
        stream: &Stream,
        device: Device,
        deadline: Deadline,
    ) -> Result<Fetched> {
        self.inner.fetch(key, stream, Some(device), deadline)
    }

    fn finish(&self, key: &str, stream: &Stream) -> Result<()> {
        self.inner.finish_by_name(key, stream)
    }

    fn wait_consumed(&self, key: &str, deadline: Deadline) -> Result<()> {
        self.inner.wait_consumed(key, deadline)
    }

    fn wait_consumed_async<'s>(&'s self, key: &str, deadline: Deadline) -> Awaitable<'s, ()> {
        Box::pin(self.inner.clone().wait_consumed_task(key.to_owned(), deadline))
    }

    fn barrier(&self, deadline: Deadline) -> Result<()> {
        self.inner.member().barrier(deadline)
    }

    fn reset(&self, deadline: Deadline) -> Result<()> {
        self.inner.reset(deadline)
    }

    fn stats(&self) -> Stats {
        self.inner.counters.read()
    }
}

pub(super) fn was_reset(op: &'static str) -> Error {
    Error::ConcurrentUse { op: op.to_owned(), inside: RESET.to_owned() }
}

/// A time-out with what was seen as a number that says something.
pub(super) fn counting(error: Error, number: impl Fn(i64) -> i64) -> Error {
    match error {
        Error::Timeout { what, waited, missing, seen, expected, at } => {
            Error::Timeout { what, waited, missing, seen: number(seen), expected, at }
        }
        error => error,
    }
}

pub(super) fn over_finished(op: &'static str, key: &str, readers: u32, counts: Counts) -> Error {
    let (fetched, finished) = (counts.fetched as usize, counts.finished as usize);
    Error::OverFinished { op, key: key.to_owned(), readers: readers as usize, fetched, finished }
}
