//! Operations that have been started: what is to be waited for, and the thread that moves them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use comm_core::wait::OneShot;
use comm_core::{Deadline, Error, Result};
use crossbeam_channel::{Sender, unbounded};

use crate::group::Inner;

const LONG: Duration = Duration::from_secs(3600);

/// An operation that has been started. It goes on whether or not anybody waits for it: peers need it. Dropping this gives
/// up its result.
///
/// ```
/// use comm_core::{Deadline, team::Team, tensor::Tensor};
/// use comm_group::{ReduceOp, ThreadGroup};
///
/// let group = ThreadGroup::new(Team::join("work", 0, 1, Deadline::default())?, Deadline::default())?;
/// let t = Tensor::from_slice(&[2], &[1i32, 2])?;
/// let [first, second] = [(); 2].map(|()| group.all_reduce_start(&t, ReduceOp::Sum, Deadline::default()));
/// // Meanwhile something else.
/// assert_eq!(second?.wait()?.as_slice::<i32>()?, [1, 2]);
/// first?.wait()?;
/// # Ok::<(), comm_core::Error>(())
/// ```
#[must_use = "the result is lost when this is dropped"]
pub struct Work<T> {
    place: Arc<OneShot<Result<T>>>,
    op: &'static str,
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({}, {})", self.op, if self.is_ready() { "done" } else { "in flight" })
    }
}

impl<T> Work<T> {
    /// Waits until the operation is over. It has a deadline of its own, so this ends.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(self) -> Result<T> {
        loop {
            // The operation's deadline is what counts; it is the worker that keeps it.
            if let Some(outcome) = self.place.wait(LONG) {
                return outcome;
            }
        }
    }

    /// Waits until then at most: nothing if the operation is not over, which goes on.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait_timeout(&mut self, deadline: impl Into<Deadline>) -> Result<Option<T>> {
        self.place.wait(deadline).transpose()
    }

    /// Whether the operation is over, and its result not taken yet.
    #[doc(alias = "test")]
    #[doc(alias = "is_completed")]
    pub fn is_ready(&self) -> bool {
        self.place.is_set()
    }
}

impl<T> Future for Work<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.place.poll(context)
    }
}

type Job = Box<dyn FnOnce(&Inner) + Send>;

/// What has been started in a group and is not over: first in, first out, moved by one thread, which there is from the first
/// start on. It holds the group until all is done, and longer than that only while the group has a handle.
#[derive(Default)]
pub(crate) struct Queue {
    worker: Mutex<Option<Sender<Job>>>,
    pending: Arc<Pending>,
}

#[derive(Default)]
struct Pending {
    count: Mutex<usize>,
    none: Condvar,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One job that is pending, until it is over, also by a panic.
struct Ticket(Arc<Pending>);

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

impl Queue {
    /// Starts an operation behind all that have been started before.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        group: &Arc<Inner>,
        op: &'static str,
        run: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<Work<T>> {
        let place = Arc::new(OneShot::default());
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*worker {
            Some(sender) => sender,
            None => worker.insert(spawn(group.clone())?),
        };
        *self.pending.lock() += 1;
        let (ticket, result) = (Ticket(self.pending.clone()), place.clone());
        let job: Job = Box::new(move |group| {
            let outcome = run(group);
            // Before the result is there: who has it may call again, and finds nothing pending.
            drop(ticket);
            result.set(outcome);
        });
        if sender.send(job).is_err() {
            return Err(Error::invalid(
                op,
                "the thread that moves operations is gone: one of them has panicked",
            ));
        }
        Ok(Work { place, op })
    }

    /// Waits until nothing is pending: blocking operations go behind those that have been started.
    pub(crate) fn drain(&self) {
        let mut count = self.pending.lock();
        while *count > 0 {
            count = self.pending.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the worker end when it has done what is pending.
    pub(crate) fn close(&self) {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn spawn(group: Arc<Inner>) -> Result<Sender<Job>> {
    let (sender, jobs) = unbounded::<Job>();
    let body = move || jobs.iter().for_each(|job| job(&group));
    let spawned = thread::Builder::new().name("comm-work".into()).spawn(body);
    spawned.map_err(|error| Error::io("starting the thread that moves operations", error))?;
    Ok(sender)
}
