//! All-reduce in two steps: each rank reduces its own part of everybody's input, then pulls the parts of the others.

use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Error, Result, point};

use super::{Collective, Input, NAME, SameDevice, Slot, on_cpu};
use crate::agreement::{Descriptor, Op};
use crate::reduce::{ReduceOp, accumulate, canonicalise, is_reducible};
use crate::shard::shard_range;

/// Contributions are pulled and added in blocks that stay in the cache.
const BLOCK: usize = 32 * 1024;

impl SameDevice {
    pub(crate) fn all_reduce(&self, tensor: &Tensor, reduce: ReduceOp, deadline: Deadline) -> Result<Tensor> {
        let judge = |all: &[Descriptor]| {
            let dtype = on_cpu("all_reduce", tensor)?.dtype();
            if is_reducible(dtype) {
                return Ok(all.iter().all(|descriptor| descriptor.carried().is_some()));
            }
            Err(Error::Unsupported {
                backend: NAME,
                op: format!("all_reduce {reduce} of {dtype}"),
                why: "it reduces f32, f64, i32 and i64 so far".into(),
            })
        };
        self.run(Op::AllReduce(reduce), Some(tensor), deadline, judge, |collective, all_carried| {
            if all_carried {
                // Everything is here already: to reduce it all is less than to wait for the parts of others.
                let mut whole = TensorBuf::zeros(tensor.shape(), tensor.dtype())?;
                reduce_inputs(collective, tensor, 0, whole.bytes_mut()?)?;
                return Ok(whole.freeze());
            }
            let own = reduce_own_part(collective, tensor)?;
            collective.expose(Slot::Partial, &own)?;
            point!("group.reduced");
            collective.meet("the others to have reduced their parts")?;
            let whole = pull_parts(collective, tensor, &own)?;
            point!("group.gathered");
            Ok(whole)
        })
    }
}

/// Where the part of a rank begins, and how long it is, in bytes.
fn part_of(collective: &Collective<'_>, tensor: &Tensor, rank: usize) -> (usize, usize) {
    let element = tensor.dtype().size();
    let (start, len) = shard_range(tensor.numel(), collective.size(), rank);
    (start * element, len * element)
}

/// This rank's part of the sum, where peers can reach it.
fn reduce_own_part(collective: &mut Collective<'_>, tensor: &Tensor) -> Result<Tensor> {
    let dtype = tensor.dtype();
    let (start, len) = part_of(collective, tensor, collective.rank());
    let shape = [len / dtype.size()];
    let mut part = if collective.abroad() {
        TensorBuf::zeros_in(collective.arena(), &shape, dtype)?
    } else {
        TensorBuf::zeros(&shape, dtype)?
    };
    reduce_inputs(collective, tensor, start, part.bytes_mut()?)?;
    Ok(part.freeze())
}

/// The sum of what all ranks contribute from byte `start` on, in rank order.
fn reduce_inputs(
    collective: &mut Collective<'_>,
    tensor: &Tensor,
    start: usize,
    sum: &mut [u8],
) -> Result<()> {
    let dtype = tensor.dtype();
    let inputs: Vec<Input<'_>> =
        (0..collective.size()).map(|rank| collective.input(rank, tensor.nbytes())).collect::<Result<_>>()?;
    let mut block = vec![0; BLOCK.min(sum.len())];
    for (i, sum) in sum.chunks_mut(BLOCK).enumerate() {
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
    inputs.iter().try_for_each(Input::verify)
}

/// The whole sum, from the parts of all ranks.
fn pull_parts(collective: &mut Collective<'_>, tensor: &Tensor, own: &Tensor) -> Result<Tensor> {
    let mut whole = TensorBuf::zeros(tensor.shape(), tensor.dtype())?;
    let bytes = whole.bytes_mut()?;
    for rank in 0..collective.size() {
        let (start, len) = part_of(collective, tensor, rank);
        let bytes = &mut bytes[start..start + len];
        if rank == collective.rank() {
            own.copy_bytes_to(bytes)?;
            continue;
        }
        let part = collective.region(rank, Slot::Partial)?;
        part.expect_len(len)?;
        part.read(0, bytes)?;
        part.verify()?;
    }
    Ok(whole.freeze())
}
