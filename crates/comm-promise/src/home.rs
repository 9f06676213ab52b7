//! The home of the promises of this process: its slots, and who has claimed them.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use comm_core::Result;
use comm_core::hub::{Attendant, Hub, Loss, Nonce, Peer};
use comm_core::shm::{Memory, Pinned};
use comm_core::wait::guarded;

use crate::lot::{Lot, Retired};
use crate::slot::{Chunk, MAGIC, SLOTS, SlotAt};
use crate::state::{self, End, HOME, Phase, ROWS};

/// A promise of this process, whatever its type.
pub(crate) trait Site: Send + Sync {
    /// Its word may have changed: wakes the task that waits.
    fn look(&self);
    /// Which of the promises it is that have been in its slot.
    fn generation(&self) -> u64;
    /// A process is lost, which may have claimed it or set it.
    fn guest_lost(&self, peer: &Arc<Peer>, how: End);
    /// Itself, to be asked for its type.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// A chunk, and the promises in its slots.
pub(crate) struct Row {
    chunk: Pinned<Chunk>,
    sites: Mutex<Vec<Option<Weak<dyn Site>>>>,
}

impl Row {
    /// Makes a promise known that lies in a slot.
    pub(crate) fn enter(&self, index: usize, site: Weak<dyn Site>) {
        if let Some(place) = lock(&self.sites).get_mut(index) {
            *place = Some(site);
        }
    }

    pub(crate) fn forget(&self, index: usize) {
        if let Some(place) = lock(&self.sites).get_mut(index) {
            *place = None;
        }
    }

    fn site(&self, index: usize) -> Option<Arc<dyn Site>> {
        lock(&self.sites).get(index)?.as_ref()?.upgrade()
    }

    fn all(&self) -> Vec<Arc<dyn Site>> {
        lock(&self.sites).iter().flatten().filter_map(Weak::upgrade).collect()
    }
}

#[derive(Default)]
struct Slab {
    rows: Vec<Arc<Row>>,
    free: Vec<(Arc<Row>, usize)>,
}

/// The home of a process.
pub(crate) struct Home {
    hub: Arc<Hub>,
    slab: Mutex<Slab>,
    /// All processes that have links with this one, by how they enter themselves in slots.
    guests: Mutex<HashMap<u64, Arc<Peer>>>,
    /// Slots that somebody was writing when they were let go of.
    limbo: Mutex<Vec<Retired>>,
    /// Tasks that wait for a segment.
    awaiting: Mutex<Vec<Waker>>,
    /// Handles that the liveness thread has done with: theirs may be the last ones, and a value in there is the user's, so the
    /// reactor drops them.
    done_with: Mutex<Vec<Arc<dyn Site>>>,
}

static HOUSE: Mutex<Option<Arc<Home>>> = Mutex::new(None);

/// How a process enters itself in a slot.
pub(crate) fn short(nonce: Nonce) -> u64 {
    // Never 0, which is nobody.
    (nonce.as_u128() as u64).max(1)
}

impl Home {
    /// The home of this process, made now if need be.
    pub(crate) fn get() -> Result<Arc<Home>> {
        let hub = Hub::get()?;
        let mut house = lock(&HOUSE);
        if let Some(home) = &*house {
            return Ok(home.clone());
        }
        let home = Arc::new(Home {
            hub: hub.clone(),
            slab: Mutex::default(),
            guests: Mutex::default(),
            limbo: Mutex::default(),
            awaiting: Mutex::default(),
            done_with: Mutex::default(),
        });
        hub.attend(home.clone());
        *house = Some(home.clone());
        Ok(home)
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// A slot for a promise.
    pub(crate) fn open(self: &Arc<Self>) -> Result<Lot> {
        let (row, index) = loop {
            if let Some(free) = lock(&self.slab).free.pop() {
                break free;
            }
            self.grow()?;
        };
        let chunk = row.chunk.clone();
        let slot =
            SlotAt::new(chunk, index).ok_or_else(|| comm_core::Error::invalid("Promise::new", "no slot"))?;
        slot.vacate();
        let generation = state::open(&slot.seat.cell);
        Ok(Lot { home: self.clone(), row, slot, generation })
    }

    /// One more chunk. Two threads that need one at the same moment may each make one.
    fn grow(&self) -> Result<()> {
        let block = Arc::new(self.hub.windows().alloc_zeroed(size_of::<Chunk>() as u64)?);
        let chunk: Pinned<Chunk> = Memory::Here(block).pin(0)?;
        chunk.magic.store(MAGIC, Ordering::Release);
        let sites = Mutex::new(vec![None; SLOTS]);
        let row = Arc::new(Row { chunk, sites });
        let mut slab = lock(&self.slab);
        slab.rows.push(row.clone());
        slab.free.extend((0..SLOTS).rev().map(|index| (row.clone(), index)));
        Ok(())
    }

    /// Takes a slot back.
    pub(crate) fn retire(&self, retired: Retired) {
        if retired.free(self) {
            lock(&self.slab).free.push((retired.row, retired.slot.index()));
        } else {
            lock(&self.limbo).push(retired);
        }
    }

    pub(crate) fn guest(&self, id: u64) -> Option<Arc<Peer>> {
        lock(&self.guests).get(&id).cloned()
    }

    /// The promise in a slot that a ticket tells of.
    pub(crate) fn find(&self, segment: u64, offset: u64, index: usize) -> Option<Arc<dyn Site>> {
        let rows = lock(&self.slab).rows.clone();
        let row = rows.iter().find(|row| place(&row.chunk) == (segment, offset))?;
        row.site(index)
    }

    /// Wakes a task when a segment has come.
    pub(crate) fn await_segment(&self, waker: &Waker) {
        let waker = waker.clone();
        lock(&self.awaiting).push(waker);
    }

    fn rows(&self) -> Vec<Arc<Row>> {
        lock(&self.slab).rows.clone()
    }
}

/// Where a chunk of this process lies.
pub(crate) fn place(chunk: &Pinned<Chunk>) -> (u64, u64) {
    chunk.memory().block().map_or((0, 0), |block| (block.segment().id(), block.offset()))
}

impl Attendant for Home {
    fn peer_came(&self, peer: &Arc<Peer>) {
        lock(&self.guests).insert(short(peer.nonce()), peer.clone());
    }

