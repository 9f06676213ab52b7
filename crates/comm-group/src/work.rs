//! Operations that have been started: what is to be waited for, and the thread that moves them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::hub::{is_forked, refuse_forked};
use comm_core::wait::OneShot;
use comm_core::{Deadline, Error, Result};
use crossbeam_channel::{Sender, unbounded};

use crate::group::Inner;
use crate::turn::late;

const LONG: Duration = Duration::from_secs(3600);

/// An operation that has been started. It goes on whether or not anybody waits for it: peers need it. Dropping this gives
/// up its result. In a forked child it is [`Error::Forked`], whatever becomes of it in the parent.
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
    /// Whether the result has been given out: there is no second one to wait for.
    taken: bool,
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
    /// Those of the operation; [`Error::InvalidArgument`] if its result has been taken; [`Error::Forked`].
    pub fn wait(self) -> Result<T> {
        self.can_wait()?;
        loop {
            // The operation's deadline is what counts; it is the worker that keeps it.
            if let Some(outcome) = self.place.wait(LONG) {
                return outcome;
            }
        }
    }

    /// Waits until then at most: nothing if the operation is not over, which goes on. A result, or an error of the
    /// operation, is given out once.
    ///
    /// # Errors
    /// Those of the operation; [`Error::InvalidArgument`] if its result has been taken; [`Error::Forked`].
    pub fn wait_timeout(&mut self, deadline: impl Into<Deadline>) -> Result<Option<T>> {
        self.can_wait()?;
        let outcome = self.place.wait(deadline);
        self.taken = outcome.is_some();
        outcome.transpose()
    }

    fn can_wait(&self) -> Result<()> {
        refuse_forked()?;
        if self.taken {
            Err(Error::invalid(self.op, "the result of this work has been taken"))
        } else {
            Ok(())
        }
    }

    /// Whether the operation is over, and its result not taken yet.
    #[doc(alias = "test")]
    #[doc(alias = "is_completed")]
    pub fn is_ready(&self) -> bool {
        !is_forked() && self.place.is_set()
    }
}

