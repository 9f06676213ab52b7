//! Groups by content: whoever asks for the same ids in the same order gets the same group.
//!
//! A runtime knows its ranks by ids, and its graphs speak of many lists of them. A [`ThreadGroupManager`] makes the group of a
//! list when it is asked for first, and hands out the same one from then on.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::device::Device;
use comm_core::error::At;
use comm_core::team::Team;
use comm_core::{Deadline, Error, Result};

use crate::group::ThreadGroup;

const OP: &str = "ThreadGroupManager::group";

/// The longest sleep without a look at the deadline, which may move.
const SLICE: Duration = Duration::from_millis(200);

/// A kind of device, as it stands in a [`ThreadGroupKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Host memory.
    #[default]
    Cpu,
    /// Simulated devices.
    Sim,
    /// A device that this build has no name for.
    Other,
}

impl From<Device> for DeviceKind {
    fn from(device: Device) -> DeviceKind {
        match device {
            Device::Cpu => DeviceKind::Cpu,
            Device::Sim(_) => DeviceKind::Sim,
            _ => DeviceKind::Other,
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Sim => "sim",
            DeviceKind::Other => "other",
        })
    }
}

/// What a group is known by: a kind of device and a list of ids, whole and in order. The rank of an id is its place in the
/// list, so `[0, 1]` and `[1, 0]` are two groups, of the same members with other ranks.
///
/// ```
/// use comm_group::{DeviceKind, ThreadGroupKey};
///
/// let key = ThreadGroupKey::new(DeviceKind::Cpu, [4, 0, 2]);
/// assert_eq!(key.to_string(), "cpu:3[4,0,2]");
/// assert_eq!(key, ThreadGroupKey::from([4, 0, 2]), "on the CPU, if nothing else is said");
/// assert_ne!(key, ThreadGroupKey::from([0, 2, 4]));
/// assert_eq!(key.rank_of(2), Some(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ThreadGroupKey {
    kind: DeviceKind,
    ids: Vec<usize>,
}

impl ThreadGroupKey {
    /// A key of so many ids, in this order.
    pub fn new(kind: impl Into<DeviceKind>, ids: impl Into<Vec<usize>>) -> ThreadGroupKey {
        ThreadGroupKey { kind: kind.into(), ids: ids.into() }
    }

    /// The kind of device.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// The ids, by rank.
    pub fn ids(&self) -> &[usize] {
        &self.ids
    }

    /// The rank of an id; `None` if it is not in the list.
    pub fn rank_of(&self, id: usize) -> Option<usize> {
        self.ids.iter().position(|&other| other == id)
    }

    fn rank_in_group(&self, id: usize) -> Result<usize> {
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.ids.iter().find(|&&id| !seen.insert(id)) {
            return Err(Error::invalid(OP, format!("the id {twice} comes twice in {self}")));
        }
        self.rank_of(id).ok_or_else(|| Error::invalid(OP, format!("the caller's id {id} is not in {self}")))
    }
}

