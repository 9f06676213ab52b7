//! All-reduce in two steps: each rank reduces its own part of everybody's input, then pulls the parts of the others.

use comm_core::team::Team;
use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Error, Result, point};
use comm_store::Window;

use super::{Collective, NAME, Phase, Slot};
use crate::agreement::Op;
use crate::reduce::{ReduceOp, accumulate, canonicalise, is_reducible};
use crate::shard::shard_range;

/// Contributions are pulled and added in blocks that stay in the cache.
const BLOCK: usize = 32 * 1024;

pub(crate) fn all_reduce(
    team: &Team,
    window: &Window,
    tensor: &Tensor,
    reduce: ReduceOp,
    deadline: Deadline,
) -> Result<Tensor> {
    let op = Op::AllReduce(reduce);
    Collective::run(team, window, op, Some(tensor), deadline, |collective, _| {
        let dtype = tensor.dtype();
        if !is_reducible(dtype) {
            return Err(Error::Unsupported {
                backend: NAME,
                op: format!("all_reduce {reduce} of {dtype}"),
                why: "it reduces f32, f64, i32 and i64 so far".into(),
            });
        }
        let (rank, size, element) = (collective.rank(), collective.size(), dtype.size());
        let range = |rank| {
            let (start, len) = shard_range(tensor.numel(), size, rank);
            (start * element, len * element)
        };

        let (start, len) = range(rank);
        let mut part = if collective.abroad {
            TensorBuf::zeros_in(team.hub().tensors(), &[len / element], dtype)?
        } else {
            TensorBuf::zeros(&[len / element], dtype)?
        };
        let inputs: Result<Vec<_>> = (0..size).map(|rank| collective.region(rank, Slot::Input)).collect();
        let inputs = inputs?;
        if let Some(odd) = inputs.iter().position(|input| input.len() != tensor.nbytes()) {
            let why = format!("rank {odd} exposes {} bytes, not {}", inputs[odd].len(), tensor.nbytes());
            return Err(Error::bad_peer(why));
        }
        let mut block = vec![0; BLOCK.min(len)];
        for (i, sum) in part.bytes_mut()?.chunks_mut(BLOCK).enumerate() {
            let at = start + i * BLOCK;
            let mut inputs = inputs.iter();
            if let Some(first) = inputs.next() {
                first.read(at, sum)?;
            }
            for input in inputs {
                let block = &mut block[..sum.len()];
                input.read(at, block)?;
                accumulate(dtype, sum, block);
            }
            canonicalise(dtype, sum);
        }
        inputs.iter().try_for_each(|input| input.verify())?;

        collective.expose(Slot::Partial, &part.freeze())?;
        point!("group.reduced");
        collective.meet(Phase::Reduced, "the others to have reduced their parts")?;
        let mut result = TensorBuf::zeros(tensor.shape(), dtype)?;
        let bytes = result.bytes_mut()?;
        for rank in 0..size {
            let (start, len) = range(rank);
            let reduced = collective.region(rank, Slot::Partial)?;
            if reduced.len() != len {
                return Err(Error::bad_peer(format!(
                    "rank {rank} exposes {} bytes, not {len}",
                    reduced.len()
                )));
            }
            reduced.read(0, &mut bytes[start..start + len])?;
            reduced.verify()?;
        }
        point!("group.gathered");
        Ok(result.freeze())
    })
}
