//! Streams behind events, for threads and for tasks.

use std::sync::Arc;

use comm_core::device::{Event, Stream};
use comm_core::team::{CellRef, Member};
use comm_core::tensor::Tensor;
use comm_core::wait::Cell;
use comm_core::{Deadline, Error, Result};

use super::team_store::Inner;

impl Inner {
    /// As [`order`], without holding up a thread: `by` is the stream of the event. Of a driver whose events do not tell, the task
    /// waits for all that `by` has queued until now.
    pub(super) async fn order_task(
        &self,
        what: &str,
        stream: &Stream,
        by: &Stream,
        event: &Event,
        deadline: Deadline,
    ) -> Result<()> {
        if !stream.device().is_cpu() {
            return stream.wait(event);
        }
        if event.query()? {
            return Ok(());
        }
        let passed = Arc::new(Cell::default());
        let sets = SetsWhenDropped(passed.clone(), self.member().clone());
        if let Err(tell) = event.then(Box::new(move || drop(sets))) {
            by.then(tell)?;
        }
        self.member().wait_task(what, Passed(passed), None, 1, |now| now == 1, deadline).await?;
        // It is complete, or says what has become of the stream.
        event.synchronize(deadline).map_err(|error| waiting_for(what, error))
    }
}

/// Sets a cell when it goes: when an event is complete, or, its stream being broken, will not be.
struct SetsWhenDropped(Arc<Cell>, Arc<Member>);

impl Drop for SetsWhenDropped {
    fn drop(&mut self) {
        self.0.set(1, self.1.bell());
    }
}

/// A cell that is set when a stream gets there.
struct Passed(Arc<Cell>);

impl CellRef for Passed {
    fn cell(&self) -> &Cell {
        &self.0
    }
}

/// Makes a stream go on behind an event; that of the host waits here, no longer than the deadline.
pub(super) fn order(stream: &Stream, event: &Event, deadline: Deadline) -> Result<()> {
    if stream.device().is_cpu() { event.synchronize(deadline) } else { stream.wait(event) }
}

/// Notes that a stream reads a tensor.
pub(super) fn used_by(tensor: &Tensor, stream: &Stream) -> Result<()> {
    if stream.device().is_cpu() { Ok(()) } else { tensor.record_use(stream) }
}

/// A time-out of a stream, as one of what is waited for.
pub(super) fn waiting_for(what: &str, error: Error) -> Error {
    match error {
        Error::Timeout { waited, missing, at, .. } => {
            Error::Timeout { what: what.to_owned(), waited, missing, seen: 0, expected: 1, at }
        }
        error => error,
    }
}
