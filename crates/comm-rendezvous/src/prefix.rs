//! A part of a rendezvous for somebody alone.

use comm_core::Deadline;

use crate::error::Result;
use crate::rendezvous::Rendezvous;

/// A rendezvous all of whose keys begin with the same words, as torch's `PrefixStore` writes them: groups that have
/// one each do not see each other's keys.
///
/// ```
/// use comm_rendezvous::{MemoryStore, Prefix, Rendezvous};
///
/// let deadline = comm_core::Deadline::default();
/// let store = MemoryStore::new();
/// Prefix::new(&store, "left").set("id", b"1", deadline)?;
/// assert!(!Prefix::new(&store, "right").check(&["id"], deadline)?);
/// assert_eq!(store.get("left/id", deadline)?, b"1");
/// # Ok::<(), comm_rendezvous::Error>(())
/// ```
#[doc(alias = "PrefixStore")]
#[derive(Debug, Clone)]
pub struct Prefix<R> {
    store: R,
    prefix: String,
}

impl<R: Rendezvous> Prefix<R> {
    /// The part of a rendezvous whose keys begin with `prefix` and a slash.
    pub fn new(store: R, prefix: impl Into<String>) -> Prefix<R> {
        Prefix { store, prefix: prefix.into() }
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    fn keys(&self, keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| self.key(key)).collect()
    }
}

impl<R: Rendezvous> Rendezvous for Prefix<R> {
    fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        self.store.set(&self.key(key), value, deadline)
    }

    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.store.get(&self.key(key), deadline)
    }

    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        let keys = self.keys(keys);
        self.store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), deadline)
    }

    fn check(&self, keys: &[&str], deadline: Deadline) -> Result<bool> {
        let keys = self.keys(keys);
        self.store.check(&keys.iter().map(String::as_str).collect::<Vec<_>>(), deadline)
    }

    fn add(&self, key: &str, amount: i64, deadline: Deadline) -> Result<i64> {
        self.store.add(&self.key(key), amount, deadline)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
        self.store.compare_set(&self.key(key), expected, desired, deadline)
    }

    fn delete(&self, key: &str, deadline: Deadline) -> Result<bool> {
        self.store.delete(&self.key(key), deadline)
    }
}