impl fmt::Display for ThreadGroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}[", self.kind, self.ids.len())?;
        for (i, id) in self.ids.iter().enumerate() {
            write!(f, "{}{id}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

impl From<&ThreadGroupKey> for ThreadGroupKey {
    fn from(key: &ThreadGroupKey) -> ThreadGroupKey {
        key.clone()
    }
}

impl From<Vec<usize>> for ThreadGroupKey {
    fn from(ids: Vec<usize>) -> ThreadGroupKey {
        ThreadGroupKey::new(DeviceKind::default(), ids)
    }
}

impl From<&[usize]> for ThreadGroupKey {
    fn from(ids: &[usize]) -> ThreadGroupKey {
        ids.to_vec().into()
    }
}

impl<const N: usize> From<[usize; N]> for ThreadGroupKey {
    fn from(ids: [usize; N]) -> ThreadGroupKey {
        ids.to_vec().into()
    }
}

impl<const N: usize> From<&[usize; N]> for ThreadGroupKey {
    fn from(ids: &[usize; N]) -> ThreadGroupKey {
        ids.to_vec().into()
    }
}

/// The groups of one process: made when they are first asked for, kept, and found again by their content. The threads of a
/// process share one manager; those of other processes have one of the same prefix.
///
/// The first call of a rank waits until all ranks of the group have called; later ones talk to nobody. Ranks of one process
/// may ask for several groups in any order: while one makes a group, the manager brings in those ids of it that it has heard
/// of before, so that nobody waits for a thread that waits for another group. Ranks of different processes ask for new groups
/// in the same order, or from a thread for each; else their deadlines end it.
///
/// **Failures.** A group that could not be made is not kept: the next call tries again. A group whose team is over is
/// replaced by the next call of each rank. One that a rank has merely left is kept; [`forget`](ThreadGroupManager::forget)
/// it. The manager holds the groups, so a rank that panics between operations drops none:
/// a [`watch`](ThreadGroupManager::watch) tells the others.
///
/// **The end.** With the manager go its groups, in the order of their keys as text, which is the same on every rank, but
/// for those that somebody else holds. It waits for nobody.
///
/// ```
/// use comm_core::{Deadline, tensor::Tensor};
/// use comm_group::{ReduceOp, ThreadGroupManager};
///
/// let manager = ThreadGroupManager::with_prefix("manager-example");
/// std::thread::scope(|s| {
///     for id in [7, 8, 9] {
///         let manager = &manager;
///         s.spawn(move || -> comm_core::Result<()> {
///             // The rank of an id is its place in the list.
///             let group = manager.group([9, 8, 7], id, Deadline::default())?;
///             assert_eq!(group.rank(), 9 - id);
///             let sum = group.all_reduce(&Tensor::from_slice(&[1], &[id as i64])?, ReduceOp::Sum, Deadline::default())?;
///             assert_eq!(sum.as_slice::<i64>()?, [24]);
///             Ok(())
///         });
///     }
/// });
/// ```
#[doc(alias = "ProcessGroupManager")]
#[doc(alias = "GraphCommContext")]
#[derive(Default)]
pub struct ThreadGroupManager {
    prefix: String,
    known: Mutex<Known>,
}

/// What a manager has heard of.
#[derive(Default)]
struct Known {
    groups: HashMap<ThreadGroupKey, Arc<Entry>>,
    /// The ids that have called.
    here: BTreeSet<usize>,
}

impl fmt::Debug for ThreadGroupManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadGroupManager({:?}, {} groups)", self.prefix, lock(&self.known).groups.len())
    }
}

impl ThreadGroupManager {
    /// A manager without a prefix.
    pub fn new() -> ThreadGroupManager {
        ThreadGroupManager::default()
    }

    /// A manager whose groups meet only those of managers with the same prefix: of one graph, say.
    #[doc(alias = "graph_id")]
    pub fn with_prefix(prefix: impl Into<String>) -> ThreadGroupManager {
        ThreadGroupManager { prefix: prefix.into(), known: Mutex::default() }
    }

    /// The group of a key, or of a list of ids on the CPU, for the rank that has `my_id` in it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the caller's id is not in the list, another one comes twice, or there are more ids than a
    /// team has ranks; else those of [`Team::join`] and [`ThreadGroup::new`], as an [`Error::Timeout`] with those who have not
    /// called. Nothing is kept of a group that could not be made.
    #[doc(alias = "getThreadGroup")]
    #[doc(alias = "GetThreadGroup")]
    pub fn group(
        &self,
        key: impl Into<ThreadGroupKey>,
        my_id: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Arc<ThreadGroup>> {
        let (key, deadline) = (key.into(), deadline.into());
        let rank = key.rank_in_group(my_id)?;
        let entry = self.enter(key, my_id, deadline);
        match entry.find(rank, deadline)? {
            Found::Group(group) => Ok(group),
            Found::Nothing(claim) => {
                self.bring_in(&entry, deadline);
                claim.make(deadline)
            }
        }
    }

    /// The entry of a key. An id that calls for the first time is brought into the groups that are being made.
    fn enter(&self, key: ThreadGroupKey, my_id: usize, deadline: Deadline) -> Arc<Entry> {
        let mut known = lock(&self.known);
        let name = || format!("groups/{}|{key}", self.prefix);
        let entry =
            known.groups.entry(key.clone()).or_insert_with(|| Arc::new(Entry::new(name(), &key))).clone();
        let others: Vec<Arc<Entry>> = if known.here.insert(my_id) {
            known.groups.values().filter(|other| !Arc::ptr_eq(other, &entry)).cloned().collect()
        } else {
            Vec::new()
        };
        drop(known);
        for other in others.iter().filter(|other| other.is_being_made()) {
            other.bring_in(my_id, deadline);
        }
        entry
    }

    /// Lets all ids of this process come to a group that is being made. Either they are known by now, or they find it when
    /// they come: it is marked before.
    fn bring_in(&self, entry: &Arc<Entry>, deadline: Deadline) {
        let here: Vec<usize> = lock(&self.known).here.iter().copied().collect();
        here.into_iter().for_each(|id| entry.bring_in(id, deadline));
    }

    /// Drops what this manager holds of a group for one of its ids, so that the next call makes it anew. For groups that a
    /// rank has left.
    pub fn forget(&self, key: impl Into<ThreadGroupKey>, my_id: usize) {
        let key = key.into();
        let entry = lock(&self.known).groups.get(&key).cloned();
        let taken = entry.and_then(|entry| entry.take(key.rank_of(my_id)?));
        // Outside of any lock.
        drop(taken);
    }

    /// The keys of all groups that have been asked for, in the order in which the groups will be dropped.
    pub fn keys(&self) -> Vec<ThreadGroupKey> {
        let mut keys: Vec<_> = lock(&self.known).groups.keys().cloned().collect();
        keys.sort_by_cached_key(ToString::to_string);
        keys
    }

    /// Sees to it that the peers of an id hear of a panic of this thread: dropped while it unwinds, every group that the
    /// manager holds for this id fails as it would if the rank itself had dropped it.
    ///
    /// ```
    /// let manager = comm_group::ThreadGroupManager::new();
    /// let _watch = manager.watch(3);
    /// ```
    pub fn watch(&self, my_id: usize) -> Watch<'_> {
        Watch { manager: self, id: my_id }
    }

    /// Drops all groups in the order of their keys, and says which.
    fn close(&self, mut dropping: impl FnMut(&str, usize)) {
        let entries = std::mem::take(&mut lock(&self.known).groups);
        let mut entries: Vec<_> = entries.into_iter().map(|(key, entry)| (key.to_string(), entry)).collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (key, entry) in entries {
            for rank in 0..entry.ids.len() {
                if let Some(group) = entry.take(rank) {
                    dropping(&key, rank);
                    drop(group);
                }
            }
        }
    }
}

impl Drop for ThreadGroupManager {
    fn drop(&mut self) {
        self.close(|_, _| {});
    }
}

/// Tells peers of a panic; see [`ThreadGroupManager::watch`].
#[derive(Debug)]
pub struct Watch<'a> {
    manager: &'a ThreadGroupManager,
    id: usize,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let mut known = lock(&self.manager.known);
        known.here.remove(&self.id);
        let entries: Vec<_> = known.groups.values().cloned().collect();
        drop(known);
        for entry in entries {
            let rank = entry.ids.iter().position(|&id| id == self.id);
            if let Some(group) = rank.and_then(|rank| entry.peek(rank)) {
                group.team().fail();
            }
        }
    }
}

