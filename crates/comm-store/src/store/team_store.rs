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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use comm_core::device::{Device, DeviceKind, Event, Stream};
use comm_core::hub::is_forked;
use comm_core::team::{CellRef, Member};
use comm_core::tensor::{Layout, Tensor, TensorBuf};
use comm_core::wait::Cell;
use comm_core::{Deadline, Error, Result, point};

use super::fetched::Fetched;
use super::held::Held;
use super::loan::{Lease, Loan};
use super::log::{self, Log, Shelf};
use super::record::{self, Place, Published, Record};
use super::stats::{Counters, Stats};
use super::{Awaitable, Kind, TensorStore, check_key};
use crate::directory::chain;
use crate::directory::readers::{self, Counts};
use crate::memory::Memory;
use crate::window::{Window, WindowSpec};

const OPEN: &str = "TensorStore::open";
const PUBLISH: &str = "TensorStore::publish";
const FETCH: &str = "TensorStore::fetch";
const FINISH: &str = "TensorStore::finish";
const WAIT: &str = "TensorStore::wait_consumed";
const RESET: &str = "TensorStore::reset";

/// Chains in the part of each rank. Enough for some hundred thousand keys to hang a few on each.
const CHAINS: usize = 1 << 14;

/// Behind the places of the log a part holds a bit for each of its chains, for one on which something hangs: a reset is not
/// to look at all of them.
const USED_AT: usize = log::PART_BYTES;
const USED_WORDS: usize = CHAINS / 64;

/// More records than hang on a chain: who has looked at so many goes round in a circle.
const LONGEST_CHAIN: usize = 1 << 24;

/// The [`TensorStore`] of a team, of either kind. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub struct TeamStore {
    inner: Arc<Inner>,
}

struct Inner {
    kind: Kind,
    window: Window,
    shelf: Arc<Shelf>,
    log: Log,
    /// How often it has been reset. Held for as long as records are looked at, which a reset takes away.
    round: RwLock<u64>,
    counters: Counters,
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
        let refuse =
            |why: String| Err(Error::Unsupported { backend: "store", op: format!("kind {kind}"), why });
        match kind {
            Kind::Process if member.processes() > 1 => {
                return refuse(format!(
                    "the ranks of team {:?} are in {} processes; use kind host",
                    member.name(),
                    member.processes()
                ));
            }
            Kind::Network => return refuse("stores across machines are not there yet".into()),
            Kind::Process | Kind::Host => {}
        }
        let spec = WindowSpec::bytes(USED_AT + USED_WORDS * size_of::<u64>()).signals(CHAINS);
        // Ranks that open another kind, or something else, must not meet.
        let inside = record::LAYOUT ^ kind as u64;
        let window = Window::alloc_for(OPEN, inside, member, spec, deadline)?;
        let shelf = member.share(window.id(), || Shelf::new(&window));
        let (log, round, counters) = (Log::default(), RwLock::default(), Counters::default());
        Ok(TeamStore { inner: Arc::new(Inner { kind, window, shelf, log, round, counters }) })
    }
}

/// A tensor, the event behind which it is written, and whose stream's event that is.
struct Taken {
    tensor: Tensor,
    written: Event,
    by: Stream,
}

/// One read that this rank has begun.
struct Read {
    record: Record,
    published: Published,
    round: u64,
}

/// A key, and where its records hang.
struct Key<'k> {
    text: &'k str,
    hash: u64,
    home: (usize, usize),
}

impl Inner {
    fn member(&self) -> &Arc<Member> {
        self.window.context()
    }

    fn rank(&self) -> usize {
        self.window.rank()
    }

    /// Whether there may be readers in other processes.
    fn is_abroad(&self) -> bool {
        self.member().processes() > 1
    }

    fn key<'k>(&self, op: &'static str, text: &'k str) -> Result<Key<'k>> {
        if is_forked() {
            return Err(Error::Forked);
        }
        check_key(op, text)?;
        let hash = record::hash(text);
        let home = (hash as usize % self.window.nranks(), (hash >> 32) as usize % CHAINS);
        Ok(Key { text, hash, home })
    }

