//! Memory that the ranks of a team reach in each other.
//!
//! [`window`] holds the first of it: cells that a rank sets and others wait for, a few bytes of each rank that all can
//! read, and tensors exposed in place for reading. [`signal`] is what cells say to each other when they are notified.
//!
//! Not here yet: notify and wait on a peer's cell, remote stores, put and get, and the keyed exchange of tensors.

pub mod signal;
#[cfg(not(loom))]
pub mod window;

pub use signal::{Cmp, NotifyOp};
#[cfg(not(loom))]
pub use window::Window;

/// The fault points of this crate; see [`comm_core::points`].
#[cfg(not(loom))]
pub const POINTS: &[&str] = &["window.read"];
