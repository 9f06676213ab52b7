//! What stands behind an arena: how a range is found, given memory, and taken back.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use super::free_list::FreeList;
use super::keep::Keep;
use super::limits::{self, Reclaim};
use super::pages::Pages;
use super::{Access, Budget, Segment, ShmError, Stats, fork};

/// Alignment of blocks, a cache line, and the unit in which they are made.
const ALIGN: u64 = 64;
/// Sparse size of the first segment; each further one is twice as large, up to 2^10 times.
const FIRST: u64 = 64 << 20;
const DOUBLINGS: usize = 10;
/// What is reserved from the system at once, at most.
const CHUNK: u64 = 1 << 20;
/// What is kept for recycling, at least, unless the limit is small.
const FLOOR: u64 = 16 << 20;
/// Give back only when it is worth a system call: this many chunks.
const WORTH: u64 = 4;
/// How many of the tightest free ranges are looked at for one that has memory already.
const LOOK: usize = 4;

/// Called with each new segment.
pub(super) type OnGrow = dyn Fn(&Arc<Segment>) + Send + Sync;

/// Where a block lies.
pub(super) struct Place {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: u64,
    pub(super) generation: u64,
    pool: usize,
}

/// A place, and what of it must be written to make it zero.
pub(super) type Placed = (Place, Vec<Range<u64>>);

/// What arena and blocks share.
///
/// Locks, in this order: `slow`, `state`. `slow` is held while memory is reserved or given back, and only there, so
/// the two cannot cross; `state` is held for arithmetic only. A range that lacks memory is handed out under `slow` alone,
/// and a chunk is marked as having none before it is punched, so nobody is handed a range that is being punched.
/// `on_grow` runs under neither, and is not kept here: it lives as long as the arena's handles, not as its blocks.
pub(super) struct Inner {
    access: Access,
    budget: Budget,
    chunk: u64,
    slow: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    /// All segments, also those that `on_grow` is being shown.
    segments: Vec<Arc<Segment>>,
    pools: Vec<Pool>,
    blocks: u64,
    used: u64,
    generation: u64,
    keep: Keep,
}

struct Pool {
    segment: Arc<Segment>,
    free: FreeList,
    pages: Pages,
}

impl Inner {
    pub(super) fn new(access: Access, budget: Budget) -> Inner {
        let limit = budget.limit();
        let page = rustix::param::page_size() as u64;
        let chunk = 1 << (limit / 64).clamp(page, CHUNK.max(page)).ilog2();
        let state = State {
            segments: Vec::new(),
            pools: Vec::new(),
            blocks: 0,
            used: 0,
            generation: 0,
            keep: Keep::new(FLOOR.min(limit / 8), Instant::now()),
        };
        Inner { access, budget, chunk, slow: Mutex::new(()), state: Mutex::new(state) }
    }

    /// A place for `len` bytes, and, if the block is to be zero, what of it is not known to be.
    pub(super) fn alloc(&self, len: u64, zeroed: bool, on_grow: &OnGrow) -> Result<Placed, ShmError> {
        if fork::is_forked() {
            return Err(ShmError::Forked);
        }
        if len > self.budget.limit() {
            return Err(self.budget.over(len, self.budget.used()));
        }
        let size = size_of_block(len);
        {
            let mut state = lock(&self.state);
            if let Some((pool, offset)) = state.find_reserved(size, LOOK) {
                let place = state.take(pool, offset, size);
                let dirty = self.hand_out(&mut state, &place, size, zeroed);
                return Ok((place, dirty));
            }
        }
        let placed = self.alloc_slowly(len, size, zeroed, on_grow);
        // Whoever wanted to give memory back meanwhile found `slow` held and left it to this thread.
        self.settle();
        placed
    }

    fn alloc_slowly(&self, len: u64, size: u64, zeroed: bool, on_grow: &OnGrow) -> Result<Placed, ShmError> {
        let mut fresh = None;
        loop {
            {
                let _slow = lock(&self.slow);
                if let Some(pool) = fresh.take() {
                    lock(&self.state).pools.push(pool);
                }
                if let Some(placed) = self.take_reserving(len, size, zeroed)? {
                    return Ok(placed);
                }
            }
            // A segment that was just pushed has room for `size`, and only holders of `slow` take what has no memory
            // yet, so this is reached once.
            let segment = self.grow(len, size)?;
            lock(&self.state).segments.push(segment.clone());
            on_grow(&segment);
            let bytes = segment.len();
            fresh = Some(Pool { segment, free: FreeList::new(bytes), pages: Pages::new(bytes, self.chunk) });
        }
    }

