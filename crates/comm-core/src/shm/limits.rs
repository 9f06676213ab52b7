//! Limits: what the process may take, and what the system lets it take.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::ShmError;
use crate::config;

/// Somebody who can give memory back when another one needs it.
pub(super) trait Reclaim: Send + Sync {
    /// Gives back what is not in use. Called with no lock of a budget held, but maybe with an arena's: never waits.
    fn reclaim(&self);
}

/// The most bytes that all arenas made with it may hold at once. Clones are the same budget.
///
/// A process has one for its tensors and windows together. What counts is memory that is reserved from the system,
/// in use or kept for recycling; an arena that meets the limit first has all arenas of the budget give back what
/// they keep.
///
/// ```
/// use comm_core::shm::{Access, Arena, Budget};
///
/// let budget = Budget::new(8 << 20);
/// let tensors = Arena::new(Access::ReadOnly, budget.clone(), |_| {});
/// let windows = Arena::new(Access::ReadWrite, budget.clone(), |_| {});
/// let _block = tensors.alloc(6 << 20)?;
/// assert!(windows.alloc(6 << 20).is_err());
/// assert!(budget.used() >= 6 << 20);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    limit: u64,
    used: AtomicU64,
    arenas: Mutex<Vec<Weak<dyn Reclaim>>>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Budget {
        Budget(Arc::new(Inner { limit, used: AtomicU64::new(0), arenas: Mutex::new(Vec::new()) }))
    }

    /// The budget of the configuration: `COMM_ARENA_MAX_BYTES`, or half of the memory that is available now. Each
    /// call makes a new one; a process that wants one limit clones it.
    ///
    /// # Errors
    /// [`ShmError::Config`] if the variable cannot be used; [`ShmError::Io`] if it is not set and `/proc/meminfo`
    /// does not say what is available.
    pub fn from_config() -> Result<Budget, ShmError> {
        if let Some(limit) = config::arena_max_bytes()? {
            return Ok(Budget::new(limit));
        }
        match available() {
            Ok(bytes) => Ok(Budget::new(bytes / 2)),
            Err(e) => {
                Err(ShmError::io("reading MemAvailable of /proc/meminfo (or set COMM_ARENA_MAX_BYTES)", e))
            }
        }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes held now.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes` out of the budget. `asked` is what the caller's caller wanted.
    pub(super) fn charge(&self, bytes: u64, asked: u64) -> Result<(), ShmError> {
        // Relaxed: the counter orders nothing; it only must never pass the limit.
        let charge = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.0.limit)
        });
        charge.map(drop).map_err(|used| self.over(asked, used))
    }

    /// The error of this limit.
    pub(super) fn over(&self, asked: u64, used: u64) -> ShmError {
        ShmError::OutOfMemory {
            asked,
            limit: self.0.limit,
            what: format!(
                "COMM_ARENA_MAX_BYTES, by default half of the available memory; {used} bytes are held now"
            ),
        }
    }

    /// Puts `bytes` back.
    pub(super) fn release(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds an arena to those that [`Budget::reclaim`] asks.
    pub(super) fn enrol(&self, arena: Weak<dyn Reclaim>) {
        let mut arenas = self.0.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        arenas.retain(|a| a.strong_count() > 0);
        arenas.push(arena);
    }

    /// Has every arena give back what it keeps.
    pub(super) fn reclaim(&self) {
        let arenas = self.0.arenas.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for arena in arenas.iter().filter_map(Weak::upgrade) {
            arena.reclaim();
        }
    }
}

impl From<u64> for Budget {
    fn from(limit: u64) -> Self {
        Budget::new(limit)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("used", &self.used()).finish()
    }
}

/// The size in bytes that a file of this process may have, from `RLIMIT_FSIZE`; memfds are files. `None`: unlimited. To be
/// asked before a file grows, since to go over it is a signal that ends the process.
pub fn file_size_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// The error of `RLIMIT_FSIZE`.
pub(super) fn over_file_size(asked: u64, limit: u64) -> ShmError {
    ShmError::OutOfMemory {
        asked,
        limit,
        what: "RLIMIT_FSIZE, which a shared segment counts for; raise it with ulimit -f".to_string(),
    }
}

/// `MemAvailable` in bytes.
pub(super) fn available() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    parse_available(&text).ok_or_else(|| std::io::Error::other("it has no line MemAvailable"))
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_available("MemTotal: 9 kB\n"), None);
        assert_eq!(parse_available("MemAvailable: many kB\n"), None);
        assert!(available().unwrap() > 0);
    }

    #[test]
    fn a_budget_is_never_passed() {
        let budget = Budget::new(100);
        budget.charge(60, 60).unwrap();
        let error = budget.charge(50, 45).unwrap_err();
        assert!(matches!(error, ShmError::OutOfMemory { asked: 45, limit: 100, .. }), "{error}");
        assert!(error.to_string().contains("COMM_ARENA_MAX_BYTES"));
        assert!(budget.charge(u64::MAX, 1).is_err());
        budget.release(60);
        budget.charge(100, 100).unwrap();
        assert_eq!(budget.used(), 100);
    }
}