    fn peer_lost(&self, peer: &Arc<Peer>, how: Loss) {
        let id = short(peer.nonce());
        let is_dead = how == Loss::Died;
        let how = if is_dead { End::Died } else { End::LinkBroke };
        let sites: Vec<Arc<dyn Site>> = self.rows().iter().flat_map(|row| row.all()).collect();
        // Each promise is told before the guest is forgotten, so whoever reads what that one has set finds it here or there.
        sites.iter().for_each(|site| site.guest_lost(peer, how));
        for retired in &*lock(&self.limbo) {
            part(&retired.slot, retired.generation, id, how, &NoBell);
        }
        // One that lives may have set more before it noticed.
        if is_dead {
            let mut guests = lock(&self.guests);
            if guests.get(&id).is_some_and(|there| Arc::ptr_eq(there, peer)) {
                guests.remove(&id);
            }
        }
        lock(&self.done_with).extend(sites);
        self.hub.ring();
    }

    fn rung(&self) {
        let awaiting = std::mem::take(&mut *lock(&self.awaiting));
        awaiting.into_iter().for_each(|waker| guarded(|| waker.wake()));
        for row in self.rows() {
            let mut marked = Vec::new();
            row.chunk.take_marked(|index| marked.extend(row.site(index)));
            marked.iter().for_each(|site| site.look());
            guarded(|| drop(marked));
        }
        let limbo = std::mem::take(&mut *lock(&self.limbo));
        limbo.into_iter().for_each(|retired| self.retire(retired));
        let done_with = std::mem::take(&mut *lock(&self.done_with));
        guarded(|| drop(done_with));
    }
}

struct NoBell;

impl comm_core::wait::Bell for NoBell {
    fn ring(&self, _slot: usize, _tag: u32) {}
}

/// A process has done with a slot: all rows in which it is entered go.
pub(crate) fn part(slot: &SlotAt, generation: u64, id: u64, how: End, bell: &impl comm_core::wait::Bell) {
    for row in (0..ROWS).filter(|&row| row != HOME) {
        if slot.holder(row, generation) != Some(id) {
            continue;
        }
        let word = state::part(&slot.seat.cell, generation, row, how, bell).unwrap_or_else(|word| word);
        if word.phase() == Phase::Open && how == End::Died {
            // Of one who has set or broken it the name stays, to be asked for later; and of one who lives and holds a row that he
            // has lost, lest another is given it.
            slot.leave(row, id, generation);
        }
    }
}

/// Locks; a thread that panicked with the lock held has left data that is whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
