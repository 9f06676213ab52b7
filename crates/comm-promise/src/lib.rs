//! Ask for a value now, read it later: promises and futures of threads, and of the processes of one host.
//!
//! Whoever wants a value makes a [`Promise`], keeps its [`Future`], and gives the promise to whoever will have the value: to
//! another thread as it is, to another process as a [`Ticket`] inside of some message. Nobody waits until the value is read.
//!
//! ```
//! use comm_core::{Deadline, Kind, tensor::Tensor};
//! use comm_promise::{Promise, Ticket};
//!
//! // The client.
//! let promise = Promise::<Tensor>::new(Kind::Host)?;
//! let future = promise.future()?;
//! let message = promise.into_ticket()?.to_bytes();
//!
//! // The worker, in another process of this host as a rule.
//! let promise = Promise::attach(&Ticket::<Tensor>::from_bytes(&message)?, Deadline::default())?;
//! promise.set(Tensor::from_slice(&[2], &[1.0, 2.0])?)?;
//!
//! // The client, now or later; or `future.await`.
//! assert_eq!(future.get(Deadline::default())?.to_vec::<f64>()?, [1.0, 2.0]);
//! # Ok::<(), comm_core::Error>(())
//! ```
//!
//! | kind | value | between |
//! |---|---|---|
//! | [`Process`](comm_core::Kind::Process) | anything that is `Send`: it comes out as it was put in | threads of a process |
//! | [`Host`](comm_core::Kind::Host) | a [`Value`]: tensors, `()`, what serde writes ([`Wire`]), and vectors and pairs of them | processes of a host, and threads in them |
//! | [`Network`](comm_core::Kind::Network) | not there yet | |
//!
//! Two processes can have promises between them if they are of one [`Instance`](comm_core::hub::Instance): `COMM_INSTANCE_ID`
//! says of which, or the id that a launcher gives to its job. A process that starts others itself hands its own on:
//!
//! ```no_run
//! use comm_core::hub::Hub;
//!
//! # fn start() -> Result<(), Box<dyn std::error::Error>> {
//! std::process::Command::new("worker").env("COMM_INSTANCE_ID", &Hub::get()?.instance().id).spawn()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Who holds a promise, and what if he is gone
//!
//! The process that makes a promise is its *home*: there the future is, and the slot of shared memory in which the promise stands.
//! Whoever has the [`Promise`] is a *holder*. [`Promise::into_ticket`] turns a holder into a ticket, which is nobody's until
//! somebody [attaches](Promise::attach) it.
//!
//! | what happens | the future |
//! |---|---|
//! | a holder sets it | has the value, also if the process that set it is killed right after |
//! | the last holder drops it unset, panics, or his process dies | [`BrokenPromise`](comm_core::Error::BrokenPromise), at once |
//! | the link to the process of a holder is lost | the same; he can meet the home again, and attach a ticket that is still open |
//! | a ticket is never attached | waits until its deadline, or until it is [cancelled](Future::cancel) |
//! | the future is dropped | whoever sets it is told, and has the value back |
//! | the home dies | the same |
//!
//! # Costs
//!
//! A promise between processes is half a kilobyte of shared memory, which is used again for the next one; no descriptor, mapping or
//! thread of its own. A process keeps as many slots as it ever had promises at once.

mod state;

#[cfg(not(loom))]
mod awaiting;
#[cfg(not(loom))]
mod blocking;
#[cfg(not(loom))]
mod claim;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod future;
#[cfg(not(loom))]
mod home;
#[cfg(not(loom))]
mod inner;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
mod letter;
#[cfg(not(loom))]
mod lot;
#[cfg(not(loom))]
mod promise;
#[cfg(not(loom))]
mod ready;
#[cfg(not(loom))]
mod select;
#[cfg(not(loom))]
mod slot;
#[cfg(not(loom))]
mod ticket;
#[cfg(not(loom))]
mod value;
#[cfg(not(loom))]
mod workers;

#[cfg(not(loom))]
pub use error::SetError;
#[cfg(not(loom))]
pub use future::Future;
#[cfg(not(loom))]
pub use join::JoinAll;
#[cfg(not(loom))]
pub use promise::{Promise, for_operand};
#[cfg(not(loom))]
pub use select::{Select, select};
#[cfg(not(loom))]
pub use ticket::Ticket;
#[cfg(not(loom))]
pub use value::{Packer, Unpacker, Value, Wire};

#[cfg(not(loom))]
mod aliases {
    use comm_core::tensor::Tensor;

    use crate::{Future, Promise};

    /// A tensor that somebody has asked for.
    pub type TensorPromise = Promise<Tensor>;
    /// A tensor that has been asked for.
    pub type TensorFuture = Future<Tensor>;
    /// A word that something is done.
    pub type VoidPromise = Promise<()>;
    /// Whether something is done.
    pub type VoidFuture = Future<()>;
}
#[cfg(not(loom))]
pub use aliases::{TensorFuture, TensorPromise, VoidFuture, VoidPromise};

/// The fault points of this crate; see [`comm_core::points`].
#[cfg(not(loom))]
pub const POINTS: &[&str] = &[
    "promise.claimed",
    "promise.packed",
    "promise.begun",
    "promise.writing",
    "promise.ringing",
    "promise.set",
    "promise.dropped",
];
