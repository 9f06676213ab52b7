//! What has been started and is not over, and the threads that move it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use comm_core::hub::{is_forked, refuse_forked};
use comm_core::wait::OneShot;
use comm_core::{Deadline, Error, Result};
use crossbeam_channel::{Sender, unbounded};

use super::Work;
use crate::group::Inner;
use crate::turn::late;

type Job = Box<dyn FnOnce() + Send>;

/// What has been started in a group. Operations of all ranks come in one order on all of them, so they go one after the other. A
/// message is a matter of two ranks, and waits for those before it alone that go the same way between the two: who has started
/// to receive can send meanwhile, to whomever, and take part in operations.
pub(crate) struct Started {
    pub(crate) operations: Queue,
    /// Messages, by the rank that they go to.
    pub(crate) sending: Vec<Queue>,
    /// Messages, by the rank that they come from.
    pub(crate) receiving: Vec<Queue>,
}

impl Started {
    pub(crate) fn new(ranks: usize) -> Started {
        let queues = || (0..ranks).map(|_| Queue::default()).collect();
        Started { operations: Queue::default(), sending: queues(), receiving: queues() }
    }

    /// Waits until everything that has been started before is over, as [`Queue::drain`] does.
    pub(crate) fn drain(&self, group: &Arc<Inner>, op: &'static str, deadline: Deadline) -> Result<()> {
        let all = [&self.operations].into_iter().chain(&self.sending).chain(&self.receiving);
        all.into_iter().try_for_each(|queue| queue.drain(group, op, deadline))
    }
}

/// What has been started and is not over: first in, first out, moved by one thread, which there is from the first
/// start on. What is pending holds the group, and lets go of it before its result is there: who has all results and drops
/// the group has left it then, and not when that thread comes to it.
#[derive(Default)]
pub(crate) struct Queue {
    worker: Mutex<Option<Sender<Job>>>,
    pending: Arc<AtomicUsize>,
}

/// One job that is pending, until it is over, also by a panic.
struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    fn new(pending: &Arc<AtomicUsize>) -> Ticket {
        pending.fetch_add(1, Ordering::Relaxed);
        Ticket(pending.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Release: who finds nothing pending sees what the jobs have done.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Who sets the result of a work. Dropped before, by a panic of this job or of one before it, it says so: nobody waits for
/// what does not come.
struct Setter<T> {
    place: Option<Arc<OneShot<Result<T>>>>,
    op: &'static str,
}

impl<T> Setter<T> {
    fn set(mut self, outcome: Result<T>) {
        if let Some(place) = self.place.take() {
            place.set(outcome);
        }
    }
}

impl<T> Drop for Setter<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.set(Err(fallen(self.op)));
        }
    }
}

fn fallen(op: &'static str) -> Error {
    Error::invalid(op, "the thread that moves operations is gone: one of them has panicked")
}

impl Queue {
    /// Starts an operation behind all that have been started before.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        group: &Arc<Inner>,
        op: &'static str,
        run: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<Work<T>> {
        refuse_forked()?;
        let place = Arc::new(OneShot::default());
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*worker {
            Some(sender) => sender,
            None => worker.insert(spawn()?),
        };
        let ticket = Ticket::new(&self.pending);
        let result = Setter { place: Some(place.clone()), op };
        let group = group.clone();
        let job: Job = Box::new(move || {
            let outcome = run(&group);
            // The last one, if the handle is gone: with it the thread's own queue ends.
            drop(group);
            // Before the result is there: who has it may call again, and finds nothing pending.
            drop(ticket);
            result.set(outcome);
        });
        if sender.send(job).is_err() {
            return Err(fallen(op));
        }
        Ok(Work { place, op, taken: false })
    }

    /// Waits until what has been started before is over: what blocks goes behind it.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it is not by then; what has ended the team, if anything has; [`Error::Forked`].
    pub(crate) fn drain(&self, group: &Arc<Inner>, op: &'static str, deadline: Deadline) -> Result<()> {
        refuse_forked()?;
        let started = Instant::now();
        if self.pending.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        // Jobs go one after the other, so when one that does nothing is over, so are those before it.
        if self.start(group, op, |_| Ok(()))?.wait_timeout(deadline)?.is_some() {
            return Ok(());
        }
        // What is before it may still be on its way to hear of that.
        group.team().check(op)?;
        let before = self.pending.load(Ordering::Relaxed);
        Err(late(group.team(), op, "what was started before", before, started))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if is_forked() {
            // The thread is not there, and may have been in the middle of something with the channel.
            std::mem::forget(self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

fn spawn() -> Result<Sender<Job>> {
    let (sender, jobs) = unbounded::<Job>();
    let body = move || jobs.iter().for_each(|job| job());
    let spawned = thread::Builder::new().name("comm-work".into()).spawn(body);
    spawned.map_err(|error| Error::io("starting the thread that moves operations", error))?;
    Ok(sender)
}
