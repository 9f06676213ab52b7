//! What a rank is about to do, and whether all are about to do the same.

use comm_core::team::odd_one_out;
use comm_core::tensor::{DType, MAX_DIMS, Tensor};
use comm_core::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::reduce::ReduceOp;

/// An operation, as far as ranks must agree about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Barrier,
    AllReduce(ReduceOp),
    AllGather { dim: usize },
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Barrier => "barrier",
            Op::AllReduce(_) => "all_reduce",
            Op::AllGather { .. } => "all_gather",
        }
    }

    fn code(self) -> u32 {
        match self {
            Op::Barrier => 1,
            Op::AllReduce(_) => 2,
            Op::AllGather { .. } => 3,
        }
    }
}

/// What a rank is about to do, as it lies in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Descriptor {
    seq: u64,
    op: u32,
    reduce: u32,
    /// The bits of the operator's factor; 0 without one.
    factor: u64,
    dim: u64,
    dtype: u16,
    /// Whether the tensor is on another device than the CPU.
    elsewhere: u16,
    dims: u32,
    /// How many bytes of the tensor follow the descriptor, or [`EXPOSED`]. Each rank's own affair.
    carried: u64,
    shape: [u64; MAX_DIMS],
}

/// The tensor does not follow its descriptor: it is exposed in place.
const EXPOSED: u64 = u64::MAX;

impl Descriptor {
    pub(crate) const BYTES: usize = size_of::<Descriptor>();

    pub(crate) fn new(seq: u64, op: Op, tensor: Option<&Tensor>, carried: Option<usize>) -> Descriptor {
        let mut shape = [0; MAX_DIMS];
        for (to, &from) in shape.iter_mut().zip(tensor.map_or(&[][..], Tensor::shape)) {
            *to = from as u64;
        }
        Descriptor {
            seq,
            op: op.code(),
            reduce: if let Op::AllReduce(reduce) = op { reduce.code() } else { 0 },
            factor: if let Op::AllReduce(reduce) = op { reduce.factor_bits() } else { 0 },
            dim: if let Op::AllGather { dim } = op { dim as u64 } else { 0 },
            dtype: tensor.map_or(0, |t| u16::from(t.dtype().code())),
            elsewhere: tensor.map_or(0, |t| u16::from(!t.device().is_cpu())),
            dims: tensor.map_or(0, |t| t.shape().len() as u32),
            carried: carried.map_or(EXPOSED, |bytes| bytes as u64),
            shape,
        }
    }

    /// The shape, if it can be one: a peer wrote it.
    pub(crate) fn shape(&self) -> Option<Vec<usize>> {
        let dims = self.shape.get(..self.dims as usize)?;
        dims.iter().map(|&n| usize::try_from(n).ok()).collect()
    }

    /// How many bytes of the tensor follow; none if it is exposed in place.
    pub(crate) fn carried(&self) -> Option<u64> {
        (self.carried != EXPOSED).then_some(self.carried)
    }

    fn op_name(&self) -> String {
        [Op::Barrier, Op::AllReduce(ReduceOp::Sum), Op::AllGather { dim: 0 }]
            .into_iter()
            .find(|op| op.code() == self.op)
            .map_or_else(|| format!("operation {}", self.op), |op| op.name().to_string())
    }

    fn dtype_name(&self) -> String {
        let dtype = u8::try_from(self.dtype).ok().and_then(DType::from_code);
        dtype.map_or_else(|| format!("dtype {}", self.dtype), |dtype| dtype.to_string())
    }

    fn device_name(&self) -> String {
        if self.elsewhere == 0 { "cpu" } else { "another device" }.to_string()
    }

    fn shape_text(&self) -> String {
        format!("{:?}", &self.shape[..(self.dims as usize).min(MAX_DIMS)])
    }

    /// The shape without the dimension along which shards may differ.
    fn other_dims(&self) -> (u32, Vec<u64>) {
        let dims = &self.shape[..(self.dims as usize).min(MAX_DIMS)];
        (self.dims, dims.iter().enumerate().filter(|&(d, _)| d as u64 != self.dim).map(|(_, &n)| n).collect())
    }
}

/// One thing about which ranks can differ, and how the odd rank and the others put it.
struct Difference {
    field: &'static str,
    rank: usize,
    theirs: String,
    others: String,
}

fn compare<T: PartialEq>(
    all: &[Descriptor],
    field: &'static str,
    value: impl Fn(&Descriptor) -> T,
    text: impl Fn(&Descriptor) -> String,
) -> Option<Difference> {
    let (rank, common) = odd_one_out(&all.iter().map(value).collect::<Vec<_>>())?;
    Some(Difference { field, rank, theirs: text(&all[rank]), others: text(&all[common]) })
}

