//! The queue and its worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_core::device::{Device, DeviceMemory, Event, HostFn, Stream, StreamDriver};
use comm_core::{Deadline, Error, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};

use super::buffer::SimBuffer;
use super::mark::Mark;
use crate::sync::lock;

enum Task {
    Run(HostFn),
    Reach(Mark),
    Await(Event),
}

/// What the handles of a stream share. The worker holds only the other end of the channel, so it ends, after
/// what was queued, when the last handle is gone, on whatever thread that happens.
#[derive(Debug)]
struct Queue {
    ordinal: u32,
    tasks: Sender<Task>,
    failure: Arc<Mutex<Option<Error>>>,
}

/// A stream of the simulated device. Cheap to clone; clones are the same stream.
#[derive(Debug, Clone)]
pub struct SimStream {
    queue: Arc<Queue>,
    stream: Stream,
}

/// The driver behind a [`Stream`] of the simulated device.
#[derive(Debug)]
struct Driver(Arc<Queue>);

impl SimStream {
    /// A new stream of the device with this ordinal, and its worker. A worker that cannot be started is the
    /// error of every later call.
    pub fn new(ordinal: u32) -> SimStream {
        let (tasks, inbox) = unbounded();
        let failure = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&failure);
        let named = std::thread::Builder::new().name(format!("sim:{ordinal}"));
        if let Err(e) = named.spawn(move || work(&inbox, &seen)) {
            *lock(&failure) = Some(Error::io("cannot start the worker of a simulated stream", e));
        }
        let queue = Arc::new(Queue { ordinal, tasks, failure });
        SimStream { stream: Stream::new(Driver(Arc::clone(&queue))), queue }
    }

    /// The stream as the library knows it.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Queues a gate: nothing behind it happens until it is opened.
    ///
    /// # Errors
    /// The stream has failed.
    pub fn gate(&self) -> Result<Gate> {
        let (at, open) = (Mark::new("a stream to get to a gate"), Mark::new("a gate"));
        self.queue.push(Task::Reach(at.clone()))?;
        self.queue.push(Task::Await(Event::new(open.clone())))?;
        Ok(Gate { at, open })
    }

    /// Queues a pause.
    ///
    /// # Errors
    /// The stream has failed.
    pub fn delay(&self, time: Duration) -> Result<()> {
        self.stream.then(move || std::thread::sleep(time))
    }

    /// Queues a write: the bytes change when the stream gets there, not before.
    ///
    /// # Errors
    /// The stream has failed.
    pub fn write(&self, to: &SimBuffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let (to, bytes) = (to.clone(), bytes.to_vec());
        self.stream.then(move || to.write(offset, &bytes))
    }

    /// Queues a copy of a whole buffer: the source is read when the stream gets there.
    ///
    /// # Errors
    /// The stream has failed.
    pub fn copy(&self, from: &SimBuffer, to: &SimBuffer) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        self.stream.then(move || to.write(0, &from.read()))
    }

    /// Fails the stream, as a device error would: what has not run yet does not run.
    pub fn fail(&self, why: Error) {
        lock(&self.queue.failure).get_or_insert(why);
    }
}

/// A place in a stream that nothing passes until it is opened. Dropping it opens it.
#[derive(Debug)]
#[must_use = "a gate that is dropped is open"]
pub struct Gate {
    at: Mark,
    open: Mark,
}

impl Gate {
    /// Lets the stream go on.
    pub fn open(&self) {
        self.open.reach();
    }

    /// Waits until the stream stands at the gate: everything before it is done.
    ///
    /// # Errors
    /// `Timeout` at the deadline; the stream has failed.
    pub fn wait_reached(&self, deadline: impl Into<Deadline>) -> Result<()> {
        self.at.wait(deadline.into())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

impl Queue {
    fn push(&self, task: Task) -> Result<()> {
        match &*lock(&self.failure) {
            Some(why) => Err(why.clone()),
            None => self.tasks.send(task).map_err(|_| gone()),
        }
    }

    fn mark(&self) -> Result<Mark> {
        let mark = Mark::new(format!("an event of a stream of sim:{}", self.ordinal));
        self.push(Task::Reach(mark.clone()))?;
        Ok(mark)
    }
}

impl StreamDriver for Driver {
    fn device(&self) -> Device {
        Device::Sim(self.0.ordinal)
    }

    fn record(&self) -> Result<Event> {
        Ok(Event::new(self.0.mark()?))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.0.push(Task::Await(event.clone()))
    }

    fn then(&self, f: HostFn) -> Result<()> {
        self.0.push(Task::Run(f))
    }

    fn query(&self) -> Result<bool> {
        // The place behind everything is reached exactly if everything is done, but only the worker can say so:
        // an empty queue with a busy worker is not done.
        self.0.mark()?.wait(Duration::ZERO.into()).map(|()| true).or_else(|e| match e {
            Error::Timeout { .. } => Ok(false),
            other => Err(other),
        })
    }

    fn synchronize(&self, deadline: Deadline) -> Result<()> {
        self.0.mark()?.wait(deadline)
    }

    fn alloc(&self, bytes: usize) -> Result<DeviceMemory> {
        let buffer = SimBuffer::new(bytes);
        let start = NonNull::new(buffer.as_ptr()).ok_or_else(gone)?;
        Ok(DeviceMemory { start, free: Box::new(move || drop(buffer)) })
    }

    unsafe fn copy(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> Result<()> {
        /// Two ranges that the worker may touch.
        struct Ranges(NonNull<u8>, NonNull<u8>);
        // SAFETY: they stay valid until the worker has passed the copy, as whoever asked for it promised.
        unsafe impl Send for Ranges {}
        let ranges = Ranges(from, to);
        self.then(Box::new(move || {
            let Ranges(from, to) = &ranges;
            for i in 0..bytes {
                // SAFETY: inside of the two ranges. Byte by byte and atomically, as everything that touches memory of this
                // device: who does not wait for its streams sees poison, and not undefined behaviour.
                let (from, to) = unsafe {
                    (AtomicU8::from_ptr(from.as_ptr().add(i)), AtomicU8::from_ptr(to.as_ptr().add(i)))
                };
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }))
    }
}

/// The worker's body.
fn work(tasks: &Receiver<Task>, failure: &Mutex<Option<Error>>) {
    for task in tasks {
        let failed = lock(failure).clone();
        match (task, failed) {
            (Task::Reach(mark), None) => mark.reach(),
            (Task::Reach(mark), Some(why)) => mark.fail(why),
            (_, Some(_)) => {}
            (Task::Run(f), None) => {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
                    let text = payload.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
                    let why = text.unwrap_or_else(|| "without a text".to_string());
                    fail(failure, &format!("a function in its queue panicked: {why}"));
                }
            }
            (Task::Await(event), None) => {
                if let Err(e) = event.synchronize(Deadline::default()) {
                    fail(failure, &format!("a wait in its queue failed: {e}"));
                }
            }
        }
    }
}

fn fail(failure: &Mutex<Option<Error>>, what: &str) {
    let source = std::io::Error::other(what.to_string());
    lock(failure).get_or_insert(Error::io("a simulated stream has failed", source));
}

fn gone() -> Error {
    Error::io("a simulated stream", std::io::ErrorKind::BrokenPipe)
}
