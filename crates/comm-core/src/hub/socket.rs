//! Unix sockets of packets that carry descriptors. One packet is one message, so none is ever half read.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::Timespec;
use std::time::Duration;

use super::fds::HubFd;
use super::names::Address;
use super::reactor::TURN;
use crate::wire;

/// Most descriptors in one packet.
pub(crate) const MAX_FDS: usize = 8;

/// Largest packet: a greeting and a message.
const MAX_PACKET: usize = wire::LIMIT + 1024;

/// A bound socket that listens. Whoever holds a duplicate holds the name.
#[derive(Debug)]
pub(crate) struct Listener(HubFd);

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Socket(HubFd);

/// A packet as it arrived.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

pub(super) fn listen(address: &Address) -> Result<Listener, Errno> {
    let fd = new_socket()?;
    net::bind(&fd, address.socket())?;
    net::listen(&fd, 1024)?;
    Ok(Listener(fd.into()))
}

pub(super) fn connect_raw(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let fd = new_socket()?;
    net::connect(&fd, address)?;
    Ok(fd)
}

/// Connects; `Err(CONNREFUSED | NOENT)` if nobody listens, `Err(AGAIN)` if too many wait already.
pub(crate) fn connect(address: &Address) -> Result<Socket, Errno> {
    connect_raw(address.socket()).map(|fd| Socket(fd.into()))
}

impl Listener {
    /// The next connection, with the uid check done: a stranger is dropped before a byte of his is read. `Err(AGAIN)`
    /// after many strangers: there may be more.
    pub(crate) fn accept(&self) -> Result<Option<Socket>, Errno> {
        for _ in 0..TURN {
            match net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => {
                    let socket = Socket(fd.into());
                    match socket.foreign_uid() {
                        None => return Ok(Some(socket)),
                        Some(uid) => tracing::warn!(uid, "refused a connection of another user"),
                    }
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::AGAIN)
    }
}

impl From<OwnedFd> for Listener {
    fn from(fd: OwnedFd) -> Self {
        Listener(fd.into())
    }
}

#[cfg(test)]
impl Socket {
    /// Two ends of one connection.
    pub(crate) fn pair() -> (Socket, Socket) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Socket(a.into()), Socket(b.into()))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket {
    /// The peer's uid if it is not ours.
    pub(crate) fn foreign_uid(&self) -> Option<u32> {
        let ours = rustix::process::geteuid().as_raw();
        match self.credentials() {
            Some(peer) if peer.uid == ours => None,
            Some(peer) => Some(peer.uid),
            None => Some(u32::MAX),
        }
    }

    /// The peer's pid, if it can be named in this pid namespace.
    pub(crate) fn peer_pid(&self) -> Option<u32> {
        u32::try_from(self.credentials()?.pid).ok().filter(|&pid| pid != 0)
    }

    /// Who the kernel says that the peer is. Not by rustix, whose type has no room for the pid 0 that stands for a
    /// process which this pid namespace does not show.
    fn credentials(&self) -> Option<libc::ucred> {
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is open; the kernel writes at most `len` bytes to `peer`, which are plain integers, and
        // the length to `len`.
        let outcome = unsafe {
            libc::getsockopt(
                self.0.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                std::ptr::from_mut(&mut peer).cast(),
                &mut len,
            )
        };
        (outcome == 0 && len as usize == size_of::<libc::ucred>()).then_some(peer)
    }

    /// Ends the connection in both directions.
    pub(crate) fn shut_down(&self) {
        // It may be over already.
        let _ = net::shutdown(&self.0, net::Shutdown::Both);
    }

    /// Sends one packet; `Err(AGAIN)` if the peer's queue is full.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::TOOBIG);
        }
        loop {
            match net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The next packet: `Ok(None)` when the other end is closed, `Err(AGAIN)` when there is none yet. A packet that
    /// does not fit is `Err(MSGSIZE)`; one whose descriptors were lost since this process has none left, `Err(MFILE)`.
    pub(crate) fn receive(&self) -> Result<Option<Packet>, Errno> {
        match self.receive_once()? {
            Some(packet) => Ok(Some(packet)),
            // The kernel looks for a packet, finds none, looks whether the other end is closed, and if so says that
            // this is the end: also when the last packet and the closing came in between. Nothing comes after the
            // closing, so the second time it is true.
            None => self.receive_once(),
        }
    }

    fn receive_once(&self) -> Result<Option<Packet>, Errno> {
        let mut bytes = vec![0; MAX_PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match net::recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) && fds.len() < MAX_FDS {
            // There was room for them here: this process may not have any more.
            return Err(Errno::MFILE);
        }
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Errno::MSGSIZE);
        }
        if message.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(message.bytes);
        Ok(Some(Packet { bytes, fds }))
    }

    /// Sleeps until a packet can be read or `at_most` has passed.
    pub(crate) fn await_readable(&self, at_most: Duration) {
        let timeout =
            Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        // Whatever comes of it, the caller looks again.
        let _ = poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&timeout));
    }
}