    /// The record of a key on the chain that begins at `head`.
    fn find(&self, key: &Key<'_>, head: u64, deadline: Deadline) -> Result<Option<Record>> {
        let mut found = None;
        let mut length = 0;
        chain::find(head, 0, |link| self.look(key, link, &mut length, &mut found, deadline))?;
        Ok(found)
    }

    fn look(
        &self,
        key: &Key<'_>,
        link: u64,
        length: &mut usize,
        found: &mut Option<Record>,
        deadline: Deadline,
    ) -> Result<chain::Step> {
        *length += 1;
        if *length > LONGEST_CHAIN {
            return Err(Error::bad_peer("a chain of the store goes round in a circle"));
        }
        let record = self.shelf.record(&self.window, link, deadline)?;
        let step = record.look(key.hash, key.text)?;
        if matches!(step, chain::Step::Found) {
            *found = Some(record);
        }
        Ok(step)
    }

    /// The record of a key that must be there.
    fn known(&self, op: &'static str, key: &Key<'_>, deadline: Deadline) -> Result<Record> {
        let head = self.window.cell(key.home.0, key.home.1)?.load();
        let found = self.find(key, head, deadline)?;
        found.ok_or_else(|| Error::UnknownKey { op, key: key.text.to_owned() })
    }

    fn publish(
        &self,
        text: &str,
        tensor: &Tensor,
        stream: &Stream,
        readers: usize,
        to: Option<DeviceKind>,
    ) -> Result<()> {
        let key = self.key(PUBLISH, text)?;
        self.member().check(PUBLISH)?;
        let most = || Error::invalid(PUBLISH, format!("{readers} readers: that is more than there can be"));
        let readers = u32::try_from(readers).map_err(|_| most())?;
        check_device(PUBLISH, tensor, stream.device())?;
        let (tensor, stream) = self.brought_to(to, tensor, stream)?;
        let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
        // Before anything is copied; whether it still holds is settled when the record is hung up.
        let head = self.window.cell(key.home.0, key.home.1)?;
        let known = head.load();
        if let Some(there) = self.find(&key, known, Deadline::default())? {
            return Err(duplicate(text, there.link));
        }
        let (tensor, place, loan) = self.reachable(&tensor)?;
        let (layout, place) = match place {
            Some((place, layout)) => (layout, Some(place)),
            None => (*tensor.layout(), None),
        };
        let written = stream.record()?;
        let record = self.log.append(&self.window, &self.shelf, record::bytes(text, layout.shape().len()))?;
        record.write(text, &Published { readers, dtype: tensor.dtype(), layout, place })?;
        let counts = record.counts()?;
        counts.set_tag(record.link as u32);
        counts.set(0, self.member().bell());
        let held = Held { tensor, written, stream, reads: Vec::new(), loan };
        self.held(self.rank())?.insert(record.link, held);
        let used = &self.window.words(key.home.0, USED_AT, USED_WORDS)?[key.home.1 / 64];
        let bit = 1 << (key.home.1 % 64);
        if used.load(Ordering::Relaxed) & bit == 0 {
            // Seen with the record at the latest, since that is hung up afterwards.
            used.fetch_or(bit, Ordering::Relaxed);
        }
        point!("store.publish");
        let (mut length, mut found) = (0, None);
        let hung = chain::push(
            (head, known),
            record.link,
            self.member().bell(),
            |link| self.look(&key, link, &mut length, &mut found, Deadline::default()),
            // It is in memory of this process.
            |next| drop(record.set_next(next)),
        );
        let refused = match hung {
            Ok(None) => None,
            Ok(Some(there)) => Some(duplicate(text, there)),
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            let held = self.held(self.rank())?.remove(&record.link);
            drop(held);
            return Err(error);
        }
        drop(round);
        self.counters.published();
        point!("store.published");
        Ok(())
    }

    /// The tensor on the kind of device on which its readers want it, and the stream that orders it there.
    fn brought_to(
        &self,
        to: Option<DeviceKind>,
        tensor: &Tensor,
        stream: &Stream,
    ) -> Result<(Tensor, Stream)> {
        let Some(kind) = to.filter(|&kind| kind != tensor.device().into()) else {
            return Ok((tensor.clone(), stream.clone()));
        };
        let target = if kind == DeviceKind::Cpu { Stream::cpu() } else { Stream::current() };
        if DeviceKind::from(target.device()) != kind {
            let why = format!("this thread has no current stream of kind {kind}; see device::with_current");
            return Err(Error::invalid(PUBLISH, why));
        }
        let through = if kind == DeviceKind::Cpu { stream } else { &target };
        if through != stream {
            through.wait(&stream.record()?)?;
        }
        let moved = tensor.to_device(target.device(), through, Deadline::default())?;
        self.counters.copied(moved.nbytes());
        Ok((moved, target))
    }

