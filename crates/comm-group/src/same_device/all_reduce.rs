//! All-reduce in two steps: each rank reduces its own part of everybody's input, then pulls the parts of the others.

use comm_core::team::Team;
use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Error, Result, point};
use comm_store::Window;

use super::{Collective, NAME, Phase, Slot, on_cpu};
use crate::agreement::{Descriptor, Op};
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
    let judge = |_: &[Descriptor]| {
        let dtype = on_cpu("all_reduce", tensor)?.dtype();
        if is_reducible(dtype) {
            return Ok(());
        }
        Err(Error::Unsupported {
            backend: NAME,
            op: format!("all_reduce {reduce} of {dtype}"),
            why: "it reduces f32, f64, i32 and i64 so far".into(),
        })
    };
    Collective::run(team, window, op, Some(tensor), deadline, judge, |collective, ()| {
        let own = reduce_own_part(collective, tensor)?;
        collective.expose(Slot::Partial, &own)?;
        point!("group.reduced");
        collective.meet(Phase::Reduced, "the others to have reduced their parts")?;
        let whole = pull_parts(collective, tensor)?;
        point!("group.gathered");
        Ok(whole)
    })
}

/// Where the part of a rank begins, and how long it is, in bytes.
fn part_of(collective: &Collective<'_, '_>, tensor: &Tensor, rank: usize) -> (usize, usize) {
    let element = tensor.dtype().size();
    let (start, len) = shard_range(tensor.numel(), collective.size(), rank);
    (start * element, len * element)
}

/// This rank's part of the sum, where peers can reach it.
fn reduce_own_part(collective: &mut Collective<'_, '_>, tensor: &Tensor) -> Result<Tensor> {
    let dtype = tensor.dtype();
    let (start, len) = part_of(collective, tensor, collective.rank());
    let shape = [len / dtype.size()];
    let mut part = if collective.abroad {
        TensorBuf::zeros_in(collective.op.team().hub().tensors(), &shape, dtype)?
    } else {
        TensorBuf::zeros(&shape, dtype)?
    };
    let mut inputs = Vec::with_capacity(collective.size());
    for rank in 0..collective.size() {
        let input = collective.region(rank, Slot::Input)?;
        input.expect_len(tensor.nbytes())?;
        inputs.push(input);
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
    Ok(part.freeze())
}

/// The whole sum, from the parts of all ranks.
fn pull_parts(collective: &mut Collective<'_, '_>, tensor: &Tensor) -> Result<Tensor> {
    let mut whole = TensorBuf::zeros(tensor.shape(), tensor.dtype())?;
    let bytes = whole.bytes_mut()?;
    for rank in 0..collective.size() {
        let (start, len) = part_of(collective, tensor, rank);
        let part = collective.region(rank, Slot::Partial)?;
        part.expect_len(len)?;
        part.read(0, &mut bytes[start..start + len])?;
        part.verify()?;
    }
    Ok(whole.freeze())
}
