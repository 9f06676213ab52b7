//! All-gather: every rank pulls every shard into its own copy of the whole.

use comm_core::team::Team;
use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Error, Result, point};
use comm_store::Window;

use super::{Collective, Slot};
use crate::agreement::Op;

pub(crate) fn all_gather(
    team: &Team,
    window: &Window,
    tensor: &Tensor,
    dim: usize,
    deadline: Deadline,
) -> Result<Tensor> {
    let op = Op::AllGather { dim };
    Collective::run(team, window, op, Some(tensor), deadline, |collective, all| {
        let shapes: Option<Vec<Vec<usize>>> = all.iter().map(|d| d.shape()).collect();
        let shapes = shapes.ok_or_else(|| Error::bad_peer("a shape that cannot be"))?;
        let mut whole = tensor.shape().to_vec();
        let Some(along) = whole.get_mut(dim) else {
            let why = format!("dimension {dim} of shards with shape {:?}", tensor.shape());
            return Err(Error::invalid("all_gather", why));
        };
        let sizes: Vec<usize> = shapes.iter().map(|shape| shape[dim]).collect();
        let sum = sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        *along = sum.ok_or_else(|| Error::invalid("all_gather", "the whole is too large to be addressed"))?;

        let mut result = TensorBuf::zeros(&whole, tensor.dtype())?;
        let inner: usize = whole[dim + 1..].iter().product::<usize>() * tensor.dtype().size();
        let outer: usize = whole[..dim].iter().product();
        let row = whole[dim] * inner;
        let bytes = result.bytes_mut()?;
        let mut start = 0;
        for (rank, &n) in sizes.iter().enumerate() {
            let run = n * inner;
            let shard = collective.region(rank, Slot::Input)?;
            if shard.len() != outer * run {
                return Err(Error::bad_peer(format!(
                    "rank {rank} exposes {} bytes, not {}",
                    shard.len(),
                    outer * run
                )));
            }
            for i in 0..outer {
                if run > 0 {
                    shard.read(i * run, &mut bytes[i * row + start..][..run])?;
                }
            }
            shard.verify()?;
            start += run;
        }
        point!("group.gathered");
        Ok(result.freeze())
    })
}
