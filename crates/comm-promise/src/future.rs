//! The side that reads the value.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use comm_core::error::At;
use comm_core::hub::{is_forked, refuse_forked};
use comm_core::wait::Patience;
use comm_core::{Deadline, Error, Kind, Result};

use crate::awaiting::Awaiting;
use crate::blocking::Blocking;
use crate::inner::{Found, Inner};
use crate::state::{End, Word};

/// Who waits, and who is waited for: there is a core for each before either spins.
const PARTIES: usize = 2;

/// A value that has been asked for.
///
/// It is read once: by [`get`](Future::get), by a [`wait`](Future::wait) that comes to it, or by `.await`, on any executor. What it
/// ends with is its value, or an error: that which was set, or [`Error::BrokenPromise`]. Either is given once; after that it is
/// [`Error::AlreadyConsumed`]. A time-out changes nothing.
///
/// `.await` gives up at the default deadline ([`COMM_TIMEOUT_MS`](comm_core::config::TIMEOUT_MS)), counted from when it was first
/// polled in vain, or at [another](Future::with_deadline); it may be awaited again. Dropped, or dropped while it is awaited, it
/// leaves nothing behind. A task costs no thread and no descriptor but those of the [`Hub`](comm_core::hub::Hub) of the process,
/// which the first one starts, whatever the kind: it has the clock by which a task is woken.
///
/// ```
/// use comm_promise::Promise;
/// # use comm_testkit::block_on;
///
/// let promise = Promise::process();
/// let future = promise.future()?;
/// let reader = std::thread::spawn(|| block_on(async { future.await }));
/// promise.set("here")?;
/// assert_eq!(reader.join().unwrap()?, "here");
/// # Ok::<(), comm_core::Error>(())
/// ```
#[doc(alias = "TensorFuture")]
#[doc(alias = "VoidFuture")]
#[must_use = "a future that is dropped is not read"]
pub struct Future<T: Send + 'static> {
    inner: Arc<Inner<T>>,
    blocking: Blocking,
    /// Kept as long as the future.
    guarded: Vec<Box<dyn Any + Send + Sync>>,
    awaiting: Awaiting,
    /// Whether it has been polled, and may have left a waker.
    polled: bool,
}