impl<T> Future for Work<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        if let Err(error) = this.can_wait() {
            return Poll::Ready(Err(error));
        }
        let outcome = this.place.poll(context);
        this.taken = outcome.is_ready();
        outcome
    }
}

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

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::mpsc::channel;
    use std::task::{Wake, Waker};

    use comm_core::team::Team;

    use super::*;
    use crate::ThreadGroup;

    const AMPLE: Duration = Duration::from_secs(20);

    fn alone(name: &str) -> ThreadGroup {
        ThreadGroup::new(Team::join(name, 0, 1, AMPLE).unwrap(), AMPLE).unwrap()
    }

    /// What the group does, with the code of a test in place of an operation.
    fn start<T: Send + 'static>(
        group: &ThreadGroup,
        run: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Work<T> {
        let inner = group.inner();
        inner.queue().start(inner, "test", |_| run()).unwrap()
    }

    fn drain(group: &ThreadGroup) -> Result<()> {
        group.inner().queue().drain(group.inner(), "test", AMPLE.into())
    }

    #[test]
    fn who_blocks_behind_what_was_started_waits_no_longer_than_he_wants() {
        let group = alone("work-behind");
        let (open, gate) = channel::<()>();
        let first = start(&group, move || gate.recv().map_err(|_| Error::bad_peer("a test that is gone")));
        let short = Duration::from_millis(20);
        let began = Instant::now();
        match group.barrier(short) {
            Err(Error::Timeout { what, at, .. }) => {
                assert!(what.contains("started before") && at.team == "work-behind", "{what}");
            }
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() >= short);
        open.send(()).unwrap();
        first.wait().unwrap();
        group.barrier(AMPLE).expect("nothing had begun");
    }

    #[test]
    fn who_is_behind_what_was_started_hears_of_the_end_before_that_his_time_is_over() {
        let group = alone("work-over");
        let (open, gate) = channel::<()>();
        let first = start(&group, move || gate.recv().map_err(|_| Error::bad_peer("a test that is gone")));
        group.team().abort("enough");
        assert!(matches!(group.barrier(Duration::ZERO), Err(Error::Aborted { by: 0, .. })));
        open.send(()).unwrap();
        first.wait().unwrap();
    }

    #[test]
    fn jobs_go_one_after_the_other_in_order() {
        let group = alone("work-order");
        let (tell, told) = channel();
        let works: Vec<Work<usize>> = (0..50)
            .map(|i| {
                let tell = tell.clone();
                start(&group, move || {
                    tell.send(i).unwrap();
                    Ok(i)
                })
            })
            .collect();
        // Waited for from the last to the first.
        for (i, work) in works.into_iter().enumerate().rev() {
            assert_eq!(work.wait().unwrap(), i);
        }
        drop(tell);
        assert_eq!(told.iter().collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_timeout_takes_nothing_and_a_result_is_taken_once() {
        let group = alone("work-once");
        let (open, gate) = channel::<()>();
        let mut work = start(&group, move || {
            gate.recv().unwrap();
            Ok(7)
        });
        assert!(work.wait_timeout(Duration::from_millis(5)).unwrap().is_none() && !work.is_ready());
        assert_eq!(format!("{work:?}"), "Work(test, in flight)");
        open.send(()).unwrap();
        assert_eq!(work.wait_timeout(AMPLE).unwrap(), Some(7));
        // There is no second one, and nobody waits for it.
        assert!(!work.is_ready());
        let taken = |error: Error| assert!(error.to_string().contains("taken"), "{error}");
        taken(work.wait_timeout(AMPLE).unwrap_err());
        taken(work.wait().unwrap_err());
    }

    #[test]
    fn an_error_is_the_works_and_is_given_once_too() {
        let group = alone("work-error");
        let mut work = start::<()>(&group, || Err(Error::bad_peer("as asked for")));
        assert!(matches!(work.wait_timeout(AMPLE), Err(Error::BadPeer { .. })));
        assert!(matches!(work.wait(), Err(Error::InvalidArgument { .. })));
        assert_eq!(start(&group, || Ok(1)).wait().unwrap(), 1, "the worker goes on");
    }

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_task_is_woken_and_polled_again_gets_an_error() {
        let group = alone("work-task");
        let (open, gate) = channel::<()>();
        let mut work = start(&group, move || {
            gate.recv().unwrap();
            Ok("done")
        });
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut work).poll(&mut context).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        open.send(()).unwrap();
        while count.0.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        assert!(matches!(Pin::new(&mut work).poll(&mut context), Poll::Ready(Ok("done"))));
        assert!(matches!(Pin::new(&mut work).poll(&mut context), Poll::Ready(Err(_))));
    }

    struct Falls;

    impl Wake for Falls {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new("on purpose"));
        }
    }

    #[test]
    fn a_waker_that_panics_stops_nobody_else() {
        let group = alone("work-waker");
        let (open, gate) = channel::<()>();
        let mut work = start(&group, move || gate.recv().map_err(|_| Error::bad_peer("a test that is gone")));
        let waker = Waker::from(Arc::new(Falls));
        assert!(Pin::new(&mut work).poll(&mut Context::from_waker(&waker)).is_pending());
        open.send(()).unwrap();
        work.wait().unwrap();
        assert_eq!(start(&group, || Ok(1)).wait().unwrap(), 1, "the worker goes on");
    }

    #[test]
    fn nobody_waits_for_a_job_that_panicked_or_was_behind_it() {
        let group = alone("work-panic");
        let (open, gate) = channel::<()>();
        let falls = start::<()>(&group, move || {
            gate.recv().unwrap();
            panic!("on purpose");
        });
        let behind = start(&group, || Ok(1));
        open.send(()).unwrap();
        for outcome in [falls.wait(), behind.wait().map(drop)] {
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains("panicked"), "{error}");
        }
        drain(&group).unwrap();
        // The channel is closed by the end of the thread, which may be a moment away.
        loop {
            match group.inner().queue().start(group.inner(), "test", |_| Ok(1)) {
                Err(error) => break assert!(error.to_string().contains("panicked"), "{error}"),
                Ok(work) => drop(work.wait()),
            }
        }
    }

    /// Who has the last result and drops the group has left when that returns: its process may end.
    #[test]
    fn after_the_last_result_only_the_handle_holds_the_group() {
        for round in 0..300 {
            let group = alone(&format!("work-left-{round}"));
            let member = std::sync::Arc::clone(group.team());
            start(&group, || Ok(())).wait().unwrap();
            drop(group);
            assert!(matches!(member.check("test"), Err(Error::PeerLeft { .. })), "round {round}");
        }
    }

    #[test]
    fn what_is_pending_is_waited_for_and_what_is_dropped_is_done() {
        let group = alone("work-drain");
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..20 {
            let done = done.clone();
            let work = start(&group, move || Ok(done.fetch_add(1, Ordering::SeqCst)));
            drop(work);
        }
        drain(&group).unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 20);
        // The group's handle goes, its pending work does not.
        let (open, gate) = channel::<()>();
        let last = {
            let done = done.clone();
            start(&group, move || {
                gate.recv().unwrap();
                Ok(done.fetch_add(1, Ordering::SeqCst))
            })
        };
        drop(group);
        open.send(()).unwrap();
        assert_eq!(last.wait().unwrap(), 20);
    }
}
