//! How long a task waits for what has no deadline of its own.

use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use comm_core::hub::{Alarm, Hub};
use comm_core::{Deadline, Error, Result};

/// The deadline of an `.await`, and the alarm that wakes the task then.
#[derive(Debug, Default)]
pub(crate) struct Awaiting {
    /// That which was asked for; else the default one, from when it was first polled in vain.
    deadline: Option<Deadline>,
    alarm: Option<(Alarm, Instant)>,
}

impl Awaiting {
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = Some(deadline);
        self.alarm = None;
    }

    /// What was polled, or `late` of how long that took, at the deadline. Whoever polls again then has time again, if it was the
    /// default deadline.
    pub(crate) fn judge<T>(
        &mut self,
        polled: Poll<Result<T>>,
        waker: &Waker,
        late: impl FnOnce(Duration) -> Error,
    ) -> Poll<Result<T>> {
        if polled.is_ready() {
            self.alarm = None;
            return polled;
        }
        match &self.alarm {
            Some((alarm, _)) if alarm.set_waker(waker) => Poll::Pending,
            Some((_, since)) => {
                let waited = since.elapsed();
                self.alarm = None;
                Poll::Ready(Err(late(waited)))
            }
            None => {
                let deadline = self.deadline.unwrap_or_default();
                if deadline.has_passed() {
                    return Poll::Ready(Err(late(Duration::ZERO)));
                }
                match Hub::get() {
                    Ok(hub) => {
                        self.alarm = Some((hub.alarm(deadline, waker), Instant::now()));
                        Poll::Pending
                    }
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
        }
    }
}
