//! The waits of tasks: what a thread does by sleeping, a task does by leaving its waker.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::Member;
use super::control::BUCKETS;
use super::shared::TeamShared;
use super::watch::Watch;
use crate::error::{Error, Result};
use crate::hub::Alarm;
use crate::shm::Pinned;
use crate::sync::lock;
use crate::wait::{Cell, Deadline, clock, guarded};

/// The tasks of this process that wait in one team, by bucket.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    buckets: Mutex<HashMap<usize, HashMap<u64, Waker>>>,
    next: AtomicU64,
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, HashMap<u64, Waker>>> {
        lock(&self.buckets)
    }

    // Wakers are the user's code, and the last handle of a task may be one: they are dropped outside of the lock.

    fn enter(&self, bucket: usize, ticket: u64, waker: &Waker) {
        let waker = waker.clone();
        let _old = self.lock().entry(bucket).or_default().insert(ticket, waker);
    }

    fn leave(&self, bucket: usize, ticket: u64) {
        let _old = {
            let mut buckets = self.lock();
            let Some(tickets) = buckets.get_mut(&bucket) else { return };
            let old = tickets.remove(&ticket);
            if tickets.is_empty() {
                buckets.remove(&bucket);
            }
            old
        };
    }

    /// How many tasks wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().values().map(HashMap::len).sum()
    }
}

impl TeamShared {
    /// Wakes the tasks whose bucket a writer has marked. Called on the reactor thread.
    pub(crate) fn wake_marked_tasks(&self) {
        let Some(line) = self.control().process_lines().get(self.own_process()) else { return };
        let mut wakers = Vec::new();
        {
            let buckets = self.tasks.lock();
            for (i, word) in line.dirty.iter().enumerate() {
                if word.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let mut bits = word.swap(0, Ordering::AcqRel);
                while bits != 0 {
                    let bucket = i * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    for waker in buckets.get(&bucket).into_iter().flat_map(HashMap::values) {
                        // To clone one is the user's code: its panic must not cost others their wake-up.
                        guarded(|| wakers.push(waker.clone()));
                    }
                }
            }
        }
        wakers.into_iter().for_each(|waker| guarded(|| waker.wake()));
    }
}

/// A cell that a task waits for, in memory that stays mapped as long as the wait.
pub trait CellRef: Send + Sync + 'static {
    /// The cell.
    fn cell(&self) -> &Cell;
}

impl CellRef for Pinned<Cell> {
    fn cell(&self) -> &Cell {
        self
    }
}

/// A one-sided wait of a task: see [`Member::wait_task`].
pub struct TaskWait<C, F> {
    shared: Arc<TeamShared>,
    rank: usize,
    cell: C,
    ready: F,
    what: String,
    expected: i64,
    from: Option<usize>,
    started: Instant,
    /// What had been credited to this process as time stopped when the wait began.
    stopped: Duration,
    deadline: Deadline,
    /// Read once: the tag is memory that peers can write.
    bucket: usize,
    ticket: u64,
    entered: bool,
    alarm: Option<Alarm>,
}

impl<C, F> std::fmt::Debug for TaskWait<C, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskWait")
            .field("what", &self.what)
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

// Nothing in it is ever pinned in place.
impl<C, F> Unpin for TaskWait<C, F> {}

impl Member {
    /// Waits, as a task, until `ready` accepts the value of a cell, and gives that value.
    ///
    /// `from` is as in [`wait`](Member::wait). Any executor will do: the hub's reactor wakes the task, and however many tasks wait, they cost
    /// one thread. Dropping the future ends the wait.
    ///
    /// # Errors
    /// What ended the team; [`Error::PeerLeft`]; [`Error::Timeout`], which changes nothing for anybody else.
    ///
    /// ```
    /// use std::{future::Future, pin::pin, sync::Arc, task::{Context, Poll, Waker}};
    /// use comm_core::{Deadline, team::{CellRef, Team}, wait::Cell};
    ///
    /// struct Mine(Arc<Cell>);
    /// impl CellRef for Mine {
    ///     fn cell(&self) -> &Cell {
    ///         &self.0
    ///     }
    /// }
    ///
    /// let team = Team::join("task-example", 0, 1, Deadline::default())?;
    /// let cell = Arc::new(Cell::default());
    /// let wait = team.wait_task("a seven", Mine(cell.clone()), None, 7, |v| v >= 7, Deadline::default());
    /// let mut wait = pin!(wait);
    /// // Where an executor would be: polled by hand.
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(wait.as_mut().poll(&mut context).is_pending());
    /// cell.set(7, team.bell());
    /// assert!(matches!(wait.as_mut().poll(&mut context), Poll::Ready(Ok(7))));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn wait_task<C: CellRef, F: Fn(u64) -> bool + Send>(
        &self,
        what: &str,
        cell: C,
        from: Option<usize>,
        expected: i64,
        ready: F,
        deadline: impl Into<Deadline>,
    ) -> TaskWait<C, F> {
        let shared = self.shared().clone();
        TaskWait {
            bucket: cell.cell().tag() as usize % BUCKETS,
            ticket: shared.tasks.next.fetch_add(1, Ordering::Relaxed),
            shared,
            rank: self.rank(),
            cell,
            ready,
            what: what.to_string(),
            expected,
            from,
            started: Instant::now(),
            stopped: clock::stopped(),
            deadline: deadline.into(),
            entered: false,
            alarm: None,
        }
    }
}

impl<C: CellRef, F: Fn(u64) -> bool + Send> TaskWait<C, F> {
    fn watch(&self) -> Watch<'_> {
        Watch { shared: &self.shared, rank: self.rank, from: self.from, started: self.started }
    }

    fn look(&self) -> Option<Result<u64>> {
        let ready = || {
            let value = self.cell.cell().load();
            (self.ready)(value).then_some(Ok(value))
        };
        if let Some(found) = ready() {
            return Some(found);
        }
        let end = self.watch().end(&self.what)?;
        // The end may have come after what is waited for.
        Some(ready().unwrap_or(Err(end)))
    }

    fn timed_out(&self) -> Error {
        let seen = self.cell.cell().load();
        let stopped = clock::stopped().saturating_sub(self.stopped);
        let waited = self.started.elapsed().saturating_sub(stopped);
        self.watch().timed_out(&self.what, waited, seen, self.expected)
    }
}

impl<C: CellRef, F: Fn(u64) -> bool + Send> Future for TaskWait<C, F> {
    type Output = Result<u64>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        let this = &mut *self;
        if crate::shm::fork::is_forked() {
            return Poll::Ready(Err(Error::Forked));
        }
        if let Some(outcome) = this.look() {
            return Poll::Ready(outcome);
        }
        // The waker first, then the bit, then one more look: as a thread does.
        this.shared.tasks.enter(this.bucket, this.ticket, context.waker());
        this.entered = true;
        match &this.alarm {
            None => this.alarm = Some(this.shared.hub().alarm(this.deadline, context.waker())),
            Some(alarm) if alarm.set_waker(context.waker()) => {}
            Some(_) => return Poll::Ready(Err(this.timed_out())),
        }
        this.cell.cell().enrol(this.shared.task_slot());
        match this.look() {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

impl<C, F> Drop for TaskWait<C, F> {
    fn drop(&mut self) {
        if crate::shm::fork::is_forked() {
            return;
        }
        if self.entered {
            self.shared.tasks.leave(self.bucket, self.ticket);
        }
    }
}
