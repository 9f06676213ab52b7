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
//! | [`launch`] | what the launcher says: rank, size, job, address |
//! | [`error`] | what can go wrong, said once |
//! | [`layout`] | the layout of shared structures as a number |
//! | [`config`] | every default and its environment variable |

#[cfg(not(loom))]
pub mod config;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod hub;
#[cfg(not(loom))]
mod kind;
#[cfg(not(loom))]
pub mod launch;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod points;
#[cfg(not(loom))]
pub mod shm;
#[cfg(not(loom))]
mod sync;
#[cfg(not(loom))]
pub mod team;
#[cfg(not(loom))]
pub mod tensor;
pub mod wait;
#[cfg(not(loom))]
pub mod wire;

#[cfg(not(loom))]
pub use error::{Error, Result};
#[cfg(not(loom))]
pub use kind::Kind;
#[cfg(not(loom))]
pub use wait::Deadline;

/// The fault points of this crate; see [`points`].
#[cfg(not(loom))]
pub const POINTS: &[&str] = &[
    "join.begin",
    "join.bound",
    "join.connected",
    "join.asked",
    "host.complete",
    "host.welcoming",
    "join.welcomed",
    "link.connect",
    "join.linked",
    "join.met",
    "barrier.begun",
    "barrier.met",
    "exchange.begun",
    "exchange.met",
    "shrink.coming",
    "shrink.chosen",
    "shrink.joined",
    "shrink.built",
    "leave",
];