impl<T: Send + 'static> Future<T> {
    pub(crate) fn new(inner: Arc<Inner<T>>) -> Future<T> {
        let (blocking, awaiting) = (Blocking::default(), Awaiting::default());
        Future { inner, blocking, guarded: Vec::new(), awaiting, polled: false }
    }

    /// How far its promise reaches.
    pub fn kind(&self) -> Kind {
        self.inner.kind()
    }

    /// The value.
    ///
    /// ```
    /// use std::time::Duration;
    /// use comm_core::Error;
    /// use comm_promise::Promise;
    ///
    /// let promise = Promise::process();
    /// let future = promise.future()?;
    /// assert!(matches!(future.get(Duration::ZERO), Err(Error::Timeout { .. })));
    /// promise.set(7)?;
    /// assert_eq!(future.get(Duration::ZERO)?, 7);
    /// assert!(matches!(future.get(Duration::ZERO), Err(Error::AlreadyConsumed { .. })));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// What was set instead; [`Error::BrokenPromise`]; [`Error::AlreadyConsumed`]; [`Error::Timeout`], after which it may be asked
    /// again.
    #[doc(alias = "Get")]
    pub fn get(&self, deadline: impl Into<Deadline>) -> Result<T> {
        match self.now()? {
            Some(value) => Ok(value),
            None => {
                let mut patience = Patience::new(deadline.into(), PARTIES);
                self.later(&mut patience)?.ok_or_else(|| timed_out(&self.inner, patience.waited()))
            }
        }
    }

    /// The value, if it comes within a time; `None` if it has not, and the future is as before.
    ///
    /// ```
    /// use std::time::Duration;
    /// use comm_promise::Promise;
    ///
    /// let promise = Promise::process();
    /// let future = promise.future()?;
    /// assert_eq!(future.wait(Duration::from_millis(1))?, None);
    /// promise.set(7)?;
    /// assert_eq!(future.wait(Duration::ZERO)?, Some(7));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`get`](Future::get), but for the time-out.
    #[doc(alias = "Wait")]
    #[doc(alias = "WaitFor")]
    pub fn wait(&self, timeout: impl Into<Deadline>) -> Result<Option<T>> {
        match self.now()? {
            Some(value) => Ok(Some(value)),
            None => self.later(&mut Patience::new(timeout.into(), PARTIES)),
        }
    }

    /// Whether it can be read now without waiting, with a value or an error. Not once it has been read.
    #[doc(alias = "IsReady")]
    pub fn is_ready(&self) -> bool {
        !is_forked() && self.inner.has_ended() && !self.inner.is_consumed()
    }

    /// Ends the promise: whoever sets it is told that it is not wanted, and this future that it was cancelled. Nothing happens if
    /// it has a value or is broken. One who is just setting it is not waited for.
    ///
    /// ```
    /// use comm_core::{Deadline, Error, Kind, error::BrokenHow};
    /// use comm_promise::Promise;
    ///
    /// let promise = Promise::<()>::new(Kind::Host)?;
    /// let future = promise.future()?;
    /// let lost = promise.into_ticket()?;
    /// future.cancel();
    /// let error = future.get(Deadline::default()).unwrap_err();
    /// assert!(matches!(error, Error::BrokenPromise { how: BrokenHow::Cancelled, .. }));
    /// assert!(Promise::attach(&lost, Deadline::default()).is_err());
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn cancel(&self) {
        if !is_forked() {
            self.inner.give_up(End::Cancelled);
        }
    }

    /// Keeps something as long as the future: the tensor that the value is made of, say.
    pub fn guarding(mut self, guard: impl Any + Send + Sync) -> Future<T> {
        self.guarded.push(Box::new(guard));
        self
    }

    /// Has `enter` called before a thread sleeps for this future, and what it gives dropped when the thread goes on: to let go
    /// of an interpreter's lock meanwhile. Not called for a value that is there, nor by those who attach and set. A [`JoinAll`](crate::JoinAll) and a
    /// [`Select`](crate::Select) have their own, and do not call those of their futures.
    ///
    /// ```
    /// use std::time::Duration;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use comm_promise::Promise;
    ///
    /// static ENTERED: AtomicU32 = AtomicU32::new(0);
    /// let promise = Promise::<()>::process();
    /// let future = promise.future()?.on_blocking(|| {
    ///     ENTERED.fetch_add(1, Ordering::Relaxed);
    /// });
    /// assert_eq!(future.wait(Duration::from_millis(1))?, None);
    /// assert_eq!(ENTERED.load(Ordering::Relaxed), 1);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn on_blocking<G: 'static>(mut self, enter: impl Fn() -> G + Send + Sync + 'static) -> Future<T> {
        self.blocking = Blocking::new(enter);
        self
    }

    /// When `.await` gives up.
    ///
    /// ```
    /// use std::time::Duration;
    /// use comm_core::{Deadline, Error};
    /// use comm_promise::Promise;
    /// # use comm_testkit::block_on;
    ///
    /// let promise = Promise::process();
    /// let mut future = promise.future()?.with_deadline(Duration::from_millis(1));
    /// assert!(matches!(block_on(&mut future), Err(Error::Timeout { .. })));
    /// promise.set(7)?;
    /// assert_eq!(block_on(future)?, 7);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn with_deadline(mut self, deadline: impl Into<Deadline>) -> Future<T> {
        self.awaiting.set_deadline(deadline.into());
        self
    }

    /// The value, if it is there. Without a look at the clock: most are, when they are asked for.
    fn now(&self) -> Result<Option<T>> {
        refuse_forked()?;
        match self.inner.end().map(|word| self.inner.take(word)) {
            Some(Found::Ended(outcome)) => outcome.map(Some),
            Some(Found::OnItsWay(..)) | None => Ok(None),
        }
    }

    /// The value, if it comes while there is patience.
    fn later(&self, patience: &mut Patience) -> Result<Option<T>> {
        let _asleep = self.blocking.enter();
        loop {
            let Some(word) = self.inner.wait(patience) else { return Ok(None) };
            match self.inner.take(word) {
                Found::Ended(outcome) => return outcome.map(Some),
                Found::OnItsWay(peer, segment) => {
                    if peer.await_segment(segment, patience.deadline()).is_none() && !peer.is_link_over() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// As [`poll`](std::future::Future::poll), without a deadline: whether it has come to its end, and the word if it has.
    pub(crate) fn poll_end(&mut self, waker: &Waker) -> Poll<Word> {
        self.polled = true;
        self.inner.poll(waker).map_or(Poll::Pending, Poll::Ready)
    }

    /// As [`poll`](std::future::Future::poll), without a deadline.
    pub(crate) fn poll_value(&mut self, waker: &Waker) -> Poll<Result<T>> {
        if let Err(error) = refuse_forked() {
            return Poll::Ready(Err(error));
        }
        let Poll::Ready(word) = self.poll_end(waker) else { return Poll::Pending };
        for registered in [false, true] {
            match self.inner.take(word) {
                Found::Ended(outcome) => return Poll::Ready(outcome),
                // The waker first, then one more look.
                Found::OnItsWay(..) if !registered => self.inner.await_segment(waker),
                Found::OnItsWay(..) => {}
            }
        }
        Poll::Pending
    }
}

fn timed_out<T: Send + 'static>(inner: &Inner<T>, waited: Duration) -> Error {
    let what = format!("{}, which lies with {},", inner.name(), inner.whereabouts());
    let at = At { op: "get".into(), elapsed: waited, ..At::default() };
    Error::Timeout { what, waited, missing: Vec::new(), seen: 0, expected: 1, at: Box::new(at) }
}

impl<T: Send + 'static> std::future::Future for Future<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = &mut *self;
        let polled = this.poll_value(context.waker());
        let inner = &this.inner;
        this.awaiting.judge(polled, context.waker(), |waited| timed_out(inner, waited))
    }
}

impl<T: Send + 'static> Drop for Future<T> {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        if self.polled {
            // First: nobody is to be woken for what he has dropped.
            self.inner.forget_task();
        }
        self.inner.give_up(End::Unwanted);
        self.inner.discard();
    }
}

impl<T: Send + 'static> fmt::Debug for Future<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Future({}, {})", self.kind(), self.inner.name())
    }
}
