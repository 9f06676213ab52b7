//! Sends packets in order, those that cannot go now a little later.
//!
//! A queue that is full, descriptors of which too many are in flight, a lack of memory: none of them says when it is
//! over (the limit on descriptors in flight is one of the user, so not even an event of this socket does), so what is
//! left is tried again after a pause.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::io::Errno;

use super::Hub;
use super::socket::Socket;
use crate::sync::lock;

/// How long what could not be sent is left lying.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// A packet with its descriptors.
type Packet = (Vec<u8>, Vec<OwnedFd>);

/// The sending side of a connection.
pub(crate) struct Sender {
    me: Weak<Sender>,
    hub: Weak<Hub>,
    socket: Socket,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    packets: VecDeque<Packet>,
    /// Whether the connection broke, and with it what was to be sent.
    is_broken: bool,
}

impl Sender {
    pub(crate) fn new(socket: Socket, hub: Weak<Hub>) -> Arc<Sender> {
        Arc::new_cyclic(|me| Sender { me: me.clone(), hub, socket, queue: Mutex::default() })
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends a packet, now or later, after those that wait already.
    pub(crate) fn push(&self, bytes: Vec<u8>, fds: Vec<OwnedFd>) {
        lock(&self.queue).packets.push_back((bytes, fds));
        self.flush();
    }

    /// Whether all that was pushed has been sent.
    pub(super) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.packets.is_empty() && !queue.is_broken
    }

    fn flush(&self) {
        let mut queue = lock(&self.queue);
        while let Some((bytes, fds)) = queue.packets.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.socket.send(bytes, &borrowed) {
                Ok(()) => drop(queue.packets.pop_front()),
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::MFILE) => {
                    if let (Some(me), Some(hub)) = (self.me.upgrade(), self.hub.upgrade()) {
                        // The timer is not needed again: it fires, and is gone.
                        let _ = hub.reactor.arm(PAUSE.into(), &Waker::from(me));
                    }
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection broke");
                    queue.packets.clear();
                    queue.is_broken = true;
                    // What was cleared is missed: both ends must learn that this connection is over.
                    self.socket.shut_down();
                }
            }
        }
    }
}

impl Wake for Sender {
    fn wake(self: Arc<Self>) {
        self.flush();
    }
}
