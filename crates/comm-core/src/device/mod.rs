//! Devices, their streams and events.
//!
//! A *stream* is a queue of work that runs in order; an *event* marks a place in a stream. Work of two streams
//! is ordered by making one wait for an event of the other ([`Stream::wait`]), without blocking the host; the
//! host itself waits with [`Event::synchronize`]. The [`Cpu`](Device::Cpu) stream is synchronous: what was put
//! into it is done, so its events are complete when they are recorded, and the same code serves both worlds.
//!
//! | kind | stream | where |
//! |---|---|---|
//! | [`Device::Cpu`] | [`Stream::cpu`], synchronous | here |
//! | [`Device::Sim`] | a worker queue with gates, over host memory | comm-testkit |
//!
//! [`Stream`] and [`Event`] are cheap handles; what they do is said by the traits [`StreamDriver`] and
//! [`EventDriver`], which another crate can implement.
//!
//! Every thread has a current stream ([`Stream::current`], [`with_current`]), the CPU's unless set.
//!
//! ```
//! use comm_core::device::{Device, Stream};
//!
//! let stream = Stream::current();
//! assert_eq!(stream.device(), Device::Cpu);
//! let event = stream.record()?;
//! assert!(event.query()?);
//! # Ok::<(), comm_core::Error>(())
//! ```
//!
//! Not here yet: CUDA streams, and events with timing.

mod cpu;
mod current;
mod event;
mod stream;

use std::fmt;

use crate::error::{Error, Result};

pub use current::with_current;
pub use event::{Event, EventDriver};
pub use stream::{DeviceMemory, HostFn, Stream, StreamDriver, StreamId};

/// Where memory lives and which streams can work on it.
///
/// ```
/// use comm_core::device::Device;
///
/// assert_eq!(Device::default(), Device::Cpu);
/// assert_eq!(Device::Sim(1).to_string(), "sim:1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Device {
    /// Host memory, worked on by the calling thread.
    #[default]
    Cpu,
    /// A simulated device with an ordinal: host memory that only its own streams may touch.
    Sim(u32),
}

impl Device {
    /// Whether host code may read and write the memory of this device through references.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Device::Cpu)
    }

    /// Checks that something is on the device on which `op` needs it.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] otherwise.
    ///
    /// ```
    /// use comm_core::device::Device;
    ///
    /// Device::Cpu.expect(Device::Cpu, "an example")?;
    /// assert!(Device::Sim(0).expect(Device::Cpu, "an example").is_err());
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn expect(self, expected: Device, op: &'static str) -> Result<()> {
        if self == expected {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, seen: self.to_string(), expected: expected.to_string() })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Sim(ordinal) => write!(f, "sim:{ordinal}"),
        }
    }
}

/// A kind of device, without an ordinal.
///
/// ```
/// use comm_core::device::{Device, DeviceKind};
///
/// assert_eq!(DeviceKind::from(Device::Sim(3)), DeviceKind::Sim);
/// assert_eq!(DeviceKind::default().to_string(), "cpu");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Host memory.
    #[default]
    Cpu,
    /// Simulated devices.
    Sim,
}

impl From<Device> for DeviceKind {
    fn from(device: Device) -> DeviceKind {
        match device {
            Device::Cpu => DeviceKind::Cpu,
            Device::Sim(_) => DeviceKind::Sim,
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Sim => "sim",
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
