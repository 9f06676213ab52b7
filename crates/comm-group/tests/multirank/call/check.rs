//! The ways in which an operation is called, and what must hold of each.

use comm_core::Deadline;
use comm_core::tensor::{DType, Layout, Tensor, TensorBuf};
use comm_group::ThreadGroup;
use comm_testkit::values::{is_poison, poison};
use comm_testkit::{RankResult, check, check_eq, done};

use super::Call::{self, *};
use super::{Bytes, Operator};
use crate::support::{Any, bytes_of, is_own, same_bytes};

/// How an operation is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Returned,
    /// Into a contiguous buffer.
    Into,
    /// Into elements of a buffer that lie apart, in another order.
    Strided,
    Started,
    /// Into the buffer that it comes from.
    InPlace,
    /// Twice in one call.
    Batch,
}

/// Those that most operations have.
pub const WAYS: [Way; 4] = [Way::Returned, Way::Into, Way::Strided, Way::Started];

impl Call {
    /// Whether it can be called so.
    pub fn has(&self, way: Way) -> bool {
        match way {
            Way::Returned => true,
            Way::Into | Way::Strided => !matches!(self, Barrier | AllGatherVec | Shard(..) | Exchange),
            Way::Started => !matches!(self, Shard(..) | Exchange),
            Way::InPlace | Way::Batch => matches!(self, AllReduce(_)),
        }
    }
}

/// A tensor that a rank must get: the bytes of its elements, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl From<&Bytes> for Expected {
    fn from(array: &Bytes) -> Expected {
        Expected { shape: array.shape.clone(), bytes: array.data.concat() }
    }
}

/// A buffer of poison.
pub fn poisoned(shape: &[usize], dtype: DType) -> Any<TensorBuf> {
    let mut buf = TensorBuf::zeros(shape, dtype)?;
    let bytes = buf.bytes_mut()?;
    bytes.copy_from_slice(&poison(bytes.len()));
    Ok(buf)
}

/// Elements that lie apart, the first dimension fastest and backwards, and how many elements that takes.
pub fn apart(shape: &[usize]) -> Any<(Layout, usize)> {
    let mut strides = Vec::new();
    let mut step = 2isize;
    for &size in shape {
        strides.push(step);
        step *= size.max(1) as isize;
    }
    let mut offset = 1;
    if let (Some(first), Some(&size)) = (strides.first_mut(), shape.first())
        && !shape.contains(&0)
    {
        offset += (size - 1) * first.unsigned_abs();
        *first = -*first;
    }
    Ok((Layout::new(shape, &strides, offset)?, step as usize + 2))
}

/// Calls it on this rank in one way, and checks everything that holds for any operation.
pub fn check_way(
    group: &ThreadGroup,
    call: &Call,
    way: Way,
    mine: &Tensor,
    expected: &[Expected],
    at: Deadline,
) -> RankResult {
    let (dtype, what) = (mine.dtype(), || format!("{call:?}, {way:?}"));
    let brought = call.takes_input(group.rank()).then_some(mine);
    let before = bytes_of(mine)?;
    let unchanged = || same_bytes(&format!("{}: the input afterwards", what()), &bytes_of(mine)?, &before);
    if matches!(way, Way::Into | Way::Strided) {
        // A rank that gets nothing brings a buffer all the same, of whatever shape.
        let shape = expected.first().map_or(&[3][..], |e| &e.shape);
        let (mut buf, layout) = if way == Way::Into {
            (poisoned(shape, dtype)?, None)
        } else {
            let (layout, storage) = apart(shape)?;
            (poisoned(&[storage], dtype)?, Some(layout))
        };
        call.call_into(group, brought, &mut buf, layout, at).map_err(|e| format!("{}: {e}", what()))?;
        unchanged()?;
        let all = buf.freeze();
        check!(!all.shares_storage(mine));
        let bytes = all.bytes()?;
        let Some(expected) = expected.first() else {
            check!(is_poison(bytes), "{}: a rank that gets nothing", what());
            return done();
        };
        let Some(layout) = layout else { return same_bytes(&what(), bytes, &expected.bytes) };
        // What the buffer must hold: the result where it is to go, poison elsewhere.
        let mut image = poison(bytes.len());
        let places = positions(shape, layout.strides(), layout.offset());
        for (place, element) in places.zip(expected.bytes.chunks_exact(dtype.size())) {
            image[place * dtype.size()..][..dtype.size()].copy_from_slice(element);
        }
        return same_bytes(&what(), bytes, &image);
    }
    let results = match (way, call) {
        (Way::Started, _) => call.started(group, brought, at).and_then(|wait| wait()),
        (Way::Batch, AllReduce((op, _))) => group.all_reduce_batch(&[mine.clone(), mine.clone()], *op, at),
        _ => call.returned(group, brought, at),
    };
    let results = results.map_err(|e| format!("{}: {e}", what()))?;
    unchanged()?;
    let rounds = if way == Way::Batch { 2 } else { 1 };
    check_eq!(results.len(), expected.len() * rounds, "{}", what());
    for (result, expected) in results.into_iter().zip(expected.iter().cycle()) {
        check_eq!((result.shape(), result.dtype()), (&expected.shape[..], dtype), "{}", what());
        same_bytes(&what(), &bytes_of(&result)?, &expected.bytes)?;
        // A shard may be a view: nothing is communicated.
        if !matches!(call, Shard(..)) {
            is_own(result, mine)?;
        }
    }
    done()
}

/// Combines what is in a buffer, in place.
pub fn check_in_place(
    group: &ThreadGroup,
    (op, _): Operator,
    mut buf: TensorBuf,
    expected: &Expected,
    at: Deadline,
) -> RankResult {
    group.all_reduce_in_place(&mut buf, op, at)?;
    check_eq!(buf.shape(), expected.shape);
    same_bytes("in place", buf.bytes()?, &expected.bytes)
}

/// The same in every way that most operations have, as far as this one has it.
pub fn check_ways(
    group: &ThreadGroup,
    call: &Call,
    mine: &Tensor,
    all: &[Bytes],
    at: Deadline,
) -> RankResult {
    let expected = call.expected(all, mine.dtype()).map_err(|e| format!("{call:?}: {e}"))?;
    let expected: Vec<Expected> = expected[group.rank()].iter().map(Expected::from).collect();
    for way in WAYS.into_iter().filter(|way| call.has(*way)) {
        check_way(group, call, way, mine, &expected, at)?;
    }
    done()
}

/// Where the elements of a strided view lie in its storage, in row-major order.
pub fn positions<'a>(
    shape: &'a [usize],
    strides: &'a [isize],
    offset: usize,
) -> impl Iterator<Item = usize> + 'a {
    let mut index = vec![0; shape.len()];
    let mut next = (!shape.contains(&0)).then_some(offset as isize);
    std::iter::from_fn(move || {
        let here = next?;
        // The next index, as an odometer counts.
        let mut at = here;
        next = (0..shape.len()).rev().find_map(|dim| {
            index[dim] += 1;
            at += strides[dim];
            if index[dim] < shape[dim] {
                return Some(at);
            }
            at -= strides[dim] * shape[dim] as isize;
            index[dim] = 0;
            None
        });
        Some(here as usize)
    })
}
