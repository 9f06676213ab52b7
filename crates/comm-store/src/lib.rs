//! Tensors handed from rank to rank, memory that the ranks of a team reach in each other, and signals to say when.
//!
//! [`window`] is symmetric memory: a rank stores into and loads from the parts of its peers, and tells them by signals,
//! of which the collectives of comm-group are made. [`store`] hands over tensors by key: one rank publishes, others fetch.

mod directory;
pub mod signal;
#[cfg(not(loom))]
pub mod store;
#[cfg(not(loom))]
pub mod window;

pub use signal::{Cmp, NotifyOp};
#[cfg(not(loom))]
pub use store::TensorStore;
#[cfg(not(loom))]
pub use window::Window;

/// The fault points of this crate; see [`comm_core::points`].
#[cfg(not(loom))]
pub const POINTS: &[&str] = &[
    "window.made",
    "window.wipe",
    "window.notify",
    "window.put",
    "window.get",
    "window.read",
    "store.publish",
    "store.published",
    "store.found",
    "store.fetched",
    "store.finish",
    "store.wait",
    "store.reset",
];
