//! Threads that sleep: what is entered before, and how one sleeps for what tasks are woken for.

use std::any::Any;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use comm_core::Deadline;
use comm_core::wait::OneShot;

type Enter = dyn Fn() -> Box<dyn Any> + Send + Sync;

/// What the user wants entered around each sleep.
#[derive(Clone, Default)]
pub(crate) struct Blocking(Option<Arc<Enter>>);

impl Blocking {
    pub(crate) fn new<G: 'static>(enter: impl Fn() -> G + Send + Sync + 'static) -> Blocking {
        Blocking(Some(Arc::new(move || Box::new(enter()))))
    }

    /// Left when it is dropped.
    pub(crate) fn enter(&self) -> Option<Box<dyn Any>> {
        self.0.as_ref().map(|enter| enter())
    }
}

/// A thread that sleeps until its waker is woken.
#[derive(Default)]
struct Nap(OneShot<()>);

impl Wake for Nap {
    fn wake(self: Arc<Self>) {
        let _ = self.0.set(());
    }
}

/// The longest sleep without a look. Whoever is to wake this thread may be inside of a waker that keeps him, which may be where this
/// thread sleeps, or stopped before he has rung. One who sleeps for a single future looks as often.
const SLICE: Duration = Duration::from_millis(200);

/// Looks, as a task would, until there is something; `None` at the deadline, which is not judged before the last look.
pub(crate) fn look_until<T>(
    deadline: Deadline,
    blocking: &Blocking,
    mut look: impl FnMut(&Waker) -> Option<T>,
) -> Option<T> {
    let nap = Arc::new(Nap::default());
    let waker = Waker::from(nap.clone());
    if let Some(found) = look(&waker) {
        return Some(found);
    }
    let _asleep = blocking.enter();
    loop {
        nap.0.wait(deadline.remaining().min(SLICE));
        let is_over = deadline.has_passed();
        if let Some(found) = look(&waker) {
            return Some(found);
        }
        if is_over {
            return None;
        }
    }
}
