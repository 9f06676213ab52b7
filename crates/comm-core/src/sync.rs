//! Locks that a panic does not take away.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a thread that panicked with the lock held has left data that is whole: nothing here is changed in steps that
/// could be seen half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
