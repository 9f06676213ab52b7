//! The first of several futures.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use comm_core::error::At;
use comm_core::hub::refuse_forked;
use comm_core::{Deadline, Error, Result};

use crate::awaiting::Awaiting;
use crate::blocking::{Blocking, look_until};
use crate::future::Future;

/// The number of a future that is ready: see [`select`].
#[must_use = "nothing is waited for before it is awaited"]
pub struct Select<'f, T: Send + 'static> {
    futures: &'f mut [Future<T>],
    blocking: Blocking,
    awaiting: Awaiting,
}

/// Waits until one of several futures is ready, and gives its number, the lowest if there are several. It is not read: that does
/// whoever called, and the others may go on waiting. One that has been read already is passed over.
///
/// `.await` gives up as that of a [`Future`] does, at a deadline of its own.
///
/// ```
/// use comm_core::Deadline;
/// use comm_promise::{Promise, select};
///
/// let promises = [(); 3].map(|()| Promise::process());
/// let mut futures = promises.iter().map(Promise::future).collect::<Result<Vec<_>, _>>()?;
/// promises[1].set("second")?;
/// let first = select(&mut futures).wait(Deadline::default())?;
/// assert_eq!(first, Some(1));
/// assert_eq!(futures.remove(1).get(Deadline::default())?, "second");
/// # Ok::<(), comm_core::Error>(())
/// ```
pub fn select<T: Send + 'static>(futures: &mut [Future<T>]) -> Select<'_, T> {
    Select { futures, blocking: Blocking::default(), awaiting: Awaiting::default() }
}

impl<T: Send + 'static> Select<'_, T> {
    /// The number, if one is ready within a time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is nothing to wait for; [`Error::Forked`].
    pub fn wait(mut self, timeout: impl Into<Deadline>) -> Result<Option<usize>> {
        let blocking = self.blocking.clone();
        let look = |waker: &Waker| match self.poll_number(waker) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        };
        look_until(timeout.into(), &blocking, look).transpose()
    }

    /// The number of the first that is ready.
    ///
    /// # Errors
    /// [`Error::Timeout`]; those of [`wait`](Select::wait).
    pub fn get(self, deadline: impl Into<Deadline>) -> Result<usize> {
        let (began, count) = (Instant::now(), self.futures.len());
        self.wait(deadline)?.ok_or_else(|| timed_out(count, began.elapsed()))
    }

    /// As [`Future::on_blocking`].
    pub fn on_blocking<G: 'static>(mut self, enter: impl Fn() -> G + Send + Sync + 'static) -> Self {
        self.blocking = Blocking::new(enter);
        self
    }

    /// As [`Future::with_deadline`].
    pub fn with_deadline(mut self, deadline: impl Into<Deadline>) -> Self {
        self.awaiting.set_deadline(deadline.into());
        self
    }

    fn poll_number(&mut self, waker: &Waker) -> Poll<Result<usize>> {
        if let Err(error) = refuse_forked() {
            return Poll::Ready(Err(error));
        }
        let mut waits = false;
        for (number, future) in self.futures.iter_mut().enumerate() {
            match future.poll_end(waker) {
                Poll::Ready(_) if future.is_ready() => return Poll::Ready(Ok(number)),
                Poll::Ready(_) => {}
                Poll::Pending => waits = true,
            }
        }
        if waits {
            return Poll::Pending;
        }
        Poll::Ready(Err(Error::invalid("select", "no future that is still to be read")))
    }
}

impl<T: Send + 'static> std::future::Future for Select<'_, T> {
    type Output = Result<usize>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<usize>> {
        let this = &mut *self;
        let polled = this.poll_number(context.waker());
        let count = this.futures.len();
        this.awaiting.judge(polled, context.waker(), |waited| timed_out(count, waited))
    }
}

fn timed_out(count: usize, waited: Duration) -> Error {
    let at = At { op: "select".into(), elapsed: waited, ..At::default() };
    let what = format!("the first of {count} futures");
    Error::Timeout { what, waited, missing: Vec::new(), seen: 0, expected: 1, at: Box::new(at) }
}

impl<T: Send + 'static> fmt::Debug for Select<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Select").field(&self.futures).finish()
    }
}
