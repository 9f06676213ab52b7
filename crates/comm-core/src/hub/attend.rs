//! Who hears about peers: what stands on the links of this process and not on a team.

use std::sync::Arc;

use super::{Hub, Known, Peer};
use crate::sync::lock;

/// How a peer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Its process is gone.
    Died,
    /// Its process lives, but the link to it is lost. The two can meet again.
    LinkBroke,
}

/// Something that stands on links, and is told of what becomes of them.
///
/// All methods are called on threads of the hub, so they must not wait for a peer; nor, but for [`rung`](Attendant::rung), do
/// they run code of the user's.
pub trait Attendant: Send + Sync {
    /// A peer has introduced itself. Called before anybody can find it, with a lock of the hub: it asks the hub for nothing.
    fn peer_came(&self, peer: &Arc<Peer>);
    /// A peer is lost. What it had pushed before stays with the handle. One whose link broke is lost once more when its process is gone,
    /// if it has not come again: until it noticed, it may have done more.
    fn peer_lost(&self, peer: &Arc<Peer>, how: Loss);
    /// Somebody has rung, or a segment has come: on the reactor thread.
    fn rung(&self);
}

impl Hub {
    /// Tells something of all peers from now on: first of those that are here.
    pub fn attend(&self, attendant: Arc<dyn Attendant>) {
        // The peers are locked, so of one that comes at this moment it is told here or by `peer_arrived`.
        let peers = self.peers();
        for known in peers.values() {
            if let Known::Alive(peer) = known {
                attendant.peer_came(peer);
            }
        }
        lock(&self.attendants).push(attendant);
    }

    pub(super) fn tell(&self, what: impl Fn(&dyn Attendant)) {
        let all = lock(&self.attendants).clone();
        all.iter().for_each(|attendant| what(&**attendant));
    }
}
