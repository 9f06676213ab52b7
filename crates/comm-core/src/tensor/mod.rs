//! Tensors: dtype, shape, strides and offset over a storage.

/// A tensor operation was asked for something that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {}

impl From<TensorError> for crate::Error {
    fn from(e: TensorError) -> Self {
        match e {}
    }
}
