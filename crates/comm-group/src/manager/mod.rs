//! Groups by content: whoever asks for the same ids in the same order gets the same group.
//!
//! A runtime knows its ranks by ids, and its graphs speak of many lists of them. A [`ThreadGroupManager`] makes the group of a
//! list when it is asked for first, and hands out the same one from then on.

mod beside;
mod entry;
mod key;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use comm_core::hub::{is_forked, refuse_forked};
use comm_core::{Deadline, Result};

use crate::group::ThreadGroup;
use beside::Beside;
pub use comm_core::device::DeviceKind;
use entry::{Entry, Found, Gone};
pub use key::ThreadGroupKey;

const OP: &str = "ThreadGroupManager::group";

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
/// it. The manager holds the groups, so a thread that ends between operations, by a `?` or a panic, drops none of them, and its
/// peers would wait for it: a [`watch`](ThreadGroupManager::watch) tells them. A manager of the thread's own, which goes with it,
/// does the same, but for panics.
///
/// **The end.** With the manager go its groups, in the order of their keys as text, which is the same on every rank, but
/// for those that somebody else holds. It waits for nobody.
///
/// ```
/// use comm_core::{Deadline, tensor::Tensor};
/// use comm_group::{ReduceOp, ThreadGroupManager};
///
/// fn rank(manager: &ThreadGroupManager, id: usize) -> comm_core::Result<()> {
///     let deadline = Deadline::default();
///     // The rank of an id is its place in the list.
///     let group = manager.group([9, 8, 7], id, deadline)?;
///     assert_eq!(group.rank(), 9 - id);
///     let sum = group.all_reduce(&Tensor::from_slice(&[1], &[id as i64])?, ReduceOp::Sum, deadline)?;
///     assert_eq!(sum.as_slice::<i64>()?, [24]);
///     Ok(())
/// }
///
/// let manager = ThreadGroupManager::with_prefix("manager-example");
/// std::thread::scope(|s| {
///     for id in [7, 8, 9] {
///         let manager = &manager;
///         s.spawn(move || rank(manager, id).unwrap());
///     }
/// });
/// ```
#[doc(alias = "ProcessGroupManager")]
#[doc(alias = "GraphCommContext")]
#[derive(Default)]
pub struct ThreadGroupManager {
    prefix: String,
    /// Threads that bring ids in hold it as well.
    known: Arc<Mutex<Known>>,
}

/// What a manager has heard of.
#[derive(Default)]
struct Known {
    groups: HashMap<ThreadGroupKey, Arc<Entry>>,
    /// The ids that have called.
    here: BTreeSet<usize>,
}

/// Forgets a key of which nothing is left: no group, and nobody who makes or wants one. To be called by whoever has given an entry
/// back without a group.
fn sweep(known: &Mutex<Known>, key: &ThreadGroupKey) {
    let mut known = lock(known);
    // Whoever wants a group holds its entry, which he got with this lock held.
    if known.groups.get(key).is_some_and(|entry| Arc::strong_count(entry) == 1 && entry.is_empty()) {
        known.groups.remove(key);
    }
}

