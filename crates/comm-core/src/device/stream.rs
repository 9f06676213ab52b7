//! Streams: queues of work that runs in order.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Device, Event, cpu};
use crate::Deadline;
use crate::error::{Error, Result};

/// A function that a stream runs on the host, in order with its other work.
pub type HostFn = Box<dyn FnOnce() + Send>;

/// What a kind of stream does. Implemented once for each kind of device.
///
/// A driver may be dropped on any thread, its own worker included (a function given to [`then`] may hold the
/// last handle), so its `Drop` must not wait for that worker. Work that was accepted still runs.
///
/// [`then`]: StreamDriver::then
pub trait StreamDriver: Any + Send + Sync + fmt::Debug {
    /// The device whose memory the stream works on.
    fn device(&self) -> Device;

    /// An event behind everything that is in the stream now.
    ///
    /// # Errors
    /// The device failed.
    fn record(&self) -> Result<Event>;

    /// Makes whatever is queued after this call run after `event`. The host does not wait, unless the stream
    /// is synchronous. The event may be of any other kind.
    ///
    /// # Errors
    /// The device failed; a synchronous stream also passes on what the event says.
    fn wait(&self, event: &Event) -> Result<()>;

    /// Queues a function that runs on the host once everything before it is done; what is queued later runs
    /// after it. Never waits for queued work (memory is freed through here, in drops). It may run on the calling
    /// thread if nothing is queued.
    ///
    /// # Errors
    /// The device failed; the function is then dropped without having run.
    fn then(&self, f: HostFn) -> Result<()>;

    /// Whether everything in the stream is done; never blocks.
    ///
    /// # Errors
    /// The device failed.
    fn query(&self) -> Result<bool>;

    /// Blocks the calling thread until everything that is in the stream now is done.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) at the deadline; the device's own failure.
    fn synchronize(&self, deadline: Deadline) -> Result<()>;

    /// Memory of the device, initialised to anything.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); [`Error::Unsupported`](crate::Error::Unsupported) where the driver
    /// makes none.
    fn alloc(&self, _bytes: usize) -> Result<DeviceMemory> {
        Err(unsupported(self.device(), "memory of its own"))
    }

    /// Queues a copy between memory of the host and of the device, either way, or within the device.
    ///
    /// # Safety
    /// Until the stream has passed what is queued here, `bytes` bytes from `from` on stay readable and initialised, as many from
    /// `to` on writable, and nobody else writes the first nor touches the second. They do not overlap.
    ///
    /// # Errors
    /// The device failed; [`Error::Unsupported`](crate::Error::Unsupported) where the driver does not copy. Nothing is
    /// queued then.
    unsafe fn copy(&self, _from: NonNull<u8>, _to: NonNull<u8>, _bytes: usize) -> Result<()> {
        Err(unsupported(self.device(), "copies to or from the host"))
    }
}

/// Memory that a driver has given out.
pub struct DeviceMemory {
    /// The first byte. The memory is the holder's alone, on that device, until `free` has run.
    pub start: NonNull<u8>,
    /// Gives it back.
    pub free: HostFn,
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("start", &self.start).finish_non_exhaustive()
    }
}

fn unsupported(device: Device, what: &str) -> Error {
    let why = format!("this build has no driver that can do it on {device}");
    Error::Unsupported { backend: "device", op: what.to_owned(), why }
}

/// Tells streams apart within a process; never used again after a stream is gone.
///
/// ```
/// use comm_core::device::Stream;
///
/// assert_eq!(Stream::cpu().id(), Stream::current().id());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

impl StreamId {
    /// The CPU stream is the same in every thread.
    pub(super) const CPU: StreamId = StreamId(0);

