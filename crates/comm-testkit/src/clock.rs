//! One clock for all processes of a launch.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`. All processes of one machine read the same clock, so a note of a survivor
/// can be compared with the moment at which the launcher killed somebody.
///
/// ```
/// let before = comm_testkit::now_ns();
/// assert!(comm_testkit::now_ns() >= before);
/// ```
pub fn now_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// The same, up to some milliseconds ago: it costs next to nothing.
pub(crate) fn now_about_ns() -> u64 {
    read(ClockId::MonotonicCoarse)
}

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    // Both parts are non-negative on this clock, and 2^64 ns are five centuries of uptime.
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}
