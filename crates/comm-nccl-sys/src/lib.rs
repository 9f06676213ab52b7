//! NCCL, opened when the program runs. A build needs no NCCL, no CUDA and no libclang, and this crate needs no other of the
//! comm crates.
//!
//! Three layers, of which this crate is the lower two:
//!
//! | layer | what it holds |
//! |---|---|
//! | [`sys`] | types, constants and functions as nccl.h has them, made by `cargo xtask bindings` |
//! | [`Nccl`] | the library that was found, its [`Version`], what it can do ([`Capability`]), and its functions as methods whose status is a [`Result`] |
//! | a backend | communicators, streams, deadlines: not here |
//!
//! # Finding the library
//!
//! [`Nccl::get`] opens it once for the process: what `COMM_NCCL_LIB` names, if it is set, else `libnccl.so.2`, else
//! `libnccl.so`, as the dynamic linker finds them. The error says what was tried in which order, and what each said:
//!
//! ```
//! use comm_nccl_sys::{Capability, Nccl};
//!
//! match Nccl::get() {
//!     Ok(nccl) => println!("NCCL {} of {}, split: {}", nccl.version(), nccl.path(), nccl.has(Capability::Split)),
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! A library older than 2.18 is refused. Beyond that **every function is optional**: a call of one that the library does not
//! have is an [`Error::Unavailable`], and so is one that it has from before the version in which the function was brought
//! in, when it was not yet what the header says.
//!
//! # What the methods promise
//!
//! They are as thin as they look. Lengths, types and devices are not compared: NCCL does not either, and what differs between
//! ranks is undefined behaviour there. So most methods are `unsafe`, and what the caller promises is what nccl.h asks for. A
//! communicator is used by one thread at a time, which includes asking it for errors.

mod calls;
mod capability;
mod config;
mod error;
mod library;
pub mod sys;
#[cfg(test)]
mod tests;
mod version;
mod whole;

pub use calls::Progress;
pub use capability::Capability;
pub use error::{Error, Result, Status};
pub use library::{Nccl, VARIABLE};
pub use version::Version;
