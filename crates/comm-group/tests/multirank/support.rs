//! What the cases have in common: groups, inputs, and the comparison of results.

use std::ptr::NonNull;
use std::sync::Arc;

use comm_core::Error;
use comm_core::device::Device;
use comm_core::shm::{Access, Segment};
use comm_core::team::Team;
use comm_core::tensor::{DType, Element, Foreign, Layout, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::oracle::Summand;
use comm_testkit::oracle::reduce::{Reduction, reduce};
use comm_testkit::values::{SplitMix64, Strided, random_elements};
use comm_testkit::{RankCtx, RankReport, RankResult, check, check_eq, done};

pub type Any<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A group of all ranks of the launch; the name makes it another one within a case.
pub fn group(ctx: &RankCtx, name: &str) -> Result<ThreadGroup, Error> {
    let team = Team::join(&ctx.name(name), ctx.rank(), ctx.world(), ctx.deadline())?;
    ThreadGroup::new(team, ctx.deadline())
}

/// Where an input lies: peers in other processes reach the arena, and everything else only through a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Heap,
    Arena,
    /// Memory that somebody else has allocated.
    Foreign,
    /// Memory that another process may write.
    Imported,
}

pub const PLACES: [Place; 2] = [Place::Heap, Place::Arena];

pub const EVERYWHERE: [Place; 4] = [Place::Heap, Place::Arena, Place::Foreign, Place::Imported];

/// A dense tensor from the bytes of its elements.
pub fn tensor(group: &ThreadGroup, place: Place, shape: &[usize], dtype: DType, bytes: &[u8]) -> Any<Tensor> {
    let mut buf = match place {
        Place::Heap => TensorBuf::zeros(shape, dtype)?,
        Place::Arena => TensorBuf::zeros_in(group.team().hub().tensors(), shape, dtype)?,
        Place::Foreign => return foreign(shape, dtype, bytes),
        Place::Imported => {
            let segment = Segment::create(bytes.len().max(1) as u64, Access::ReadOnly)?;
            segment.copy_in(0, bytes)?;
            return Ok(Tensor::import(&Arc::new(segment), 0, dtype, Layout::contiguous(shape)?)?);
        }
    };
    buf.bytes_mut()?.copy_from_slice(bytes);
    Ok(buf.freeze())
}

fn foreign(shape: &[usize], dtype: DType, bytes: &[u8]) -> Any<Tensor> {
    // Words, so that any element is aligned.
    let mut owner = vec![0u128; bytes.len().div_ceil(16)];
    let start = NonNull::new(owner.as_mut_ptr()).ok_or("a vector has an address")?.cast::<u8>();
    // SAFETY: the vector has at least so many bytes, and nothing else refers to them yet.
    unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes.len()) }.copy_from_slice(bytes);
    // SAFETY: the deleter owns the vector, so its bytes stay until it runs, and nobody writes them from here on.
    let memory = unsafe { Foreign::read_only(start, bytes.len(), Device::Cpu, move || drop(owner)) };
    Ok(Tensor::from_foreign(memory, dtype, Layout::contiguous(shape)?)?)
}

/// A view as the case describes it, over a storage of these bytes.
pub fn strided(
    group: &ThreadGroup,
    place: Place,
    case: &Strided,
    dtype: DType,
    storage: &[u8],
) -> Any<Tensor> {
    let dense = tensor(group, place, &[case.storage], dtype, storage)?;
    Ok(dense.with_layout(Layout::new(&case.shape, &case.strides, case.offset)?)?)
}

/// A random view of a shape: any strides, forwards, backwards and none, from anywhere in its storage.
pub fn random_view(rng: &mut SplitMix64, shape: &[usize]) -> Strided {
    let strides: Vec<isize> = shape.iter().map(|_| rng.below(9) as isize - 4).collect();
    let (mut below, mut above) = (0, 0);
    if !shape.contains(&0) {
        for (&n, &stride) in shape.iter().zip(&strides) {
            let reach = (n - 1) * stride.unsigned_abs();
            if stride < 0 { below += reach } else { above += reach }
        }
    }
    let offset = below + rng.below(4) as usize;
    let storage = offset + above + 1 + rng.below(4) as usize;
    Strided { name: "random", shape: shape.to_vec(), strides, offset, storage }
}

/// The same in another order.
pub fn shuffled<T>(rng: &mut SplitMix64, mut all: Vec<T>) -> Vec<T> {
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
    all
}