    /// Takes a range and reserves the memory that it lacks. `slow` is held. `None`: there is no free range of that size.
    fn take_reserving(&self, len: u64, size: u64, zeroed: bool) -> Result<Option<Placed>, ShmError> {
        let (place, missing) = {
            let mut state = lock(&self.state);
            let Some((pool, offset)) = state.find_reserved(size, LOOK).or_else(|| state.find(size)) else {
                return Ok(None);
            };
            let place = state.take(pool, offset, size);
            let missing = state.pools[pool].pages.missing(offset, size);
            (place, missing)
        };
        if let Err(e) = self.reserve(&place.segment, &missing, len) {
            let mut state = lock(&self.state);
            state.untake(&place, size);
            // No more memory; but a looser range may have what is needed.
            let Some((pool, offset)) = state.find_reserved(size, usize::MAX) else { return Err(e) };
            let place = state.take(pool, offset, size);
            let dirty = self.hand_out(&mut state, &place, size, zeroed);
            return Ok(Some((place, dirty)));
        }
        let mut state = lock(&self.state);
        state.keep.took(bytes(&missing));
        state.pools[place.pool].pages.add(&missing);
        let dirty = self.hand_out(&mut state, &place, size, zeroed);
        Ok(Some((place, dirty)))
    }

    /// From here on the range may have any content. What of it may have that already, if that is asked.
    fn hand_out(&self, state: &mut State, place: &Place, size: u64, zeroed: bool) -> Vec<Range<u64>> {
        let pages = &mut state.pools[place.pool].pages;
        let dirty = match (zeroed, self.access) {
            (false, _) => Vec::new(),
            (true, Access::ReadOnly) => pages.dirty(place.offset, size),
            // Peers can write where there is no block yet.
            (true, Access::ReadWrite) => std::iter::once(place.offset..place.offset + size).collect(),
        };
        pages.soil(place.offset, size);
        dirty
    }

