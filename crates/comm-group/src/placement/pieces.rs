//! What a rank does to its own tensor: cutting, putting in order, masking.

use std::ops::Range;

use comm_core::shm::Arena;
use comm_core::tensor::{DType, Tensor};
use comm_core::{Error, Result};

use super::blocks::{self, Ranges};
use super::kind::Placement;
use super::split;
use crate::reduce::ReduceOp;

/// What rank `index` of a line of `ranks` gets of a tensor that all of them have: a view, or a copy if it is not in one piece.
pub(super) fn take(tensor: &Tensor, placement: &Placement, ranks: usize, index: usize) -> Result<Tensor> {
    let (dim, n) = sharded(tensor, placement)?;
    blocks::cut(tensor, &along(tensor, dim, split::piece(placement, n, ranks, index)), None)
}

/// The pieces of all ranks one after the other, as they are to be handed out; and how long each is.
pub(super) fn deal(tensor: &Tensor, placement: &Placement, ranks: usize) -> Result<(Tensor, Vec<usize>)> {
    let (dim, n) = sharded(tensor, placement)?;
    let sizes = (0..ranks).map(|index| split::piece_len(placement, n, ranks, index)).collect();
    Ok((blocks::cut(tensor, &dealt(tensor, placement, dim, n, ranks), None)?, sizes))
}

/// The tensor whose pieces lie here one after the other, as they have been gathered.
pub(super) fn undeal(gathered: &Tensor, placement: &Placement, ranks: usize) -> Result<Tensor> {
    let (dim, n) = sharded(gathered, placement)?;
    let ranges = dealt(gathered, placement, dim, n, ranks);
    blocks::join(gathered.shape(), gathered.dtype(), &[(&ranges, gathered)])
}

/// The operator whose identity a rank contributes, if it is not its place to contribute a value that all of them have: the
/// first rank of a line does. Of an average all do.
pub(super) fn adds_nothing(placement: &Placement, index: usize) -> Option<ReduceOp> {
    placement.reduction().filter(|&op| op != ReduceOp::Avg && index > 0)
}

/// What rank `index` of a line contributes to a value that all of them have.
pub(super) fn mask(tensor: &Tensor, placement: &Placement, index: usize) -> Result<Tensor> {
    match adds_nothing(placement, index) {
        Some(op) => identities(op, tensor.shape(), tensor.dtype(), None),
        None => Ok(tensor.clone()),
    }
}

/// A tensor of elements that change nothing when they are reduced.
pub(super) fn identities(
    op: ReduceOp,
    shape: &[usize],
    dtype: DType,
    room: Option<&Arena>,
) -> Result<Tensor> {
    let Some(element) = op.identity(dtype)? else {
        return Err(Error::invalid("mask", format!("{op} of {dtype} has no element that changes nothing")));
    };
    let mut all = blocks::buffer(shape, dtype, room)?;
    if element.iter().any(|&byte| byte != 0) {
        all.bytes_mut()?.chunks_exact_mut(element.len()).for_each(|to| to.copy_from_slice(&element));
    }
    Ok(all.freeze())
}

/// The dimension that is shared out, and its size.
fn sharded(tensor: &Tensor, placement: &Placement) -> Result<(usize, usize)> {
    let dim = placement.sharded_dim();
    let found = dim.and_then(|dim| Some((dim, *tensor.shape().get(dim)?)));
    found.ok_or_else(|| {
        Error::invalid("redistribute", format!("{placement} of a tensor of shape {:?}", tensor.shape()))
    })
}

/// Some runs along a dimension, and all of the others.
fn along(tensor: &Tensor, dim: usize, runs: impl IntoIterator<Item = Range<usize>>) -> Box<Ranges> {
    let mut ranges: Vec<_> = tensor.shape().iter().map(|&n| join(std::iter::once(0..n))).collect();
    ranges[dim] = join(runs);
    ranges.into()
}

/// What the ranks of a line hold along a dimension, one after the other.
fn dealt(tensor: &Tensor, placement: &Placement, dim: usize, n: usize, ranks: usize) -> Box<Ranges> {
    along(tensor, dim, (0..ranks).flat_map(|index| split::piece(placement, n, ranks, index)))
}

/// Runs that follow each other as one, and none that is empty.
fn join(runs: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for run in runs.into_iter().filter(|run| !run.is_empty()) {
        match joined.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => joined.push(run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use Placement::{Shard, SubSplit, Uneven};

    fn numbers(n: i32) -> Tensor {
        Tensor::from_slice(&[1, n as usize], &(0..n).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn what_is_dealt_and_gathered_is_in_order_again() {
        for n in 2..14 {
            for ranks in 1..6 {
                let mut sizes = vec![0; ranks];
                (0..n as usize).for_each(|i| sizes[i * i % ranks] += 1);
                let mut all = vec![Shard(1), Uneven { dim: 1, sizes }];
                all.extend((1..n as usize).map(|cut| SubSplit { dim: 1, cut }));
                for placement in all {
                    let whole = numbers(n);
                    let (dealt, sizes) = deal(&whole, &placement, ranks).unwrap();
                    let pieces: Vec<Tensor> =
                        (0..ranks).map(|index| take(&whole, &placement, ranks, index).unwrap()).collect();
                    assert_eq!(pieces.iter().map(|piece| piece.shape()[1]).collect::<Vec<_>>(), sizes);
                    assert!(Tensor::concat(&pieces, 1).unwrap().bytes_equal(&dealt).unwrap(), "{placement}");
                    assert!(undeal(&dealt, &placement, ranks).unwrap().bytes_equal(&whole).unwrap());
                }
            }
        }
    }

    #[test]
    fn pieces_are_views_where_they_can_be() {
        let whole = numbers(9);
        let cut = SubSplit { dim: 1, cut: 4 };
        assert!(take(&whole, &Shard(1), 2, 1).unwrap().shares_storage(&whole));
        assert!(!take(&whole, &cut, 2, 1).unwrap().shares_storage(&whole));
        assert_eq!(take(&whole, &cut, 2, 1).unwrap().as_slice::<i32>().unwrap(), [3, 4, 7, 8]);
        assert!(deal(&whole, &Shard(1), 2).unwrap().0.shares_storage(&whole), "they lie in order already");
        assert_eq!(deal(&whole, &cut, 2).unwrap().0.as_slice::<i32>().unwrap(), [0, 1, 2, 5, 6, 3, 4, 7, 8]);
        assert!(take(&whole, &Shard(2), 2, 0).is_err() && take(&whole, &Placement::Replicate, 2, 0).is_err());
    }

    #[test]
    fn identities_fill_a_tensor() {
        let least = identities(ReduceOp::Max, &[2, 1], DType::I16, None).unwrap();
        assert_eq!(least.as_slice::<i16>().unwrap(), [i16::MIN; 2]);
        let zero = identities(ReduceOp::Sum, &[1], DType::F64, None).unwrap();
        assert!(zero.as_slice::<f64>().unwrap()[0].is_sign_negative());
        assert_eq!(identities(ReduceOp::BitOr, &[0, 3], DType::U8, None).unwrap().numel(), 0);
        assert!(identities(ReduceOp::Avg, &[1], DType::F32, None).is_err());
        assert!(identities(ReduceOp::And, &[1], DType::F32, None).is_err());
    }
}