    /// The tensor where its readers can reach it: as it is if they are all in this process, else in a block of the arena of
    /// tensors, and its place there.
    #[allow(clippy::type_complexity, reason = "three things that are made together")]
    fn reachable(&self, tensor: &Tensor) -> Result<(Tensor, Option<(Place, Layout)>, Option<Loan>)> {
        if !self.is_abroad() || tensor.numel() == 0 && tensor.device().is_cpu() {
            return Ok((tensor.clone(), None, None));
        }
        check_device(PUBLISH, tensor, Device::Cpu)?;
        let arena = self.member().hub().tensors();
        let is_ours = |id: u64| arena.segments().iter().any(|segment| segment.id() == id);
        let tensor = match tensor.block() {
            Some((id, ..)) if is_ours(id) => tensor.clone(),
            _ => {
                let copy = tensor.contiguous_in(arena)?;
                self.counters.copied(copy.nbytes());
                copy
            }
        };
        let (segment, first, _) =
            tensor.block().ok_or_else(|| Error::invalid(PUBLISH, "a tensor in no block of an arena"))?;
        // From the lowest element on: those of a flipped dimension lie before the first.
        let (span, size) = (tensor.layout().span(), tensor.dtype().size());
        let back = (tensor.layout().offset() - span.start) as u64 * size as u64;
        let layout = Layout::new(tensor.shape(), tensor.strides(), tensor.layout().offset() - span.start)?;
        let loan = Loan::new(self.member())?;
        let (loan_segment, loan_offset) = loan.place();
        let place = Place { segment, base: first - back, loan_segment, loan_offset };
        Ok((tensor, Some((place, layout)), Some(loan)))
    }

