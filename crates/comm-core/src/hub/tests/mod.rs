//! What strangers can do to a hub: greetings and links, byte by byte.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;

use super::Hub;
use super::hello::{self, Purpose};
use super::identity::Nonce;
use super::sender::Sender;
use super::socket::{Packet, Socket};
use crate::shm::{Access, Segment};
use crate::team::Team;

mod greeting;
mod links;
mod packets;

pub(crate) const AMPLE: Duration = Duration::from_secs(20);

pub(crate) fn hub() -> Arc<Hub> {
    Hub::get().unwrap()
}

/// A greeting with a message behind it, from a process that does not exist.
pub(crate) fn greet(purpose: Purpose, nonce: Nonce, body: &[u8]) -> Vec<u8> {
    hello::greet(purpose, nonce, hub().boot(), body)
}

/// The fields of the greeting: name, offset, length. Every build must agree on them, or none could name the other.
pub(crate) const FIELDS: [(&str, usize, usize); 9] = [
    ("magic", 0, 8),
    ("wire", 8, 4),
    ("layout_version", 12, 4),
    ("layout_hash", 16, 8),
    ("purpose", 24, 4),
    ("body", 28, 4),
    ("nonce", 32, 16),
    ("boot", 48, 16),
    ("build", 64, 64),
];

/// The same bytes cut at each length, with each bit flipped, with each byte at its extremes, and with more behind.
pub(crate) fn mutations(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let cut = (1..bytes.len()).map(|n| bytes[..n].to_vec());
    let changed = (0..bytes.len()).flat_map(move |at| {
        let was = bytes[at];
        let bits = (0..8).map(move |bit| was ^ 1 << bit);
        let values: BTreeSet<u8> = bits.chain([0, 0xff, 0xfb, 0xfc, 0xfd, !was]).collect();
        values.into_iter().filter(move |&value| value != was).map(move |value| {
            let mut copy = bytes.to_vec();
            copy[at] = value;
            copy
        })
    });
    let longer = [1, 7, 4096].map(|n| [bytes, &vec![0; n]].concat());
    cut.chain(changed).chain(longer)
}

/// What a packet was answered with; `None` if the connection was closed. Panics if neither comes.
pub(crate) fn reply(socket: &Socket) -> Option<Packet> {
    let until = Instant::now() + AMPLE;
    loop {
        match socket.receive() {
            Ok(packet) => return packet,
            Err(rustix::io::Errno::AGAIN) => {
                assert!(Instant::now() < until, "neither an answer nor the end of the connection");
                socket.await_readable(Duration::from_millis(100));
            }
            Err(_) => return None,
        }
    }
}

pub(crate) fn borrow(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// The hub serves, and teams come together.
pub(crate) fn all_is_well(name: &str) {
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || Team::join(name, rank, 3, AMPLE).unwrap().barrier(AMPLE).unwrap());
        }
    });
}

/// A life segment whose word has this value.
pub(crate) fn life(word: u32) -> OwnedFd {
    let segment = Segment::create(super::liveness::SEGMENT_LEN, Access::ReadOnly).unwrap();
    segment.typed::<AtomicU32>(0).unwrap().store(word, Ordering::Release);
    segment.share().unwrap()
}

/// What the life word of a living thread looks like.
pub(crate) fn living() -> OwnedFd {
    life(rustix::thread::gettid().as_raw_nonzero().get() as u32 | 0x8000_0000)
}

pub(crate) fn bell() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// A memfd with a size and no seal.
pub(crate) fn unsealed(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}
