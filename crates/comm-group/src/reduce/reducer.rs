//! Which lane and operator a reduction needs, and the blocks of all ranks through it.

use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Error, Result};

use super::fold::{Accumulators, And, Avg, Blocks, Fold, Max, Min, Or, Premul, Prod, Sum, Xor};
use super::lane::{BF16, F8E4M3, F8E5M2, F16, Lane, Pair, Truth, Wide};
use super::op::ReduceOp;

/// A block's elements, and its accumulators, take so many bytes at most: so they stay in the cache.
const BLOCK: usize = 32 * 1024;
const ACCUMULATORS: usize = 64 * 1024;

/// Reduces the contributions of all ranks, a block at a time.
pub(crate) struct Reducer {
    blocks: Box<dyn Blocks>,
    ranks: usize,
    block_bytes: usize,
    scratch: Vec<u8>,
}

impl Reducer {
    /// For so many ranks.
    ///
    /// # Errors
    /// Those of [`ReduceOp::check`]; no ranks at all.
    pub(crate) fn new(op: ReduceOp, dtype: DType, ranks: usize) -> Result<Reducer> {
        op.check(dtype)?;
        let counted = u32::try_from(ranks).ok().filter(|&ranks| ranks > 0);
        let counted = counted.ok_or_else(|| Error::invalid("reduce", format!("there are {ranks} ranks")))?;
        // The same pairs once more: `check` has the words, and a test that they agree.
        let blocks = blocks(op, dtype, counted)
            .ok_or_else(|| Error::invalid("reduce", format!("there is no {op} of {dtype}")))?;
        let elements = (BLOCK / dtype.size()).min(ACCUMULATORS / blocks.acc_bytes());
        Ok(Reducer { blocks, ranks, block_bytes: elements * dtype.size(), scratch: Vec::new() })
    }

    /// How many bytes a block should have at most, a whole number of elements: others work, and use more memory.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Reduces one block into `out`. `input` is asked for the same block of each rank, in rank order.
    ///
    /// # Errors
    /// The first one of `input`; then `out` is of no use.
    pub(crate) fn block(
        &mut self,
        out: &mut [u8],
        mut input: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        // The result's own memory serves for the first rank.
        input(0, out)?;
        self.blocks.first(out);
        if self.ranks > 1 && self.scratch.len() < out.len() {
            self.scratch.resize(out.len(), 0);
        }
        for rank in 1..self.ranks {
            let scratch = &mut self.scratch[..out.len()];
            input(rank, scratch)?;
            self.blocks.next(scratch);
        }
        self.blocks.last(out);
        Ok(())
    }
}

/// Reduces tensors of one shape and dtype, which are all here, in their order.
///
/// # Errors
/// Those of [`ReduceOp::check`]; no tensors, or other shapes; memory of a device.
pub(crate) fn reduce(op: ReduceOp, tensors: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = tensors.first() else { return Err(Error::invalid("reduce", "no tensors")) };
    let (dtype, size) = (first.dtype(), first.dtype().size());
    if let Some(other) = tensors.iter().find(|t| (t.shape(), t.dtype()) != (first.shape(), dtype)) {
        return Err(Error::invalid("reduce", format!("{other:?} and {first:?}")));
    }
    let flat = |tensor: &&Tensor| Ok(tensor.contiguous()?.reshape(&[first.numel()])?);
    let inputs: Vec<Tensor> = tensors.iter().map(flat).collect::<Result<_>>()?;
    let mut reducer = Reducer::new(op, dtype, inputs.len())?;
    let mut result = TensorBuf::zeros(first.shape(), dtype)?;
    let (block, mut at) = (reducer.block_bytes(), 0);
    for out in result.bytes_mut()?.chunks_mut(block) {
        let len = out.len() / size;
        // A copy, since another process may be able to write them.
        reducer.block(out, |rank, into| Ok(inputs[rank].narrow(0, at, len)?.copy_bytes_to(into)?))?;
        at += len;
    }
    Ok(result.freeze())
}

/// Whether there is something that does `op` over `dtype`.
#[cfg(test)]
pub(super) fn has(op: ReduceOp, dtype: DType) -> bool {
    blocks(op, dtype, 1).is_some()
}

