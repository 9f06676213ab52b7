//! Whether what came late was late, or only its reader: a thread that notes when it was kept waiting for a core.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, sleep};
use std::time::Duration;

use crate::now_ns;
use crate::sync::lock;

/// How soon a death must be known to all.
pub const NOTICE: Duration = Duration::from_millis(100);

/// How many threads have to get a core, one after the other, before a survivor knows: the victim's to die, the watcher,
/// the waiter.
pub const HANDS: u32 = 3;

/// A thread that sleeps a millisecond at a time has nothing to say about oversleeping less than this, in nanoseconds.
const ORDINARY: u64 = 8_000_000;

/// When nobody could run: from and to, by [`now_ns`].
pub type Gap = (u64, u64);

/// A thread that sees when this machine has no core for somebody who wants one; until it is dropped.
///
/// ```
/// use comm_testkit::witness::{Witness, starved};
///
/// let (witness, from) = (Witness::start(), comm_testkit::now_ns());
/// assert!(starved(from, comm_testkit::now_ns(), &witness.gaps()) <= std::time::Duration::from_secs(1));
/// ```
pub struct Witness {
    over: Arc<AtomicBool>,
    gaps: Arc<Mutex<Vec<Gap>>>,
}

impl Witness {
    /// Starts it. Where no thread can be started, nothing is seen, and so nothing excused.
    pub fn start() -> Witness {
        let witness = Witness { over: Arc::default(), gaps: Arc::default() };
        let (over, gaps) = (witness.over.clone(), witness.gaps.clone());
        let watch = move || {
            while !over.load(Ordering::Relaxed) {
                let from = now_ns();
                sleep(Duration::from_millis(1));
                let to = now_ns();
                if to - from > ORDINARY {
                    lock(&gaps).push((from, to));
                }
            }
        };
        let _ = Builder::new().name("witness".into()).spawn(watch);
        witness
    }

    /// All so far.
    pub fn gaps(&self) -> Vec<Gap> {
        lock(&self.gaps).clone()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// The longest time within a span in which a witness did not get a core.
pub fn starved(from: u64, to: u64, gaps: &[Gap]) -> Duration {
    let longest = gaps.iter().map(|&(a, b)| b.min(to).saturating_sub(a.max(from))).max();
    Duration::from_nanos(longest.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_as_far_as_it_lies_within() {
        let gaps = [(0, 15), (18, 30)];
        assert_eq!(starved(10, 20, &gaps), Duration::from_nanos(5));
        assert_eq!(starved(40, 50, &gaps), Duration::ZERO);
        assert_eq!(starved(10, 20, &[]), Duration::ZERO);
    }
}
