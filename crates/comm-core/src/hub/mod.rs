//! The hub of a process: its names, its links to other processes, and the threads that watch and serve.
//!
//! There is one hub per process, made at first use, and it lasts as long as the process. It runs two threads.
//! `comm-life` holds the *life word* that tells peers, through the kernel, when this process is gone, and sleeps until
//! one of theirs does. `comm-reactor` serves sockets and wakes the tasks of async waits.
//!
//! A peer is known by its [`Nonce`]. What a peer needs of this process (the life word, the bell of its reactor, its
//! segments) is pushed over a link when the two first meet or when it comes to be; nothing is ever pulled.
//!
//! What stands on links and not on a team is an [`Attendant`], which hears about peers; [`Hub::meet`] is how two processes
//! come to have links.
//!
//! After `fork` a child has no hub: calls return [`Error::Forked`], and what it inherited does nothing when dropped.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use rustix::event::epoll::EventFlags;

use crate::config;
use crate::error::{Error, PeerState, Result};
use crate::shm::{Access, Arena, Budget, Segment, fork};
use crate::sync::lock;
use crate::team::registry::Registry;
use crate::wait::{Deadline, Patience};

mod alarm;
mod attend;
mod fds;
pub(crate) mod hello;
mod identity;
mod keep;
mod link;
mod liveness;
pub(crate) mod lobby;
mod meet;
pub(crate) mod names;
mod peer;
pub(crate) mod reactor;
mod refuse;
mod robust;
pub(crate) mod sender;
pub(crate) mod socket;
#[cfg(test)]
pub(crate) mod tests;

pub use alarm::Alarm;
pub use attend::{Attendant, Loss};
pub use identity::{Instance, Nonce};
use keep::Keeper;
use link::{Incoming, Linked, Outgoing, PidfdSource};
use liveness::Liveness;
use lobby::Lobby;
use names::{Address, Namespace};
pub use peer::Peer;
use reactor::{Keep, Reactor, Source};
use refuse::{Call, refused};
use socket::Listener;

/// What is known of another process.
enum Known {
    /// It has introduced itself and lives.
    Alive(Arc<Peer>),
    /// The link to it broke, and it lived then. It may come again; and it is still watched, for what it has done before it noticed.
    Estranged(Arc<Peer>),
    /// It is dead. Nonces do not come again.
    Dead,
}

/// What came of waiting for a peer.
pub(crate) enum Awaited {
    Here(Arc<Peer>),
    Dead,
    /// It has not introduced itself by the deadline.
    Missing,
    /// Nobody needs it any more.
    Over,
}

/// The hub of this process.
pub struct Hub {
    nonce: Nonce,
    boot: [u8; 16],
    instance: Instance,
    namespace: Namespace,
    reactor: Reactor,
    liveness: Arc<Liveness>,
    /// Whether the kernel marks this process's life word when it is gone.
    robust: bool,
    links: Mutex<HashMap<Nonce, Arc<Outgoing>>>,
    peers: Mutex<HashMap<Nonce, Known>>,
    peers_changed: Condvar,
    tensors: OnceLock<Arena>,
    windows: OnceLock<Arena>,
    budget: Budget,
    pub(crate) lobby: Lobby,
    pub(crate) teams: Registry,
    attendants: Mutex<Vec<Arc<dyn Attendant>>>,
    keeper: Keeper,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("nonce", &self.nonce)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// Whether this process was forked from one that has a hub. What it inherited is its parent's: calls return
/// [`Error::Forked`], and drops do nothing.
pub fn is_forked() -> bool {
    fork::is_forked()
}

/// What every call looks at first that waits for anything, or takes a lock: in a forked child another thread may have held that, and
/// whoever is waited for is not there.
///
/// # Errors
/// [`Error::Forked`] in a forked child.
pub fn refuse_forked() -> Result<()> {
    if fork::is_forked() { Err(Error::Forked) } else { Ok(()) }
}

static HUB: Mutex<Option<Arc<Hub>>> = Mutex::new(None);

impl Hub {
    /// The hub of this process, made now if need be.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child; [`Error::InvalidArgument`] for a variable that cannot be used;
    /// [`Error::Io`] if the system refuses a thread, a socket or shared memory.
    pub fn get() -> Result<Arc<Hub>> {
        refuse_forked()?;
        // Before the lock: a child that is forked with the lock held must know that it is one.
        fork::arm();
        let mut slot = lock(&HUB);
        if let Some(hub) = &*slot {
            return Ok(hub.clone());
        }
        let hub = Hub::start()?;
        *slot = Some(hub.clone());
        Ok(hub)
    }

