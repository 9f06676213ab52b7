//! all_gather: shards, also uneven ones, become the whole.

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::ThreadGroup;
use comm_testkit::oracle::Dense;
use comm_testkit::values::Strided;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::call::dense;
use crate::support::{Any, PLACES, bytes_of, contribution, group, is_own, same_bytes, strided, tensor};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for &dtype in DType::ALL {
        all.push(case(format!("all_gather/-/{dtype}/uneven"), move |ctx| uneven(ctx, dtype)));
        all.push(case(format!("all_gather/-/{dtype}/strided"), move |ctx| strides(ctx, dtype)));
    }
    all.push(case("all_gather/-/f32/large", large));
    all.push(case("all_gather/-/f64/no-elements", no_elements).worlds(|w| w > 1));
    all.push(case("all_gather/-/f32/no-such-dim", no_such_dim));
    all.push(case("all_gather/-/u8/too-large", too_large).worlds(|w| w > 1));
    all
}

/// Gathers and checks everything that holds for any shards.
pub fn gather_and_check(
    ctx: &RankCtx,
    group: &ThreadGroup,
    what: &str,
    input: &Tensor,
    dim: usize,
    shards: &[Dense<Vec<u8>>],
) -> RankResult {
    let expected = Dense::concat(shards, dim).ok_or("the shards do not fit together")?;
    let before = bytes_of(input)?;
    let whole = group.all_gather(input, dim, ctx.deadline())?;
    check_eq!((whole.shape(), whole.dtype()), (&expected.shape[..], input.dtype()), "{what}");
    same_bytes(what, whole.bytes()?, &expected.data.concat())?;
    same_bytes(&format!("{what}: the input afterwards"), &bytes_of(input)?, &before)?;
    is_own(whole, input)
}

fn uneven(ctx: &RankCtx, dtype: DType) -> RankResult {
    let group = group(ctx, "g")?;
    let base = [3, 5, 2];
    for dim in 0..base.len() {
        let mut rng = ctx.common_rng().fork(dim as u64);
        // One with an empty shard for sure, then whatever comes, then nothing but empty ones.
        for round in 0..3 {
            let mut sizes: Vec<usize> = (0..ctx.world()).map(|_| rng.below(4) as usize).collect();
            match round {
                0 => sizes[rng.below(ctx.world() as u64) as usize] = 0,
                1 => sizes[0] += 1,
                _ => sizes.fill(0),
            }
            let shape = |rank: usize| {
                let mut shape = base.to_vec();
                shape[dim] = sizes[rank];
                shape
            };
            let bytes: Vec<Vec<u8>> =
                (0..ctx.world()).map(|r| contribution(&rng, r, dtype, shape(r).iter().product())).collect();
            let shards: Vec<_> =
                (0..ctx.world()).map(|r| dense(&shape(r), &bytes[r], dtype.size())).collect();
            for place in PLACES {
                let input = tensor(&group, place, &shape(ctx.rank()), dtype, &bytes[ctx.rank()])?;
                let what = format!("shards of {sizes:?} along {dim}, {place:?}");
                gather_and_check(ctx, &group, &what, &input, dim, &shards)?;
            }
        }
    }
    done()
}

fn strides(ctx: &RankCtx, dtype: DType) -> RankResult {
    let group = group(ctx, "g")?;
    for (i, view) in Strided::cases().into_iter().enumerate() {
        let rng = ctx.common_rng().fork(i as u64);
        let storages: Vec<Vec<u8>> =
            (0..ctx.world()).map(|r| contribution(&rng, r, dtype, view.storage)).collect();
        let shards: Vec<_> = storages
            .iter()
            .map(|s| dense(&view.shape, &view.row_major(s, dtype.size()), dtype.size()))
            .collect();
        for dim in 0..view.shape.len() {
            for place in PLACES {
                let input = strided(&group, place, &view, dtype, &storages[ctx.rank()])?;
                let what = format!("{} along {dim}, {place:?}", view.name);
                gather_and_check(ctx, &group, &what, &input, dim, &shards)?;
            }
        }
    }
    done()
}

