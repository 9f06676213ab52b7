//! A tensor that is being read.

use std::fmt;
use std::ops::Deref;

use comm_core::Result;
use comm_core::hub::is_forked;
use comm_core::tensor::Tensor;

type Finish = Box<dyn FnOnce(&Tensor) -> Result<()> + Send>;

/// A fetched tensor: while it lives, this reader has not finished.
///
/// It is the tensor by [`Deref`]. Dropping it finishes the read, once, by construction; [`finish`](Fetched::finish) does so
/// and says whether that went well. What is queued in the stream that it was fetched for is behind that: the producer's
/// stream waits for it. A clone of the tensor may live on, and its bytes with it.
#[must_use = "the read is finished when this is dropped"]
pub struct Fetched {
    tensor: Tensor,
    finish: Option<Finish>,
}

impl Fetched {
    /// For implementations of [`TensorStore`](super::TensorStore): the tensor, and what finishes the read.
    pub fn new(tensor: Tensor, finish: impl FnOnce(&Tensor) -> Result<()> + Send + 'static) -> Fetched {
        Fetched { tensor, finish: Some(Box::new(finish)) }
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Finishes the read.
    ///
    /// # Errors
    /// The stream that it was fetched for cannot record an event; the team was reset meanwhile.
    #[doc(alias = "DestFinishGet")]
    pub fn finish(mut self) -> Result<()> {
        self.finish.take().map_or(Ok(()), |finish| finish(&self.tensor))
    }

    /// The tensor alone: the read is finished by name later, with [`TensorStore::finish`](super::TensorStore::finish).
    pub fn into_tensor(mut self) -> Tensor {
        self.finish = None;
        self.tensor.clone()
    }
}

impl Deref for Fetched {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fetched").field(&self.tensor).finish()
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        if let Some(finish) = self.finish.take().filter(|_| !is_forked())
            && let Err(error) = finish(&self.tensor)
        {
            tracing::warn!(%error, "a read could not be finished");
        }
    }
}
