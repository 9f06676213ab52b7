//! The socket of a team's name, and those who come to it.
//!
//! While a team comes together its desk is kept by the host; afterwards every process of the team keeps one on a
//! duplicate of the same socket, so the name is held, and answered for, until the last of them has left.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::messages::{Answer, Request};
use crate::error::{Error, Result};
use crate::hub::hello::{self, Purpose};
use crate::hub::lobby;
use crate::hub::reactor::{Keep, Source, TURN};
use crate::hub::sender::Sender;
use crate::hub::socket::Listener;
use crate::hub::{Hub, Nonce};
use crate::wire;

/// Who answers at a desk.
pub(super) trait Clerk: Send + Sync + 'static {
    /// Somebody asks. What is returned is sent to him.
    fn asked(&self, visitor: &Arc<Visitor>, request: Request) -> Option<Answer>;
    /// Somebody is gone.
    fn gone(&self, visitor: &Visitor);
    /// Whether the desk stays open.
    fn is_open(&self) -> bool;
}

/// A listening socket with somebody behind it.
pub(super) struct Desk {
    listener: Listener,
    hub: Weak<Hub>,
    clerk: Arc<dyn Clerk>,
}

/// Most visitors at one desk at a time: every rank may come a few times, strangers may not fill the process.
const MAX_VISITORS: usize = 1024;

impl Desk {
    /// Opens a desk; the token takes it away again.
    pub(super) fn open(hub: &Arc<Hub>, listener: Listener, clerk: Arc<dyn Clerk>) -> Result<u64> {
        let desk = Arc::new(Desk { listener, hub: Arc::downgrade(hub), clerk });
        let token = hub.reactor().token();
        hub.reactor().add(token, EventFlags::IN, desk)?;
        Ok(token)
    }
}

impl Source for Desk {
    fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn ready(&self, _token: u64) -> Keep {
        let Some(hub) = self.hub.upgrade() else { return Keep::No };
        lobby::admit(
            &hub,
            &self.listener,
            || self.clerk.is_open(),
            |socket, token| {
                if Arc::strong_count(&self.clerk) > MAX_VISITORS {
                    tracing::warn!("too many connections to one name; the newest is dropped");
                    return None;
                }
                Some(Arc::new_cyclic(|me| Visitor {
                    me: me.clone(),
                    sender: Sender::new(socket, self.hub.clone()),
                    token,
                    hub: self.hub.clone(),
                    nonce: OnceLock::new(),
                    clerk: self.clerk.clone(),
                }))
            },
        )
    }
}

/// One connection to a desk.
pub(super) struct Visitor {
    me: Weak<Visitor>,
    sender: Arc<Sender>,
    token: u64,
    hub: Weak<Hub>,
    /// Known once it has greeted.
    nonce: OnceLock<Nonce>,
    clerk: Arc<dyn Clerk>,
}

impl Visitor {
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    pub(super) fn nonce(&self) -> Option<Nonce> {
        self.nonce.get().copied()
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.sender.socket().peer_pid()
    }

    /// Sends an answer, with duplicates of some descriptors.
    ///
    /// # Errors
    /// [`Error::Io`] if they cannot be duplicated.
    pub(super) fn answer(&self, answer: &Answer, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let Some(hub) = self.hub.upgrade() else { return Ok(()) };
        let fds: std::io::Result<Vec<OwnedFd>> = fds.iter().map(|fd| fd.try_clone_to_owned()).collect();
        let fds = fds.map_err(|e| Error::io("duplicating a descriptor", e))?;
        let body = wire::encode(answer)?;
        self.sender.push(hello::greet(Purpose::Answer, hub.nonce(), hub.boot(), &body), fds);
        Ok(())
    }

    /// Sends an answer that has no descriptors.
    pub(super) fn say(&self, answer: &Answer) {
        if let Err(error) = self.answer(answer, &[]) {
            tracing::error!(%error, "an answer cannot be sent");
        }
    }

    fn take(&self, hub: &Hub, bytes: &[u8]) -> Result<()> {
        let request = match self.nonce.get() {
            Some(_) => wire::decode(bytes)?,
            None => {
                let (nonce, body) = hello::check(bytes, Purpose::Join, hub.boot())?;
                let _ = self.nonce.set(nonce);
                wire::decode(body)?
            }
        };
        let Some(me) = self.me.upgrade() else { return Ok(()) };
        if let Some(answer) = self.clerk.asked(&me, request) {
            self.say(&answer);
        }
        Ok(())
    }

    fn serve(&self, hub: &Hub) -> Result<Keep> {
        for _ in 0..TURN {
            match self.sender.socket().receive() {
                Ok(Some(packet)) => self.take(hub, &packet.bytes)?,
                Ok(None) => return Ok(Keep::No),
                Err(Errno::AGAIN) => return Ok(Keep::Yes),
                Err(Errno::MSGSIZE) => return Err(Error::bad_peer("a packet that is too large")),
                Err(_) => return Ok(Keep::No),
            }
        }
        Ok(Keep::Yes)
    }
}

impl Source for Visitor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.sender.socket().as_fd()
    }

    fn ready(&self, token: u64) -> Keep {
        let Some(hub) = self.hub.upgrade() else { return Keep::No };
        let keep = self.serve(&hub).unwrap_or_else(|error| {
            tracing::warn!(%error, pid = self.pid(), "a connection to a name was refused");
            // He may be one of ours from another build: tell him, with a greeting that tells him ours.
            self.say(&Answer::Refused(error.to_string()));
            Keep::No
        });
        if keep == Keep::No || self.nonce.get().is_some() {
            hub.lobby.leave(token);
        }
        if keep == Keep::No {
            self.clerk.gone(self);
        }
        keep
    }
}
