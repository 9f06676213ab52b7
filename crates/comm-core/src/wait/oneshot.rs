//! A value that one thread of a process leaves for another, or for a task.

use std::sync::{Condvar, Mutex};
use std::task::{Context, Poll, Waker};

use super::{Deadline, Patience, guarded};
use crate::sync::lock;

/// A place for one value, in memory of this process: set once, taken once, waited for by a thread or a task.
///
/// ```
/// use std::time::Duration;
/// use comm_core::wait::OneShot;
///
/// let place = OneShot::default();
/// assert!(!place.is_set() && place.wait(Duration::from_millis(1)).is_none());
/// std::thread::scope(|s| {
///     s.spawn(|| place.set(7));
///     assert_eq!(place.wait(Duration::from_secs(60)), Some(7));
/// });
/// assert!(!place.is_set(), "it is taken");
/// ```
#[derive(Debug)]
pub struct OneShot<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Default for OneShot<T> {
    fn default() -> OneShot<T> {
        OneShot { state: Mutex::new(State { value: None, waker: None }), changed: Condvar::new() }
    }
}

impl<T> OneShot<T> {
    /// Sets the value and wakes who waits for it. A value that was there and not taken is given back.
    pub fn set(&self, value: T) -> Option<T> {
        let (before, waker) = {
            let mut state = lock(&self.state);
            (state.value.replace(value), state.waker.take())
        };
        self.changed.notify_all();
        // The user's code: outside of the lock.
        if let Some(waker) = waker {
            guarded(|| waker.wake());
        }
        before
    }

    /// Whether there is a value now.
    pub fn is_set(&self) -> bool {
        lock(&self.state).value.is_some()
    }

    /// Takes the value if it comes by the deadline.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Option<T> {
        let mut patience = Patience::sleeping(deadline.into());
        let mut state = lock(&self.state);
        loop {
            if let Some(value) = state.value.take() {
                return Some(value);
            }
            state = patience.on(&self.changed, state)?;
        }
    }

    /// Takes the value, or leaves the task's waker for when it comes; the latest one counts.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<T> {
        // To clone it and to drop the old one is the user's code: outside of the lock.
        let waker = context.waker().clone();
        let (outcome, _old) = {
            let mut state = lock(&self.state);
            match state.value.take() {
                Some(value) => (Poll::Ready(value), state.waker.take()),
                None => (Poll::Pending, state.waker.replace(waker)),
            }
        };
        outcome
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::sync::{Arc, mpsc};
    use std::task::{RawWaker, RawWakerVTable};
    use std::time::Duration;

    use super::*;

    thread_local! {
        static WHEN_CLONED: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
    }

    fn cloned(data: *const ()) -> RawWaker {
        let then = WHEN_CLONED.take();
        if let Some(then) = then {
            then();
        }
        RawWaker::new(data, &VTABLE)
    }

    const VTABLE: RawWakerVTable = RawWakerVTable::new(cloned, |_| {}, |_| {}, |_| {});

    /// Does something with a waker that does something when it is cloned; a thread that is stuck there is no hung test.
    pub(crate) fn with_waker_that(
        when_cloned: impl Fn() + Send + 'static,
        body: impl FnOnce(&Waker) + Send + 'static,
    ) {
        let (through, is_through) = mpsc::channel();
        std::thread::spawn(move || {
            WHEN_CLONED.set(Some(Box::new(when_cloned)));
            // SAFETY: no function of the table looks at the data.
            body(&unsafe { Waker::new(std::ptr::null(), &VTABLE) });
            through.send(WHEN_CLONED.take().is_none())
        });
        assert_eq!(is_through.recv_timeout(Duration::from_secs(20)), Ok(true), "cloned, and not stuck");
    }

    #[test]
    fn a_waker_may_use_the_place_when_it_is_cloned() {
        let place = Arc::new(OneShot::<()>::default());
        let again = place.clone();
        with_waker_that(
            move || assert!(!again.is_set()),
            move |waker| assert!(place.poll(&mut Context::from_waker(waker)).is_pending()),
        );
    }
}