    fn held(&self, rank: usize) -> Result<MutexGuard<'_, HashMap<u64, Held>>> {
        let held: &Mutex<_> =
            self.shelf.held(rank).ok_or_else(|| Error::bad_peer("a record of a rank that does not exist"))?;
        Ok(held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins a read of a key, if it hangs on the chain that begins at `head` and there is one left.
    fn begin_read(&self, key: &Key<'_>, head: u64, deadline: Deadline) -> Result<Option<Read>> {
        let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
        let Some(record) = self.find(key, head, deadline)? else { return Ok(None) };
        let published = record.read()?;
        readers::enter(record.counts()?, published.readers)
            .map_err(|counts| over_finished(FETCH, key.text, published.readers, counts))?;
        Ok(Some(Read { record, published, round: *round }))
    }

    /// The read of a tensor that has been begun, as a guard; if the tensor was not to be had, it has not been begun.
    fn reading(
        self: &Arc<Self>,
        key: &Key<'_>,
        read: Read,
        stream: &Stream,
        taken: Result<Tensor>,
    ) -> Result<Fetched> {
        let Read { record, published, round } = read;
        let tensor = match taken {
            Ok(tensor) => tensor,
            Err(error) => {
                let now = self.round.read().unwrap_or_else(PoisonError::into_inner);
                if *now == round {
                    readers::turn_back(record.counts()?);
                }
                return Err(error);
            }
        };
        self.counters.fetched();
        point!("store.fetched");
        let (store, stream, text) = (self.clone(), stream.clone(), key.text.to_owned());
        Ok(Fetched::new(tensor, move || {
            store.finish(FINISH, &text, &record, published.readers, &stream, round)
        }))
    }

    fn fetch(self: &Arc<Self>, text: &str, stream: &Stream, deadline: Deadline) -> Result<Fetched> {
        let key = self.key(FETCH, text)?;
        let head = self.window.cell(key.home.0, key.home.1)?;
        let what = format!("key {text:?} to be published");
        loop {
            let seen = head.load();
            if let Some(read) = self.begin_read(&key, seen, deadline)? {
                let taken = self.take(&read, deadline).and_then(|taken| {
                    order(stream, &taken.written, deadline)?;
                    Ok(taken.tensor)
                });
                return self.reading(&key, read, stream, taken);
            }
            let another = |now: u64| (now != seen).then_some(());
            let waited = self.member().wait(&what, head, None, 1, another, deadline);
            waited.map_err(|error| counting(error, |_| 0))?;
        }
    }

    async fn fetch_task(
        self: Arc<Self>,
        text: String,
        stream: Stream,
        deadline: Deadline,
    ) -> Result<Fetched> {
        let key = self.key(FETCH, &text)?;
        let what = format!("key {text:?} to be published");
        loop {
            let seen = self.window.cell(key.home.0, key.home.1)?.load();
            if let Some(read) = self.begin_read(&key, seen, deadline)? {
                // From here on the read is the guard's: a task that is dropped meanwhile has not fetched.
                let mut begun = Begun { store: &self, read: Some(read) };
                let taken = match begun.read.as_ref().map(|read| self.take(read, deadline)) {
                    Some(Ok(taken)) => {
                        let ordered = self.order_task(&stream, &taken.by, &taken.written, deadline).await;
                        ordered.map(|()| taken.tensor)
                    }
                    Some(Err(error)) => Err(error),
                    None => Err(self.was_reset(FETCH)),
                };
                let Some(read) = begun.read.take() else { return Err(self.was_reset(FETCH)) };
                return self.reading(&key, read, &stream, taken);
            }
            let head = self.window.task_cell(key.home.0, key.home.1)?;
            let waited =
                self.member().wait_task(&what, head, None, 1, move |now| now != seen, deadline).await;
            waited.map_err(|error| counting(error, |_| 0))?;
        }
    }

    /// As [`order`], without holding up a thread: `by` is the stream of the event.
    async fn order_task(
        &self,
        stream: &Stream,
        by: &Stream,
        event: &Event,
        deadline: Deadline,
    ) -> Result<()> {
        if !stream.device().is_cpu() {
            return stream.wait(event);
        }
        if event.query()? {
            return Ok(());
        }
        let passed = Arc::new(Cell::default());
        let (cell, member) = (passed.clone(), self.member().clone());
        by.then(move || cell.set(1, member.bell()))?;
        let what = "the producer's stream to have written";
        self.member().wait_task(what, Passed(passed), None, 1, |now| now == 1, deadline).await?;
        event.synchronize(deadline)
    }

    /// The tensor of a read, as this process reaches it.
    fn take(&self, read: &Read, deadline: Deadline) -> Result<Taken> {
        let Read { record, published, round } = read;
        let rank = log::rank_of(record.link);
        if self.member().shares_process(rank) {
            let held = self.held(rank)?;
            let held = held.get(&record.link).ok_or_else(|| self.was_reset(FETCH))?;
            let (tensor, written) = (held.tensor.clone(), held.written.clone());
            return Ok(Taken { tensor, written, by: held.stream.clone() });
        }
        let Some(place) = published.place else {
            if published.layout.numel() > 0 {
                return Err(Error::bad_peer(format!("rank {rank} tells of a tensor that is nowhere")));
            }
            let none = TensorBuf::zeros(published.layout.shape(), published.dtype)?.freeze();
            return Ok(Taken { tensor: none, written: Event::complete(), by: Stream::cpu() });
        };
        let loan = self.member().peer_segment(rank, place.loan_segment, deadline)?;
        let owner = self.member().process_of(rank).unwrap_or_default();
        let lease = Lease::take(Memory::There(loan, place.loan_offset), self.member(), owner)?;
        let segment = self.member().peer_segment(rank, place.segment, deadline)?;
        // It was there when it was taken on loan only if the producer has not been asked to forget it since.
        if *self.round.read().unwrap_or_else(PoisonError::into_inner) != *round {
            return Err(self.was_reset(FETCH));
        }
        let tensor = Tensor::import_held(&segment, place.base, published.dtype, published.layout, lease);
        let tensor = tensor.map_err(|error| {
            Error::bad_peer(format!("rank {rank} tells of a tensor that cannot be: {error}"))
        })?;
        // What goes to another process is of the host, and written when it is published.
        Ok(Taken { tensor, written: Event::complete(), by: Stream::cpu() })
    }

    fn was_reset(&self, op: &'static str) -> Error {
        Error::ConcurrentUse { op: op.to_owned(), inside: RESET.to_owned() }
    }

    /// Finishes a read. `round` is that in which it was begun: a reset has finished it since, if there is another.
    fn finish(
        &self,
        op: &'static str,
        text: &str,
        record: &Record,
        readers: u32,
        stream: &Stream,
        round: u64,
    ) -> Result<()> {
        if is_forked() {
            return Err(Error::Forked);
        }
        let now = self.round.read().unwrap_or_else(PoisonError::into_inner);
        if *now != round {
            return Ok(());
        }
        let rank = log::rank_of(record.link);
        let mut noted = Ok(());
        if self.member().shares_process(rank) {
            noted = self.note_read(rank, record, stream);
        }
        point!("store.finish");
        readers::finish(record.counts()?, readers, self.member().bell())
            .map_err(|counts| over_finished(op, text, readers, counts))?;
        noted
    }

    /// Notes behind what the reader's stream is through, before it says that it is.
    fn note_read(&self, rank: usize, record: &Record, stream: &Stream) -> Result<()> {
        let event = stream.record()?;
        if event.query()? {
            return Ok(());
        }
        let tensor = {
            let mut held = self.held(rank)?;
            let Some(held) = held.get_mut(&record.link) else { return Ok(()) };
            held.reads.push((stream.clone(), event));
            held.tensor.clone()
        };
        // Whoever drops the last handle may not wait for the key.
        tensor.record_use(stream)
    }

    fn finish_by_name(&self, text: &str, stream: &Stream) -> Result<()> {
        let key = self.key(FINISH, text)?;
        let (record, readers, round) = {
            let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
            let record = self.known(FINISH, &key, Deadline::default())?;
            let readers = record.read()?.readers;
            let counts = Counts::of(record.counts()?.load());
            if counts.finished >= counts.fetched {
                return Err(over_finished(FINISH, text, readers, counts));
            }
            (record, readers, *round)
        };
        self.finish(FINISH, text, &record, readers, stream, round)
    }

    /// The record of a key that this rank has published.
    fn own(&self, text: &str) -> Result<(Record, u32, u64)> {
        let key = self.key(WAIT, text)?;
        let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
        let record = self.known(WAIT, &key, Deadline::default())?;
        let rank = log::rank_of(record.link);
        if rank != self.rank() {
            let why = format!("key {text:?} has been published by rank {rank}: only that one waits for it");
            return Err(Error::invalid(WAIT, why));
        }
        let readers = record.read()?.readers;
        Ok((record, readers, *round))
    }

    /// The producer's stream, and behind what its readers of this process are through; none if it has been waited for
    /// before.
    #[allow(clippy::type_complexity, reason = "a stream, and other streams with an event of each")]
    fn reads(&self, record: &Record, round: u64) -> Result<Option<(Stream, Vec<(Stream, Event)>)>> {
        let now = self.round.read().unwrap_or_else(PoisonError::into_inner);
        if *now != round {
            return Err(self.was_reset(WAIT));
        }
        let (stream, reads) = match self.held(self.rank())?.get(&record.link) {
            Some(held) => (held.stream.clone(), held.reads.clone()),
            None => return Ok(None),
        };
        Ok(Some((stream, reads)))
    }

    /// The tensor goes.
    fn let_go(&self, record: &Record, round: u64) -> Result<()> {
        let held = {
            let now = self.round.read().unwrap_or_else(PoisonError::into_inner);
            if *now != round {
                return Ok(());
            }
            self.held(self.rank())?.remove(&record.link)
        };
        if let Some(held) = held {
            held.release(self.member());
        }
        Ok(())
    }

    fn wait_consumed(&self, text: &str, deadline: Deadline) -> Result<()> {
        let (record, readers, round) = self.own(text)?;
        point!("store.wait");
        let through = |word: u64| readers::are_through(word, readers).then_some(());
        let what = format!("the readers of key {text:?} to finish");
        let waited = self.member().wait(&what, record.counts()?, None, readers.into(), through, deadline);
        waited.map_err(|error| counting(error, finished))?;
        if let Some((stream, reads)) = self.reads(&record, round)? {
            reads.iter().try_for_each(|(_, event)| order(&stream, event, deadline))?;
            self.let_go(&record, round)?;
        }
        Ok(())
    }

    async fn wait_consumed_task(self: Arc<Self>, text: String, deadline: Deadline) -> Result<()> {
        let (record, readers, round) = self.own(&text)?;
        let through = move |word| readers::are_through(word, readers);
        let what = format!("the readers of key {text:?} to finish");
        let counts = record.task_counts()?;
        let waited = self.member().wait_task(&what, counts, None, readers.into(), through, deadline).await;
        waited.map_err(|error| counting(error, finished))?;
        if let Some((stream, reads)) = self.reads(&record, round)? {
            for (by, event) in &reads {
                self.order_task(&stream, by, event, deadline).await?;
            }
            self.let_go(&record, round)?;
        }
        Ok(())
    }

    fn reset(&self, deadline: Deadline) -> Result<()> {
        let mut forgotten = HashMap::new();
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
            forgotten = std::mem::take(&mut *self.held(self.rank())?);
            point!("store.reset");
            Ok(())
        })?;
        forgotten.into_values().for_each(|held| held.release(self.member()));
        Ok(())
    }
}

