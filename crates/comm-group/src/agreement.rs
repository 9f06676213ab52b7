//! What a rank is about to do, and whether all are about to do the same.

use std::mem::offset_of;

use comm_core::team::odd_one_out;
use comm_core::tensor::{DType, MAX_DIMS, Tensor};
use comm_core::{Error, Result, layout};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::reduce::ReduceOp;
use crate::request::{Op, Request};

/// The most bytes of an input that travel in a letter.
pub(crate) const CARRIED: usize = 512;

/// What a rank is about to do, as it lies in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// [`LAYOUT`]: ranks of another build would misread the rest.
    layout: u64,
    seq: u64,
    op: u32,
    reduce: u32,
    factor: u64,
    /// The dimensions that the operation is about, and its root.
    dim: u32,
    other_dim: u32,
    root: u64,
    /// Zero, or one more than the dtype's code: whether there is a tensor.
    dtype: u16,
    /// Whether the tensor is on another device than the CPU.
    elsewhere: u16,
    dims: u32,
    /// Whether this rank's own arguments are wrong: it refuses, and the others hear of it.
    invalid: u32,
    /// How many sizes follow the descriptor.
    sizes: u32,
    /// How many bytes of the tensor follow those, or [`EXPOSED`]. Each rank's own affair.
    carried: u64,
    /// What stands for the shape and dtype of the buffer that the result is to go to; zero if there is none.
    out: u64,
    shape: [u64; MAX_DIMS],
}

/// The layout of a descriptor, as one number.
const LAYOUT: u64 = layout::hash(&[
    2, // counted up when the meaning of a field changes and its place does not
    size_of::<Descriptor>(),
    offset_of!(Descriptor, seq),
    offset_of!(Descriptor, op),
    offset_of!(Descriptor, reduce),
    offset_of!(Descriptor, factor),
    offset_of!(Descriptor, dim),
    offset_of!(Descriptor, other_dim),
    offset_of!(Descriptor, root),
    offset_of!(Descriptor, dtype),
    offset_of!(Descriptor, elsewhere),
    offset_of!(Descriptor, dims),
    offset_of!(Descriptor, invalid),
    offset_of!(Descriptor, sizes),
    offset_of!(Descriptor, carried),
    offset_of!(Descriptor, out),
    offset_of!(Descriptor, shape),
]);

/// The tensor does not follow its descriptor: it is exposed in place.
const EXPOSED: u64 = u64::MAX;

/// A dimension as it is written. What does not fit is there in no tensor, and stays so.
fn dim_code(dim: usize) -> u32 {
    u32::try_from(dim).unwrap_or(u32::MAX)
}

/// What stands for a buffer that a result is to go to.
pub(crate) fn out_code(shape: &[usize], dtype: DType) -> u64 {
    let mut words = [0; MAX_DIMS + 2];
    words[0] = usize::from(dtype.code());
    words[1] = shape.len();
    for (word, &size) in words[2..].iter_mut().zip(shape) {
        *word = size;
    }
    // Zero says that there is none.
    layout::hash(&words).max(1)
}

/// What a rank says besides its descriptor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Saying {
    pub(crate) invalid: bool,
    /// How many bytes of the input travel along; none if it is exposed.
    pub(crate) carried: Option<usize>,
    pub(crate) out: u64,
}

impl Descriptor {
    pub(crate) const BYTES: usize = size_of::<Descriptor>();

    pub(crate) fn new(seq: u64, request: &Request, saying: Saying) -> Descriptor {
        let tensor = request.input.as_ref();
        let mut shape = [0; MAX_DIMS];
        for (to, &from) in shape.iter_mut().zip(tensor.map_or(&[][..], Tensor::shape)) {
            *to = from as u64;
        }
        let op = request.op;
        let (dim, other_dim) = op.dims();
        let reduce = op.reduce();
        Descriptor {
            layout: LAYOUT,
            seq,
            op: op.code(),
            reduce: reduce.map_or(0, ReduceOp::code),
            factor: reduce.map_or(0, ReduceOp::factor_bits),
            dim: dim_code(dim),
            other_dim: dim_code(other_dim),
            root: op.root().map_or(0, |root| (root as u64).saturating_add(1)),
            dtype: tensor.map_or(0, |t| u16::from(t.dtype().code()) + 1),
            elsewhere: tensor.map_or(0, |t| u16::from(!t.device().is_cpu())),
            dims: tensor.map_or(0, |t| t.shape().len() as u32),
            invalid: u32::from(saying.invalid),
            sizes: request.sizes().len() as u32,
            carried: saying.carried.map_or(EXPOSED, |bytes| bytes as u64),
            out: saying.out,
            shape,
        }
    }