/// More than a block, in many short runs and in one long one.
fn large(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for (shape, dim) in [([4001, 33], 0), ([4001, 33], 1)] {
        let mut mine = shape;
        mine[dim] += ctx.rank();
        let numel = mine.iter().product::<usize>();
        let values: Vec<f32> = (0..numel).map(|i| (ctx.rank() * 1_000_000 + i) as f32).collect();
        let whole = group.all_gather(&Tensor::from_slice(&mine, &values)?, dim, ctx.deadline())?;
        let seen = whole.as_slice::<f32>()?;
        // Elements by index, without the copies of the slow oracle.
        let (mut at, mut next) = (0, vec![0usize; ctx.world()]);
        let outer: usize = shape[..dim].iter().product();
        let inner: usize = shape[dim + 1..].iter().product();
        for _ in 0..outer {
            for (rank, next) in next.iter_mut().enumerate() {
                for _ in 0..(shape[dim] + rank) * inner {
                    let expected = (rank * 1_000_000 + *next) as f32;
                    check!(seen[at] == expected, "element {at} is {}, expected {expected}", seen[at]);
                    at += 1;
                    *next += 1;
                }
            }
        }
        check_eq!(at, seen.len());
    }
    done()
}

/// Without elements the other sizes may be anything that fits: nothing is moved, and nothing is counted through.
fn no_elements(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let empty = |shape: &[usize]| TensorBuf::zeros(shape, DType::F64).map(TensorBuf::freeze);
    let n = ctx.world();
    for (shape, dim, expected) in [
        (vec![0, 1 << 61], 0, vec![0, 1 << 61]),
        (vec![1 << 59, 0], 0, vec![n << 59, 0]),
        (vec![1 << 61, 0], 1, vec![1 << 61, 0]),
        (vec![1 << 30, 0, 1 << 30], 1, vec![1 << 30, 0, 1 << 30]),
    ] {
        let whole = group.all_gather(&empty(&shape)?, dim, ctx.deadline())?;
        check_eq!((whole.shape(), whole.numel()), (&expected[..], 0));
        check_eq!(group.all_reduce(&empty(&shape)?, Default::default(), ctx.deadline())?.shape(), shape);
    }
    // One rank has something after all, and the sizes around it are large.
    let mine = TensorBuf::zeros(&[1, usize::from(ctx.rank() == 1), 1], DType::F64)?.freeze();
    check_eq!(group.all_gather(&mine, 1, ctx.deadline())?.shape(), [1, 1, 1]);
    done()
}

fn no_such_dim(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let scalar = Tensor::from_slice(&[], &[1f32])?;
    let matrix = Tensor::from_slice(&[1, 2], &[1f32, 2.0])?;
    for (input, dim) in
        [(&scalar, 0), (&scalar, usize::MAX), (&matrix, 2), (&matrix, 16), (&matrix, usize::MAX)]
    {
        let error = group.all_gather(input, dim, ctx.deadline()).err();
        check!(matches!(error, Some(Error::InvalidArgument { .. })), "dimension {dim}: {error:?}");
        let next = group.all_gather(&matrix, 0, ctx.deadline())?;
        check_eq!(next.shape(), [ctx.world(), 2], "the next operation works");
    }
    done()
}

/// Shards that claim more than can be addressed or held, in a few bytes of memory each.
fn too_large(ctx: &RankCtx) -> RankResult {
    // Together more than there are addresses: all ranks say so, and go on.
    let survivors = group(ctx, "sum")?;
    for n in [1usize << 62, (1 << 63) - 1] {
        let empty = TensorBuf::zeros(&[n, 0], DType::U8)?.freeze();
        let error = survivors.all_gather(&empty, 0, ctx.deadline()).err();
        check!(matches!(error, Some(Error::InvalidArgument { .. })), "{error:?}");
    }
    survivors.barrier(ctx.deadline())?;
    // Each more than there is memory: whoever notices first says so, and ends the team for all.
    for (i, n) in [1usize << 45, 1 << 62].into_iter().enumerate() {
        for alone in [false, true] {
            let group = group(ctx, &format!("huge-{i}-{alone}"))?;
            let n = if alone && ctx.rank() != 1 { 3 } else { n };
            let input = Tensor::from_slice(&[1], &[7u8])?.expand(&[n])?;
            let error = group.all_gather(&input, 0, ctx.deadline()).err();
            let error: Any<Error> = error.ok_or_else(|| "it fits".into());
            match error? {
                Error::OutOfMemory { .. } if n > 3 => {}
                Error::Aborted { by, reason, .. } => {
                    check!(reason.contains("out of memory"), "{reason}");
                    check!(!alone || by == 1, "aborted by {by}");
                }
                other => return Err(format!("{n} elements: {other}").into()),
            }
        }
    }
    survivors.barrier(ctx.deadline())?;
    done()
}