    /// Takes the memory of all `runs` from budget and system, or none. `slow` is held, `state` is not.
    fn reserve(&self, segment: &Segment, runs: &[Range<u64>], asked: u64) -> Result<(), ShmError> {
        let bytes = bytes(runs);
        if self.budget.charge(bytes, asked).is_err() {
            self.trim(u64::MAX);
            self.budget.reclaim();
            self.budget.charge(bytes, asked)?;
        }
        for (i, run) in runs.iter().enumerate() {
            if let Err(e) = segment.reserve(run.start, run.end - run.start) {
                for done in &runs[..i] {
                    // Best effort: whatever stays is zero, and is found reserved by the next who asks.
                    let _ = segment.punch(done.start, done.end - done.start);
                }
                self.budget.release(bytes);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Makes a segment in which `size` bytes fit. No lock is held.
    fn grow(&self, len: u64, size: u64) -> Result<Arc<Segment>, ShmError> {
        let limit = self.budget.limit();
        if size > limit.saturating_sub(self.budget.used()) {
            self.budget.reclaim();
            let used = self.budget.used();
            if size > limit.saturating_sub(used) {
                return Err(self.budget.over(len, used));
            }
        }
        let page = rustix::param::page_size() as u64;
        // `size` is at most the limit rounded up, and no mapping is larger than i64: no overflow below, or an error.
        let least = size.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let files = limits::file_size_limit().unwrap_or(u64::MAX);
        let most = files - files % page;
        if least > most {
            return Err(limits::over_file_size(len, files));
        }
        let count = lock(&self.state).segments.len().min(DOUBLINGS);
        let roomy = (FIRST << count).max(least.checked_next_power_of_two().unwrap_or(least));
        // More address space than the limit would never be of use, but for what is lost to fragments.
        let roomy = roomy.min(limit.checked_next_multiple_of(page).unwrap_or(most)).max(least).min(most);
        let made = match Segment::for_arena(roomy, self.access) {
            Err(ShmError::OutOfMemory { .. }) if roomy > least => Segment::for_arena(least, self.access),
            made => made,
        };
        made.map(Arc::new)
    }

    /// Takes a block's range back. Does nothing in a forked child, whose lock may be held by a thread that is not there
    /// and whose memory is its parent's.
    pub(super) fn give_back(&self, place: &Place, len: u64) {
        if fork::is_forked() {
            return;
        }
        let worth = {
            let mut state = lock(&self.state);
            state.untake(place, size_of_block(len));
            state.excess() >= WORTH * self.chunk
        };
        if worth {
            self.settle();
        }
    }

    /// Gives back what is more than to be kept. When somebody else holds `slow` he will do it: he settles after he has
    /// let go of it, and what was freed before that he sees.
    fn settle(&self) {
        loop {
            let excess = lock(&self.state).excess();
            if excess < WORTH * self.chunk {
                return;
            }
            let Some(_slow) = try_lock(&self.slow) else { return };
            let gave = self.trim(excess);
            if gave == 0 {
                return;
            }
            lock(&self.state).keep.gave(gave);
        }
    }

    /// Gives everything idle back. Waits for whoever is reserving or giving back.
    pub(super) fn trim_all(&self) {
        if fork::is_forked() {
            return;
        }
        let slow = lock(&self.slow);
        self.trim(u64::MAX);
        drop(slow);
        self.settle();
    }

    /// How it stands; see [`super::Arena::stats`].
    pub(super) fn stats(&self) -> Stats {
        if fork::is_forked() {
            return Stats::default();
        }
        let state = lock(&self.state);
        Stats {
            segments: state.pools.len(),
            blocks: state.blocks,
            mapped: state.pools.iter().map(|p| p.segment.len()).sum(),
            reserved: state.pools.iter().map(|p| p.pages.reserved()).sum(),
            used: state.used,
            idle: state.idle(),
        }
    }

    /// See [`super::Arena::segments`].
    pub(super) fn segments(&self) -> Vec<Arc<Segment>> {
        if fork::is_forked() {
            return Vec::new();
        }
        lock(&self.state).segments.clone()
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Gives up to `most` bytes of idle memory back, and says how many it were. `slow` is held, `state` is not.
    fn trim(&self, most: u64) -> u64 {
        let mut runs = Vec::new();
        {
            let mut state = lock(&self.state);
            let mut left = most;
            for (i, pool) in state.pools.iter_mut().enumerate().rev() {
                for run in pool.pages.take_idle(left) {
                    left -= run.end - run.start;
                    runs.push((i, pool.segment.clone(), run));
                }
            }
        }
        let mut gave = 0;
        for (i, segment, run) in runs {
            match segment.punch(run.start, run.end - run.start) {
                Ok(()) => gave += run.end - run.start,
                Err(e) => {
                    tracing::warn!(error = %e, "free shared memory cannot be given back");
                    lock(&self.state).pools[i].pages.put_back(run);
                }
            }
        }
        self.budget.release(gave);
        gave
    }
}

impl Reclaim for Inner {
    fn reclaim(&self) {
        // Somebody who is reserving or giving back right now is not waited for: he may be the caller, or be waiting
        // for the caller's arena.
        if let Some(slow) = try_lock(&self.slow) {
            self.trim(u64::MAX);
            drop(slow);
            self.settle();
        }
    }
}

impl Drop for Inner {
    /// There are no blocks any more. Peers may keep the segments mapped for long, so the memory goes back here.
    fn drop(&mut self) {
        if !fork::is_forked() {
            self.trim(u64::MAX);
        }
    }
}

impl State {
    /// A free range that has memory already, among the `look` tightest of each segment.
    fn find_reserved(&self, size: u64, look: usize) -> Option<(usize, u64)> {
        self.pools.iter().enumerate().find_map(|(i, pool)| {
            pool.free.fits(size).take(look).find(|at| pool.pages.is_reserved(*at, size)).map(|at| (i, at))
        })
    }

    /// A free range, the tightest of the first segment that has any.
    fn find(&self, size: u64) -> Option<(usize, u64)> {
        self.pools.iter().enumerate().find_map(|(i, pool)| Some((i, pool.free.best_fit(size)?)))
    }

    /// Takes a range that was found.
    fn take(&mut self, pool: usize, offset: u64, size: u64) -> Place {
        let it = &mut self.pools[pool];
        it.free.take(offset, size);
        it.pages.hold(offset, size);
        let segment = it.segment.clone();
        self.blocks += 1;
        self.used += size;
        self.generation += 1;
        let idle = self.idle();
        self.keep.allocated(idle);
        Place { segment, offset, generation: self.generation, pool }
    }

    /// Undoes [`State::take`].
    fn untake(&mut self, place: &Place, size: u64) {
        let it = &mut self.pools[place.pool];
        it.free.give(place.offset, size);
        it.pages.let_go(place.offset, size);
        self.blocks -= 1;
        self.used -= size;
    }

    fn idle(&self) -> u64 {
        self.pools.iter().map(|p| p.pages.idle()).sum()
    }

    fn excess(&mut self) -> u64 {
        let idle = self.idle();
        self.keep.excess(self.used, idle, Instant::now)
    }
}

/// What a block of `len` bytes takes.
fn size_of_block(len: u64) -> u64 {
    // No wrap: a length is at most a limit, and one that is near the end of u64 finds no segment.
    len.max(1).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX - (ALIGN - 1))
}

fn bytes(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// Nobody panics under these locks: a caller's `on_grow` could, but runs under none of them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
