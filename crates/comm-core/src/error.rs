//! One error type for every operation of the comm crates.
//!
//! Each variant is one thing that a caller can act on; what becomes of the team is part of the contract:
//!
//! | error | the team afterwards |
//! |---|---|
//! | [`Error::PeerLost`], [`Error::Aborted`] | over, on every rank |
//! | [`Error::Timeout`] in a symmetric operation | over, on every rank |
//! | [`Error::Timeout`] in a one-sided wait | unchanged |
//! | [`Error::PeerLeft`] | over for the operations that need that rank |
//! | [`Error::Excluded`] | unchanged; the others go on in a smaller one |
//! | [`Error::OutOfMemory`], [`Error::Io`], [`Error::BadPeer`] inside a symmetric operation | over: the other ranks get [`Error::Aborted`] |
//! | everything else | unchanged |
//!
//! Families with a smaller vocabulary ([`TensorError`], [`ShmError`](crate::shm::ShmError),
//! [`ConfigError`](crate::config::ConfigError), [`WireError`](crate::wire::WireError)) convert into it.
//!
//! ```
//! use std::time::Duration;
//! use comm_core::{Error, team::Team};
//!
//! // Rank 1 of 2 never comes.
//! match Team::join("error-example", 0, 2, Duration::from_millis(20)) {
//!     Err(Error::Timeout { missing, seen, expected, .. }) => {
//!         assert_eq!((missing[0].rank, seen, expected), (1, 1, 2));
//!     }
//!     other => panic!("{other:?}"),
//! }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::tensor::TensorError;

/// `Result` with [`Error`] as its default error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a peer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostHow {
    /// Its process died: killed, exited or replaced by `exec` while it was still a member.
    Died,
    /// Its thread dropped the handle while it was unwinding from a panic.
    Panicked,
    /// Its handle, or the operation it had begun, was dropped before the operation was over.
    DroppedInside,
}

impl fmt::Display for LostHow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostHow::Died => "its process died",
            LostHow::Panicked => "its thread panicked",
            LostHow::DroppedInside => "it abandoned an operation that it had begun",
        })
    }
}

/// What a missing peer was seen to be doing when a wait gave up on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// Its process is stopped (state T: SIGSTOP, SIGTSTP or a debugger).
    Stopped,
    /// Its process runs, but has not arrived.
    NotArrived,
    /// Nothing could be learned about it (it never came, or lives in another pid namespace).
    Unknown,
}

impl fmt::Display for PeerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PeerState::Stopped => "stopped",
            PeerState::NotArrived => "has not arrived",
            PeerState::Unknown => "unknown",
        })
    }
}

/// How a promise was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BrokenHow {
    /// Its last holder dropped it without a value.
    Dropped,
    /// Its last holder dropped it while unwinding from a panic.
    Panicked,
    /// The process of its last holder died.
    Died,
    /// The link between its home and the process of its last holder was lost, and both live.
    LinkBroke,
    /// It was cancelled on the side of its future.
    Cancelled,
    /// Nobody reads it any more: its future has been dropped, or has got its value.
    Unwanted,
    /// Its home, the process with its future, is gone.
    HomeGone,
}

impl fmt::Display for BrokenHow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BrokenHow::Dropped => "its last holder dropped it without a value",
            BrokenHow::Panicked => "its last holder dropped it while unwinding from a panic",
            BrokenHow::Died => "the process of its last holder died",
            BrokenHow::LinkBroke => "the link between its home and its last holder was lost",
            BrokenHow::Cancelled => "it was cancelled",
            BrokenHow::Unwanted => "nobody reads it any more",
            BrokenHow::HomeGone => "its home process is gone",
        })
    }
}

/// A rank that a wait was still missing, and its state at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The rank that did not come.
    pub rank: usize,
    /// What its process was seen to be doing.
    pub state: PeerState,
}

/// Where an error met its caller: team, rank, operation and how long that operation had been going on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct At {
    /// Name of the team; empty outside of any.
    pub team: String,
    /// The caller's own rank in it.
    pub rank: usize,
    /// The operation, with its key, cell or sequence number.
    pub op: String,
    /// Time since the operation began.
    pub elapsed: Duration,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.team.is_empty() {
            write!(f, "team {:?}, rank {}, ", self.team, self.rank)?;
        }
        write!(f, "{}, after {:.1?}", self.op, self.elapsed)
    }
}

