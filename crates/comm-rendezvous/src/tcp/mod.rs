//! Processes anywhere, by the protocol of torch's `TCPStore`, of which both ends are here: a rank in Rust is a client of a
//! Python rank's server, and the other way round. Checked with torch 2.15.0, with both of its servers.
//!
//! What our own ends have besides, without changing the protocol:
//!
//! - A server listens on loopback unless it is told where.
//! - It may have a [`SharedKey`], which a client proves before anything else of it is looked at.
//! - It has a run id, and draws random bits when it starts, by which a client that connects again notices that it is another
//!   one. These are under a key that no key of torch's can be.
//! - What it takes is [limited](Limits): lengths, numbers, bytes in all, and for how long it waits for a client that has
//!   stopped half-way.
//! - `set` of a client returns when the server has it: the request is followed by one that is answered.

mod client;
mod identity;
mod limits;
mod parser;
mod request;
mod secret;
mod server;

pub use client::{TcpOptions, TcpStore};
pub use limits::Limits;
pub use secret::SharedKey;
pub use server::{ServerOptions, TcpServer};

/// The port that torch's stores have if they are not told one.
pub const PORT: u16 = 29500;
