//! An executor as small as it can be.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// A thread, and whether it has been woken. Not by its token alone: whatever is polled may park the thread, too, as a channel of
/// std does, and use that up.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs one future on this thread, which sleeps until it is woken.
///
/// ```
/// assert_eq!(comm_testkit::block_on(async { 7 }), 7);
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(unpark.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                while !unpark.woken.swap(false, Ordering::Acquire) {
                    std::thread::park();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_polled_may_park_the_thread() {
        let mut first = true;
        let future = std::future::poll_fn(|context| {
            if !std::mem::take(&mut first) {
                return Poll::Ready(7);
            }
            // Woken at once, by a token that is used up here.
            context.waker().wake_by_ref();
            std::thread::park();
            Poll::Pending
        });
        assert_eq!(block_on(future), 7);
    }
}
