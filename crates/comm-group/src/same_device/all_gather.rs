//! All-gather: every rank pulls every shard into its own copy of the whole.

use comm_core::tensor::{DType, Layout, Tensor, TensorBuf};
use comm_core::{Deadline, Error, Result, point};

use super::{Collective, SameDevice, on_cpu};
use crate::agreement::{Descriptor, Op};

impl SameDevice {
    pub(crate) fn all_gather(&self, tensor: &Tensor, dim: usize, deadline: Deadline) -> Result<Tensor> {
        let op = Op::AllGather { dim };
        self.run(op, Some(tensor), deadline, |all| plan(all, tensor, dim), gather)
    }
}

/// The whole, and which part of it each rank has.
struct Plan {
    shape: Vec<usize>,
    dtype: DType,
    /// How many runs each shard consists of: the product of the sizes before the dimension.
    runs: usize,
    /// How many bytes each run of a shard has, by rank.
    run_bytes: Vec<usize>,
}

fn plan(all: &[Descriptor], tensor: &Tensor, dim: usize) -> Result<Plan> {
    const OP: &str = "all_gather";
    let dtype = on_cpu(OP, tensor)?.dtype();
    let mut shape = tensor.shape().to_vec();
    if dim >= shape.len() {
        return Err(Error::invalid(OP, format!("dimension {dim} of shards with shape {shape:?}")));
    }
    let sizes: Option<Vec<usize>> = all.iter().map(|d| d.shape()?.get(dim).copied()).collect();
    let sizes = sizes.ok_or_else(|| Error::invalid(OP, "a rank has a shape that cannot be"))?;
    let too_large = || Error::invalid(OP, format!("shards of {sizes:?} along {dim} are too large together"));
    shape[dim] = sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)).ok_or_else(too_large)?;
    let numel = Layout::contiguous(&shape)?.numel();
    let fits = numel.checked_mul(dtype.size()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if !fits {
        return Err(too_large());
    }
    // Without elements there is nothing to move, and the sizes that remain need not fit together with the element's.
    if numel == 0 {
        return Ok(Plan { shape, dtype, runs: 0, run_bytes: vec![0; all.len()] });
    }
    let runs = shape[..dim].iter().product();
    let inner = shape[dim + 1..].iter().product::<usize>() * dtype.size();
    let run_bytes = sizes.iter().map(|n| n * inner).collect();
    Ok(Plan { shape, dtype, runs, run_bytes })
}

fn gather(collective: &mut Collective<'_>, plan: Plan) -> Result<Tensor> {
    let mut whole = TensorBuf::zeros(&plan.shape, plan.dtype)?;
    let row: usize = plan.run_bytes.iter().sum();
    let bytes = whole.bytes_mut()?;
    let mut start = 0;
    for (rank, &run) in plan.run_bytes.iter().enumerate() {
        if run == 0 {
            continue;
        }
        let shard = collective.input(rank, plan.runs * run)?;
        for i in 0..plan.runs {
            shard.read(i * run, &mut bytes[i * row + start..][..run])?;
        }
        shard.verify()?;
        start += run;
    }
    point!("group.gathered");
    Ok(whole.freeze())
}
