//! Connections that have not said who they are, and how many of them there may be.
//!
//! Whoever connects to a name speaks at once, so a connection that says nothing is a stranger, or somebody who is
//! stopped. Strangers must not use up the descriptors of this process: when there are too many, the oldest is closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::Hub;
use super::reactor::{Keep, Source, TURN};
use super::socket::{Listener, Socket};
use crate::sync::lock;

/// Most silent connections, whatever the limit on descriptors; below that, a quarter of the limit.
const ROOM: u64 = 256;
/// A connection is given this long before it is closed for its silence.
const GRACE: Duration = Duration::from_millis(100);
/// A shut door is tried again much sooner; one that was shut so long ago has nobody waiting in front of it any more.
const LATELY: Duration = Duration::from_secs(1);

/// The silent connections of this process, by token, which is the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Lobby {
    silent: Mutex<BTreeMap<u64, Instant>>,
    /// When a connection could not be accepted last, and why; nothing once one could.
    refused: Mutex<Option<(Instant, Errno)>>,
}

impl Lobby {
    /// A connection has said who it is, or is gone.
    pub(crate) fn leave(&self, token: u64) {
        self.lock().remove(&token);
    }

    /// Why connections to this process cannot be accepted, if that is so: whoever waits for somebody to come waits in vain.
    pub(crate) fn shut(&self) -> Option<Errno> {
        let refused = *lock(&self.refused);
        refused.filter(|(when, _)| when.elapsed() < LATELY).map(|(_, error)| error)
    }

    fn is_full(&self) -> bool {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.lock().len() as u64 >= (files / 4).clamp(8, ROOM)
    }

    /// Those who have been silent for long enough, who are forgotten.
    fn turn_out(&self) -> Vec<u64> {
        let now = Instant::now();
        let mut silent = self.lock();
        let gone = silent.extract_if(.., |_, since| now.saturating_duration_since(*since) >= GRACE);
        gone.map(|(token, _)| token).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        lock(&self.silent)
    }
}

/// Takes the connections that wait at a listener, as far as there is room and while it is open, and watches what
/// `source` makes of each.
pub(crate) fn admit(
    hub: &Hub,
    listener: &Listener,
    is_open: impl Fn() -> bool,
    mut source: impl FnMut(Socket, u64) -> Option<Arc<dyn Source>>,
) -> Keep {
    for _ in 0..TURN {
        if !is_open() {
            return Keep::No;
        }
        if hub.lobby.is_full() && !make_room(hub) {
            return Keep::Later;
        }
        let socket = match listener.accept() {
            Ok(Some(socket)) => {
                *lock(&hub.lobby.refused) = None;
                socket
            }
            Ok(None) | Err(Errno::AGAIN) => return Keep::Yes,
            Err(error) => {
                // Most likely there are no descriptors. He who waits goes on waiting: to be turned away would look
                // to him as if this process had died.
                tracing::warn!(%error, "a connection cannot be accepted now");
                *lock(&hub.lobby.refused) = Some((Instant::now(), error));
                make_room(hub);
                return Keep::Later;
            }
        };
        let token = hub.reactor.token();
        let Some(source) = source(socket, token) else { continue };
        hub.lobby.lock().insert(token, Instant::now());
        match hub.reactor.add(token, EventFlags::IN | EventFlags::RDHUP, source) {
            // What he has to say is here already, as a rule.
            Ok(()) => hub.reactor.serve(token),
            Err(error) => {
                hub.lobby.leave(token);
                tracing::warn!(%error, "a connection cannot be watched");
            }
        }
    }
    Keep::Yes
}

/// Closes connections that have been silent; `false` if there are none.
fn make_room(hub: &Hub) -> bool {
    let gone = hub.lobby.turn_out();
    for &token in &gone {
        hub.reactor.remove(token);
    }
    if !gone.is_empty() {
        tracing::warn!(n = gone.len(), "connections that said nothing are closed");
    }
    !gone.is_empty()
}
