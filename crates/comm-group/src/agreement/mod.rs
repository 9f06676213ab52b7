//! Whether all ranks are about to do the same.

mod descriptor;

use comm_core::team::odd_one_out;
use comm_core::{Error, Result};

use crate::reduce::ReduceOp;
use crate::request::Op;
pub(crate) use descriptor::{CARRIED, Descriptor, Letter, Saying, out_code};

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
    use comm_core::tensor::{DType, TensorBuf};

    use super::descriptor::LAYOUT;
    use super::*;
    use crate::request::Request;

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
}
