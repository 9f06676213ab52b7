//! What can go wrong at a rendezvous.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// `Result` with [`Error`] as its error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a rendezvous did not do what it should.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The deadline came first. Nothing has changed, but for an operation that was sent and not answered: whether
    /// that was done is not known.
    #[error("timeout: {op} at {place} waited {waited:.1?}; {why}")]
    Timeout {
        /// The operation, with its key.
        op: String,
        /// The rendezvous.
        place: String,
        /// How long.
        waited: Duration,
        /// What was waited for: keys that nobody has set, a server that does not answer, a lock that is held.
        why: String,
    },
    /// The other end has closed the connection, or was killed. Whether the operation was done is not known.
    #[error("{op} at {place}: the connection is lost: {why}")]
    Lost {
        /// The operation, with its key.
        op: String,
        /// The rendezvous.
        place: String,
        /// What was seen.
        why: String,
    },
    /// The server has been started anew since this one first spoke to it: what was set before is gone.
    #[error("{place} has been restarted: it was {before}, and is {now}")]
    Restarted {
        /// The rendezvous.
        place: String,
        /// Who it was.
        before: String,
        /// Who it is.
        now: String,
    },
    /// It belongs to another run.
    #[error("{place} belongs to run {theirs:?}, not {ours:?}")]
    OtherRun {
        /// The rendezvous.
        place: String,
        /// Its run id.
        theirs: String,
        /// The run id that was asked for.
        ours: String,
    },
    /// The other end is not what it should be: it has not the shared key, or what it says makes no sense.
    #[error("{place}: {what}")]
    BadPeer {
        /// The rendezvous.
        place: String,
        /// What was wrong.
        what: String,
    },
    /// What was asked for cannot be: no address, a key that is too short. Nothing has happened.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it, and what it should be.
        what: String,
    },
    /// A key, a value, or their number, is larger than can be. Nothing has happened.
    #[error("{what} of {size}, where {limit} is the most")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is: bytes, of a key with all prefixes; or a number of things.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// A number was to be added to what is none. It is as it was.
    #[error("cannot add to {key:?}: its value is {value:?}, and not a whole number of 64 bits")]
    NotANumber {
        /// The key.
        key: String,
        /// The first bytes of its value.
        value: String,
    },
    /// What is in the file cannot be what was written.
    #[error("{place} is damaged at byte {at}: {what}")]
    Damaged {
        /// The file.
        place: String,
        /// Where.
        at: u64,
        /// What was found.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// An [`Error::Io`] from the system's error and what was being done.
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io { what: what.into(), source: Arc::new(source.into()) }
    }
}

impl From<Error> for comm_core::Error {
    fn from(error: Error) -> Self {
        use comm_core::Error as Core;
        match error {
            Error::Timeout { op, place, waited, why } => Core::Timeout {
                what: format!("{op} ({why})"),
                waited,
                missing: Vec::new(),
                seen: 0,
                expected: 1,
                at: Box::new(comm_core::error::At { team: place, rank: 0, op, elapsed: waited }),
            },
            Error::Io { what, source } => Core::Io { what, source },
            Error::TooLarge { .. } | Error::NotANumber { .. } | Error::Invalid { .. } => {
                Core::InvalidArgument { op: "rendezvous", why: error.to_string() }
            }
            other => Core::BadPeer { what: other.to_string() },
        }
    }
}

/// The first bytes of a value, for messages.
pub(crate) fn shown(value: &[u8]) -> String {
    const LONGEST: usize = 40;
    let text = String::from_utf8_lossy(&value[..value.len().min(LONGEST)]).into_owned();
    if value.len() > LONGEST { text + "..." } else { text }
}

/// Keys in a message: all of a few, else the first and how many more.
pub(crate) struct Keys<'a>(pub &'a [&'a str]);

impl fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FEW: usize = 3;
        for (n, key) in self.0.iter().take(FEW).enumerate() {
            write!(f, "{}{:?}", if n == 0 { "" } else { ", " }, shown(key.as_bytes()))?;
        }
        if self.0.len() > FEW { write!(f, " and {} more", self.0.len() - FEW) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_short() {
        let long = "k".repeat(1000);
        let keys = ["a", "b", long.as_str(), "d", "e"];
        assert_eq!(Keys(&keys[..2]).to_string(), "\"a\", \"b\"");
        let text = Keys(&keys).to_string();
        assert!(text.ends_with("...\" and 2 more") && text.len() < 80, "{text}");
    }

    #[test]
    fn they_are_errors_of_comm() {
        let waited = Duration::from_millis(1500);
        let error = Error::Timeout {
            op: "get \"id\"".into(),
            place: "tcp 127.0.0.1:29500".into(),
            waited,
            why: "nobody has set \"id\"".into(),
        };
        assert_eq!(
            error.to_string(),
            "timeout: get \"id\" at tcp 127.0.0.1:29500 waited 1.5s; nobody has set \"id\""
        );
        let core = comm_core::Error::from(error);
        assert!(matches!(&core, comm_core::Error::Timeout { waited: w, .. } if *w == waited), "{core:?}");
        assert!(core.to_string().contains("nobody has set"), "{core}");
        let core =
            comm_core::Error::from(Error::TooLarge { what: "a key (in bytes)", size: 9000, limit: 8191 });
        assert!(matches!(core, comm_core::Error::InvalidArgument { .. }), "{core:?}");
    }
}
