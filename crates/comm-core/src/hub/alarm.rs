//! A task is woken at its deadline.

use std::sync::Arc;
use std::task::Waker;

use super::Hub;
use super::reactor::Timer;
use crate::shm::fork;
use crate::wait::Deadline;

/// Wakes a task at a deadline, unless it is dropped before.
///
/// ```
/// use std::{task::Waker, time::Duration};
/// use comm_core::{Deadline, hub::Hub};
///
/// let alarm = Hub::get()?.alarm(Deadline::from(Duration::from_secs(60)), Waker::noop());
/// assert!(!alarm.has_rung());
/// # Ok::<(), comm_core::Error>(())
/// ```
pub struct Alarm {
    hub: Arc<Hub>,
    timer: Arc<Timer>,
}

impl Hub {
    /// Wakes a task when a deadline has passed. Time in which this process is stopped moves that.
    pub fn alarm(self: &Arc<Self>, deadline: impl Into<Deadline>, waker: &Waker) -> Alarm {
        Alarm { hub: self.clone(), timer: self.reactor.arm(deadline.into(), waker) }
    }
}

impl Alarm {
    /// Whether the deadline has passed.
    pub fn has_rung(&self) -> bool {
        self.timer.has_fired()
    }

    /// Wakes another task from now on. `false` if the deadline has passed: then nobody will be woken.
    pub fn set_waker(&self, waker: &Waker) -> bool {
        self.timer.set_waker(waker)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if !fork::is_forked() {
            self.hub.reactor.disarm(&self.timer);
        }
    }
}

impl std::fmt::Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alarm").field("has_rung", &self.has_rung()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait::with_waker_that;

    #[test]
    fn a_waker_may_use_the_alarm_when_it_is_cloned() {
        let alarm = Arc::new(Hub::get().unwrap().alarm(Duration::from_secs(60), Waker::noop()));
        let again = alarm.clone();
        with_waker_that(
            move || assert!(again.set_waker(Waker::noop())),
            move |waker| assert!(alarm.set_waker(waker)),
        );
    }
}