    /// Checks that a rank's descriptor is of this build.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if not.
    pub(crate) fn check_layout(&self, rank: usize) -> Result<()> {
        if self.layout == LAYOUT {
            return Ok(());
        }
        Err(Error::bad_peer(format!("rank {rank} writes descriptors of another build ({:#x})", self.layout)))
    }

    /// The number that it was made with.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    /// The shape, if it can be one: a peer wrote it.
    pub(crate) fn shape(&self) -> Option<Vec<usize>> {
        let dims = self.shape.get(..self.dims as usize)?;
        dims.iter().map(|&n| usize::try_from(n).ok()).collect()
    }

    /// The dtype of the tensor, if there is one.
    pub(crate) fn dtype(&self) -> Option<DType> {
        DType::from_code(u8::try_from(self.dtype.checked_sub(1)?).ok()?)
    }

    /// Whether the tensor is on another device than the CPU.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.elsewhere != 0
    }

    /// How many bytes of the tensor follow; none if it is exposed in place.
    pub(crate) fn carried(&self) -> Option<u64> {
        (self.carried != EXPOSED).then_some(self.carried)
    }

    /// How many sizes follow.
    pub(crate) fn sizes(&self) -> usize {
        self.sizes as usize
    }

    /// What stands for the buffer of this rank's result, if it has one.
    pub(crate) fn out(&self) -> Option<u64> {
        (self.out != 0).then_some(self.out)
    }

    fn dtype_name(&self) -> String {
        match (self.dtype, self.dtype()) {
            (0, _) => "no tensor".into(),
            (_, Some(dtype)) => dtype.to_string(),
            (code, None) => format!("dtype {code}"),
        }
    }

    fn device_name(&self) -> String {
        if self.elsewhere == 0 { "cpu" } else { "another device" }.to_string()
    }

    fn root_name(&self) -> String {
        self.root.checked_sub(1).map_or_else(|| "none".into(), |root| root.to_string())
    }

    fn known_dims(&self) -> &[u64] {
        &self.shape[..(self.dims as usize).min(MAX_DIMS)]
    }

    fn shape_text(&self) -> String {
        format!("{:?}", self.known_dims())
    }

    /// The shape without a dimension along which shards may differ.
    fn shape_but(&self, dim: u32) -> (u32, Vec<u64>) {
        let dims = self.known_dims().iter().enumerate().filter(|&(d, _)| d as u64 != u64::from(dim));
        (self.dims, dims.map(|(_, &n)| n).collect())
    }
}

/// What the tensors of the ranks must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// Only the root has one that counts.
    Root,
    /// Their dtype.
    DType,
    /// Their dtype, and their shape but along one dimension.
    But(usize),
    /// Dtype and shape.
    Whole,
}

/// What a rank has said: a descriptor, and the sizes after it.
#[derive(Debug, Clone)]
pub(crate) struct Letter {
    pub(crate) descriptor: Descriptor,
    pub(crate) sizes: Vec<u64>,
}

/// One thing about which ranks can differ, and how the odd rank and the others put it.
struct Difference {
    field: &'static str,
    rank: usize,
    theirs: String,
    others: String,
}

fn compare<T: PartialEq>(
    all: &[Letter],
    field: &'static str,
    value: impl Fn(&Descriptor) -> T,
    text: impl Fn(&Descriptor) -> String,
) -> Option<Difference> {
    let (rank, common) = odd_one_out(&all.iter().map(|l| value(&l.descriptor)).collect::<Vec<_>>())?;
    let text = |rank: usize| text(&all[rank].descriptor);
    Some(Difference { field, rank, theirs: text(rank), others: text(common) })
}

/// Checks that all ranks are about to do the same. Every rank that has all letters comes to the same verdict.
///
/// # Errors
/// [`Error::Mismatch`], without its place.
pub(crate) fn agree(all: &[Letter]) -> Result<()> {
    let difference = compare(all, "layout", |d| d.layout, |d| format!("{:#x}", d.layout))
        .or_else(|| compare(all, "seq", |d| d.seq, |d| d.seq.to_string()))
        .or_else(|| compare(all, "op", |d| d.op, |d| Op::name_of(d.op)))
        .or_else(|| {
            let text = |d: &Descriptor| if d.invalid == 0 { "valid" } else { "invalid" }.to_string();
            compare(all, "arguments", |d| d.invalid != 0, text)
        })
        .or_else(|| compare(all, "root", |d| d.root, Descriptor::root_name))
        .or_else(|| compare(all, "operator", |d| d.reduce, |d| ReduceOp::name_of(d.reduce)))
        .or_else(|| compare(all, "factor", |d| d.factor, |d| f64::from_bits(d.factor).to_string()))
        .or_else(|| compare(all, "dim", |d| d.dim, |d| d.dim.to_string()))
        .or_else(|| compare(all, "other dim", |d| d.other_dim, |d| d.other_dim.to_string()))
        .or_else(|| tensors_differ(all));
    match difference {
        None => Ok(()),
        Some(Difference { field, rank, theirs, others }) => {
            Err(Error::Mismatch { rank, field, theirs, others, at: Box::default() })
        }
    }
}

