//! How much free memory an arena keeps for recycling before it gives the rest back to the system.
//!
//! Giving back costs a hole now and page faults later, so memory that will be wanted again at once should stay. An
//! arena keeps the largest of
//!
//! - a floor (16 MiB, less under a small limit),
//! - a quarter of what is in use, and
//! - what it has learned: memory that is taken again soon after it was given back raises the amount, so that a loop
//!   which makes and drops a large tensor pays for it in its first round only. Memory that lay unused through a whole
//!   window of a second (the low-water mark of that window) lowers it again.
//!
//! A process that frees everything and never allocates again has learned nothing, and keeps the floor.

use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Keep {
    floor: u64,
    learned: u64,
    /// Given back in this window and not taken again yet.
    given: u64,
    /// The least that lay idle at any moment of this window.
    low: u64,
    since: Instant,
}

impl Keep {
    pub(super) fn new(floor: u64, now: Instant) -> Keep {
        Keep { floor, learned: 0, given: 0, low: 0, since: now }
    }

    /// `bytes` were taken from the system.
    pub(super) fn took(&mut self, bytes: u64) {
        let again = bytes.min(self.given);
        if again > 0 {
            self.given -= again;
            self.learned = self.learned.max(self.floor).saturating_add(again);
        }
    }

    /// `bytes` went back to the system.
    pub(super) fn gave(&mut self, bytes: u64) {
        self.given = self.given.saturating_add(bytes);
    }

    /// A block was made and left `idle` bytes.
    pub(super) fn allocated(&mut self, idle: u64) {
        self.low = self.low.min(idle);
    }

    /// A block was returned, after which `used` bytes are in use and `idle` bytes lie idle: how many of those to give
    /// back. The clock is read only when the answer may be more than none.
    pub(super) fn excess(&mut self, used: u64, idle: u64, now: impl FnOnce() -> Instant) -> u64 {
        if idle <= self.floor {
            return 0;
        }
        let now = now();
        if now.saturating_duration_since(self.since) >= WINDOW {
            self.learned = self.learned.saturating_sub(self.low);
            self.given = 0;
            self.low = idle;
            self.since = now;
        }
        idle.saturating_sub(self.floor.max(used / 4).max(self.learned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_loop_over_a_large_block_stops_giving_back() {
        let t = Instant::now();
        let mut keep = Keep::new(16 * MIB, t);
        let mut held = 0;
        let mut taken = 0;
        for _ in 0..100 {
            taken += 64 * MIB - held;
            keep.took(64 * MIB - held);
            keep.allocated(0);
            let excess = keep.excess(0, 64 * MIB, || t);
            keep.gave(excess);
            held = 64 * MIB - excess;
        }
        assert_eq!(held, 64 * MIB);
        assert_eq!(taken, 64 * MIB + 48 * MIB, "the first round's excess is taken once more, then nothing");
    }

    #[test]
    fn one_burst_keeps_the_floor() {
        let t = Instant::now();
        let mut keep = Keep::new(16 * MIB, t);
        keep.took(1024 * MIB);
        keep.allocated(0);
        assert_eq!(keep.excess(0, 1024 * MIB, || t), 1008 * MIB);
        assert_eq!(keep.excess(400 * MIB, 200 * MIB, || t), 100 * MIB);
        assert_eq!(keep.excess(0, 16 * MIB, || panic!("the clock is not needed")), 0);
    }

    #[test]
    fn what_lies_unused_for_a_window_is_unlearned() {
        let mut t = Instant::now();
        let mut keep = Keep::new(16 * MIB, t);
        keep.gave(100 * MIB);
        keep.took(100 * MIB);
        keep.allocated(0);
        assert_eq!(keep.excess(0, 116 * MIB, || t), 0);
        // A window in which a quarter of it was in use at most.
        t += WINDOW;
        assert_eq!(keep.excess(0, 116 * MIB, || t), 0, "in the window before all of it was in use");
        keep.allocated(80 * MIB);
        t += WINDOW;
        assert_eq!(keep.excess(0, 116 * MIB, || t), 80 * MIB);
    }
}
