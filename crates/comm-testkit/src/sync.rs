//! Locks that survive a panic of their holder: tests panic on purpose.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
    // A wait of many years may overflow the system's clock; a day is as good, because every caller looks again.
    let time = time.min(Duration::from_secs(24 * 3600));
    condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}