/// A read that is not a guard yet: taken back when it is dropped.
struct Begun<'s> {
    store: &'s Arc<Inner>,
    read: Option<Read>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let Some(read) = self.read.take().filter(|_| !is_forked()) else { return };
        let now = self.store.round.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = read.record.counts().ok().filter(|_| *now == read.round) {
            readers::turn_back(counts);
        }
    }
}

/// A cell that a stream sets when it gets there.
struct Passed(Arc<Cell>);

impl CellRef for Passed {
    fn cell(&self) -> &Cell {
        &self.0
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
        self.inner.fetch(key, stream, deadline)
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
        let fetched = self.fetch(key, stream, deadline)?;
        if fetched.device() == device {
            return Ok(fetched);
        }
        let far = if device.is_cpu() { fetched.device() } else { device };
        let through = if stream.device() == far { stream.clone() } else { Stream::current() };
        if through.device() != far {
            let why = format!(
                "neither the stream nor this thread's current stream is of {far}; see device::with_current"
            );
            return Err(Error::Unsupported { backend: "store", op: format!("fetch to {device}"), why });
        }
        order(&through, &stream.record()?, deadline)?;
        let moved = fetched.to_device(device, &through, deadline)?;
        self.inner.counters.copied(moved.nbytes());
        // The read ends behind the copy.
        if through != *stream {
            order(stream, &through.record()?, deadline)?;
        }
        Ok(fetched.with_tensor(moved))
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

/// How many readers have finished, by the word that was waited for.
fn finished(word: i64) -> i64 {
    Counts::of(word as u64).finished.into()
}

/// A time-out with what was seen as a number that says something.
fn counting(error: Error, number: impl Fn(i64) -> i64) -> Error {
    match error {
        Error::Timeout { what, waited, missing, seen, expected, at } => {
            Error::Timeout { what, waited, missing, seen: number(seen), expected, at }
        }
        error => error,
    }
}

/// Makes a stream go on behind an event; that of the host waits here, no longer than the deadline.
fn order(stream: &Stream, event: &Event, deadline: Deadline) -> Result<()> {
    if stream.device().is_cpu() { event.synchronize(deadline) } else { stream.wait(event) }
}

fn check_device(op: &'static str, tensor: &Tensor, device: Device) -> Result<()> {
    if tensor.device() == device {
        return Ok(());
    }
    Err(Error::DeviceMismatch { op, seen: tensor.device().to_string(), expected: device.to_string() })
}

fn duplicate(key: &str, link: u64) -> Error {
    Error::DuplicateKey { op: PUBLISH, key: key.to_owned(), rank: log::rank_of(link) }
}

fn over_finished(op: &'static str, key: &str, readers: u32, counts: Counts) -> Error {
    let (fetched, finished) = (counts.fetched as usize, counts.finished as usize);
    Error::OverFinished { op, key: key.to_owned(), readers: readers as usize, fetched, finished }
}
