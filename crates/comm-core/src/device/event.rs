//! Events: a place in a stream that others can wait for.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::HostFn;
use crate::Deadline;
use crate::error::Result;

/// What a kind of event does. Implemented once for each kind of device.
///
/// A driver may be dropped on any thread, before or after its event is complete.
pub trait EventDriver: Any + Send + Sync + fmt::Debug {
    /// Whether everything that was in the stream before the event is done; never blocks. Once `true`, always
    /// `true`, and then what that work wrote is visible to the caller.
    ///
    /// # Errors
    /// The device failed; whether the work is done is then unknown.
    fn query(&self) -> Result<bool>;

    /// Blocks the calling thread until the event is complete.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) at the deadline, unless the event is complete by then; the
    /// device's own failure.
    fn synchronize(&self, deadline: Deadline) -> Result<()>;

    /// Has a function run or dropped, by whichever thread, when the event is complete or will not be; at once if it is so already.
    /// Never waits. What holds it up costs who waits for the event as a task, and nobody else.
    ///
    /// # Errors
    /// The function, of a driver that cannot do that.
    fn then(&self, f: HostFn) -> std::result::Result<(), HostFn> {
        Err(f)
    }
}

/// A place in a stream: complete once everything that was queued before it is done.
///
/// Made by [`Stream::record`](super::Stream::record). Cheap to clone; clones are the same event.
///
/// ```
/// use std::time::Duration;
/// use comm_core::device::Stream;
///
/// let event = Stream::cpu().record()?;
/// event.synchronize(Duration::from_secs(1))?;
/// assert!(event.query()?);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Event(Arc<dyn EventDriver>);

impl Event {
    /// An event of a driver's own kind.
    ///
    /// ```
    /// use comm_core::{Deadline, Result, device::{Event, EventDriver}};
    ///
    /// #[derive(Debug)]
    /// struct Never;
    /// impl EventDriver for Never {
    ///     fn query(&self) -> Result<bool> {
    ///         Ok(false)
    ///     }
    ///     fn synchronize(&self, _: Deadline) -> Result<()> {
    ///         Err(comm_core::Error::invalid("synchronize", "this event never completes"))
    ///     }
    /// }
    /// assert!(!Event::new(Never).query()?);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn new(driver: impl EventDriver) -> Event {
        Event(Arc::new(driver))
    }

    /// An event that is complete, as the CPU's are.
    ///
    /// ```
    /// assert!(comm_core::device::Event::complete().query()?);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn complete() -> Event {
        super::cpu::complete_event()
    }

    /// Whether everything that was in the stream before the event is done; never blocks.
    ///
    /// # Errors
    /// The device failed.
    pub fn query(&self) -> Result<bool> {
        self.0.query()
    }

    /// Blocks the calling thread until the event is complete.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) at the deadline; the device's own failure.
    pub fn synchronize(&self, deadline: impl Into<Deadline>) -> Result<()> {
        self.0.synchronize(deadline.into())
    }

    /// Has a function run or dropped when the event is complete or will not be; see [`EventDriver::then`].
    ///
    /// # Errors
    /// The function, if the driver cannot do that.
    pub fn then(&self, f: HostFn) -> std::result::Result<(), HostFn> {
        self.0.then(f)
    }

    /// The driver, if it is of type `D`: how a stream recognises the events of its own kind, which it can
    /// wait for more cheaply than by [`Event::synchronize`].
    pub fn downcast_ref<D: EventDriver>(&self) -> Option<&D> {
        let driver: &dyn Any = &*self.0;
        driver.downcast_ref()
    }

    pub(super) fn from_arc(driver: Arc<dyn EventDriver>) -> Event {
        Event(driver)
    }
}
