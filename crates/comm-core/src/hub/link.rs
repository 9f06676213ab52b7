//! Links: how a process pushes what peers need. Nothing is ever pulled from a peer.
//!
//! A link goes one way. The connecting side introduces itself (life word, bell) and pushes its segments, those that it
//! has and later each new one; the accepting side maps them. Two processes that meet make one link each way.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Hub;
use super::hello::{self, Purpose};
use super::identity::Nonce;
use super::liveness::{LifeWord, SEGMENT_LEN};
use super::names::Address;
use super::peer::{Peer, process_state};
use super::reactor::{Keep, Source, TURN};
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
    /// The first message, behind the greeting; descriptors: life segment, eventfd.
    Introduction,
    /// A segment; its descriptor comes along.
    Segment { id: u64, len: u64, writable: bool },
}

/// The sending end of a link.
#[derive(Debug)]
pub(super) struct Outgoing {
    socket: Socket,
    to: Nonce,
    hub: Weak<Hub>,
    queue: Mutex<VecDeque<(Vec<u8>, Vec<OwnedFd>)>>,
    /// Segments pushed so far: one that is made while the link is may be offered twice.
    pushed: Mutex<HashSet<u64>>,
}

impl Outgoing {
    /// Introduces this process over a fresh connection, and pushes its segments.
    fn open(hub: &Arc<Hub>, to: Nonce, socket: Socket) -> Result<Arc<Outgoing>> {
        let hub_link = Arc::downgrade(hub);
        let link = Arc::new(Outgoing {
            socket,
            to,
            hub: hub_link,
            queue: Mutex::default(),
            pushed: Mutex::default(),
        });
        let body = wire::encode(&Message::Introduction)?;
        let greeting = hello::greet(Purpose::Link, hub.nonce, hub.boot, &body);
        let life = hub.liveness.own_segment().share()?;
        let bell = dup(hub.reactor.bell())?;
        link.push(greeting, vec![life, bell]);
        for segment in hub.segments() {
            link.push_segment(&segment)?;
        }
        let flags = EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        hub.reactor.add(hub.reactor.token(), flags, link.clone())?;
        Ok(link)
    }

    /// What the process at the other end is doing.
    pub(super) fn state(&self) -> PeerState {
        self.socket.peer_pid().map_or(PeerState::Unknown, process_state)
    }

    pub(super) fn push_segment(&self, segment: &Segment) -> Result<()> {
        if !lock(&self.pushed).insert(segment.id()) {
            return Ok(());
        }
        let writable = segment.access() == Access::ReadWrite;
        let message = Message::Segment { id: segment.id(), len: segment.len(), writable };
        self.push(wire::encode(&message)?, vec![segment.share()?]);
        Ok(())
    }

    fn push(&self, bytes: Vec<u8>, fds: Vec<OwnedFd>) {
        lock(&self.queue).push_back((bytes, fds));
        self.flush();
    }

    /// Sends what the peer's queue takes; the reactor goes on when there is room again.
    fn flush(&self) {
        let mut queue = lock(&self.queue);
        while let Some((bytes, fds)) = queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.socket.send(bytes, &borrowed) {
                Ok(()) => drop(queue.pop_front()),
                // Too many descriptors in flight is the same as a full queue: the peer has to take some first.
                Err(Errno::AGAIN | Errno::TOOMANYREFS) => return,
                Err(error) => {
                    tracing::debug!(%error, to = %self.to, "a link broke");
                    queue.clear();
                }
            }
        }
    }
}

impl Source for Outgoing {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn ready(&self, _token: u64) -> Keep {
        // The peer never writes on this connection: to read from it can only tell that it is closed.
        match self.socket.receive() {
            Err(Errno::AGAIN) => {
                self.flush();
                Keep::Yes
            }
            _ => {
                if let Some(hub) = self.hub.upgrade() {
                    hub.peer_died(self.to);
                }
                Keep::No
            }
        }
    }
}

/// The receiving end of a link.
pub(super) struct Incoming {
    socket: Socket,
    hub: Weak<Hub>,
    peer: OnceLock<Arc<Peer>>,
}

impl Incoming {
    pub(super) fn new(socket: Socket, hub: &Arc<Hub>) -> Incoming {
        Incoming { socket, hub: Arc::downgrade(hub), peer: OnceLock::new() }
    }

    /// Reads what is there, as much as fits in a turn; `Ok(false)` at the end of the connection.
    pub(super) fn drain(&self, hub: &Arc<Hub>) -> Result<bool> {
        for _ in 0..TURN {
            match self.socket.receive() {
                Ok(Some(packet)) => self.take(hub, packet)?,
                Ok(None) => return Ok(false),
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::MSGSIZE) => return Err(Error::bad_peer("a packet that is too large")),
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    fn take(&self, hub: &Arc<Hub>, packet: Packet) -> Result<()> {
        let Some(peer) = self.peer.get() else { return self.introduce(hub, packet) };
        let Message::Segment { id, len, writable } = wire::decode(&packet.bytes)? else {
            return Err(Error::bad_peer("a second introduction"));
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
        Ok(())
    }

    fn introduce(&self, hub: &Arc<Hub>, packet: Packet) -> Result<()> {
        let (nonce, body) = hello::check(&packet.bytes, Purpose::Link, hub.boot)?;
        if wire::decode::<Message>(body)? != Message::Introduction {
            return Err(Error::bad_peer("a link that does not begin with an introduction"));
        }
        hub.may_arrive(nonce)?;
        let [life, bell] = take_fds(packet.fds, "an introduction")?;
        let life = Segment::receive(life, 0, SEGMENT_LEN, Access::ReadOnly)?;
        let Some(life) = LifeWord::of_peer(Arc::new(life))? else {
            hub.peer_died(nonce);
            return Ok(());
        };
        check_bell(&bell)?;
        let peer = Arc::new(Peer::new(nonce, self.socket.peer_pid(), Arc::new(life), bell));
        hub.peer_arrived(peer.clone())?;
        // Only this thread, the reactor's, sets it.
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
        let outcome = self.drain(&hub);
        if !matches!(outcome, Ok(true)) || self.peer.get().is_some() {
            hub.lobby.leave(token);
        }
        match outcome {
            Ok(true) => return Keep::Yes,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, pid = self.socket.peer_pid(), "a link was refused"),
        }
        if let Some(peer) = self.peer.get() {
            hub.peer_died(peer.nonce());
        }
        Keep::No
    }
}

/// A peer's process as a descriptor that becomes readable when it is gone: the second line behind the life word.
pub(super) struct PidfdSource {
    pub(super) fd: OwnedFd,
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

fn dup(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(|e| Error::io("duplicating a descriptor", e))
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
