//! What a rank has done with a store.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one rank, since the store was opened.
///
/// ```
/// # use comm_core::{Deadline, device::Stream, team::Team, tensor::Tensor};
/// # let team = Team::join("stats-example", 0, 1, Deadline::default())?;
/// let store = comm_store::store::open(&team, Deadline::default())?;
/// store.publish("x", &Tensor::from_slice(&[4], &[1u8; 4])?, &Stream::cpu(), 1, None)?;
/// assert_eq!((store.stats().published, store.stats().bytes_copied), (1, 0));
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Tensors published.
    pub published: u64,
    /// Reads begun.
    pub fetched: u64,
    /// Bytes of tensors that had to be copied: where they did not lie in shared memory, or were brought to a device.
    pub bytes_copied: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    published: AtomicU64,
    fetched: AtomicU64,
    bytes_copied: AtomicU64,
}

impl Counters {
    pub(super) fn published(&self) {
        self.published.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fetched(&self) {
        self.fetched.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn copied(&self, bytes: usize) {
        self.bytes_copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Stats {
        Stats {
            published: self.published.load(Ordering::Relaxed),
            fetched: self.fetched.load(Ordering::Relaxed),
            bytes_copied: self.bytes_copied.load(Ordering::Relaxed),
        }
    }
}
