//! What is out on loan, and who tells its owner that it has come back: a count for each borrower, which that one alone
//! changes, and a word that says whether the owner wants it back.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// One more is out.
pub(crate) fn take(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// One is back. Whether the owner is to be told, since it has asked for all of it.
pub(crate) fn give_back(count: &AtomicU64, recalled: &AtomicU64) -> bool {
    // Release: what was read was read before.
    count.fetch_sub(1, Ordering::Release);
    // Of this fence and the one in `recall` one comes first: either the recall is seen here, or the count there.
    fence(Ordering::SeqCst);
    recalled.load(Ordering::Relaxed) != 0
}

/// Asks for all of it. Who has some of it then, tells when it is back; the owner looks at the counts once more.
pub(crate) fn recall(recalled: &AtomicU64) {
    recalled.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Whether a borrower has none of it, and has done with what it had.
pub(crate) fn is_back(count: &AtomicU64) -> bool {
    count.load(Ordering::Acquire) == 0
}
