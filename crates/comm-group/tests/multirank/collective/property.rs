//! Random shapes, views, places and dtypes against the serial answers.

use comm_core::tensor::DType;
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, RankCtx, RankResult, check_eq, done};

use super::all_gather::gather_and_check;
use super::case;
use crate::call::dense;
use crate::support::{
    Number, Place, bytes_of, contribution, expected_sum, group, is_own, random_view, same_bytes, strided,
};

pub fn cases() -> Vec<Case> {
    vec![
        case("all_reduce/sum/any/random", reduces).limit(std::time::Duration::from_secs(300)),
        case("all_gather/-/any/random", gathers).limit(std::time::Duration::from_secs(300)),
    ]
}

fn rounds(ctx: &RankCtx) -> u64 {
    if ctx.full() { 5000 } else { 150 }
}

fn random_shape(rng: &mut SplitMix64) -> Vec<usize> {
    let dims = rng.below(5);
    (0..dims).map(|_| if rng.below(12) == 0 { 0 } else { 1 + rng.below(7) as usize }).collect()
}

fn random_place(rng: &mut SplitMix64) -> Place {
    if rng.below(2) == 0 { Place::Heap } else { Place::Arena }
}

fn reduces(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let rng = ctx.common_rng();
    for round in 0..rounds(ctx) {
        let mut rng = rng.fork(round);
        match rng.below(4) {
            0 => reduce::<f32>(ctx, &group, rng),
            1 => reduce::<f64>(ctx, &group, rng),
            2 => reduce::<i32>(ctx, &group, rng),
            _ => reduce::<i64>(ctx, &group, rng),
        }
        .map_err(|e| format!("round {round}: {e}"))?;
    }
    done()
}

/// The same shape on all ranks, another view of another storage on each.
fn reduce<T: Number>(ctx: &RankCtx, group: &ThreadGroup, mut rng: SplitMix64) -> RankResult {
    let shape = random_shape(&mut rng);
    let views: Vec<_> =
        (0..ctx.world()).map(|_| (random_view(&mut rng, &shape), random_place(&mut rng))).collect();
    let storages: Vec<_> =
        views.iter().enumerate().map(|(r, (v, _))| contribution(&rng, r, T::DTYPE, v.storage)).collect();
    let parts: Vec<Vec<T>> = views
        .iter()
        .zip(&storages)
        .map(|((v, _), s)| T::from_bytes(&v.row_major(s, T::DTYPE.size())))
        .collect();
    let (view, place) = &views[ctx.rank()];
    let input = strided(group, *place, view, T::DTYPE, &storages[ctx.rank()])?;
    let before = bytes_of(&input)?;
    let result = group.all_reduce(&input, ReduceOp::Sum, ctx.deadline())?;
    let what = format!("{} {view:?} in the {place:?}", T::DTYPE);
    check_eq!(result.shape(), shape, "{what}");
    same_bytes(&what, result.bytes()?, &expected_sum(&parts)?)?;
    same_bytes("the input afterwards", &bytes_of(&input)?, &before)?;
    is_own(result, &input)
}

fn gathers(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let rng = ctx.common_rng();
    for round in 0..rounds(ctx) {
        let mut rng = rng.fork(round);
        let dtype = *rng.choose(DType::ALL).ok_or("there are dtypes")?;
        let mut shape = random_shape(&mut rng);
        if shape.is_empty() {
            shape.push(1);
        }
        let dim = rng.below(shape.len() as u64) as usize;
        let views: Vec<_> = (0..ctx.world())
            .map(|_| {
                shape[dim] = rng.below(6) as usize;
                (random_view(&mut rng, &shape), random_place(&mut rng))
            })
            .collect();
        let storages: Vec<_> =
            views.iter().enumerate().map(|(r, (v, _))| contribution(&rng, r, dtype, v.storage)).collect();
        let shards: Vec<_> = views
            .iter()
            .zip(&storages)
            .map(|((v, _), s)| dense(&v.shape, &v.row_major(s, dtype.size()), dtype.size()))
            .collect();
        let (view, place) = &views[ctx.rank()];
        let input = strided(&group, *place, view, dtype, &storages[ctx.rank()])?;
        let what = format!("round {round}: {dtype} {view:?} along {dim} in the {place:?}");
        gather_and_check(ctx, &group, &what, &input, dim, &shards)?;
    }
    done()
}
