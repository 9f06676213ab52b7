//! What the ranks of one process share of a team.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use super::control::{BUCKETS, Control, TeamId};
use super::ending::Ending;
use super::tasks::Tasks;
use crate::error::{Error, LostHow, Missing, PeerState, Result};
use crate::hub::{Awaited, Hub, Nonce, Peer};
use crate::shm::fork;
use crate::sync::lock;
use crate::wait::{Bell, Next, Patience};

/// How long one who finds a peer's door crowded stays away.
const BUSY: Duration = Duration::from_millis(2);

/// A process of a team, in the order of the lowest rank of each.
#[derive(Debug)]
pub(crate) struct Process {
    nonce: Nonce,
    ranks: Vec<usize>,
    /// Not set for this process itself, and until the peer has introduced itself.
    peer: OnceLock<Arc<Peer>>,
}

/// How a process holds the name of a team.
#[derive(Debug, Default)]
struct NameHold {
    desk: Option<u64>,
    members: usize,
}

type Shelf = HashMap<(std::any::TypeId, u64), Weak<dyn Any + Send + Sync>>;

/// Whether a process, by its index in the team, has let go of memory of this one.
type LetGo = Box<dyn Fn(usize) -> bool + Send>;

/// A team as this process sees it; its ranks hold it together.
pub(crate) struct TeamShared {
    name: String,
    id: TeamId,
    hub: Arc<Hub>,
    control: Control,
    processes: Arc<[Process]>,
    process_of: Vec<usize>,
    own_process: usize,
    /// The desk at which this process answers for the name, and how many of its ranks are members.
    name_guard: Mutex<NameHold>,
    pub(crate) tasks: Tasks,
    reports: Mutex<()>,
    shelf: Mutex<Shelf>,
}

