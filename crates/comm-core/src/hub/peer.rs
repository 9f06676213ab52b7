//! Another process, as seen from this one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use super::fds::HubFd;
use super::identity::Nonce;
use super::link::Incoming;
use super::liveness::LifeWord;
use crate::error::PeerState;
use crate::shm::Segment;
use crate::sync::lock;
use crate::wait::{Deadline, Patience};

/// Another process, by what it has pushed over its link: its life word, its bell, its segments.
pub struct Peer {
    nonce: Nonce,
    pid: Option<u32>,
    life: Arc<LifeWord>,
    bell: HubFd,
    /// Whether its kernel marks its life word. Else the end of its connections is what tells of its death.
    robust: bool,
    segments: Mutex<HashMap<u64, Arc<Segment>>>,
    changed: Condvar,
    dead: AtomicBool,
    /// The link over which it pushes, and whether that has come to its end.
    link: Weak<Incoming>,
    link_over: AtomicBool,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("nonce", &self.nonce).field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Peer {
    pub(super) fn new(
        nonce: Nonce,
        pid: Option<u32>,
        life: Arc<LifeWord>,
        bell: OwnedFd,
        robust: bool,
        link: Weak<Incoming>,
    ) -> Peer {
        Peer {
            nonce,
            pid,
            life,
            bell: bell.into(),
            robust,
            segments: Mutex::default(),
            changed: Condvar::new(),
            dead: AtomicBool::new(false),
            link,
            link_over: AtomicBool::new(false),
        }
    }

    /// Its nonce.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    pub(super) fn life(&self) -> Arc<LifeWord> {
        self.life.clone()
    }

    /// Its pid, where this process's pid namespace shows it.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Whether its process is gone, now that a connection to it has ended.
    pub(super) fn is_gone(&self) -> bool {
        !self.robust || self.life.is_dead()
    }

    /// Wakes the peer's reactor.
    pub fn ring(&self) {
        ring(&self.bell);
    }

    /// Whether it is known to be dead.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Whether its process is dead by the surest sign that there is: what it could write may be used for something else. (It
    /// may be dead and this process not have been told, if the link had broken before.)
    pub fn is_past_writing(&self) -> bool {
        if self.robust { self.life.is_dead() } else { self.is_dead() }
    }

    pub(super) fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Takes a segment that the peer pushed; `false` if it pushes one id twice.
    pub(super) fn add_segment(&self, segment: Segment) -> bool {
        let id = segment.id();
        let fresh = self.lock().insert(id, Arc::new(segment)).is_none();
        self.changed.notify_all();
        fresh
    }

    pub(super) fn segment_count(&self) -> usize {
        self.lock().len()
    }

    /// A segment of the peer. It is pushed before anything in it is spoken of, but over a socket: it may be on its way.
    /// `None` if it has not come by the deadline, or the peer is dead and it never will.
    pub(crate) fn segment(&self, id: u64, deadline: Deadline) -> Option<Arc<Segment>> {
        let mut patience = Patience::sleeping(deadline);
        let mut segments = self.lock();
        loop {
            if let Some(segment) = segments.get(&id) {
                return Some(segment.clone());
            }
            if self.is_dead() {
                return None;
            }
            segments = patience.on(&self.changed, segments)?;
        }
    }

    /// A segment of the peer, also of one that is dead: what it had sent off comes, until its link has been read to the end.
    /// Without waiting if the deadline has passed. `None` if it has not come by the deadline, or never will.
    pub fn await_segment(&self, id: u64, deadline: impl Into<Deadline>) -> Option<Arc<Segment>> {
        let mut patience = Patience::sleeping(deadline.into());
        loop {
            let over = self.is_link_over();
            if let Some(segment) = self.lock().get(&id) {
                return Some(segment.clone());
            }
            if over {
                return None;
            }
            let more = self.link.upgrade().and_then(|link| link.serve_now());
            let segments = self.lock();
            if segments.contains_key(&id) || more == Some(false) {
                continue;
            }
            drop(patience.on(&self.changed, segments)?);
        }
    }

    /// Whether nothing comes from it any more.
    pub fn is_link_over(&self) -> bool {
        self.link_over.load(Ordering::Acquire)
    }

    /// Ends the link over which it pushes.
    pub(super) fn hang_up(&self) {
        if let Some(link) = self.link.upgrade() {
            link.hang_up();
        }
    }

    pub(super) fn link_is_over(&self) {
        self.link_over.store(true, Ordering::Release);
        drop(self.lock());
        self.changed.notify_all();
    }

    /// What the peer's process is doing, as far as /proc tells.
    pub fn state(&self) -> PeerState {
        self.pid.map_or(PeerState::Unknown, process_state)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Segment>>> {
        lock(&self.segments)
    }
}

/// Adds one to an eventfd. It can only refuse when it is full, and then its owner has been told already.
pub(super) fn ring(bell: &HubFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Whether there is a process of this pid that is not a zombie, or about to be one: it closes its sockets first.
pub(super) fn process_exists(pid: u32) -> bool {
    const EXITING: u64 = 0x4; // PF_EXITING of linux/sched.h
    let Some(fields) = stat(pid) else { return false };
    let mut fields = fields.split_whitespace();
    let state = fields.next().and_then(|letter| letter.chars().next());
    // The ninth of all, of which the first two are cut off.
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    !matches!(state, None | Some('Z' | 'X')) && flags.is_none_or(|flags| flags & EXITING == 0)
}

/// Whether a process is stopped. Its threads are stopped one by one, the first of them is the one that is looked at.
pub(super) fn process_state(pid: u32) -> PeerState {
    match state_letter(pid) {
        Some('T' | 't') => PeerState::Stopped,
        Some(_) => PeerState::NotArrived,
        None => PeerState::Unknown,
    }
}

fn state_letter(pid: u32) -> Option<char> {
    stat(pid)?.chars().next()
}

/// The line of a process in /proc, from its state on.
fn stat(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, so the state is what follows the last one.
    Some(stat.rsplit(')').next()?.trim_start().to_string())
}