impl fmt::Debug for ThreadGroupManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadGroupManager({:?}, {} groups)", self.prefix, self.keys().len())
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
        ThreadGroupManager { prefix: prefix.into(), known: Arc::default() }
    }

    /// The group of a key, or of a list of ids on the CPU, for the rank that has `my_id` in it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](comm_core::Error::InvalidArgument) if the caller's id is not in the list, another one comes twice, or there are more ids than a
    /// team has ranks; else those of [`Team::join`](comm_core::team::Team::join) and [`ThreadGroup::new`], as an [`Error::Timeout`](comm_core::Error::Timeout) with those who have not
    /// called. Nothing is kept of a group that could not be made.
    #[doc(alias = "getThreadGroup")]
    #[doc(alias = "GetThreadGroup")]
    pub fn group(
        &self,
        key: impl Into<ThreadGroupKey>,
        my_id: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Arc<ThreadGroup>> {
        self.get(key.into(), my_id, Beside::default(), deadline.into())
    }

    /// [`group`](ThreadGroupManager::group), of ranks that have another group together: what ends `whole` ends the wait, so nobody
    /// waits for a rank that is lost there.
    ///
    /// # Errors
    /// What has ended `whole`, if the group is not there yet; else those of [`group`](ThreadGroupManager::group).
    ///
    /// ```
    /// use comm_core::Deadline;
    ///
    /// let manager = comm_group::ThreadGroupManager::with_prefix("beside-example");
    /// std::thread::scope(|s| {
    ///     for id in 0..2 {
    ///         let manager = &manager;
    ///         s.spawn(move || {
    ///             let whole = manager.group([0, 1], id, Deadline::default()).unwrap();
    ///             if id == 0 {
    ///                 whole.abort_handle().abort("rank 1 has something else to do");
    ///             }
    ///             whole.barrier(Deadline::default()).unwrap_err();
    ///             // Another order is another group. It will not be made, and nobody waits for it.
    ///             manager.group_beside(&whole, [1, 0], id, Deadline::default()).unwrap_err();
    ///         });
    ///     }
    /// });
    /// ```
    pub fn group_beside(
        &self,
        whole: &ThreadGroup,
        key: impl Into<ThreadGroupKey>,
        my_id: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Arc<ThreadGroup>> {
        self.get(key.into(), my_id, Beside::of(whole), deadline.into())
    }

    fn get(
        &self,
        key: ThreadGroupKey,
        my_id: usize,
        beside: Beside,
        deadline: Deadline,
    ) -> Result<Arc<ThreadGroup>> {
        refuse_forked()?;
        let rank = key.rank_in_group(my_id)?;
        let entry = self.enter(key.clone(), my_id, deadline);
        let outcome = entry.find(rank, &beside, deadline).and_then(|found| match found {
            Found::Group(group) => Ok(group),
            Found::Nothing(maker) => {
                self.bring_in(&entry, &key, deadline);
                maker.make(&beside, deadline)
            }
        });
        drop(entry);
        if outcome.is_err() {
            sweep(&self.known, &key);
        }
        outcome
    }

    /// The entry of a key. An id that calls for the first time is brought into the groups that are being made.
    fn enter(&self, key: ThreadGroupKey, my_id: usize, deadline: Deadline) -> Arc<Entry> {
        let mut known = lock(&self.known);
        let name = || format!("groups/{}|{key}", self.prefix);
        let entry =
            known.groups.entry(key.clone()).or_insert_with(|| Arc::new(Entry::new(name(), &key))).clone();
        let others: Vec<(ThreadGroupKey, Arc<Entry>)> = if known.here.insert(my_id) {
            let others = known.groups.iter().filter(|(_, other)| !Arc::ptr_eq(other, &entry));
            let others = others.filter(|(_, other)| other.is_being_made());
            others.map(|(key, other)| (key.clone(), other.clone())).collect()
        } else {
            Vec::new()
        };
        drop(known);
        for (key, other) in others {
            self.bring_one_in(&other, &key, my_id, deadline);
            drop(other);
            sweep(&self.known, &key);
        }
        entry
    }

    /// Lets all ids of this process come to a group that is being made. Either they are known by now, or they find it when
    /// they come: it is marked before.
    fn bring_in(&self, entry: &Arc<Entry>, key: &ThreadGroupKey, deadline: Deadline) {
        let here: Vec<usize> = lock(&self.known).here.iter().copied().collect();
        here.into_iter().for_each(|id| self.bring_one_in(entry, key, id, deadline));
    }

    fn bring_one_in(&self, entry: &Arc<Entry>, key: &ThreadGroupKey, id: usize, deadline: Deadline) {
        let is_here = || lock(&self.known).here.contains(&id);
        let (known, key) = (self.known.clone(), key.clone());
        entry.bring_in(id, is_here, deadline, move || sweep(&known, &key));
    }

    /// Drops what this manager holds of a group for one of its ids, so that the next call makes it anew. For groups that a
    /// rank has left.
    pub fn forget(&self, key: impl Into<ThreadGroupKey>, my_id: usize) {
        if is_forked() {
            return;
        }
        let key = key.into();
        let entry = lock(&self.known).groups.get(&key).cloned();
        let taken = entry.and_then(|entry| entry.take(key.rank_of(my_id)?));
        // Outside of any lock.
        drop(taken);
        sweep(&self.known, &key);
    }

    /// The keys of all groups that there are or that are being made, in the order in which the groups will be dropped.
    pub fn keys(&self) -> Vec<ThreadGroupKey> {
        if is_forked() {
            return Vec::new();
        }
        let mut keys: Vec<_> = lock(&self.known).groups.keys().cloned().collect();
        keys.sort_by_cached_key(ToString::to_string);
        keys
    }

    /// Sees to it that the peers of an id hear of the end of this thread, or of whatever else drops the guard: it leaves every
    /// group that the manager holds for this id, as [`forget`](ThreadGroupManager::forget) does. Dropped while it unwinds from a
    /// panic, they fail as they would if the rank itself had dropped them. The same becomes of one that the manager is making for
    /// the id at that moment, when it is made.
    ///
    /// ```
    /// use comm_core::{Deadline, Error};
    /// use comm_group::ThreadGroupManager;
    ///
    /// fn rank(manager: &ThreadGroupManager, id: usize) -> comm_core::Result<()> {
    ///     let _watch = manager.watch(id);
    ///     let group = manager.group([0, 1], id, Deadline::default())?;
    ///     if id == 1 {
    ///         return Err(Error::Forked); // whatever has gone wrong
    ///     }
    ///     group.barrier(Deadline::default())
    /// }
    ///
    /// let manager = ThreadGroupManager::new();
    /// let first = std::thread::scope(|s| {
    ///     s.spawn(|| rank(&manager, 1));
    ///     s.spawn(|| rank(&manager, 0)).join().unwrap()
    /// });
    /// assert!(matches!(first, Err(Error::PeerLeft { rank: 1, .. })));
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
        if !is_forked() {
            self.close(|_, _| {});
        }
    }
}

/// Tells peers of the end of a thread; see [`ThreadGroupManager::watch`].
#[derive(Debug)]
#[must_use = "it watches until it is dropped"]
pub struct Watch<'a> {
    manager: &'a ThreadGroupManager,
    id: usize,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        let how = if thread::panicking() { Gone::Lost } else { Gone::Left };
        let mut known = lock(&self.manager.known);
        known.here.remove(&self.id);
        // In the same order on every rank: to leave a group may wait for what was started in it.
        let mut entries: Vec<_> =
            known.groups.iter().map(|(key, entry)| (key.clone(), entry.clone())).collect();
        drop(known);
        entries.sort_by_cached_key(|(key, _)| key.to_string());
        for (key, entry) in entries {
            if let Some(rank) = entry.ids.iter().position(|&id| id == self.id) {
                entry.end(rank, how);
            }
            drop(entry);
            sweep(&self.manager.known, &key);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
