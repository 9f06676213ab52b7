//! A server among clients that are slow, silent, many, or hostile, and clients with servers of that kind.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by panicking")]

mod bad_bytes;
mod bad_servers;
mod crowd;
mod keys;
mod limits;
mod raw;
mod restart;
mod slow;