    fn next() -> StreamId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters, and the counter orders nothing else.
        StreamId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A queue of work on a device. Cheap to clone; clones are the same stream, and `==` compares just that.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
/// use comm_core::device::Stream;
///
/// let stream = Stream::current();
/// let count = Arc::new(AtomicU32::new(0));
/// let seen = Arc::clone(&count);
/// stream.then(move || {
///     seen.fetch_add(1, Ordering::Relaxed);
/// })?;
/// stream.record()?.synchronize(std::time::Duration::from_secs(1))?;
/// assert_eq!(count.load(Ordering::Relaxed), 1);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Stream {
    id: StreamId,
    driver: Arc<dyn StreamDriver>,
}

impl Stream {
    /// A new stream of a driver's own kind.
    pub fn new(driver: impl StreamDriver) -> Stream {
        Stream { id: StreamId::next(), driver: Arc::new(driver) }
    }

    /// The synchronous stream of the host: each call does its work before it returns.
    ///
    /// ```
    /// use comm_core::device::{Device, Stream};
    ///
    /// assert_eq!(Stream::cpu().device(), Device::Cpu);
    /// assert_eq!(Stream::cpu(), Stream::cpu());
    /// ```
    pub fn cpu() -> Stream {
        Stream { id: StreamId::CPU, driver: cpu::driver() }
    }

    /// The calling thread's current stream: that of the innermost [`with_current`](super::with_current), else
    /// the CPU's.
    #[doc(alias = "getCurrentStream")]
    pub fn current() -> Stream {
        super::current::get().unwrap_or_else(Stream::cpu)
    }

    /// Tells this stream from others.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The device whose memory the stream works on.
    pub fn device(&self) -> Device {
        self.driver.device()
    }

    /// An event behind everything that is in the stream now.
    ///
    /// # Errors
    /// The device failed.
    #[doc(alias = "EventRecord")]
    pub fn record(&self) -> Result<Event> {
        self.driver.record()
    }

    /// Makes whatever is queued after this call run after `event`, whichever stream that belongs to. The host
    /// does not wait, except in the CPU stream, which is synchronous: there for at most `COMM_TIMEOUT_MS`.
    ///
    /// ```
    /// use comm_core::device::Stream;
    ///
    /// let producer = Stream::cpu();
    /// let written = producer.record()?;
    /// Stream::current().wait(&written)?; // what follows here sees what the producer wrote
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device failed; in the CPU stream also [`Error::Timeout`](crate::Error::Timeout).
    #[doc(alias = "StreamWaitEvent")]
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.driver.wait(event)
    }

    /// Queues a function that runs on the host once everything before it is done. Never waits for queued work.
    ///
    /// # Errors
    /// The device failed; the function is then dropped without having run.
    #[doc(alias = "LaunchHostFunc")]
    pub fn then(&self, f: impl FnOnce() + Send + 'static) -> Result<()> {
        self.driver.then(Box::new(f))
    }

    /// Whether everything in the stream is done; never blocks.
    ///
    /// # Errors
    /// The device failed.
    pub fn query(&self) -> Result<bool> {
        self.driver.query()
    }

    /// Blocks the calling thread until everything that is in the stream now is done.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) at the deadline; the device's own failure.
    pub fn synchronize(&self, deadline: impl Into<Deadline>) -> Result<()> {
        self.driver.synchronize(deadline.into())
    }

    /// Memory of the device; see [`StreamDriver::alloc`].
    pub(crate) fn alloc(&self, bytes: usize) -> Result<DeviceMemory> {
        self.driver.alloc(bytes)
    }

    /// Queues a copy.
    ///
    /// # Safety
    /// That of [`StreamDriver::copy`].
    pub(crate) unsafe fn copy(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy(from, to, bytes) }
    }

    /// The driver, if it is of type `D`: how a library that launches its own work finds the native stream.
    pub fn downcast_ref<D: StreamDriver>(&self) -> Option<&D> {
        let driver: &dyn Any = &*self.driver;
        driver.downcast_ref()
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.id == other.id
    }
}

impl Eq for Stream {}
