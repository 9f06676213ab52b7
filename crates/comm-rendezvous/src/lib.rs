//! How ranks find each other: a few values under keys, left by one and read by others.
//!
//! | kind | who meets |
//! |---|---|
//! | [`MemoryStore`] | threads of one process |
//! | [`FileStore`] | processes that see one file system |
//! | [`TcpStore`], [`TcpServer`] | processes anywhere, Python's with torch among them: both ends speak the protocol of torch's `TCPStore` |
//!
//! All are a [`Rendezvous`]: `set`, `get`, `wait`, `check`, `add`, `compare_set`, `delete`, each with a deadline. It is where
//! what is needed to begin is exchanged, an id of NCCL for one; tensors go by teams, windows and stores.

mod env;
mod error;
mod file;
mod memory;
mod pause;
mod prefix;
mod rendezvous;
mod table;
mod tcp;

pub use env::EnvStore;
pub use error::{Error, Result};
pub use file::FileStore;
pub use memory::MemoryStore;
pub use prefix::Prefix;
pub use rendezvous::{MAX_KEY, MAX_KEYS, MAX_VALUE, Rendezvous};
pub use tcp::{Limits, PORT, ServerOptions, SharedKey, TcpOptions, TcpServer, TcpStore};

/// The fault points of this crate; see [`comm_core::points`].
pub const POINTS: &[&str] = &[
    "file.locked",
    "file.written",
    "tcp.connected",
    "tcp.asked",
    "server.accepted",
    "server.asked",
    "server.done",
];
