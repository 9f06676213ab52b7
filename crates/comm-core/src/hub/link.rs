//! Links: how a process pushes what peers need. Nothing is ever pulled from a peer.
//!
//! A link goes one way. The connecting side introduces itself (life word, bell) and pushes its segments, those that it
//! has and later each new one; the accepting side maps them. Two processes that meet make one link each way.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Wake, Waker};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Hub;
use super::fds::HubFd;
use super::hello::{self, Purpose};
use super::identity::Nonce;
use super::liveness::{LifeWord, SEGMENT_LEN};
use super::names::Address;
use super::peer::{Peer, process_exists, process_state};
use super::reactor::{Keep, Source, TURN};
use super::sender::{self, Sender};
use super::socket::{self, Packet, Socket};
use crate::error::{Error, PeerState, Result};
use crate::point;
use crate::shm::{Access, Segment};
use crate::sync::lock;
use crate::wire;

/// Most segments that a peer may push: they grow in size, so this is far more than anybody needs.
const MAX_SEGMENTS: usize = 4096;

/// What goes over a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// The first message, behind the greeting; descriptors: life segment, eventfd. `robust`: the kernel marks the life
    /// word when the process is gone.
    Introduction { robust: bool },
    /// A segment; its descriptor comes along.
    Segment { id: u64, len: u64, writable: bool },
    /// The other end is asked to make its link to this process, too.
    Meet,
}

/// The sending end of a link.
pub(super) struct Outgoing {
    me: Weak<Outgoing>,
    sender: Arc<Sender>,
    to: Nonce,
    hub: Weak<Hub>,
    /// Segments pushed so far: one that is made while the link is may be offered twice.
    pushed: Mutex<HashSet<u64>>,
}

impl Outgoing {
    /// Introduces this process over a fresh connection, and pushes its segments.
    fn open(hub: &Arc<Hub>, to: Nonce, socket: Socket) -> Result<Arc<Outgoing>> {
        // What can fail comes before the peer hears anything.
        let body = wire::encode(&Message::Introduction { robust: hub.robust })?;
        let greeting = hello::greet(Purpose::Link, hub.nonce, hub.boot, &body);
        let life = hub.liveness.own_segment().share()?;
        let bell = hub.reactor.bell().as_fd().try_clone_to_owned();
        let bell = bell.map_err(|e| Error::io("duplicating a descriptor", e))?;
        let sender = Sender::new(socket, Arc::downgrade(hub));
        let link = Arc::new_cyclic(|me| Outgoing {
            me: me.clone(),
            sender,
            to,
            hub: Arc::downgrade(hub),
            pushed: Mutex::default(),
        });
        hub.reactor.add(hub.reactor.token(), EventFlags::IN | EventFlags::RDHUP, link.clone())?;
        link.sender.push(greeting, vec![life, bell]);
        link.push_segments(hub);
        Ok(link)
    }

    /// Sends a message that is no segment.
    pub(super) fn say(&self, message: Vec<u8>) {
        self.sender.push(message, Vec::new());
    }

    /// Whether these segments have been sent: not only that they are to be.
    pub(super) fn has_pushed(&self, segments: &[u64]) -> bool {
        let pushed = lock(&self.pushed);
        segments.iter().all(|id| pushed.contains(id)) && self.sender.is_idle()
    }

    /// What the process at the other end is doing.
    pub(super) fn state(&self) -> PeerState {
        self.sender.socket().peer_pid().map_or(PeerState::Unknown, process_state)
    }

    /// The process to which it goes.
    pub(super) fn to(&self) -> Nonce {
        self.to
    }

    /// Ends it.
    pub(super) fn hang_up(&self) {
        self.sender.socket().shut_down();
    }

    /// Whether the process at the other end is there, as far as its pid tells.
    pub(super) fn exists(&self) -> bool {
        self.sender.socket().peer_pid().is_some_and(process_exists)
    }

    /// Pushes the segments that have not been pushed. One that cannot be shared now, for want of descriptors, say, is
    /// tried again: the peer waits for it.
    pub(super) fn push_segments(&self, hub: &Hub) {
        let mut pushed = lock(&self.pushed);
        for segment in hub.segments() {
            if pushed.contains(&segment.id()) {
                continue;
            }
            let writable = segment.access() == Access::ReadWrite;
            let message = Message::Segment { id: segment.id(), len: segment.len(), writable };
            let shared =
                segment.share().map_err(Error::from).and_then(|fd| Ok((wire::encode(&message)?, fd)));
            match shared {
                Ok((bytes, fd)) => {
                    pushed.insert(segment.id());
                    self.sender.push(bytes, vec![fd]);
                }
                Err(error) => {
                    tracing::warn!(%error, "a segment cannot be pushed now");
                    if let Some(me) = self.me.upgrade() {
                        let _ = hub.reactor.arm(sender::PAUSE.into(), &Waker::from(me));
                    }
                    return;
                }
            }
        }
    }
}

