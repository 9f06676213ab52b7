//! What becomes of a value that could not be set.

use std::fmt;

use comm_core::{Error, Result};

/// The value was not set, and is given back.
///
/// ```
/// use comm_promise::{Promise, SetError};
///
/// let promise = Promise::process();
/// let future = promise.future()?;
/// promise.set(1)?;
/// assert!(matches!(promise.set(2), Err(SetError::AlreadySet { value: 2, .. })));
/// # Ok::<(), comm_core::Error>(())
/// ```
#[non_exhaustive]
pub enum SetError<T> {
    /// There is a value, or an error, already: that one stays.
    AlreadySet {
        /// The value that was to be set.
        value: T,
        /// The promise.
        what: String,
    },
    /// The promise is broken, or was cancelled, or nobody reads it any more: `why` is an
    /// [`Error::BrokenPromise`].
    Broken {
        /// The value that was to be set.
        value: T,
        /// How.
        why: Box<Error>,
    },
    /// It cannot be set to this value, or not now: the promise is as before.
    Failed {
        /// The value that was to be set.
        value: T,
        /// Why not.
        why: Box<Error>,
    },
}

impl<T> SetError<T> {
    pub(crate) fn broken(value: T, why: Error) -> SetError<T> {
        SetError::Broken { value, why: Box::new(why) }
    }

    pub(crate) fn failed(value: T, why: Error) -> SetError<T> {
        SetError::Failed { value, why: Box::new(why) }
    }

    /// The value.
    pub fn into_value(self) -> T {
        match self {
            SetError::AlreadySet { value, .. }
            | SetError::Broken { value, .. }
            | SetError::Failed { value, .. } => value,
        }
    }

    /// The same about another value.
    pub(crate) fn map<U>(self, other: impl FnOnce(T) -> U) -> SetError<U> {
        match self {
            SetError::AlreadySet { value, what } => SetError::AlreadySet { value: other(value), what },
            SetError::Broken { value, why } => SetError::Broken { value: other(value), why },
            SetError::Failed { value, why } => SetError::Failed { value: other(value), why },
        }
    }
}

impl<T> SetError<Result<T>> {
    /// The same about the value, if it is one.
    pub(crate) fn value_only(self) -> Result<(), SetError<T>> {
        match self {
            SetError::AlreadySet { value: Ok(value), what } => Err(SetError::AlreadySet { value, what }),
            SetError::Broken { value: Ok(value), why } => Err(SetError::Broken { value, why }),
            SetError::Failed { value: Ok(value), why } => Err(SetError::Failed { value, why }),
            _ => Ok(()),
        }
    }
}

impl<T> From<SetError<T>> for Error {
    fn from(error: SetError<T>) -> Error {
        match error {
            SetError::AlreadySet { what, .. } => Error::AlreadySet { what },
            SetError::Broken { why, .. } | SetError::Failed { why, .. } => *why,
        }
    }
}

// Not derived: the value need not be shown.

impl<T> fmt::Display for SetError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetError::AlreadySet { what, .. } => write!(f, "{what} has been set already"),
            SetError::Broken { why, .. } | SetError::Failed { why, .. } => why.fmt(f),
        }
    }
}

impl<T> fmt::Debug for SetError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            SetError::AlreadySet { .. } => "AlreadySet",
            SetError::Broken { .. } => "Broken",
            SetError::Failed { .. } => "Failed",
        };
        write!(f, "{name}({self})")
    }
}

impl<T> std::error::Error for SetError<T> {}
