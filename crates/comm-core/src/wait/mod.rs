//! The one way to wait, for threads and tasks, within a process and between processes.
//!
//! Nobody sleeps on the word he waits for. A [`Cell`] holds a value and a mask of waiters. A waiter spins a little
//! while there is a core for everybody, yields, enters its bit into the mask, fences, looks again, and sleeps on its
//! own [`ParkWord`]. Whoever changes a cell stores, fences, takes the mask, and wakes the park words of those in it.
//! Ending a team wakes all of its park words, so one failure wakes everyone whatever they wait for.
//!
//! A process with async waiters is one more bit of the mask: the writer marks the cell's bucket in that process's
//! bitmap and writes its eventfd, and the process's reactor wakes the tasks of that bucket.
//!
//! The same code is checked by loom: `cargo xtask test --loom`. Built for the models of a crate above, it is the cells
//! and the wait alone.

mod blocking;
mod cell;
#[cfg(not(loom))]
pub(crate) mod clock;
#[cfg(not(loom))]
mod deadline;
#[cfg(not(loom))]
pub(crate) mod futex;
#[cfg(not(loom))]
mod guarded;
#[cfg(loom)]
pub mod model;
#[cfg(not(loom))]
mod oneshot;
mod park;
#[cfg(not(loom))]
mod patience;
#[cfg(any(not(loom), test))]
pub(crate) mod rendezvous;
mod sync;

#[cfg(not(loom))]
pub use clock::now as now_ns;
#[cfg(not(loom))]
pub use deadline::Deadline;

#[cfg(any(not(loom), test))]
pub(crate) use blocking::Unmet;
pub(crate) use blocking::{Waiter, until};
pub use cell::{Bell, Cell, SLOTS};
#[cfg(not(loom))]
pub use guarded::guarded;
#[cfg(not(loom))]
pub use oneshot::OneShot;
#[cfg(all(test, not(loom)))]
pub(crate) use oneshot::tests::with_waker_that;
pub use park::ParkWord;
#[cfg(not(loom))]
pub(crate) use patience::Next;
#[cfg(not(loom))]
pub use patience::Patience;