impl Wake for Outgoing {
    fn wake(self: Arc<Self>) {
        if let Some(hub) = self.hub.upgrade() {
            self.push_segments(&hub);
        }
    }
}

impl Source for Outgoing {
    fn fd(&self) -> BorrowedFd<'_> {
        self.sender.socket().as_fd()
    }

    fn ready(&self, _token: u64) -> Keep {
        // The peer never writes on this connection: to read from it can only tell that it is closed.
        match self.sender.socket().receive() {
            Err(Errno::AGAIN) => Keep::Yes,
            _ => {
                if let Some(hub) = self.hub.upgrade() {
                    hub.outgoing_ended(self, "the peer closed it");
                }
                Keep::No
            }
        }
    }
}

/// The receiving end of a link.
pub(super) struct Incoming {
    me: Weak<Incoming>,
    socket: Socket,
    hub: Weak<Hub>,
    peer: OnceLock<Arc<Peer>>,
    /// Whether it has come to its end. Held by whoever reads from it, so that packets are taken in order.
    is_over: Mutex<bool>,
}

impl Incoming {
    pub(super) fn new(socket: Socket, hub: &Arc<Hub>) -> Arc<Incoming> {
        Arc::new_cyclic(|me| Incoming {
            me: me.clone(),
            socket,
            hub: Arc::downgrade(hub),
            peer: OnceLock::new(),
            is_over: Mutex::new(false),
        })
    }

    /// Takes what has come, on whatever thread; `false` once nothing will come any more. What one who waits for a segment
    /// does by himself, for the reactor may be inside of a waker that does the waiting.
    pub(super) fn serve(&self, hub: &Arc<Hub>) -> bool {
        let (peer, why) = {
            let mut is_over = lock(&self.is_over);
            if *is_over {
                return false;
            }
            let why = match self.drain(hub) {
                Ok(true) => return true,
                Ok(false) => "its end was reached".to_string(),
                Err(error) => {
                    tracing::warn!(%error, pid = self.socket.peer_pid(), "a link was refused");
                    error.to_string()
                }
            };
            *is_over = true;
            (self.peer.get(), why)
        };
        // The reactor is to see that it is over, too.
        self.socket.shut_down();
        if let Some(peer) = peer {
            peer.link_is_over();
            hub.incoming_ended(peer, &why);
        }
        false
    }

    /// Ends it. What has come is read all the same.
    pub(super) fn hang_up(&self) {
        self.socket.shut_down();
    }

    /// As [`serve`](Incoming::serve), for whoever is not the reactor; `None` without a hub.
    pub(super) fn serve_now(&self) -> Option<bool> {
        Some(self.serve(&self.hub.upgrade()?))
    }

