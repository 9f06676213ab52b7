//! To set a promise when a stream gets there: by a thread for that, since a stream's own is to do nothing but run the stream (one
//! of CUDA may not even call its driver).

use std::time::Duration;

use comm_core::device::{Event, Stream};
use comm_core::{Error, Result};

use crate::promise::{Prepared, Promise};
use crate::workers::hand_over;

/// A promise behind a stream: handed over when the stream gets there, or drops it because it has failed.
struct Behind<T: Send + 'static> {
    parts: Option<(Promise<T>, Prepared<T>, Event)>,
}

impl<T: Send + 'static> Drop for Behind<T> {
    fn drop(&mut self) {
        if let Some((promise, value, event)) = self.parts.take() {
            hand_over(move || settle(&promise, value, &event));
        }
    }
}

/// The stream is through with what was queued before, or has failed.
fn settle<T: Send + 'static>(promise: &Promise<T>, value: Prepared<T>, event: &Event) {
    match event.synchronize(Duration::ZERO) {
        Ok(()) => {
            if let Err(refused) = promise.set_prepared(value) {
                fail(promise, refused.into());
            }
        }
        Err(error) => fail(promise, error),
    }
}

fn fail<T: Send + 'static>(promise: &Promise<T>, error: Error) {
    if let Err(refused) = promise.set_error(error) {
        tracing::debug!(%refused, "a promise has ended before the stream behind which it was to be set");
    }
}

pub(crate) fn set_when_ready<T: Send + 'static>(promise: Promise<T>, value: T, stream: &Stream) {
    let begun = begin(&promise, value, stream);
    match begun {
        Ok((value, event)) => {
            if stream.device().is_cpu() {
                // It is synchronous, so it is there.
                settle(&promise, value, &event);
                return;
            }
            let behind = Behind { parts: Some((promise, value, event)) };
            // Refused, it drops what it was given, and the event says why.
            let _ = stream.then(move || drop(behind));
        }
        Err(error) => fail(&promise, error),
    }
}

/// What is queued here is waited for, too: copies to the host.
fn begin<T: Send + 'static>(promise: &Promise<T>, value: T, stream: &Stream) -> Result<(Prepared<T>, Event)> {
    let value = promise.prepare(value, stream)?;
    Ok((value, stream.record()?))
}
