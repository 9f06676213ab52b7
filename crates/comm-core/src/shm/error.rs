//! What can go wrong with shared memory.

use std::io;
use std::sync::Arc;

use crate::config::ConfigError;
use crate::error::Error;

/// Shared memory could not be had, or is not what it says it is.
///
/// ```
/// use comm_core::shm::{Access, Arena};
///
/// let arena = Arena::new(Access::ReadOnly, 1 << 20, |_| {});
/// let error = arena.alloc(2 << 20).unwrap_err();
/// assert!(error.to_string().contains("COMM_ARENA_MAX_BYTES"));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// Memory ran out.
    #[error("out of shared memory: asked for {asked} bytes, limit {limit} ({what})")]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// The limit that stood in the way, in bytes.
        limit: u64,
        /// Which limit that is and how to raise it.
        what: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A descriptor or a range that came from a peer is not what it should be.
    #[error("bad peer: {what}")]
    BadPeer {
        /// What was wrong with it.
        what: String,
    },
    /// An argument is wrong; nothing has happened.
    #[error("invalid argument to {op}: {why}")]
    Invalid {
        /// The call.
        op: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A variable of the environment cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// This process is a forked child: its parent's arena would be handed out twice.
    #[error("this process was forked from one that uses comm; start it with exec instead")]
    Forked,
}

impl ShmError {
    pub(super) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> ShmError {
        ShmError::Io { what: what.into(), source: Arc::new(source.into()) }
    }

    pub(super) fn bad_peer(what: impl Into<String>) -> ShmError {
        ShmError::BadPeer { what: what.into() }
    }

    pub(super) fn invalid(op: &'static str, why: impl Into<String>) -> ShmError {
        ShmError::Invalid { op, why: why.into() }
    }
}

impl From<ShmError> for Error {
    fn from(e: ShmError) -> Self {
        match e {
            ShmError::OutOfMemory { asked, limit, what } => Error::OutOfMemory { asked, limit, what },
            ShmError::Io { what, source } => Error::Io { what, source },
            ShmError::BadPeer { what } => Error::BadPeer { what },
            ShmError::Invalid { op, why } => Error::InvalidArgument { op, why },
            ShmError::Config(e) => e.into(),
            ShmError::Forked => Error::Forked,
        }
    }
}