    /// Reads what is there, as much as fits in a turn; `Ok(false)` at the end of the connection.
    pub(super) fn drain(&self, hub: &Arc<Hub>) -> Result<bool> {
        for _ in 0..TURN {
            match self.socket.receive() {
                Ok(Some(packet)) => self.take(hub, packet)?,
                Ok(None) => return Ok(false),
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::MSGSIZE) => return Err(Error::bad_peer("a packet that is too large")),
                Err(Errno::CONNRESET) => return Ok(false),
                Err(e) => return Err(Error::io("taking what a peer pushed", e)),
            }
        }
        Ok(true)
    }

    fn take(&self, hub: &Arc<Hub>, packet: Packet) -> Result<()> {
        let Some(peer) = self.peer.get() else { return self.introduce(hub, packet) };
        let (id, len, writable) = match wire::decode(&packet.bytes)? {
            Message::Segment { id, len, writable } => (id, len, writable),
            Message::Meet => {
                hub.link_back(peer.nonce());
                return Ok(());
            }
            Message::Introduction { .. } => return Err(Error::bad_peer("a second introduction")),
        };
        let [fd] = take_fds(packet.fds, "a segment")?;
        if peer.segment_count() >= MAX_SEGMENTS {
            return Err(Error::bad_peer(format!("more than {MAX_SEGMENTS} segments")));
        }
        let access = if writable { Access::ReadWrite } else { Access::ReadOnly };
        let segment = Segment::receive(fd, id, len, access)?;
        if !peer.add_segment(segment) {
            return Err(Error::bad_peer(format!("segment {id} is pushed twice")));
        }
        // A task may wait for it.
        hub.reactor.ring();
        Ok(())
    }

    fn introduce(&self, hub: &Arc<Hub>, packet: Packet) -> Result<()> {
        let (nonce, body) = hello::check(&packet.bytes, Purpose::Link, hub.boot)?;
        let Message::Introduction { robust } = wire::decode(body)? else {
            return Err(Error::bad_peer("a link that does not begin with an introduction"));
        };
        hub.may_arrive(nonce)?;
        let [life, bell] = take_fds(packet.fds, "an introduction")?;
        let life = Segment::receive(life, 0, SEGMENT_LEN, Access::ReadOnly)?;
        let life = LifeWord::of_peer(Arc::new(life))?;
        check_bell(&bell)?;
        let link = self.me.clone();
        let peer = Arc::new(Peer::new(nonce, self.socket.peer_pid(), Arc::new(life), bell, robust, link));
        hub.peer_arrived(peer.clone())?;
        // Only who holds the lock of this link sets it.
        let _ = self.peer.set(peer);
        Ok(())
    }
}

impl Source for Incoming {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn ready(&self, token: u64) -> Keep {
        let Some(hub) = self.hub.upgrade() else { return Keep::No };
        let goes_on = self.serve(&hub);
        if !goes_on || self.peer.get().is_some() {
            hub.lobby.leave(token);
        }
        if goes_on { Keep::Yes } else { Keep::No }
    }
}

/// A peer's process as a descriptor that becomes readable when it is gone: the second line behind the life word.
pub(super) struct PidfdSource {
    pub(super) fd: HubFd,
    pub(super) peer: Nonce,
    pub(super) hub: Weak<Hub>,
}

impl Source for PidfdSource {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn ready(&self, _token: u64) -> Keep {
        if let Some(hub) = self.hub.upgrade() {
            hub.peer_died(self.peer);
        }
        Keep::No
    }
}

fn take_fds<const N: usize>(fds: Vec<OwnedFd>, what: &str) -> Result<[OwnedFd; N]> {
    let seen = fds.len();
    <[OwnedFd; N]>::try_from(fds)
        .map_err(|_| Error::bad_peer(format!("{what} with {seen} descriptors, expected {N}")))
}

/// A bell must be an eventfd, and one that never blocks when it is rung. To write to anything else could block for ever
/// (a file on some network), or raise a signal (a broken pipe).
fn check_bell(bell: &OwnedFd) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(bell).map_err(|e| Error::io("looking at a peer's bell", e))?;
    if !flags.contains(rustix::fs::OFlags::NONBLOCK) {
        return Err(Error::bad_peer("a bell that can block"));
    }
    let path = format!("/proc/self/fd/{}", bell.as_raw_fd());
    let kind = rustix::fs::readlink(&path, Vec::new())
        .map_err(|e| Error::io(format!("looking at a peer's bell through {path} (is /proc mounted?)"), e))?;
    if kind.as_bytes() != b"anon_inode:[eventfd]" {
        return Err(Error::bad_peer(format!("a bell that is no eventfd but {kind:?}")));
    }
    Ok(())
}

/// What came of linking to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Linked {
    Yes,
    /// Its process is gone.
    Gone,
    /// Too many connect to it at the same time: to be tried again.
    Busy,
}

/// Makes sure that there is a link to a peer.
pub(super) fn ensure(hub: &Arc<Hub>, to: Nonce, address: &Address) -> Result<Linked> {
    // One at a time: a second link to the same peer would be refused there.
    let mut links = lock(&hub.links);
    if links.contains_key(&to) {
        return Ok(Linked::Yes);
    }
    point!("link.connect");
    let socket = match socket::connect(address) {
        Ok(socket) => socket,
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(Linked::Gone),
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Linked::Busy),
        Err(e) => return Err(Error::io(format!("connecting to the hub {address}"), e)),
    };
    if let Some(uid) = socket.foreign_uid() {
        return Err(Error::bad_peer(format!("the socket {address} belongs to uid {uid}")));
    }
    links.insert(to, Outgoing::open(hub, to, socket)?);
    Ok(Linked::Yes)
}
