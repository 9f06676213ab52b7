//! What every kind of rendezvous does.

use std::sync::Arc;

use comm_core::Deadline;

use crate::error::{Error, Result};

/// The longest key, in bytes. A byte less than what torch's server takes, which is where a kind puts its prefix.
pub const MAX_KEY: usize = 8 * 1024 - 1;

/// The longest value, in bytes.
pub const MAX_VALUE: usize = 8 * 1024 * 1024;

/// The most keys of one [`wait`](Rendezvous::wait) or [`check`](Rendezvous::check).
pub const MAX_KEYS: usize = 128 * 1024;

/// Values under keys that processes or threads which do not know each other yet leave for each other.
///
/// All of them see one order of changes. An operation that returns well has been done where everybody sees it. A call that
/// fails by its deadline, or since the other end is gone, says so; whether an operation that was under way was done is then
/// not known, as with any message.
///
/// Every kind promises the same, and any number of threads may use one:
///
/// ```
/// use std::time::Duration;
/// use comm_rendezvous::{MemoryStore, Rendezvous};
///
/// fn meet(store: &dyn Rendezvous, rank: usize) -> comm_rendezvous::Result<Vec<u8>> {
///     let deadline = Duration::from_secs(10).into();
///     if rank == 0 {
///         store.set("id", b"made by rank 0", deadline)?;
///     }
///     store.get("id", deadline)
/// }
///
/// let store = MemoryStore::new();
/// std::thread::scope(|s| {
///     let ranks: Vec<_> = (0..3).map(|rank| s.spawn({ let store = &store; move || meet(store, rank) })).collect();
///     for rank in ranks {
///         assert_eq!(rank.join().unwrap().unwrap(), b"made by rank 0");
///     }
/// });
/// ```
#[doc(alias = "Store")]
pub trait Rendezvous: Send + Sync {
    /// Puts a value under a key, in the place of what is there.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::Timeout`], and what the kind says of its other end.
    fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<()>;

    /// The value under a key, as soon as there is one.
    ///
    /// # Errors
    /// [`Error::Timeout`] if nobody has set it; as [`set`](Rendezvous::set).
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>>;

    /// Returns as soon as there has been a value under each of the keys, not necessarily under all at once. A value that is
    /// deleted right after it was set may go unnoticed.
    ///
    /// # Errors
    /// As [`get`](Rendezvous::get).
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()>;

    /// Whether there is a value under each of the keys now.
    ///
    /// # Errors
    /// As [`set`](Rendezvous::set).
    fn check(&self, keys: &[&str], deadline: Deadline) -> Result<bool>;

    /// Adds to a number, which is 0 where nothing is, and gives the sum. It is kept as decimal text, and wraps around at 64 bits.
    ///
    /// # Errors
    /// An error if what is there is not a number: [`Error::NotANumber`], or over the network [`Error::Lost`]. As
    /// [`set`](Rendezvous::set).
    fn add(&self, key: &str, amount: i64, deadline: Deadline) -> Result<i64>;

    /// Puts a value where the expected one is, and gives what is there then: `desired`, or another value that was there
    /// instead. Nothing being there is as good as an empty value; where nothing is and another was expected, nothing changes, and
    /// that other one comes back (torch's servers do not say that nothing was there).
    ///
    /// # Errors
    /// As [`set`](Rendezvous::set).
    #[doc(alias = "compareSet")]
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], deadline: Deadline) -> Result<Vec<u8>>;

    /// Removes a key and its value; `false` if there was none.
    ///
    /// # Errors
    /// As [`set`](Rendezvous::set).
    #[doc(alias = "deleteKey")]
    fn delete(&self, key: &str, deadline: Deadline) -> Result<bool>;
}

/// A rendezvous that passes on what it is asked to what it dereferences to.
macro_rules! passed_on {
    ($([$($generics:tt)*] $kind:ty),*) => {$(
        impl<$($generics)*> Rendezvous for $kind {
            fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
                (**self).set(key, value, deadline)
            }

            fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
                (**self).get(key, deadline)
            }

            fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
                (**self).wait(keys, deadline)
            }

            fn check(&self, keys: &[&str], deadline: Deadline) -> Result<bool> {
                (**self).check(keys, deadline)
            }

            fn add(&self, key: &str, amount: i64, deadline: Deadline) -> Result<i64> {
                (**self).add(key, amount, deadline)
            }

            fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
                (**self).compare_set(key, expected, desired, deadline)
            }

            fn delete(&self, key: &str, deadline: Deadline) -> Result<bool> {
                (**self).delete(key, deadline)
            }
        }
    )*};
}

pub(crate) use passed_on;

passed_on!([T: Rendezvous + ?Sized] &T, [T: Rendezvous + ?Sized] Arc<T>, [T: Rendezvous + ?Sized] Box<T>);

/// Says whether keys are short and few enough.
pub(crate) fn fitting(keys: &[&str]) -> Result<()> {
    let limited = |what, size, limit| {
        if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
    };
    limited("a number of keys", keys.len(), MAX_KEYS)?;
    keys.iter().try_for_each(|key| limited("a key (in bytes)", key.len(), MAX_KEY))
}

/// Says whether a run's id is short enough.
pub(crate) fn fitting_run(run: &str) -> Result<()> {
    match run.len() {
        size if size > MAX_KEY => Err(Error::TooLarge { what: "a run id (in bytes)", size, limit: MAX_KEY }),
        _ => Ok(()),
    }
}

/// Says whether a key and values that go under it are short enough.
pub(crate) fn fitting_values(key: &str, values: &[&[u8]]) -> Result<()> {
    fitting(&[key])?;
    match values.iter().map(|value| value.len()).find(|&size| size > MAX_VALUE) {
        Some(size) => Err(Error::TooLarge { what: "a value (in bytes)", size, limit: MAX_VALUE }),
        None => Ok(()),
    }
}