    fn start() -> Result<Arc<Hub>> {
        config::check()?;
        let nonce = Nonce::draw()?;
        let instance = Instance::detect(nonce)?;
        let namespace = Namespace::new(&instance.id)?;
        let address = namespace.address("hub", &nonce.to_string())?;
        let listener = namespace
            .claim(&address, Deadline::default())?
            .ok_or_else(|| Error::io("binding the hub's socket", rustix::io::Errno::ADDRINUSE))?;
        let hub_slot: Arc<OnceLock<std::sync::Weak<Hub>>> = Arc::default();
        let slot = hub_slot.clone();
        let (liveness, robust) = Liveness::start(move |nonce| {
            if let Some(hub) = slot.get().and_then(std::sync::Weak::upgrade) {
                hub.peer_died(nonce);
            }
        })?;
        let hub = Arc::new(Hub {
            nonce,
            boot: identity::boot_id()?,
            instance,
            namespace,
            reactor: Reactor::new()?,
            liveness,
            robust,
            links: Mutex::default(),
            peers: Mutex::default(),
            peers_changed: Condvar::new(),
            tensors: OnceLock::new(),
            windows: OnceLock::new(),
            budget: Budget::from_config()?,
            lobby: Lobby::default(),
            teams: Registry::default(),
            attendants: Mutex::default(),
            keeper: Keeper::default(),
        });
        let _ = hub_slot.set(Arc::downgrade(&hub));
        // Now, not at first use: a child that is forked in the middle of that would wait for its end for ever.
        hub.tensors();
        hub.windows();
        let door = Arc::new(Door { listener, hub: Arc::downgrade(&hub) });
        hub.reactor.add(hub.reactor.token(), EventFlags::IN, door)?;
        let served = hub.clone();
        std::thread::Builder::new()
            .name("comm-reactor".into())
            .spawn(move || served.reactor.run(|| served.rung()))
            .map_err(|e| Error::io("starting the reactor thread", e))?;
        Ok(hub)
    }

