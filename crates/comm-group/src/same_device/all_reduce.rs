//! All-reduce in two steps: each rank reduces its own part of everybody's input, then pulls the parts of the others.

use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Result, point};

use super::{Collective, Input, SameDevice, Slot, on_cpu};
use crate::agreement::{Descriptor, Op};
use crate::reduce::{ReduceOp, Reducer};
use crate::shard::shard_range;

impl SameDevice {
    pub(crate) fn all_reduce(&self, tensor: &Tensor, reduce: ReduceOp, deadline: Deadline) -> Result<Tensor> {
        let judge = |all: &[Descriptor]| {
            reduce.check(on_cpu("all_reduce", tensor)?.dtype())?;
            Ok(all.iter().all(|descriptor| descriptor.carried().is_some()))
        };
        self.run(Op::AllReduce(reduce), Some(tensor), deadline, judge, |collective, all_carried| {
            if all_carried {
                // Everything is here already: to reduce it all is less than to wait for the parts of others.
                let mut whole = TensorBuf::zeros(tensor.shape(), tensor.dtype())?;
                reduce_inputs(collective, tensor, reduce, 0, whole.bytes_mut()?)?;
                return Ok(whole.freeze());
            }
            let own = reduce_own_part(collective, tensor, reduce)?;
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

/// This rank's part of the result, where peers can reach it.
fn reduce_own_part(collective: &mut Collective<'_>, tensor: &Tensor, reduce: ReduceOp) -> Result<Tensor> {
    let dtype = tensor.dtype();
    let (start, len) = part_of(collective, tensor, collective.rank());
    let shape = [len / dtype.size()];
    let mut part = if collective.abroad() {
        TensorBuf::zeros_in(collective.arena(), &shape, dtype)?
    } else {
        TensorBuf::zeros(&shape, dtype)?
    };
    reduce_inputs(collective, tensor, reduce, start, part.bytes_mut()?)?;
    Ok(part.freeze())
}

/// What all ranks contribute from byte `start` on, combined in rank order.
fn reduce_inputs(
    collective: &mut Collective<'_>,
    tensor: &Tensor,
    reduce: ReduceOp,
    start: usize,
    result: &mut [u8],
) -> Result<()> {
    let inputs: Vec<Input<'_>> =
        (0..collective.size()).map(|rank| collective.input(rank, tensor.nbytes())).collect::<Result<_>>()?;
    let mut reducer = Reducer::new(reduce, tensor.dtype(), inputs.len())?;
    // Contributions are pulled and combined in blocks that stay in the cache.
    let block_bytes = reducer.block_bytes();
    for (i, block) in result.chunks_mut(block_bytes).enumerate() {
        let at = start + i * block_bytes;
        reducer.block(block, |rank, into| inputs[rank].read(at, into))?;
    }
    inputs.iter().try_for_each(Input::verify)
}

/// The whole result, from the parts of all ranks.
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
