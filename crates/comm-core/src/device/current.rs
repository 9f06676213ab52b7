//! The current stream of a thread.

use std::cell::RefCell;

use super::Stream;

thread_local! {
    static CURRENT: RefCell<Option<Stream>> = const { RefCell::new(None) };
}

/// `None` for the default, also while the thread's locals are being torn down.
pub(super) fn get() -> Option<Stream> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

fn swap(stream: Option<Stream>) -> Option<Stream> {
    CURRENT.try_with(|current| current.replace(stream)).ok().flatten()
}

/// Runs `f` with `stream` as the calling thread's current stream; the one before is current again afterwards,
/// also if `f` panics. Calls nest.
///
/// ```
/// use comm_core::device::{Stream, with_current};
///
/// let stream = Stream::cpu();
/// let id = with_current(&stream, || Stream::current().id());
/// assert_eq!(id, stream.id());
/// ```
#[doc(alias = "setCurrentStream")]
#[doc(alias = "StreamGuard")]
pub fn with_current<R>(stream: &Stream, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Stream>);
    impl Drop for Restore {
        fn drop(&mut self) {
            swap(self.0.take());
        }
    }
    let _restore = Restore(swap(Some(stream.clone())));
    f()
}