impl TeamShared {
    pub(crate) fn new(
        name: String,
        id: TeamId,
        hub: Arc<Hub>,
        control: Control,
        nonces: &[Nonce],
        process_of: Vec<usize>,
    ) -> Result<TeamShared> {
        let own_process = nonces
            .iter()
            .position(|&nonce| nonce == hub.nonce())
            .ok_or_else(|| Error::bad_peer("a welcome to a team that this process is not in"))?;
        let ranks = |p| process_of.iter().enumerate().filter(move |&(_, &q)| q == p).map(|(rank, _)| rank);
        let processes = nonces
            .iter()
            .enumerate()
            .map(|(p, &nonce)| Process { nonce, ranks: ranks(p).collect(), peer: OnceLock::new() })
            .collect();
        Ok(TeamShared {
            name,
            id,
            hub,
            control,
            processes,
            process_of,
            own_process,
            name_guard: Mutex::default(),
            tasks: Tasks::default(),
            reports: Mutex::default(),
            shelf: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Holds the name of the team for one more rank of this process: `open` opens a desk, unless there is one.
    pub(crate) fn hold_name(&self, open: impl FnOnce() -> Result<u64>) -> Result<()> {
        let mut hold = lock(&self.name_guard);
        if hold.desk.is_none() {
            hold.desk = Some(open()?);
        }
        hold.members += 1;
        Ok(())
    }

    /// Whether it is the team that a welcome describes.
    pub(crate) fn is(&self, name: &str, nonces: &[Nonce], process_of: &[usize]) -> bool {
        self.name == name
            && self.process_of == process_of
            && self.processes.iter().map(|p| p.nonce).eq(nonces.iter().copied())
    }

    /// Holds the name no longer for one rank. With the last of them the name is free here, whoever else keeps the team.
    pub(crate) fn release_name(&self) {
        let desk = {
            let mut hold = lock(&self.name_guard);
            hold.members = hold.members.saturating_sub(1);
            if hold.members == 0 { hold.desk.take() } else { None }
        };
        if let Some(token) = desk {
            self.hub.reactor().remove(token);
        }
    }

    pub(crate) fn id(&self) -> TeamId {
        self.id
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    pub(crate) fn size(&self) -> usize {
        self.process_of.len()
    }

    pub(crate) fn process_of(&self, rank: usize) -> usize {
        self.process_of[rank]
    }

    pub(crate) fn processes(&self) -> usize {
        self.processes.len()
    }

    pub(crate) fn own_process(&self) -> usize {
        self.own_process
    }

    /// The lowest rank of this process.
    pub(crate) fn own_lowest_rank(&self) -> usize {
        self.processes[self.own_process].ranks.first().copied().unwrap_or_default()
    }

    /// The peer process of a rank; `None` if it is this process.
    pub(crate) fn peer_of(&self, rank: usize) -> Option<&Arc<Peer>> {
        self.processes[self.process_of[rank]].peer.get()
    }

    /// Links this process to all others of the team, as far as that has not been done. Peers that are gone are lost.
    /// Gives the ranks of the processes that did not introduce themselves by the deadline; none once the team is over.
    pub(crate) fn link(&self, hub_names: &[String], patience: &mut Patience) -> Result<Vec<Missing>> {
        let others = || self.processes.iter().zip(hub_names).filter(|(p, _)| p.nonce != self.hub.nonce());
        for (process, hub_name) in others() {
            while process.peer.get().is_none()
                && !self.is_over()
                && !self.hub.link_to(process.nonce, hub_name)?
            {
                match patience.next() {
                    Next::Look => {}
                    Next::Sleep(slice) => std::thread::sleep(slice.min(BUSY)),
                    Next::GiveUp => break,
                }
            }
        }
        let mut missing = Vec::new();
        for (process, _) in others().filter(|(process, _)| process.peer.get().is_none()) {
            match self.hub.await_peer(process.nonce, patience, || self.is_over()) {
                Awaited::Over => return Ok(vec![]),
                Awaited::Here(peer) => {
                    // Another rank of this process may have been faster.
                    let _ = process.peer.set(peer);
                }
                Awaited::Dead => self.process_died(process.nonce),
                Awaited::Missing => {
                    let state = self.hub.state_of(process.nonce);
                    missing.extend(process.ranks.iter().map(|&rank| Missing { rank, state }));
                }
            }
        }
        // A peer that died before the team was registered has told nobody: look once more.
        for (process, _) in others() {
            if process.peer.get().is_some_and(|peer| peer.is_dead()) {
                self.process_died(process.nonce);
            }
        }
        Ok(missing)
    }

    /// A process is gone: those of its ranks that had not left are lost.
    pub(crate) fn process_died(&self, nonce: Nonce) {
        let Some(process) = self.processes.iter().find(|p| p.nonce == nonce) else { return };
        match process.ranks.iter().find(|&&rank| self.control.left_after(rank).is_none()) {
            // One more: who is about to go on without the lost waits for that.
            Some(_) if self.is_over() => self.wake_everybody(),
            Some(&rank) => self.end(&Ending::Lost { rank, how: LostHow::Died }),
            // All had left: nobody is lost, but what a rank wrote last without waking anybody is looked at again.
            None => self.wake_everybody(),
        }
    }

    /// The link to a process is lost, and the process is not: the team cannot go on, unless that process has left it.
    pub(crate) fn link_broke(&self, nonce: Nonce, why: &str) {
        let Some(process) = self.processes.iter().find(|p| p.nonce == nonce) else { return };
        if let Some(rank) = process.ranks.iter().find(|&&rank| self.control.left_after(rank).is_none()) {
            let reason = format!("the link to the process of rank {rank} broke: {why}");
            self.end(&Ending::Aborted { by: self.own_lowest_rank(), reason });
        }
    }

    /// Records that a rank leaves after its last operation, and tells those who may be waiting for it.
    pub(crate) fn leave(&self, rank: usize, after: u64) {
        self.control.rank(rank).status.left.store(after + 1, Ordering::Release);
        if let Some(head) = self.control.head() {
            head.leavers.fetch_add(1, Ordering::Release);
        }
        self.wake_everybody();
    }

    /// The ranks that died together with `rank`.
    pub(crate) fn ranks_lost_with(&self, rank: usize) -> Vec<usize> {
        let of_process = &self.processes[self.process_of[rank]].ranks;
        of_process.iter().copied().filter(|&r| r == rank || self.control.left_after(r).is_none()).collect()
    }

    /// Whether one who comes as `rank` may come again later: this team is over, or all have left it, or that rank was in
    /// it and is no more, or has not come into it yet, because the host died before it had welcomed all, say.
    pub(crate) fn will_free(&self, rank: usize) -> bool {
        let is_out = |rank| self.control.left_after(rank).is_some() || self.is_gone(rank);
        let is_not_in = |rank| self.control.rank(rank).joined.load() == 0;
        self.is_over()
            || (rank < self.size() && (is_out(rank) || is_not_in(rank)))
            || (0..self.size()).all(is_out)
    }

    /// Whether the process of a rank is dead.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.peer_of(rank).is_some_and(|peer| peer.is_dead())
    }

    /// What a rank is doing, as far as this process can tell.
    pub(crate) fn state_of(&self, rank: usize) -> PeerState {
        self.peer_of(rank).map_or(PeerState::NotArrived, |peer| peer.state())
    }

    pub(crate) fn pid_of(&self, rank: usize) -> Option<u32> {
        if self.process_of(rank) == self.own_process {
            return Some(std::process::id());
        }
        self.peer_of(rank)?.pid()
    }

    /// Wakes the reactor of a process.
    pub(crate) fn ring_process(&self, process: usize) {
        if process == self.own_process {
            self.hub.reactor().ring();
        } else if let Some(peer) = self.processes[process].peer.get() {
            peer.ring();
        }
    }

    /// The slot of this process's tasks in waiter masks.
    pub(crate) fn task_slot(&self) -> usize {
        self.size() + self.own_process
    }

    /// Something that the ranks of this process share, made by the first that asks and gone with the last handle.
    pub(crate) fn share<T: Any + Send + Sync>(&self, key: u64, make: impl FnOnce() -> T) -> Arc<T> {
        if fork::is_forked() {
            // The lock may be held by a thread that is not there. Nobody else of the team is in this process anyhow.
            return Arc::new(make());
        }
        let mut shelf = lock(&self.shelf);
        shelf.retain(|_, thing| thing.strong_count() > 0);
        let key = (std::any::TypeId::of::<T>(), key);
        if let Some(there) =
            shelf.get(&key).and_then(Weak::upgrade).and_then(|thing| thing.downcast::<T>().ok())
        {
            return there;
        }
        let fresh = Arc::new(make());
        let weak: Weak<T> = Arc::downgrade(&fresh);
        shelf.insert(key, weak);
        fresh
    }

    /// Keeps memory that other processes may use until each of them has let go of it or is dead.
    pub(crate) fn keep(&self, memory: Box<dyn Send>, let_go: LetGo) {
        let (processes, own_process) = (self.processes.clone(), self.own_process);
        self.hub.keep(memory, move || {
            processes.iter().enumerate().all(|(p, process)| {
                p == own_process || process.peer.get().is_none_or(|peer| peer.is_past_writing()) || let_go(p)
            })
        });
    }

    pub(crate) fn lock_reports(&self) -> MutexGuard<'_, ()> {
        lock(&self.reports)
    }
}

impl Bell for TeamShared {
    fn ring(&self, slot: usize, tag: u32) {
        if slot < self.size() {
            self.control.rank(slot).park.wake();
            return;
        }
        let process = slot - self.size();
        let Some(line) = self.control.process_lines().get(process) else { return };
        let bucket = tag as usize % BUCKETS;
        line.dirty[bucket / 64].fetch_or(1 << (bucket % 64), Ordering::Release);
        // Always: to trust that whoever set the bit first has rung would let a writer that is stopped in between
        // silence all the others.
        self.ring_process(process);
    }
}