fn tensors_differ(all: &[Letter]) -> Option<Difference> {
    let likeness = Op::likeness_of(&all.first()?.descriptor)?;
    if likeness == Likeness::Root {
        return None;
    }
    compare(all, "dtype", |d| d.dtype, Descriptor::dtype_name)
        .or_else(|| compare(all, "device", |d| d.elsewhere != 0, Descriptor::device_name))
        .or_else(|| match likeness {
            Likeness::Whole => compare(all, "shape", |d| (d.dims, d.shape), Descriptor::shape_text),
            Likeness::But(dim) => compare(all, "shape", |d| d.shape_but(dim as u32), Descriptor::shape_text),
            Likeness::DType | Likeness::Root => None,
        })
}

impl Op {
    /// What the tensors of an operation that a peer describes must have in common; none if there are no tensors.
    fn likeness_of(descriptor: &Descriptor) -> Option<Likeness> {
        Op::likeness(descriptor.op, descriptor.dim as usize)
    }
}

#[cfg(test)]
mod tests {
    use comm_core::tensor::TensorBuf;

    use super::*;

    fn letter(op: Op, input: Option<(&[usize], DType)>) -> Letter {
        let tensor = input.map(|(shape, dtype)| TensorBuf::zeros(shape, dtype).unwrap().freeze());
        let request = Request::new(op, tensor.as_ref());
        Letter { descriptor: Descriptor::new(7, &request, Saying::default()), sizes: vec![] }
    }

    fn gather(shape: &[usize], dim: usize) -> Letter {
        letter(Op::AllGather { dim }, Some((shape, DType::F32)))
    }

    fn sum(op: ReduceOp) -> Letter {
        letter(Op::AllReduce(op), Some((&[2], DType::F32)))
    }

    fn with(like: &Letter, change: impl FnOnce(&mut Descriptor)) -> Letter {
        let mut letter = like.clone();
        change(&mut letter.descriptor);
        letter
    }

