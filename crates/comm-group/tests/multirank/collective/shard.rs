//! replicate_to_shard: local, and the inverse of all_gather.

use comm_core::Error;
use comm_core::tensor::{DType, Tensor};
use comm_group::{ThreadGroup, replicate_to_shard, shard_sizes};
use comm_testkit::oracle::{self, Dense};
use comm_testkit::values::Strided;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::call::dense;
use crate::support::{Any, PLACES, bytes_of, contribution, group, strided};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for &dtype in DType::ALL {
        all.push(case(format!("replicate_to_shard/-/{dtype}/round-trip"), move |ctx| round_trip(ctx, dtype)));
    }
    all.push(case("replicate_to_shard/-/i32/vectors", vectors));
    all.push(case("replicate_to_shard/-/f32/sub-split", sub_split));
    all.push(case("replicate_to_shard/-/f32/alone", alone).worlds(|w| w > 1));
    all
}

/// R -> S(d) -> R, along every dimension, from any view.
fn round_trip(ctx: &RankCtx, dtype: DType) -> RankResult {
    let group = group(ctx, "g")?;
    for (i, view) in Strided::cases().into_iter().enumerate() {
        let bytes = contribution(&ctx.common_rng().fork(i as u64), 0, dtype, view.storage);
        for (place, dim) in PLACES.iter().flat_map(|&p| (0..view.shape.len()).map(move |d| (p, d))) {
            let whole = strided(&group, place, &view, dtype, &bytes)?;
            let before = group.team().operations();
            let shard = group.replicate_to_shard(&whole, dim, None)?;
            check_eq!(group.team().operations(), before, "it is no operation of the team");
            let expected = dense(&view.shape, &view.row_major(&bytes, dtype.size()), dtype.size());
            let range = oracle::shard_range(view.shape[dim], ctx.world(), ctx.rank());
            check_eq!(shard.shape()[dim], range.len());
            check_eq!(bytes_of(&shard)?, expected.narrow(dim, range).data.concat(), "{}", view.name);
            let back = group.all_gather(&shard, dim, ctx.deadline())?;
            check!(back.bytes_equal(&whole)?, "{} along {dim}", view.name);
        }
    }
    done()
}

/// The published vectors, and all small sizes.
fn vectors(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    check_eq!(shard_sizes(11, 4), [3, 3, 3, 2]);
    for n in 0..20usize {
        check_eq!(shard_sizes(n, ctx.world()), oracle::shard_sizes(n, ctx.world()));
        let whole = Tensor::from_slice(&[n], &(0..n as i32).collect::<Vec<_>>())?;
        let shard = group.replicate_to_shard(&whole, 0, None)?.to_vec::<i32>()?;
        let expected: Vec<i32> = oracle::shard_range(n, ctx.world(), ctx.rank()).map(|i| i as i32).collect();
        check_eq!(shard, expected, "{n}");
        for cut in 0..n + 2 {
            let seen = group.replicate_to_shard(&whole, 0, Some(cut));
            match oracle::sub_split(n, ctx.world(), cut) {
                Some(ranks) => {
                    let expected: Vec<i32> = ranks[ctx.rank()].iter().map(|&i| i as i32).collect();
                    check_eq!(seen?.to_vec::<i32>()?, expected, "{n} cut at {cut}");
                }
                None => check!(matches!(seen, Err(Error::InvalidArgument { .. })), "{n} cut at {cut}"),
            }
        }
    }
    let of = |n: i32, world, cut, rank| -> Any<Vec<i32>> {
        let whole = Tensor::from_slice(&[n as usize], &(0..n).collect::<Vec<_>>())?;
        Ok(replicate_to_shard(&whole, 0, Some(cut), rank, world)?.to_vec()?)
    };
    check_eq!(of(8, 2, 3, 0)?, [0, 1, 4, 5]);
    check_eq!(of(9, 2, 4, 1)?, [3, 4, 7, 8]);
    check_eq!(of(10, 3, 5, 1)?, [2, 3, 8]);
    done()
}

/// A sub-split along any dimension of any view; put together and sorted, the shards are the whole.
fn sub_split(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for view in [
        Strided { name: "turned", shape: vec![9, 4], strides: vec![-1, 9], offset: 8, storage: 36 },
        Strided { name: "dense", shape: vec![4, 11], strides: vec![11, 1], offset: 0, storage: 44 },
    ] {
        let bytes = contribution(&ctx.common_rng(), 0, DType::F32, view.storage);
        let whole = dense(&view.shape, &view.row_major(&bytes, 4), 4);
        for (place, dim) in PLACES.iter().flat_map(|&p| (0..2).map(move |d| (p, d))) {
            let replica = strided(&group, place, &view, DType::F32, &bytes)?;
            for cut in 1..view.shape[dim] {
                let ranks = oracle::sub_split(view.shape[dim], ctx.world(), cut).ok_or("a cut inside")?;
                let before = group.team().operations();
                let shard = group.replicate_to_shard(&replica, dim, Some(cut))?;
                check_eq!(group.team().operations(), before);
                check_eq!(bytes_of(&shard)?, whole.select(dim, &ranks[ctx.rank()]).data.concat());
                let parts: Vec<Dense<_>> = ranks.iter().map(|r| whole.select(dim, r)).collect();
                let all = Dense::concat(&parts, dim).ok_or("shards that fit")?;
                check_eq!(bytes_of(&group.all_gather(&shard, dim, ctx.deadline())?)?, all.data.concat());
            }
        }
    }
    done()
}

/// No peer takes part: it works while the others are elsewhere, and when they have left.
fn alone(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let whole = Tensor::from_slice(&[7, 2], &(0..14).map(|i| i as f32).collect::<Vec<_>>())?;
    let mine = |group: &ThreadGroup| -> Any<Vec<u8>> {
        let plain = group.replicate_to_shard(&whole, 0, None)?;
        let split = group.replicate_to_shard(&whole, 0, Some(3))?;
        Ok([bytes_of(&plain)?, bytes_of(&split)?].concat())
    };
    let together = mine(&group)?;
    if ctx.rank() != 0 {
        return done();
    }
    // The others leave now or have left; the barrier that fails for it shows when.
    let error = group.barrier(ctx.deadline()).err();
    check!(matches!(error, Some(Error::PeerLeft { .. })), "{error:?}");
    check_eq!(mine(&group)?, together);
    group.team().abort("on purpose");
    check_eq!(mine(&group)?, together, "even on a team that is over");
    done()
}
