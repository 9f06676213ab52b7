//! Operations that have been started.

mod queue;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use comm_core::hub::{is_forked, refuse_forked};
use comm_core::wait::OneShot;
use comm_core::{Deadline, Error, Result};

pub(crate) use queue::{Queue, Started};

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
