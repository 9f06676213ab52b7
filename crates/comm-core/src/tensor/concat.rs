//! Tensors put together.

use super::{Tensor, TensorBuf, TensorError};

impl Tensor {
    /// The tensors one after the other along `dim`, as a copy in this process's memory. Any strides, any host
    /// memory; some may be empty along `dim`.
    ///
    /// ```
    /// use comm_core::tensor::Tensor;
    ///
    /// let a = Tensor::from_slice(&[2, 1], &[1, 2])?;
    /// let b = Tensor::from_slice(&[2, 2], &[3, 4, 5, 6])?;
    /// let c = Tensor::concat(&[a, b], 1)?;
    /// assert_eq!(c.shape(), &[2, 3]);
    /// assert_eq!(c.as_slice::<i32>()?, [1, 3, 4, 2, 5, 6]);
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// No tensors; another element type or shape (besides `dim`); memory of a device; sizes that do not fit; no
    /// memory.
    pub fn concat(tensors: &[Tensor], dim: usize) -> Result<Tensor, TensorError> {
        const OP: &str = "concat";
        let Some(first) = tensors.first() else {
            return Err(TensorError::invalid(OP, "no tensors, so neither shape nor dtype"));
        };
        let dims = first.shape().len();
        if dim >= dims {
            return Err(TensorError::NoSuchDim { op: OP, dim, dims });
        }
        let mut shape = first.shape().to_vec();
        shape[dim] = 0;
        for tensor in tensors {
            if tensor.dtype() != first.dtype() {
                return Err(TensorError::DType { op: OP, seen: tensor.dtype(), expected: first.dtype() });
            }
            let fits = tensor.shape().len() == dims
                && (0..dims).all(|d| d == dim || tensor.shape()[d] == first.shape()[d]);
            if !fits {
                let (seen, expected) = (tensor.shape().into(), first.shape().into());
                return Err(TensorError::Shape { op: OP, seen, expected });
            }
            tensor.view().on_cpu(OP)?;
            shape[dim] = shape[dim]
                .checked_add(tensor.shape()[dim])
                .ok_or_else(|| TensorError::overflow(OP, first.shape()))?;
        }
        let mut whole = TensorBuf::zeros_for(OP, &shape, first.dtype())?;
        let mut start = vec![0; dims];
        for tensor in tensors {
            whole.write_at_for(OP, &start, tensor)?;
            start[dim] += tensor.shape()[dim];
        }
        Ok(whole.freeze())
    }
}
