//! Tests of several ranks: threads, processes or both, faults at named points, oracles, and the runner.
//!
//! | module | what it holds |
//! |---|---|
//! | [`main`], [`Case`] | the runner that a crate's `multirank` test target registers its cases with |
//! | [`Launch`], [`Running`] | starts ranks as child processes and watches, stops, kills them |
//! | [`RankCtx`] | what a rank program gets |
//! | [`fault`] | panics, exits, signals, delays and holds at the library's named points |
//! | [`sim`] | streams and events with a queue and gates, so that order is shown and not assumed |
//! | [`oracle`] | serial answers to compare with |
//! | [`pairwise`] | combinations of factors: all, or few that hold every pair |
//! | [`values`] | values that name their origin, random bytes, strided shapes |
//! | [`report`], [`witness`] | what a rank tells about an error, and whether it knew in time or only had no core |
//! | [`block_on`] | runs one future |
//! | [`forked`] | what becomes of handles in forked children |
//! | [`probe`] | what can be seen of processes from outside |
//!
//! A test target is registered in `Cargo.toml` with `harness = false`, and its `main` is one call of
//! [`main`](main()).
//!
//! Not here yet: conformance suites generic over the library's traits.

mod block_on;
mod child;
mod clock;
mod ctx;
mod eventually;
pub mod fault;
pub mod forked;
mod launch;
mod layout;
pub mod oracle;
mod outcome;
pub mod pairwise;
pub mod probe;
mod proto;
pub mod report;
mod runner;
pub mod sim;
mod sync;
mod teams;
pub mod values;
pub mod witness;

pub use block_on::block_on;
pub use child::{Program, child_main};
pub use clock::now_ns;
pub use ctx::RankCtx;
pub use eventually::eventually;
pub use launch::{Launch, LaunchError, Limit, Running, Signal};
pub use layout::Layout;
pub use outcome::{Exit, Note, Outcome, RankReport, RankResult, Skip, done};
pub use runner::{Case, Kind, LauncherCtx, Row, Status, main};
