//! A tensor that is being read.

use std::fmt;
use std::ops::Deref;

use comm_core::Result;
use comm_core::device::Stream;
use comm_core::hub::is_forked;
use comm_core::tensor::Tensor;

use super::order::used_by;

/// A fetched tensor: while it lives, this reader has not finished.
///
/// It is the tensor by [`Deref`]. Dropping it finishes the read, once, by construction; [`finish`](Fetched::finish) does so
/// and says whether that went well. What is queued in the stream that it was fetched for is behind that: the producer's
/// stream waits for it. A clone of the tensor may live on, and its bytes with it; without one, the producer has its memory
/// back when it knows that all have finished.
#[must_use = "the read is finished when this is dropped"]
pub struct Fetched {
    // Goes first.
    tensor: Used,
    ending: Ending,
}

impl Fetched {
    /// For implementations of [`TensorStore`](super::TensorStore): the tensor, the stream that reads it, and what finishes
    /// the read.
    pub fn new(
        tensor: Tensor,
        stream: &Stream,
        finish: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Fetched {
        let tensor = Used { tensor, stream: stream.clone() };
        Fetched { tensor, ending: Ending(Some(Box::new(finish))) }
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor.tensor
    }

    /// Finishes the read.
    ///
    /// # Errors
    /// The stream that it was fetched for cannot record an event.
    #[doc(alias = "DestFinishGet")]
    pub fn finish(self) -> Result<()> {
        let Fetched { tensor, mut ending } = self;
        let noted = tensor.note();
        drop(tensor);
        ending.finish().and(noted)
    }

    /// The tensor alone: the read is finished by name later, with [`TensorStore::finish`](super::TensorStore::finish). What
    /// a stream other than the host's reads until then is noted by [`Tensor::record_use`].
    pub fn into_tensor(mut self) -> Tensor {
        self.ending.0 = None;
        self.tensor.tensor.clone()
    }
}

impl Deref for Fetched {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        self.tensor()
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fetched").field(self.tensor()).finish()
    }
}

/// A tensor whose memory does not go back before the stream has read it, when it is dropped.
struct Used {
    tensor: Tensor,
    stream: Stream,
}

impl Used {
    fn note(&self) -> Result<()> {
        used_by(&self.tensor, &self.stream)
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        if let Err(error) = self.note() {
            tracing::warn!(%error, "a stream that may read a tensor is broken");
        }
    }
}

/// Finishes when it is dropped.
struct Ending(Option<Box<dyn FnOnce() -> Result<()> + Send>>);

impl Ending {
    fn finish(&mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), |finish| finish())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "a read could not be finished");
        }
    }
}