/// What does `op` over `dtype`, if anything.
fn blocks(op: ReduceOp, dtype: DType, ranks: u32) -> Option<Box<dyn Blocks>> {
    // Where the bits do not depend on the sign, or parts of complex numbers are on their own, one lane serves several.
    Some(match dtype {
        DType::Bool => return truths(op),
        DType::U8 => bits::<u8>(op).or_else(|| integers::<u8>(op, u64::from(ranks)))?,
        DType::I8 => bits::<u8>(op).or_else(|| integers::<i8>(op, i64::from(ranks)))?,
        DType::U16 => bits::<u16>(op).or_else(|| integers::<u16>(op, u64::from(ranks)))?,
        DType::I16 => bits::<u16>(op).or_else(|| integers::<i16>(op, i64::from(ranks)))?,
        DType::U32 => bits::<u32>(op).or_else(|| integers::<u32>(op, u64::from(ranks)))?,
        DType::I32 => bits::<u32>(op).or_else(|| integers::<i32>(op, i64::from(ranks)))?,
        DType::U64 => bits::<u64>(op).or_else(|| integers::<u64>(op, u128::from(ranks)))?,
        DType::I64 => bits::<u64>(op).or_else(|| integers::<i64>(op, i128::from(ranks)))?,
        DType::F16 => singles::<F16>(op, ranks)?,
        DType::BF16 => singles::<BF16>(op, ranks)?,
        DType::F8E4M3 => singles::<F8E4M3>(op, ranks)?,
        DType::F8E5M2 => singles::<F8E5M2>(op, ranks)?,
        DType::F32 => singles::<f32>(op, ranks)?,
        DType::F64 => doubles(op, ranks)?,
        DType::Complex64 => match op {
            ReduceOp::Prod => Accumulators::<Pair<f32>, _>::boxed(Prod),
            ReduceOp::Min | ReduceOp::Max => return None,
            _ => singles::<f32>(op, ranks)?,
        },
        DType::Complex128 => match op {
            ReduceOp::Prod => Accumulators::<Pair<f64>, _>::boxed(Prod),
            ReduceOp::Min | ReduceOp::Max => return None,
            _ => doubles(op, ranks)?,
        },
        _ => return None,
    })
}

fn truths(op: ReduceOp) -> Option<Box<dyn Blocks>> {
    Some(match op {
        ReduceOp::And => Accumulators::<Truth, _>::boxed(And),
        ReduceOp::Or => Accumulators::<Truth, _>::boxed(Or),
        _ => return None,
    })
}

/// Operators that take the bits of integers as they are.
fn bits<L: Lane>(op: ReduceOp) -> Option<Box<dyn Blocks>>
where
    Sum: Fold<L::Acc>,
    Prod: Fold<L::Acc>,
    And: Fold<L::Acc>,
    Or: Fold<L::Acc>,
    Xor: Fold<L::Acc>,
{
    Some(match op {
        ReduceOp::Sum => Accumulators::<L, _>::boxed(Sum),
        ReduceOp::Prod => Accumulators::<L, _>::boxed(Prod),
        ReduceOp::BitAnd => Accumulators::<L, _>::boxed(And),
        ReduceOp::BitOr => Accumulators::<L, _>::boxed(Or),
        ReduceOp::BitXor => Accumulators::<L, _>::boxed(Xor),
        _ => return None,
    })
}

/// Operators for which the sign of an integer counts.
fn integers<T: Lane>(op: ReduceOp, ranks: <Wide<T> as Lane>::Acc) -> Option<Box<dyn Blocks>>
where
    Wide<T>: Lane,
    Min: Fold<T::Acc>,
    Max: Fold<T::Acc>,
    Avg<<Wide<T> as Lane>::Acc>: Fold<<Wide<T> as Lane>::Acc>,
{
    Some(match op {
        ReduceOp::Min => Accumulators::<T, _>::boxed(Min),
        ReduceOp::Max => Accumulators::<T, _>::boxed(Max),
        ReduceOp::Avg => Accumulators::<Wide<T>, _>::boxed(Avg(ranks)),
        _ => return None,
    })
}

/// Floats that are combined as f32.
fn singles<L: Lane<Acc = f32>>(op: ReduceOp, ranks: u32) -> Option<Box<dyn Blocks>> {
    Some(match op {
        ReduceOp::Sum => Accumulators::<L, _>::boxed(Sum),
        ReduceOp::Prod => Accumulators::<L, _>::boxed(Prod),
        ReduceOp::Min => Accumulators::<L, _>::boxed(Min),
        ReduceOp::Max => Accumulators::<L, _>::boxed(Max),
        ReduceOp::Avg => Accumulators::<L, _>::boxed(Avg(ranks as f32)),
        ReduceOp::PremulSum(factor) => Accumulators::<L, _>::boxed(Premul(factor.get() as f32)),
        _ => return None,
    })
}

fn doubles(op: ReduceOp, ranks: u32) -> Option<Box<dyn Blocks>> {
    Some(match op {
        ReduceOp::Sum => Accumulators::<f64, _>::boxed(Sum),
        ReduceOp::Prod => Accumulators::<f64, _>::boxed(Prod),
        ReduceOp::Min => Accumulators::<f64, _>::boxed(Min),
        ReduceOp::Max => Accumulators::<f64, _>::boxed(Max),
        ReduceOp::Avg => Accumulators::<f64, _>::boxed(Avg(f64::from(ranks))),
        ReduceOp::PremulSum(factor) => Accumulators::<f64, _>::boxed(Premul(factor.get())),
        _ => return None,
    })
}