/// The bytes of the elements, in row-major order.
pub fn bytes_of(tensor: &Tensor) -> Any<Vec<u8>> {
    let mut bytes = vec![0; tensor.nbytes()];
    tensor.copy_bytes_to(&mut bytes)?;
    Ok(bytes)
}

/// A number that can be summed, as the cases need it.
pub trait Number: Element + Summand + Send + Sync {
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
    /// What the library promises to make of it: every NaN is the same.
    fn canonical(self) -> Self;
    fn from_int(i: i64) -> Self;
}

macro_rules! number {
    ($($t:ty: |$x:ident| $canonical:expr;)*) => {$(
        impl Number for $t {
            fn from_bytes(bytes: &[u8]) -> Vec<$t> {
                bytes.as_chunks().0.iter().map(|b| <$t>::from_ne_bytes(*b)).collect()
            }
            fn canonical(self) -> $t {
                let $x = self;
                $canonical
            }
            fn from_int(i: i64) -> $t {
                i as $t
            }
        }
    )*};
}
number! {
    f32: |x| if x.is_nan() { f32::from_bits(0x7fc0_0000) } else { x };
    f64: |x| if x.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { x };
    i32: |x| x;
    i64: |x| x;
}

/// All operators, and what the oracle calls them.
pub fn operators() -> [(ReduceOp, Reduction); 11] {
    [
        (ReduceOp::Sum, Reduction::Sum),
        (ReduceOp::Prod, Reduction::Prod),
        (ReduceOp::Min, Reduction::Min),
        (ReduceOp::Max, Reduction::Max),
        (ReduceOp::Avg, Reduction::Avg),
        (ReduceOp::premul_sum(-0.3), Reduction::PremulSum(-0.3)),
        (ReduceOp::BitAnd, Reduction::BitAnd),
        (ReduceOp::BitOr, Reduction::BitOr),
        (ReduceOp::BitXor, Reduction::BitXor),
        (ReduceOp::And, Reduction::And),
        (ReduceOp::Or, Reduction::Or),
    ]
}

/// The operator in the name of a case, without its factor.
pub fn operator_name(op: ReduceOp) -> String {
    op.to_string().split('(').next().unwrap_or_default().to_string()
}

/// Whether the oracle has the operator for the dtype.
pub fn exists(op: Reduction, dtype: DType) -> bool {
    reduce(op, dtype, &[Vec::new()]).is_some()
}

/// The sum that every rank must get, as bytes.
pub fn expected_sum<T: Number>(contributions: &[Vec<T>]) -> Any<Vec<u8>> {
    let sum: Vec<T> = comm_testkit::oracle::sum(contributions).into_iter().map(T::canonical).collect();
    Ok(Tensor::from_slice(&[sum.len()], &sum)?.bytes()?.to_vec())
}

/// Random elements of one rank, special values among them; every rank can compute those of all.
pub fn contribution(rng: &SplitMix64, rank: usize, dtype: DType, numel: usize) -> Vec<u8> {
    random_elements(&mut rng.fork(rank as u64), dtype, numel)
}

/// That all ranks of a launch have ended well; else what became of each that has not, for one's error may only be that another
/// has left.
pub fn all_ok(reports: &[RankReport]) -> Any<()> {
    let bad = reports.iter().filter(|report| !report.outcome.is_ok());
    let bad: Vec<String> = bad.map(|report| format!("rank {}: {}", report.rank, report.outcome)).collect();
    if bad.is_empty() { Ok(()) } else { Err(bad.join("; ").into()) }
}

/// Compares bit for bit, and says where the first difference is.
pub fn same_bytes(what: &str, seen: &[u8], expected: &[u8]) -> RankResult {
    if seen == expected {
        return done();
    }
    check_eq!(seen.len(), expected.len(), "{what}");
    if let Some(at) = (0..seen.len()).find(|&i| seen[i] != expected[i]) {
        let end = (at + 8).min(seen.len());
        let (seen, expected) = (&seen[at..end], &expected[at..end]);
        return Err(format!("{what}: from byte {at} on {seen:02x?}, expected {expected:02x?}").into());
    }
    done()
}

/// A result is the caller's alone: no view of the input, of memory that a peer holds, or of another result.
pub fn is_own(result: Tensor, input: &Tensor) -> RankResult {
    check!(!result.shares_storage(input), "the result shares its memory with the input");
    check!(result.is_contiguous() && result.is_ours());
    check!(result.try_into_buf().is_ok(), "somebody else holds the result");
    done()
}
