//! To meet another process by its nonce, outside of any team.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use super::link::Message;
use super::{Awaited, Hub, Known, Nonce, Peer, sender};
use crate::error::{At, Error, Result};
use crate::sync::lock;
use crate::wait::{Deadline, Next, Patience};
use crate::wire;

/// How long one who finds a peer's door crowded stays away.
const BUSY: Duration = Duration::from_millis(2);

impl Hub {
    /// Links this process to another one of the same instance and has it link back. `None` if there is no such process, or
    /// none any more.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::BadPeer`] if the other one refuses: another user, another build.
    pub fn meet(self: &Arc<Self>, nonce: Nonce, deadline: impl Into<Deadline>) -> Result<Option<Arc<Peer>>> {
        super::refuse_forked()?;
        if nonce == self.nonce {
            return Err(Error::invalid("Hub::meet", "this process's own nonce"));
        }
        let deadline = deadline.into();
        let mut patience = Patience::sleeping(deadline);
        loop {
            // Before the clock is asked: most have met.
            if let Some(Known::Alive(peer)) = self.peers().get(&nonce)
                && self.is_linked_to(nonce)
            {
                return Ok(Some(peer.clone()));
            }
            if self.link_to(nonce, &nonce.to_string())? {
                break;
            }
            match patience.next() {
                Next::Look => {}
                Next::Sleep(slice) => std::thread::sleep(slice.min(BUSY)),
                Next::GiveUp => return Err(self.not_met(nonce, &patience)),
            }
        }
        let request = wire::encode(&Message::Meet)?;
        if let Some(link) = lock(&self.links).get(&nonce) {
            link.say(request);
        }
        match self.await_peer(nonce, &mut patience, || !self.is_linked_to(nonce)) {
            Awaited::Here(peer) => Ok(Some(peer)),
            Awaited::Dead => Ok(None),
            Awaited::Missing => Err(self.not_met(nonce, &patience)),
            Awaited::Over => Err(Error::bad_peer(format!(
                "the process {nonce} has closed the link: is it of another build?"
            ))),
        }
    }

    fn is_linked_to(&self, nonce: Nonce) -> bool {
        lock(&self.links).contains_key(&nonce)
    }

    fn not_met(&self, nonce: Nonce, patience: &Patience) -> Error {
        let what = format!("the process {nonce} to answer, which is {}", self.state_of(nonce));
        let at = At { op: "meet".into(), elapsed: patience.waited(), ..At::default() };
        let (missing, waited) = (Vec::new(), patience.waited());
        Error::Timeout { what, waited, missing, seen: 0, expected: 1, at: Box::new(at) }
    }

    /// A peer has asked to be linked to: now, or a little later if that cannot be now.
    pub(super) fn link_back(self: &Arc<Self>, nonce: Nonce) {
        match self.link_to(nonce, &nonce.to_string()) {
            Ok(true) => {}
            Ok(false) => self.link_back_later(nonce),
            Err(error) => {
                tracing::warn!(%error, %nonce, "a peer that wants to be linked to cannot be now");
                self.link_back_later(nonce);
            }
        }
    }

    fn link_back_later(self: &Arc<Self>, nonce: Nonce) {
        let again = Arc::new(Again { hub: Arc::downgrade(self), nonce });
        // The timer is not needed again: it fires, and is gone.
        let _ = self.reactor.arm(sender::PAUSE.into(), &Waker::from(again));
    }

    /// Waits until a peer has been sent these segments of this process: then it has them, whatever becomes of this one. `false`
    /// at the deadline, or if there is no link.
    pub fn await_pushed(&self, nonce: Nonce, segments: &[u64], deadline: impl Into<Deadline>) -> bool {
        let mut patience = Patience::sleeping(deadline.into());
        loop {
            let pushed = lock(&self.links).get(&nonce).map(|link| link.has_pushed(segments));
            match pushed {
                Some(true) => return true,
                None => return false,
                Some(false) => {}
            }
            match patience.next() {
                Next::Look => {}
                Next::Sleep(slice) => std::thread::sleep(slice.min(BUSY)),
                Next::GiveUp => return false,
            }
        }
    }
}

/// Links back once more.
struct Again {
    hub: std::sync::Weak<Hub>,
    nonce: Nonce,
}

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        let Some(hub) = self.hub.upgrade() else { return };
        // Not if it has gone meanwhile.
        if matches!(hub.peers().get(&self.nonce), Some(Known::Alive(_))) {
            hub.link_back(self.nonce);
        }
    }
}
