//! Code of the user's that is called where nobody of his is.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a waker, or drops one. Its panic is its own, and ends neither the reactor nor whatever thread wakes it.
///
/// ```
/// comm_core::wait::guarded(|| panic!("this is said, and nothing else happens"));
/// ```
pub fn guarded(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!("a waker panicked; who woke it goes on");
    }
}