    type Verdict = (usize, &'static str, String, String);

    fn odd(all: &[Letter]) -> Verdict {
        match agree(all).unwrap_err() {
            Error::Mismatch { rank, field, theirs, others, .. } => (rank, field, theirs, others),
            other => panic!("{other}"),
        }
    }

    /// What three ranks say if one of them says the second, wherever it is.
    fn one_odd(common: &Letter, strange: &Letter, field: &'static str, theirs: &str, others: &str) {
        for rank in 0..3 {
            let mut all = [common, common, common].map(Clone::clone);
            all[rank] = strange.clone();
            assert_eq!(odd(&all), (rank, field, theirs.to_string(), others.to_string()));
        }
    }

    #[test]
    fn shards_may_differ_along_their_dimension_only() {
        agree(&[gather(&[3, 4], 0), gather(&[0, 4], 0), gather(&[9, 4], 0)]).unwrap();
        one_odd(&gather(&[3, 4], 0), &gather(&[3, 5], 0), "shape", "[3, 5]", "[3, 4]");
        one_odd(&gather(&[3], 0), &gather(&[3, 1], 0), "shape", "[3, 1]", "[3]");
        // A dimension that is there in no tensor leaves no freedom.
        one_odd(&gather(&[3], 5), &gather(&[4], 5), "shape", "[4]", "[3]");
        let rows = |shape: &[usize]| letter(Op::AllToAllRows, Some((shape, DType::U8)));
        agree(&[rows(&[3, 2]), rows(&[0, 2])]).unwrap();
        assert_eq!(odd(&[rows(&[3, 2]), rows(&[3, 1])]).1, "shape");
    }

    #[test]
    fn what_tensors_must_have_in_common_is_the_operations() {
        let of = |op, shape: &[usize], dtype| letter(op, Some((shape, dtype)));
        let vec = |shape: &[usize]| of(Op::AllGatherVec, shape, DType::U8);
        agree(&[vec(&[3]), vec(&[]), vec(&[1, 0, 2])]).unwrap();
        one_odd(&vec(&[3]), &of(Op::AllGatherVec, &[3], DType::I8), "dtype", "i8", "u8");
        let equal = |shape: &[usize]| of(Op::AllGatherEqual, shape, DType::U8);
        one_odd(&equal(&[3]), &equal(&[4]), "shape", "[4]", "[3]");
        // Only the root has a tensor that counts.
        let none = letter(Op::Broadcast { root: 1 }, None);
        agree(&[none.clone(), of(Op::Broadcast { root: 1 }, &[3], DType::F8E4M3), none]).unwrap();
        let barrier = letter(Op::Barrier, None);
        agree(&[barrier.clone(), barrier]).unwrap();
    }

    #[test]
    fn every_field_is_compared_and_named() {
        let (common, odd) = (sum(ReduceOp::Sum), sum(ReduceOp::Max));
        one_odd(&common, &odd, "operator", "max", "sum");
        one_odd(&common, &with(&common, |d| d.reduce = 99), "operator", "operator 99", "sum");
        let (half, third) = (sum(ReduceOp::premul_sum(0.5)), sum(ReduceOp::premul_sum(0.25)));
        one_odd(&half, &third, "factor", "0.25", "0.5");
        one_odd(&common, &with(&common, |d| d.elsewhere = 1), "device", "another device", "cpu");
        one_odd(&common, &with(&common, |d| d.seq = 8), "seq", "8", "7");
        one_odd(&common, &with(&common, |d| d.invalid = 1), "arguments", "invalid", "valid");
        one_odd(&common, &with(&common, |d| d.dtype = 0), "dtype", "no tensor", "f32");
        let root = |root| letter(Op::Reduce { op: ReduceOp::Sum, root }, Some((&[2], DType::F32)));
        one_odd(&root(0), &root(2), "root", "2", "0");
        one_odd(&gather(&[2, 2], 0), &gather(&[2, 2], 1), "dim", "1", "0");
        let turn = |from, to| letter(Op::AllToAll { from, to }, Some((&[2, 2], DType::F32)));
        one_odd(&turn(0, 1), &turn(0, 0), "other dim", "0", "1");
        one_odd(&turn(0, 1), &turn(1, 1), "dim", "1", "0");
        one_odd(&common, &gather(&[2], 0), "op", "all_gather", "all_reduce");
    }

    #[test]
    fn the_first_difference_in_one_order_counts() {
        // Everything is different: the layout first, or nothing after it means anything.
        let (a, b) = (sum(ReduceOp::Sum), gather(&[3, 4], 1));
        let worse = with(&b, |d| (d.layout, d.seq, d.invalid) = (1, 2, 1));
        assert_eq!(odd(&[a.clone(), worse.clone()]).1, "layout");
        assert_eq!(odd(&[a.clone(), with(&worse, |d| d.layout = LAYOUT)]).1, "seq");
        assert_eq!(odd(&[a, with(&worse, |d| (d.layout, d.seq) = (LAYOUT, 7))]).1, "op");
    }

    #[test]
    fn the_odd_one_is_outside_the_majority() {
        let barrier = letter(Op::Barrier, None);
        one_odd(&gather(&[3], 0), &barrier, "op", "barrier", "all_gather");
        assert_eq!(odd(&[gather(&[3], 0), barrier.clone()]).0, 1, "whoever differs from rank 0");
        let all = [gather(&[3], 0), sum(ReduceOp::Sum), barrier, gather(&[3], 0)];
        assert_eq!(odd(&all).0, 1, "without a majority, the first that differs from rank 0");
    }

    #[test]
    fn numbers_that_do_not_fit_stay_different_from_those_that_do() {
        let far = gather(&[3], 1 << 32);
        assert_eq!(odd(&[gather(&[3], 0), far.clone()]).1, "dim", "no dimension wraps to another one");
        agree(&[far.clone(), far]).unwrap();
        let root = |root| letter(Op::Broadcast { root }, None);
        assert_eq!(odd(&[root(0), root(usize::MAX)]).1, "root");
    }

    #[test]
    fn nonsense_from_a_peer_is_a_mismatch_and_no_panic() {
        let good = gather(&[3], 0);
        one_odd(&good, &with(&good, |d| d.layout = 5), "layout", "0x5", &format!("{LAYOUT:#x}"));
        one_odd(&good, &with(&good, |d| d.op = 99), "op", "operation 99", "all_gather");
        one_odd(&good, &with(&good, |d| d.dtype = 200), "dtype", "dtype 200", "f32");
        let bad = with(&good, |d| d.dims = u32::MAX);
        assert_eq!(odd(&[good.clone(), good.clone(), bad.clone()]).0, 2);
        assert_eq!(bad.descriptor.shape(), None);
        assert_eq!(with(&good, |d| d.dtype = 200).descriptor.dtype(), None);
        assert_eq!(with(&good, |d| d.dtype = u16::MAX).descriptor.dtype(), None);
    }

    #[test]
    fn buffers_differ_by_shape_and_dtype() {
        let all = [
            out_code(&[], DType::F32),
            out_code(&[0], DType::F32),
            out_code(&[0, 0], DType::F32),
            out_code(&[2, 3], DType::F32),
            out_code(&[3, 2], DType::F32),
            out_code(&[6], DType::F32),
            out_code(&[6], DType::I32),
        ];
        for (i, code) in all.iter().enumerate() {
            assert!(*code != 0 && !all[..i].contains(code), "{all:x?}");
        }
    }
}
