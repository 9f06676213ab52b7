//! Several futures as one.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use comm_core::error::At;
use comm_core::{Deadline, Error, Result};

use crate::awaiting::Awaiting;
use crate::blocking::{Blocking, look_until};
use crate::future::Future;

/// Several futures as one, which is ready when all are. Ready if there are none.
///
/// Values come in the order in which the futures were added. The first error that is found ends it all, though others are not ready
/// yet: [`Error::OneOf`], with the number of the future.
///
/// ```
/// use comm_core::Deadline;
/// use comm_promise::{JoinAll, Promise};
///
/// let promises: Vec<_> = (0..3).map(|_| Promise::process()).collect();
/// let futures = promises.iter().map(Promise::future).collect::<Result<Vec<_>, _>>()?;
/// let mut all = JoinAll::from_iter(futures);
/// for (n, promise) in promises.iter().enumerate().rev() {
///     assert!(!all.is_ready());
///     promise.set(n)?;
/// }
/// assert_eq!(all.get(Deadline::default())?, [0, 1, 2]);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[doc(alias = "VoidFutureCollect")]
#[must_use = "a join that is dropped is not read"]
pub struct JoinAll<T: Send + 'static> {
    members: Vec<Member<T>>,
    blocking: Blocking,
    awaiting: Awaiting,
    consumed: bool,
}

struct Member<T: Send + 'static> {
    future: Future<T>,
    /// Its value, taken already while others are awaited.
    value: Option<T>,
}

impl<T: Send + 'static> JoinAll<T> {
    /// One more.
    #[doc(alias = "AddFuture")]
    pub fn push(&mut self, future: Future<T>) {
        self.members.push(Member { future, value: None });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether all can be read now without waiting. Not once they have been read.
    #[doc(alias = "IsReady")]
    pub fn is_ready(&self) -> bool {
        let is_ready = |member: &Member<T>| member.value.is_some() || member.future.is_ready();
        !self.consumed && self.members.iter().all(is_ready)
    }

    /// All values.
    ///
    /// # Errors
    /// [`Error::OneOf`]; [`Error::AlreadyConsumed`]; [`Error::Timeout`], after which it may be asked again.
    #[doc(alias = "Get")]
    pub fn get(&mut self, deadline: impl Into<Deadline>) -> Result<Vec<T>> {
        let began = Instant::now();
        self.wait(deadline)?.ok_or_else(|| timed_out(&self.members, began.elapsed()))
    }

    /// All values, if they come within a time; `None` if they have not, and nothing is lost.
    ///
    /// # Errors
    /// Those of [`get`](JoinAll::get), but for the time-out.
    #[doc(alias = "Wait")]
    pub fn wait(&mut self, timeout: impl Into<Deadline>) -> Result<Option<Vec<T>>> {
        let blocking = self.blocking.clone();
        let look = |waker: &Waker| match self.poll_values(waker) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        };
        look_until(timeout.into(), &blocking, look).transpose()
    }

    /// As [`Future::on_blocking`].
    pub fn on_blocking<G: 'static>(mut self, enter: impl Fn() -> G + Send + Sync + 'static) -> JoinAll<T> {
        self.blocking = Blocking::new(enter);
        self
    }

    /// As [`Future::with_deadline`], for all of them together.
    pub fn with_deadline(mut self, deadline: impl Into<Deadline>) -> JoinAll<T> {
        self.awaiting.set_deadline(deadline.into());
        self
    }

    fn poll_values(&mut self, waker: &Waker) -> Poll<Result<Vec<T>>> {
        if self.consumed {
            return Poll::Ready(Err(Error::AlreadyConsumed { what: "a join of futures".into() }));
        }
        let mut waits = false;
        for (index, member) in self.members.iter_mut().enumerate() {
            if member.value.is_some() {
                continue;
            }
            match member.future.poll_value(waker) {
                Poll::Ready(Ok(value)) => member.value = Some(value),
                Poll::Ready(Err(source)) => {
                    self.consumed = true;
                    return Poll::Ready(Err(Error::OneOf { index, source: Box::new(source) }));
                }
                Poll::Pending => waits = true,
            }
        }
        if waits {
            return Poll::Pending;
        }
        self.consumed = true;
        Poll::Ready(Ok(self.members.iter_mut().filter_map(|member| member.value.take()).collect()))
    }
}

fn timed_out<T: Send + 'static>(members: &[Member<T>], waited: Duration) -> Error {
    let ready = members.iter().filter(|member| member.value.is_some()).count();
    let at = At { op: "get".into(), elapsed: waited, ..At::default() };
    Error::Timeout {
        what: "a join of futures".into(),
        waited,
        missing: Vec::new(),
        seen: ready as i64,
        expected: members.len() as i64,
        at: Box::new(at),
    }
}

impl<T: Send + 'static> Default for JoinAll<T> {
    fn default() -> Self {
        JoinAll {
            members: Vec::new(),
            blocking: Blocking::default(),
            awaiting: Awaiting::default(),
            consumed: false,
        }
    }
}

impl<T: Send + 'static> FromIterator<Future<T>> for JoinAll<T> {
    fn from_iter<I: IntoIterator<Item = Future<T>>>(futures: I) -> Self {
        let mut all = JoinAll::default();
        futures.into_iter().for_each(|future| all.push(future));
        all
    }
}

// Nothing in it is ever pinned in place.
impl<T: Send + 'static> Unpin for JoinAll<T> {}

impl<T: Send + 'static> std::future::Future for JoinAll<T> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<T>>> {
        let this = &mut *self;
        let polled = this.poll_values(context.waker());
        let members = &this.members;
        this.awaiting.judge(polled, context.waker(), |waited| timed_out(members, waited))
    }
}

impl<T: Send + 'static> fmt::Debug for JoinAll<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.future)).finish()
    }
}
