//! The threads of one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm_core::Deadline;

use crate::error::{Error, Keys, Result, shown};
use crate::rendezvous::{Rendezvous, fitting, fitting_values};
use crate::table::Table;

/// A rendezvous of the threads of this process. Clones are the same one.
#[doc(alias = "HashStore")]
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
}

/// What is said of where it is.
const PLACE: &str = "this process";

/// The longest sleep. A deadline moves while the process is stopped, so it is looked at now and then.
const SLICE: Duration = Duration::from_millis(200);

impl MemoryStore {
    /// An empty one.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing in here panics with the lock held.
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, table: &mut Table, key: &str, value: &[u8]) {
        table.set(key.as_bytes(), value.to_vec());
        self.shared.changed.notify_all();
    }

    /// Waits until `look` finds what it looks for.
    fn until<T>(
        &self,
        op: &dyn Fn() -> String,
        deadline: Deadline,
        mut look: impl FnMut(&Table) -> Result<T, String>,
    ) -> Result<T> {
        let started = Instant::now();
        let mut table = self.table();
        loop {
            match look(&table) {
                Ok(found) => return Ok(found),
                Err(why) if deadline.has_passed() => {
                    let (op, place) = (op(), PLACE.to_owned());
                    return Err(Error::Timeout { op, place, waited: started.elapsed(), why });
                }
                Err(_) => {}
            }
            let slice = deadline.remaining().min(SLICE);
            let woken = self.shared.changed.wait_timeout(table, slice);
            table = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Rendezvous for MemoryStore {
    fn set(&self, key: &str, value: &[u8], _: Deadline) -> Result<()> {
        fitting_values(key, &[value])?;
        self.put(&mut self.table(), key, value);
        Ok(())
    }

    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        fitting(&[key])?;
        self.until(&|| format!("get {}", Keys(&[key])), deadline, |table| {
            table.get(key.as_bytes()).map(<[u8]>::to_vec).ok_or_else(|| unset(&[key]))
        })
    }

    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        fitting(keys)?;
        // A key that has been there once need not be there when the last one comes.
        let mut missing = keys.to_vec();
        self.until(&|| format!("wait {}", Keys(keys)), deadline, |table| {
            missing.retain(|key| !table.has(key.as_bytes()));
            if missing.is_empty() { Ok(()) } else { Err(unset(&missing)) }
        })
    }

    fn check(&self, keys: &[&str], _: Deadline) -> Result<bool> {
        fitting(keys)?;
        let table = self.table();
        Ok(keys.iter().all(|key| table.has(key.as_bytes())))
    }

    fn add(&self, key: &str, amount: i64, _: Deadline) -> Result<i64> {
        fitting(&[key])?;
        let mut table = self.table();
        let sum = table.sum(key.as_bytes(), amount).map_err(|_| not_a_number(&table, key))?;
        self.put(&mut table, key, sum.to_string().as_bytes());
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], _: Deadline) -> Result<Vec<u8>> {
        fitting_values(key, &[expected, desired])?;
        let mut table = self.table();
        if table.is(key.as_bytes(), expected) {
            self.put(&mut table, key, desired);
            return Ok(desired.to_vec());
        }
        Ok(table.get(key.as_bytes()).unwrap_or(expected).to_vec())
    }

    fn delete(&self, key: &str, _: Deadline) -> Result<bool> {
        fitting(&[key])?;
        Ok(self.table().delete(key.as_bytes()))
    }
}

/// Why a wait for keys gave up.
pub(crate) fn unset(keys: &[&str]) -> String {
    format!("nobody has set {}", Keys(keys))
}

/// The error of adding to what is no number.
pub(crate) fn not_a_number(table: &Table, key: &str) -> Error {
    Error::NotANumber { key: key.to_owned(), value: shown(table.get(key.as_bytes()).unwrap_or_default()) }
}
