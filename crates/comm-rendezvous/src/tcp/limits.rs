//! What a server takes.

use std::time::Duration;

use crate::rendezvous::{MAX_KEY, MAX_KEYS, MAX_VALUE};

/// The most that all texts of one request cost, and of its answer.
pub(crate) const LONGEST_REQUEST: usize = 64 << 20;

/// What a server takes from its clients, and for how long it waits for them. Who asks for more is disconnected, since the
/// protocol has no answer that says no.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Longest key in bytes, with the prefix of one byte that clients put before it.
    pub key: usize,
    /// Longest value in bytes.
    pub value: usize,
    /// Most keys in one request.
    pub keys_per_request: usize,
    /// Most bytes in one request, and in the answer to one.
    pub request: usize,
    /// Most bytes that all requests which are under way and all answers that have not been fetched have together.
    pub buffers: usize,
    /// Most bytes of all keys and values.
    pub store: usize,
    /// Most keys and queued values.
    pub entries: usize,
    /// Most clients at once.
    pub clients: usize,
    /// How long a new client may take to say who it is.
    pub greeting: Duration,
    /// How long a client may stop in the middle of a request, or of fetching an answer. One that asks for nothing may stay
    /// for ever.
    pub stall: Duration,
    /// How long a key stays that nobody asks for or changes; `None` for ever. A key that somebody waits for does not count:
    /// it is not there.
    pub lease: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            key: MAX_KEY + 1,
            value: MAX_VALUE,
            keys_per_request: MAX_KEYS,
            request: LONGEST_REQUEST,
            buffers: 256 << 20,
            store: 1 << 30,
            entries: 1 << 20,
            clients: 4096,
            greeting: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            lease: None,
        }
    }
}
