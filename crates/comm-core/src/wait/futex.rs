//! Shared futexes: the word may be in memory that several processes map.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;

/// Sleeps while `word` is `seen`; returns on a wake-up, a signal, after `at_most`, or at once if it differs.
pub(crate) fn wait(word: &AtomicU32, seen: u32, at_most: Duration) {
    let timeout = rustix::time::Timespec {
        tv_sec: at_most.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: i64::from(at_most.subsec_nanos()) as _,
    };
    // Every outcome means "look again", so there is nothing to tell the caller.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

/// Wakes everybody who sleeps on `word`, in whatever process.
pub(crate) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