/// Checks that all ranks are about to do the same. Every rank that has all descriptors comes to the same verdict.
///
/// # Errors
/// [`Error::Mismatch`], without its place.
pub(crate) fn agree(all: &[Descriptor]) -> Result<()> {
    let difference = compare(all, "seq", |d| d.seq, |d| d.seq.to_string())
        .or_else(|| compare(all, "op", |d| d.op, Descriptor::op_name))
        .or_else(|| compare(all, "dtype", |d| d.dtype, Descriptor::dtype_name))
        .or_else(|| compare(all, "device", |d| d.elsewhere != 0, Descriptor::device_name))
        .or_else(|| compare(all, "operator", |d| d.reduce, |d| ReduceOp::name_of(d.reduce)))
        .or_else(|| compare(all, "factor", |d| d.factor, |d| f64::from_bits(d.factor).to_string()))
        .or_else(|| compare(all, "dim", |d| d.dim, |d| d.dim.to_string()))
        .or_else(|| {
            let gathers = all.first().is_some_and(|d| d.op == Op::AllGather { dim: 0 }.code());
            if gathers {
                compare(all, "shape", Descriptor::other_dims, Descriptor::shape_text)
            } else {
                compare(all, "shape", |d| (d.dims, d.shape), Descriptor::shape_text)
            }
        });
    match difference {
        None => Ok(()),
        Some(Difference { field, rank, theirs, others }) => {
            Err(Error::Mismatch { rank, field, theirs, others, at: Box::default() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(shape: &[usize], dim: usize) -> Descriptor {
        let t = comm_core::tensor::TensorBuf::zeros(shape, DType::F32).unwrap().freeze();
        Descriptor::new(7, Op::AllGather { dim }, Some(&t), None)
    }

    fn odd(all: &[Descriptor]) -> (usize, &'static str, String, String) {
        match agree(all).unwrap_err() {
            Error::Mismatch { rank, field, theirs, others, .. } => (rank, field, theirs, others),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn shards_may_differ_along_their_dimension_only() {
        agree(&[gather(&[3, 4], 0), gather(&[0, 4], 0), gather(&[9, 4], 0)]).unwrap();
        let all = [gather(&[3, 4], 0), gather(&[3, 5], 0), gather(&[3, 4], 0)];
        assert_eq!(odd(&all), (1, "shape", "[3, 5]".into(), "[3, 4]".into()));
    }

    #[test]
    fn operators_and_devices_differ_too() {
        let t = comm_core::tensor::TensorBuf::zeros(&[2], DType::F32).unwrap().freeze();
        let sum = Descriptor::new(7, Op::AllReduce(ReduceOp::Sum), Some(&t), None);
        let other = Descriptor { reduce: 99, ..sum };
        assert_eq!(odd(&[sum, sum, other]), (2, "operator", "operator 99".into(), "sum".into()));
        let of = |reduce| Descriptor::new(7, Op::AllReduce(reduce), Some(&t), None);
        assert_eq!(odd(&[sum, of(ReduceOp::Max), sum]), (1, "operator", "max".into(), "sum".into()));
        let [half, third] = [0.5, 0.25].map(|factor| of(ReduceOp::premul_sum(factor)));
        assert_eq!(odd(&[half, half, third]), (2, "factor", "0.25".into(), "0.5".into()));
        agree(&[third, third]).unwrap();
        let elsewhere = Descriptor { elsewhere: 1, ..sum };
        assert_eq!(odd(&[elsewhere, sum, sum]), (0, "device", "another device".into(), "cpu".into()));
        assert_eq!(odd(&[sum, Descriptor { seq: 8, ..sum }]), (1, "seq", "8".into(), "7".into()));
    }

    #[test]
    fn the_odd_one_is_outside_the_majority() {
        let all = [gather(&[3], 0), Descriptor::new(7, Op::Barrier, None, None), gather(&[3], 0)];
        assert_eq!(odd(&all), (1, "op", "barrier".into(), "all_gather".into()));
        let all = [gather(&[3], 0), Descriptor::new(7, Op::Barrier, None, None)];
        assert_eq!(odd(&all).0, 1, "without a majority, whoever differs from rank 0");
    }

    #[test]
    fn nonsense_from_a_peer_is_a_mismatch_and_no_panic() {
        let good = gather(&[3], 0);
        let bad = Descriptor { op: 99, dims: u32::MAX, dtype: 200, ..good };
        assert_eq!(odd(&[good, good, bad]).0, 2);
        assert_eq!(bad.shape(), None);
    }
}
