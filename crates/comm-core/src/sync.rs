//! What a panic does not take away: locks, and the threads that call the user's code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a thread that panicked with the lock held has left data that is whole: nothing here is changed in steps that
/// could be seen half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls the user's code, a waker say, from a thread that others need: its panic is its own.
pub(crate) fn guarded(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!("a waker panicked; the thread that called it goes on");
    }
}
