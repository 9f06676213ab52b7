//! What can go wrong: something is not there, or NCCL says no.

use std::fmt;

use crate::sys::ncclResult_t;

/// `Result` with [`Error`] as its error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library, a function, or a version that has it, is missing.
    #[error("{what} is not available: {why} (tried {tried})")]
    Unavailable {
        /// What is missing.
        what: String,
        /// What was tried, in order, and what each said.
        tried: String,
        /// Why that did not do.
        why: String,
    },
    /// NCCL gave another status than success.
    #[error("{function}: {status}{}", Said(last))]
    Failed {
        /// The function of nccl.h.
        function: &'static str,
        /// What it gave.
        status: Status,
        /// What NCCL says about its last error, in any thread; empty if nothing.
        last: String,
    },
}

impl Error {
    /// The status, if NCCL gave one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Error::Failed { status, .. } => Some(*status),
            Error::Unavailable { .. } => None,
        }
    }
}

struct Said<'a>(&'a str);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; last error: {}", self.0) }
    }
}

/// A status that is neither success nor "in progress".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// A call to CUDA failed.
    UnhandledCudaError,
    /// A call to the system failed.
    SystemError,
    /// A fault in NCCL.
    InternalError,
    /// An argument is wrong.
    InvalidArgument,
    /// The call is wrong as it stands, or where it stands.
    InvalidUsage,
    /// Another rank has failed, or the network.
    RemoteError,
    /// NCCL has given up waiting.
    Timeout,
    /// A code that is not known here.
    Unknown(u32),
}

impl Status {
    /// The status that a code is; `None` for success and "in progress", which are none.
    pub(crate) fn of(code: ncclResult_t) -> Option<Status> {
        Some(match code {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => return None,
            ncclResult_t::ncclUnhandledCudaError => Status::UnhandledCudaError,
            ncclResult_t::ncclSystemError => Status::SystemError,
            ncclResult_t::ncclInternalError => Status::InternalError,
            ncclResult_t::ncclInvalidArgument => Status::InvalidArgument,
            ncclResult_t::ncclInvalidUsage => Status::InvalidUsage,
            ncclResult_t::ncclRemoteError => Status::RemoteError,
            ncclResult_t::ncclTimeout => Status::Timeout,
            ncclResult_t(code) => Status::Unknown(code),
        })
    }

    /// The number that NCCL gave.
    pub fn code(self) -> u32 {
        let code = match self {
            Status::UnhandledCudaError => ncclResult_t::ncclUnhandledCudaError,
            Status::SystemError => ncclResult_t::ncclSystemError,
            Status::InternalError => ncclResult_t::ncclInternalError,
            Status::InvalidArgument => ncclResult_t::ncclInvalidArgument,
            Status::InvalidUsage => ncclResult_t::ncclInvalidUsage,
            Status::RemoteError => ncclResult_t::ncclRemoteError,
            Status::Timeout => ncclResult_t::ncclTimeout,
            Status::Unknown(code) => return code,
        };
        code.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::UnhandledCudaError => "unhandled CUDA error",
            Status::SystemError => "system error",
            Status::InternalError => "internal error",
            Status::InvalidArgument => "invalid argument",
            Status::InvalidUsage => "invalid usage",
            Status::RemoteError => "remote error",
            Status::Timeout => "timeout",
            Status::Unknown(code) => return write!(f, "unknown status {code}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_kept() {
        for code in 0..100 {
            match Status::of(ncclResult_t(code)) {
                None => assert!(code == 0 || code == 7, "{code}"),
                Some(status) => {
                    assert_eq!(status.code(), code);
                    assert_eq!(matches!(status, Status::Unknown(_)), code > 8, "{status}");
                }
            }
        }
    }

    #[test]
    fn an_error_is_one_line() {
        let failed = |last: &str| Error::Failed {
            function: "ncclSend",
            status: Status::Unknown(77),
            last: last.to_owned(),
        };
        assert_eq!(failed("").to_string(), "ncclSend: unknown status 77");
        assert_eq!(failed("no route").to_string(), "ncclSend: unknown status 77; last error: no route");
        assert_eq!(failed("").status(), Some(Status::Unknown(77)));
    }
}
