//! A simulated device: streams that really run later, over host memory.
//!
//! The CPU's stream is synchronous, so it cannot show that somebody forgot to wait. A [`SimStream`] is a worker
//! thread with a queue. A test puts a [`Gate`] into the queue and knows that nothing behind it happens until the
//! gate is opened, so that order is shown and not assumed, without a sleep.
//!
//! ```
//! use std::time::Duration;
//! use comm_testkit::sim::{SimBuffer, SimStream};
//!
//! let stream = SimStream::new(0);
//! let buffer = SimBuffer::new(4);
//! let gate = stream.gate()?;
//! stream.write(&buffer, 0, &[1, 2, 3, 4])?;
//! let written = stream.stream().record()?;
//!
//! assert!(!written.query()?);
//! assert!(buffer.is_poison(), "a reader that does not wait sees poison");
//! gate.open();
//! written.synchronize(Duration::from_secs(10))?;
//! assert_eq!(buffer.read(), [1, 2, 3, 4]);
//! # Ok::<(), comm_core::Error>(())
//! ```
//!
//! A function in the queue that panics, or a wait in the queue that reaches its deadline, fails the stream as a
//! device error does: what is queued behind it does not run, events behind it do not complete, and all say why.

mod buffer;
mod mark;
mod stream;

pub use buffer::SimBuffer;
pub use stream::{Gate, SimStream};

#[cfg(test)]
mod tests;