    /// This process's nonce.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// The user of this process, and of all that it meets.
    pub fn user(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Has the reactor of this process look at what may have changed, as when a peer rings.
    pub fn ring(&self) {
        self.reactor.ring();
    }

    /// The scope of this process's names.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The arena of tensors: peers may read it. Its first segment is made at the first allocation.
    ///
    /// ```
    /// use comm_core::{hub::Hub, tensor::{DType, TensorBuf}};
    ///
    /// // A tensor that peers in other processes can be given without a copy.
    /// let t = TensorBuf::zeros_in(Hub::get()?.tensors(), &[2, 3], DType::F32)?.freeze();
    /// assert!(t.block().is_some());
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn tensors(self: &Arc<Self>) -> &Arena {
        self.tensors.get_or_init(|| self.arena(Access::ReadOnly))
    }

    /// The arena of windows: peers may read and write it.
    pub fn windows(self: &Arc<Self>) -> &Arena {
        self.windows.get_or_init(|| self.arena(Access::ReadWrite))
    }

    fn arena(self: &Arc<Self>, access: Access) -> Arena {
        let hub = Arc::downgrade(self);
        Arena::new(access, self.budget.clone(), move |_| {
            if let Some(hub) = hub.upgrade() {
                hub.push_everywhere();
            }
        })
    }

    pub(crate) fn boot(&self) -> [u8; 16] {
        self.boot
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// The name under which this process's hub can be found.
    pub(crate) fn hub_name(&self) -> String {
        self.nonce.to_string()
    }

    /// The segments that a new peer must be given.
    fn segments(&self) -> Vec<Arc<Segment>> {
        [&self.tensors, &self.windows]
            .into_iter()
            .filter_map(OnceLock::get)
            .flat_map(Arena::segments)
            .collect()
    }

    fn push_everywhere(&self) {
        // With the links locked, so that a link that is being made either sees the segment in `segments` or is here.
        let links = lock(&self.links);
        links.values().for_each(|link| link.push_segments(self));
    }

    /// What the reactor does when it is rung.
    fn rung(&self) {
        self.teams.rung();
        self.tell(|attendant| attendant.rung());
        self.keeper.sweep();
    }

    /// Makes sure that a peer gets what it needs of this process; `false` if it is too busy to take it now.
    pub(crate) fn link_to(self: &Arc<Self>, nonce: Nonce, hub_name: &str) -> Result<bool> {
        let address: Address = self.namespace.address("hub", hub_name)?;
        let linked = link::ensure(self, nonce, &address)?;
        if linked == Linked::Gone {
            self.peer_died(nonce);
        }
        Ok(linked != Linked::Busy)
    }

    /// The peer, once it has introduced itself. `over` says that it will not be needed; it is asked at each death, and
    /// every slice.
    pub(crate) fn await_peer(
        &self,
        nonce: Nonce,
        patience: &mut Patience,
        over: impl Fn() -> bool,
    ) -> Awaited {
        let mut peers = self.peers();
        loop {
            match peers.get(&nonce) {
                Some(Known::Alive(peer)) => return Awaited::Here(peer.clone()),
                Some(Known::Dead) => return Awaited::Dead,
                Some(Known::Estranged(_)) | None if over() => return Awaited::Over,
                Some(Known::Estranged(_)) | None => {}
            }
            match patience.on(&self.peers_changed, peers) {
                Some(again) => peers = again,
                None => return Awaited::Missing,
            }
        }
    }

    /// What a process is doing that this one has a link to.
    pub(crate) fn state_of(&self, nonce: Nonce) -> PeerState {
        let links = lock(&self.links);
        links.get(&nonce).map_or(PeerState::Unknown, |link| link.state())
    }

    /// Whether somebody of this nonce may introduce itself: not this process, and nobody who has done so and lives.
    fn may_arrive(&self, nonce: Nonce) -> Result<()> {
        if nonce == self.nonce {
            return Err(Error::bad_peer("a link from this process's own nonce"));
        }
        match self.peers().get(&nonce) {
            Some(Known::Alive(_)) => Err(Error::bad_peer(format!("a second link from {nonce}"))),
            _ => Ok(()),
        }
    }

    /// A peer has introduced itself. It may have died since, and even be known to be dead: what it has done and pushed before is
    /// there all the same, so it is heard of, and that it is lost.
    fn peer_arrived(self: &Arc<Self>, peer: Arc<Peer>) -> Result<()> {
        let nonce = peer.nonce();
        self.may_arrive(nonce)?;
        let died = {
            let mut peers = self.peers();
            let died = match peers.get(&nonce) {
                Some(Known::Estranged(_)) | None => peer.is_past_writing(),
                Some(Known::Alive(_)) => return Err(Error::bad_peer(format!("a second link from {nonce}"))),
                Some(Known::Dead) => true,
            };
            if !died {
                peers.insert(nonce, Known::Alive(peer.clone()));
            }
            // With the lock: whoever finds the peer finds that all have been told.
            self.tell(|attendant| attendant.peer_came(&peer));
            died
        };
        if died {
            peer.mark_dead();
            self.peer_died(nonce);
            self.tell(|attendant| attendant.peer_lost(&peer, Loss::Died));
            return Ok(());
        }
        self.liveness.watch_peer(nonce, peer.life());
        self.watch_pid(&peer);
        self.peers_changed.notify_all();
        Ok(())
    }

    /// The second line: a pidfd, where the peer's pid can be named and the call is allowed.
    fn watch_pid(self: &Arc<Self>, peer: &Peer) {
        if refused(Call::PidfdOpen) {
            return;
        }
        let Some(pid) = peer.pid().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) else { return };
        let Ok(fd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
        let source = Arc::new(PidfdSource { fd: fd.into(), peer: peer.nonce(), hub: Arc::downgrade(self) });
        let added = self.reactor.add(self.reactor.token(), EventFlags::IN, source);
        if let Err(error) = added {
            tracing::warn!(%error, "a peer's pidfd cannot be watched");
        }
    }

    /// The sending end of a link has ended. Of one that is not in use any more that says nothing.
    fn outgoing_ended(&self, link: &Outgoing, why: &str) {
        let is_current = lock(&self.links).get(&link.to()).is_some_and(|there| std::ptr::eq(&**there, link));
        if is_current {
            self.link_ended(link.to(), why);
        }
    }

    /// As [`outgoing_ended`](Hub::outgoing_ended), of the end over which a peer pushes.
    fn incoming_ended(&self, peer: &Arc<Peer>, why: &str) {
        let is_current =
            matches!(self.peers().get(&peer.nonce()), Some(Known::Alive(there)) if Arc::ptr_eq(there, peer));
        if is_current {
            self.link_ended(peer.nonce(), why);
        }
    }

    /// A link to or from a peer has ended. If its process is gone, that is why. If not, the link is what is lost, in both
    /// directions: the teams that the two share cannot go on, but the two can meet again.
    fn link_ended(&self, nonce: Nonce, why: &str) {
        let known = match self.peers().get(&nonce) {
            Some(Known::Dead) => return,
            Some(Known::Alive(peer)) => Some(peer.clone()),
            Some(Known::Estranged(_)) | None => None,
        };
        let link = lock(&self.links).get(&nonce).cloned();
        let gone = match (&known, &link) {
            (Some(peer), _) => peer.is_gone(),
            // It has not introduced itself, so there is no life word to ask.
            (None, Some(link)) => !link.exists(),
            // The other end was looked at just now, and it lives.
            (None, None) => return,
        };
        if gone {
            return self.peer_died(nonce);
        }
        tracing::warn!(%nonce, why, "a link broke");
        if let (Some(peer), Some(there @ Known::Alive(_))) = (&known, self.peers().get_mut(&nonce)) {
            *there = Known::Estranged(peer.clone());
        }
        lock(&self.links).remove(&nonce);
        self.peers_changed.notify_all();
        // The other process is to notice, too, whichever direction it was.
        if let Some(link) = link {
            link.hang_up();
        }
        if let Some(peer) = &known {
            peer.hang_up();
        }
        self.teams.link_broke(nonce, why);
        if let Some(peer) = known {
            self.tell(|attendant| attendant.peer_lost(&peer, Loss::LinkBroke));
        }
        self.reactor.ring();
    }

    /// A peer's process is gone: called by whoever notices first, harmless after that.
    pub(crate) fn peer_died(&self, nonce: Nonce) {
        let before = self.peers().insert(nonce, Known::Dead);
        let peer = match before {
            Some(Known::Dead) => return,
            Some(Known::Alive(peer) | Known::Estranged(peer)) => Some(peer),
            None => None,
        };
        if let Some(peer) = &peer {
            peer.mark_dead();
        }
        self.peers_changed.notify_all();
        self.liveness.forget_peer(nonce);
        lock(&self.links).remove(&nonce);
        self.teams.process_died(nonce);
        if let Some(peer) = peer {
            self.tell(|attendant| attendant.peer_lost(&peer, Loss::Died));
        }
        // Those who wait for another peer of a team that is over by now: with the lock, so that none of them is between
        // looking and sleeping.
        drop(self.peers());
        self.peers_changed.notify_all();
        self.reactor.ring();
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<Nonce, Known>> {
        lock(&self.peers)
    }
}

/// The hub's own socket: peers connect here to make their link to this process.
struct Door {
    listener: Listener,
    hub: std::sync::Weak<Hub>,
}

impl Source for Door {
    fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn ready(&self, _token: u64) -> Keep {
        let Some(hub) = self.hub.upgrade() else { return Keep::No };
        lobby::admit(&hub, &self.listener, || true, |socket, _| Some(Incoming::new(socket, &hub)))
    }
}
