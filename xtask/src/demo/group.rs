//! The conversions over a thread group of comm-group.

use std::borrow::Cow;

use comm_core::Deadline;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use safetensors::Dtype;

use super::exchange::Exchange;
use super::weights::{Spec, dtype_name};

/// One rank of the demo's thread group.
pub struct Group {
    group: ThreadGroup,
}

impl Group {
    /// Meets the other ranks.
    ///
    /// # Errors
    /// What the library said.
    pub fn join(name: &str, rank: usize, size: usize) -> Result<Group, String> {
        let team = Team::join(name, rank, size, Deadline::default()).map_err(said)?;
        Ok(Group { group: ThreadGroup::new(team, Deadline::default()).map_err(said)? })
    }
}

fn said(error: impl Into<comm_core::Error>) -> String {
    error.into().to_string()
}

impl Exchange for Group {
    type Tensor = Tensor;

    fn barrier(&self) -> Result<(), String> {
        self.group.barrier(Deadline::default()).map_err(said)
    }

    fn tensor(&self, spec: &Spec, bytes: &[u8]) -> Result<Tensor, String> {
        let mut buf = TensorBuf::zeros(&spec.shape, dtype(spec.dtype)?).map_err(said)?;
        let own = buf.bytes_mut().map_err(said)?;
        if own.len() != bytes.len() {
            return Err(format!("{} bytes were given for {}", bytes.len(), own.len()));
        }
        own.copy_from_slice(bytes);
        Ok(buf.freeze())
    }

    fn shard(&self, full: &Tensor, dim: usize) -> Result<Tensor, String> {
        self.group.replicate_to_shard(full, dim, None).map_err(said)
    }

    fn gather(&self, shard: &Tensor, dim: usize) -> Result<Tensor, String> {
        self.group.all_gather(shard, dim, Deadline::default()).map_err(said)
    }

    fn partial(&self, full: &Tensor) -> Result<Tensor, String> {
        if self.group.rank() == 0 {
            return Ok(full.clone());
        }
        let mut part = TensorBuf::zeros(full.shape(), full.dtype()).map_err(said)?;
        let identity = ReduceOp::Sum.identity(full.dtype()).map_err(said)?.ok_or("a sum has an identity")?;
        for element in part.bytes_mut().map_err(said)?.chunks_exact_mut(identity.len()) {
            element.copy_from_slice(&identity);
        }
        Ok(part.freeze())
    }

    fn reduce(&self, partial: &Tensor) -> Result<Tensor, String> {
        self.group.all_reduce(partial, ReduceOp::Sum, Deadline::default()).map_err(said)
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.shape().to_vec()
    }

    fn bytes<'a>(&self, tensor: &'a Tensor) -> Result<Cow<'a, [u8]>, String> {
        if tensor.is_contiguous() && tensor.is_ours() {
            return tensor.bytes().map(Cow::Borrowed).map_err(said);
        }
        let mut bytes = vec![0; tensor.nbytes()];
        tensor.copy_bytes_to(&mut bytes).map_err(said)?;
        Ok(Cow::Owned(bytes))
    }
}

/// The library's name of a file's dtype.
fn dtype(dtype: Dtype) -> Result<DType, String> {
    dtype_name(dtype).parse().map_err(|_| format!("the library has no dtype {dtype}"))
}