/// Everything that can go wrong. See the [module](self) for what each one means for the team.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer died, panicked, or abandoned an operation. The team is over.
    #[error("rank {rank} is lost ({how}{}) [{at}]", WithIt(*rank, ranks))]
    PeerLost {
        /// The lowest of the ranks that were lost at once.
        rank: usize,
        /// All ranks that were lost at once (those that share a process die together), ascending.
        ranks: Vec<usize>,
        /// What happened to them.
        how: LostHow,
        /// Where this rank noticed.
        at: Box<At>,
    },
    /// An operation needs a rank that has left the team in good order.
    #[error("rank {rank} has left the team and this operation needs it [{at}]")]
    PeerLeft {
        /// The rank that left.
        rank: usize,
        /// Where this rank noticed.
        at: Box<At>,
    },
    /// The survivors of a team have gone on in a smaller one without this rank, which did not come in time.
    #[error("rank {rank} is excluded: {} go on without it [{at}]", List(members))]
    Excluded {
        /// The caller's own rank.
        rank: usize,
        /// The ranks that go on, ascending.
        members: Vec<usize>,
        /// Where this rank learned of it.
        at: Box<At>,
    },
    /// Somebody ended the team on purpose, or had to.
    #[error("aborted by rank {by}: {reason} [{at}]")]
    Aborted {
        /// The rank that aborted.
        by: usize,
        /// Its reason.
        reason: String,
        /// Where this rank noticed.
        at: Box<At>,
    },
    /// A wait reached its deadline.
    #[error(
        "timeout: {what} waited {waited:.1?}, saw {seen}, expected {expected}{} [{at}]",
        IfMissing(missing)
    )]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, not counting time in which this process itself was stopped.
        waited: Duration,
        /// Who is missing, and whether it is stopped.
        missing: Vec<Missing>,
        /// The value seen last.
        seen: i64,
        /// The value that would have ended the wait.
        expected: i64,
        /// Where this rank noticed.
        at: Box<At>,
    },
    /// Ranks disagree about what they are doing. Every rank gets the same verdict; the team goes on.
    #[error("mismatch in {field}: rank {rank} says {theirs}, the others {others} [{at}]")]
    Mismatch {
        /// The odd one out.
        rank: usize,
        /// What differs: `op`, `dtype`, `shape`, `size`, `rank`, ...
        field: &'static str,
        /// The odd rank's value.
        theirs: String,
        /// The value of the others.
        others: String,
        /// Where.
        at: Box<At>,
    },
    /// The combination does not exist. Said on every rank, before anything moves.
    #[error("{backend} does not do {op}: {why}")]
    Unsupported {
        /// The backend that was asked.
        backend: &'static str,
        /// The operation.
        op: String,
        /// Why not, and what to do instead.
        why: String,
    },
    /// An argument is wrong; nothing has happened.
    #[error("invalid argument to {op}: {why}")]
    InvalidArgument {
        /// The call.
        op: &'static str,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A tensor lives on another device than the call works on.
    #[error("{op}: tensor is on {seen}, expected {expected}")]
    DeviceMismatch {
        /// The call.
        op: &'static str,
        /// Where the tensor is.
        seen: String,
        /// Where it should be.
        expected: String,
    },
    /// A key has been published already, and not been reset since. The value that is there stays.
    #[error("{op}: key {key:?} has been published by rank {rank}; reset the store before it is used again")]
    DuplicateKey {
        /// The call.
        op: &'static str,
        /// The key.
        key: String,
        /// Who published it.
        rank: usize,
    },
    /// Nothing has been published under this key since the last reset.
    #[error("{op}: nothing is published under key {key:?}")]
    UnknownKey {
        /// The call.
        op: &'static str,
        /// The key.
        key: String,
    },
    /// A value was published for so many readers, and one more came, or finished without having read.
    #[error(
        "{op}: key {key:?} is for {readers} readers, of whom {fetched} have fetched it and {finished} finished"
    )]
    OverFinished {
        /// The call.
        op: &'static str,
        /// The key.
        key: String,
        /// For how many readers it was published.
        readers: usize,
        /// How many had fetched it.
        fetched: usize,
        /// How many had finished.
        finished: usize,
    },
    /// A promise has a value already, or an error; that one stays.
    #[error("{what} has been set already")]
    AlreadySet {
        /// The promise.
        what: String,
    },
    /// The future of a promise has been taken, or is in another process.
    #[error("the future of {what} has been taken already, or is in the process that made the promise")]
    FutureTaken {
        /// The promise.
        what: String,
    },
    /// A future has given its value away.
    #[error("{what} has been read already")]
    AlreadyConsumed {
        /// The promise.
        what: String,
    },
    /// A promise will not be kept.
    #[error("{what} is broken: {how}{}", Who(*pid))]
    BrokenPromise {
        /// The promise.
        what: String,
        /// How that came.
        how: BrokenHow,
        /// The process that it lies with, if it is another one and can be named in this pid namespace.
        pid: Option<u32>,
    },
    /// Whoever was to give a value gave this error instead, in another process.
    #[error("set to an error: {what}")]
    SetToError {
        /// What that process said.
        what: String,
    },
    /// One of several did not succeed.
    #[error("number {index}: {source}")]
    OneOf {
        /// Which, from 0 on.
        index: usize,
        /// What became of it.
        source: Box<Error>,
    },
    /// The name belongs to a live team; that team goes on.
    #[error("the name {name:?} is in use by a live team; leave it first or choose another name")]
    NameInUse {
        /// The name.
        name: String,
    },
    /// A second thread entered a handle that one thread is inside of.
    #[error("{op}: another thread is inside {inside} on the same handle")]
    ConcurrentUse {
        /// The call.
        op: String,
        /// The operation that is going on.
        inside: String,
    },
    /// This process is a forked child; handles of its parent do nothing here.
    #[error("this process was forked from one that uses comm; start it with exec instead")]
    Forked,
    /// Memory ran out.
    #[error("out of memory: asked for {asked} bytes, limit {limit} ({what})")]
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
        source: Arc<std::io::Error>,
    },
    /// The other end is not one of ours: another user, another build, or hostile bytes.
    #[error("bad peer: {what}")]
    BadPeer {
        /// What was wrong with it.
        what: String,
    },
    /// A library, symbol, version or device is missing.
    #[error("{what} is not available: {why} (tried {tried})")]
    Unavailable {
        /// What is missing.
        what: String,
        /// What was tried, in order.
        tried: String,
        /// Why that did not do.
        why: String,
    },
}