/// A group as one rank of this process has it.
#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    /// A thread is making it.
    Making,
    Made(Arc<ThreadGroup>),
}

impl Slot {
    /// Whether there is no group that goes on, and nobody makes one.
    fn is_free(&self) -> bool {
        match self {
            Slot::Empty => true,
            Slot::Making => false,
            Slot::Made(group) => group.is_over(),
        }
    }
}

/// All there is of one key in a process.
struct Entry {
    /// The name of the team.
    name: String,
    ids: Vec<usize>,
    /// By rank. Locked for a look at most: nobody joins, drops a group or calls anybody's code meanwhile.
    slots: Mutex<Vec<Slot>>,
    changed: Condvar,
}

enum Found {
    Group(Arc<ThreadGroup>),
    /// It is the caller's to make.
    Nothing(Claim),
}

impl Entry {
    fn new(name: String, key: &ThreadGroupKey) -> Entry {
        let slots = key.ids.iter().map(|_| Slot::default()).collect();
        Entry { name, ids: key.ids.clone(), slots: Mutex::new(slots), changed: Condvar::new() }
    }

    /// The group of a rank, or the right to make it. Waits while somebody else is making it.
    fn find(self: &Arc<Entry>, rank: usize, deadline: Deadline) -> Result<Found> {
        let started = Instant::now();
        let mut slots = lock(&self.slots);
        loop {
            match &slots[rank] {
                Slot::Made(group) if !group.is_over() => return Ok(Found::Group(group.clone())),
                Slot::Empty | Slot::Made(_) => {
                    let claim = self.claim(&mut slots, rank);
                    drop(slots);
                    return Ok(Found::Nothing(claim));
                }
                Slot::Making => {}
            }
            let left = deadline.remaining();
            if left.is_zero() {
                return Err(self.timed_out(rank, started));
            }
            let waited = self.changed.wait_timeout(slots, left.min(SLICE));
            slots = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn claim(self: &Arc<Entry>, slots: &mut [Slot], rank: usize) -> Claim {
        let before = std::mem::replace(&mut slots[rank], Slot::Making);
        let old = if let Slot::Made(group) = before { Some(group) } else { None };
        Claim { entry: self.clone(), rank, old, made: None }
    }

    /// Makes the group for an id of this process that has not asked for it, in a thread of its own.
    fn bring_in(self: &Arc<Entry>, id: usize, deadline: Deadline) {
        let Some(rank) = self.ids.iter().position(|&other| other == id) else { return };
        let mut slots = lock(&self.slots);
        if !slots[rank].is_free() {
            return;
        }
        let claim = self.claim(&mut slots, rank);
        drop(slots);
        // If it fails, the id finds out when it calls. If there is no thread for it, it has to call.
        let helper = thread::Builder::new().name("comm-groups".into());
        let _ = helper.spawn(move || drop(claim.make(deadline)));
    }

    fn is_being_made(&self) -> bool {
        lock(&self.slots).iter().any(|slot| matches!(slot, Slot::Making))
    }

    fn take(&self, rank: usize) -> Option<Arc<ThreadGroup>> {
        let mut slots = lock(&self.slots);
        if !matches!(slots[rank], Slot::Made(_)) {
            return None;
        }
        match std::mem::take(&mut slots[rank]) {
            Slot::Made(group) => Some(group),
            Slot::Empty | Slot::Making => None,
        }
    }

    fn peek(&self, rank: usize) -> Option<Arc<ThreadGroup>> {
        match &lock(&self.slots)[rank] {
            Slot::Made(group) => Some(group.clone()),
            Slot::Empty | Slot::Making => None,
        }
    }

    fn timed_out(&self, rank: usize, started: Instant) -> Error {
        let (waited, team) = (started.elapsed(), self.name.clone());
        Error::Timeout {
            what: "another thread to have made the group".into(),
            waited,
            missing: Vec::new(),
            seen: 0,
            expected: 1,
            at: Box::new(At { team, rank, op: OP.into(), elapsed: waited }),
        }
    }
}

/// The right to make the group of one rank. Given up without a group, by an error or a panic, it leaves the slot empty.
struct Claim {
    entry: Arc<Entry>,
    rank: usize,
    /// What was there before, and is over.
    old: Option<Arc<ThreadGroup>>,
    made: Option<Arc<ThreadGroup>>,
}

impl Claim {
    fn make(mut self, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
        if let Some(old) = self.old.take() {
            // Somebody may hold it still, and the next one has the same name.
            old.team().free_name();
        }
        let team = Team::join(&self.entry.name, self.rank, self.entry.ids.len(), deadline)?;
        let group = Arc::new(ThreadGroup::new(team, deadline)?);
        self.made = Some(group.clone());
        Ok(group)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let slot = self.made.take().map_or(Slot::Empty, Slot::Made);
        lock(&self.entry.slots)[self.rank] = slot;
        self.entry.changed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
