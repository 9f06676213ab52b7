//! The ground floor: what a store, a promise and a collective group all stand on.
//!
//! | module | what it holds |
//! |---|---|
//! | [`tensor`] | dtypes, layouts, storages; [`tensor::TensorBuf`] (owned, mutable) and [`tensor::Tensor`] (shared, frozen) |
//! | [`device`] | streams and events, and the synchronous CPU stream |
//! | [`shm`] | sealed memory segments and the recycling arena on them |
//! | [`wait`] | cells, park words, deadlines: the one way to wait |
//! | [`hub`] | one per process: names, links to other processes, liveness |
//! | [`team`] | how ranks meet, leave and fail together |
//! | [`error`] | what can go wrong, said once |
//! | [`config`] | every default and its environment variable |

pub mod config;
pub mod device;
pub mod error;
pub mod hub;
pub mod points;
pub mod shm;
pub mod team;
pub mod tensor;
pub mod wait;
pub mod wire;

pub use error::{Error, Result};
pub use wait::Deadline;

/// The fault points of this crate; see [`points`].
#[cfg(feature = "points")]
pub const POINTS: &[&str] = &[];
