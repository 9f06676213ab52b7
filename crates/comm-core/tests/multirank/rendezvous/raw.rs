//! Sockets and packets as a stranger makes them: without the library, from bytes of the library that were heard.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// The address of an abstract name: `comm/<uid>/<instance>/<hub or team>/<name>`.
pub fn abstract_name(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

pub fn connect(to: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let socket = socket();
    rustix::net::connect(&socket, to).map(|()| socket)
}

/// Connects once somebody listens.
pub fn connect_soon(to: &SocketAddrUnix) -> Result<OwnedFd, String> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match connect(to) {
            Ok(socket) => return Ok(socket),
            Err(error) if Instant::now() > until => return Err(format!("nobody listens: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

pub fn listen(at: &SocketAddrUnix) -> OwnedFd {
    let socket = socket();
    rustix::net::bind(&socket, at).unwrap();
    rustix::net::listen(&socket, 128).unwrap();
    socket
}

fn await_readable(fd: &OwnedFd, at_most: Duration) {
    let timeout =
        rustix::time::Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout));
}

pub fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    await_readable(listener, Duration::from_secs(20));
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// The next packet; empty at the end of the connection.
pub fn receive(socket: &OwnedFd) -> Result<Vec<u8>, Errno> {
    await_readable(socket, Duration::from_secs(20));
    let mut bytes = vec![0; 70_000];
    let mut control = rustix::net::RecvAncillaryBuffer::default();
    let message =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty())?;
    bytes.truncate(message.bytes);
    Ok(bytes)
}

pub fn send(socket: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) -> Result<(), Errno> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// A greeting that was heard, to be said again with other words behind it.
#[derive(Clone)]
pub struct Greeting(Vec<u8>);

const LEN: usize = 128;

impl Greeting {
    /// From the request of a rank that came to the wrong one; with it, what was said behind it.
    pub fn heard(packet: &[u8]) -> Result<(Greeting, Vec<u8>), String> {
        if packet.len() <= LEN || !packet.starts_with(b"comm\r\n") {
            return Err(format!("{} bytes are no request", packet.len()));
        }
        Ok((Greeting(packet[..LEN].to_vec()), packet[LEN..].to_vec()))
    }

    /// With a message behind it, from somebody of this nonce, for a link (1) or a join (2).
    pub fn with(&self, purpose: u32, nonce: [u8; 16], body: &[u8]) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes[24..28].copy_from_slice(&purpose.to_ne_bytes());
        bytes[28..32].copy_from_slice(&(body.len() as u32).to_ne_bytes());
        bytes[32..48].copy_from_slice(&nonce);
        bytes.extend_from_slice(body);
        bytes
    }
}