impl Error {
    /// An [`Error::Io`] from the system's error and what was being done.
    pub fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Error {
        Error::Io { what: what.into(), source: Arc::new(source.into()) }
    }

    /// An [`Error::InvalidArgument`].
    pub fn invalid(op: &'static str, why: impl Into<String>) -> Error {
        Error::InvalidArgument { op, why: why.into() }
    }

    /// An [`Error::BadPeer`].
    pub fn bad_peer(what: impl Into<String>) -> Error {
        Error::BadPeer { what: what.into() }
    }

    /// Where the error met its caller, for the variants that know: team, rank, operation, elapsed time.
    pub fn at(&self) -> Option<&At> {
        match self {
            Error::PeerLost { at, .. }
            | Error::PeerLeft { at, .. }
            | Error::Excluded { at, .. }
            | Error::Aborted { at, .. }
            | Error::Timeout { at, .. }
            | Error::Mismatch { at, .. } => Some(at),
            _ => None,
        }
    }

    /// The same, for whoever knows more about where.
    pub fn at_mut(&mut self) -> Option<&mut At> {
        match self {
            Error::PeerLost { at, .. }
            | Error::PeerLeft { at, .. }
            | Error::Excluded { at, .. }
            | Error::Aborted { at, .. }
            | Error::Timeout { at, .. }
            | Error::Mismatch { at, .. } => Some(at),
            _ => None,
        }
    }
}

struct Who(Option<u32>);

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |pid| write!(f, " (process {pid})"))
    }
}

struct List<'a>(&'a [usize]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ranks ")?;
        for (i, rank) in self.0.iter().enumerate() {
            write!(f, "{}{rank}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Who was lost together with a rank, if anybody was.
struct WithIt<'a>(usize, &'a [usize]);

impl fmt::Display for WithIt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<usize> = self.1.iter().copied().filter(|&rank| rank != self.0).collect();
        if others.is_empty() { Ok(()) } else { write!(f, "; lost with it: {}", List(&others)) }
    }
}

/// Who is missing, where that is anybody in particular; four and more in a row that are alike as one.
struct IfMissing<'a>(&'a [Missing]);

impl fmt::Display for IfMissing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alike = |a: &Missing, b: &Missing| b.rank == a.rank + 1 && b.state == a.state;
        let mut between = "; missing: ";
        for row in self.0.chunk_by(alike) {
            if let [first, _, _, .., last] = row {
                write!(f, "{between}ranks {} to {} ({})", first.rank, last.rank, first.state)?;
                between = ", ";
                continue;
            }
            for m in row {
                write!(f, "{between}rank {} ({})", m.rank, m.state)?;
                between = ", ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_who_is_missing_if_that_is_anybody() {
        let of = |missing: Vec<Missing>| Error::Timeout {
            what: "a key".into(),
            waited: Duration::from_millis(50),
            missing,
            seen: 0,
            expected: 1,
            at: Box::default(),
        };
        let text = of(Vec::new()).to_string();
        assert!(text.starts_with("timeout: a key waited 50.0ms, saw 0, expected 1 ["), "{text}");
        let missing = [2, 5].map(|rank| Missing { rank, state: PeerState::Stopped });
        let text = of(missing.to_vec()).to_string();
        assert!(text.contains("expected 1; missing: rank 2 (stopped), rank 5 (stopped) ["), "{text}");
        let stopped = [3, 5, 6, 7, 8, 9].map(|rank| Missing { rank, state: PeerState::Stopped });
        let unknown = [10, 11].map(|rank| Missing { rank, state: PeerState::Unknown });
        let text = of([&stopped[..], &unknown].concat()).to_string();
        let expected =
            "missing: rank 3 (stopped), ranks 5 to 9 (stopped), rank 10 (unknown), rank 11 (unknown) [";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn a_loss_names_the_others_if_there_are_any() {
        let of = |ranks: Vec<usize>| {
            Error::PeerLost { rank: 2, ranks, how: LostHow::Died, at: Box::default() }.to_string()
        };
        assert!(of(vec![2]).starts_with("rank 2 is lost (its process died) ["), "{}", of(vec![2]));
        assert!(of(vec![2, 3, 5]).contains("(its process died; lost with it: ranks 3, 5)"));
    }
}
