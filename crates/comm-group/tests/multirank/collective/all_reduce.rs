//! all_reduce: every operator, in rank order.

use comm_core::tensor::{DType, Tensor};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::oracle::reduce::{Reduction, reduce};
use comm_testkit::values::{SplitMix64, Strided, digit_coded, special_elements};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done, oracle};

use super::case;
use crate::support::{
    Number, PLACES, bytes_of, contribution, exists, expected_sum, group, is_own, operator_name, operators,
    same_bytes, strided, tensor,
};

pub fn cases() -> Vec<Case> {
    let mut all = [of::<f32>(), of::<f64>(), of::<i32>(), of::<i64>()].concat();
    all.push(case("all_reduce/sum/i32/digits", digits::<i32>));
    all.push(case("all_reduce/sum/i64/digits", digits::<i64>));
    all.push(case("all_reduce/sum/f32/order", order::<f32>).worlds(|w| w > 1));
    all.push(case("all_reduce/sum/f64/order", order::<f64>).worlds(|w| w > 1));
    for (op, oracle) in operators() {
        for &dtype in DType::ALL.iter().filter(|dtype| exists(oracle, **dtype)) {
            let name = format!("all_reduce/{}/{dtype}/dense", operator_name(op));
            all.push(case(name, move |ctx| dense(ctx, op, oracle, dtype)));
        }
    }
    all.push(case("all_reduce/sum/f32/one-rank", one_rank));
    all.push(case("all_reduce/sum/i64/nothing-shared", nothing_shared));
    all
}

fn of<T: Number>() -> Vec<Case> {
    let name = |variant: &str| format!("all_reduce/sum/{}/{variant}", T::DTYPE);
    vec![
        case(name("sizes"), sizes::<T>),
        case(name("strided"), strides::<T>),
        case(name("special"), special::<T>),
    ]
}

/// Sums up and checks everything that holds for any input.
fn reduce_and_check(
    ctx: &RankCtx,
    group: &ThreadGroup,
    what: &str,
    input: &Tensor,
    expected: &[u8],
) -> RankResult {
    combine_and_check(ctx, group, ReduceOp::Sum, what, input, expected)
}

fn combine_and_check(
    ctx: &RankCtx,
    group: &ThreadGroup,
    op: ReduceOp,
    what: &str,
    input: &Tensor,
    expected: &[u8],
) -> RankResult {
    let before = bytes_of(input)?;
    let result = group.all_reduce(input, op, ctx.deadline())?;
    check_eq!((result.shape(), result.dtype()), (input.shape(), input.dtype()), "{what}");
    same_bytes(what, result.bytes()?, expected)?;
    same_bytes(&format!("{what}: the input afterwards"), &bytes_of(input)?, &before)?;
    is_own(result, input)
}

/// Element counts at which something could go wrong: fewer than ranks, not a multiple, around and above the block.
fn lengths(world: usize, element: usize) -> Vec<usize> {
    let mut lengths = vec![0, 1, 2, 3, world - 1, world, world + 1, 7, 1000, 65_535, 65_536, 65_537];
    lengths.push((1 << 20) / element);
    lengths.sort();
    lengths.dedup();
    lengths
}

fn sizes<T: Number>(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for (place, n) in
        PLACES.iter().flat_map(|&p| lengths(ctx.world(), T::DTYPE.size()).into_iter().map(move |n| (p, n)))
    {
        let rng = ctx.common_rng().fork(n as u64);
        let parts: Vec<Vec<u8>> = (0..ctx.world()).map(|r| contribution(&rng, r, T::DTYPE, n)).collect();
        let expected = expected_sum(&parts.iter().map(|p| T::from_bytes(p)).collect::<Vec<_>>())?;
        let input = tensor(&group, place, &[n], T::DTYPE, &parts[ctx.rank()])?;
        reduce_and_check(ctx, &group, &format!("{n} elements, {place:?}"), &input, &expected)?;
    }
    done()
}

/// Few elements, which go in letters, and more than a block of each rank's.
fn dense(ctx: &RankCtx, op: ReduceOp, oracle: Reduction, dtype: DType) -> RankResult {
    let group = group(ctx, "g")?;
    // The oracle looks through all numbers of fp8 for each element.
    let many = if dtype.name().starts_with("f8") { 1000 } else { 5000 };
    let [few, many] = [7, many].map(|n| {
        let rng = ctx.common_rng().fork(n as u64);
        (0..ctx.world()).map(|r| contribution(&rng, r, dtype, n)).collect::<Vec<_>>()
    });
    // Blocks repeat the same elements: what lies at their borders differs all the same.
    let repeated =
        many.iter().map(|part| part.repeat(1 + 40 * 1024 * ctx.world() / part.len())).collect::<Vec<_>>();
    let expected_many = reduce(oracle, dtype, &many).ok_or("the oracle has it")?;
    let expected_repeated = expected_many.repeat(repeated[0].len() / many[0].len());
    let expected_few = reduce(oracle, dtype, &few).ok_or("the oracle has it")?;
    for place in PLACES {
        for (parts, expected) in [(&few, &expected_few), (&repeated, &expected_repeated)] {
            let n = expected.len() / dtype.size();
            let input = tensor(&group, place, &[n], dtype, &parts[ctx.rank()])?;
            combine_and_check(ctx, &group, op, &format!("{n} elements, {place:?}"), &input, expected)?;
        }
    }
    done()
}

fn strides<T: Number>(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let big = Strided {
        name: "big-transposed",
        shape: vec![300, 171],
        strides: vec![1, 300],
        offset: 0,
        storage: 300 * 171,
    };
    for (i, view) in Strided::cases().into_iter().chain([big]).enumerate() {
        for place in PLACES {
            let rng = ctx.common_rng().fork(i as u64);
            let storages: Vec<Vec<u8>> =
                (0..ctx.world()).map(|r| contribution(&rng, r, T::DTYPE, view.storage)).collect();
            let dense = |s: &Vec<u8>| T::from_bytes(&view.row_major(s, T::DTYPE.size()));
            let expected = expected_sum(&storages.iter().map(dense).collect::<Vec<_>>())?;
            let input = strided(&group, place, &view, T::DTYPE, &storages[ctx.rank()])?;
            check_eq!(input.shape(), view.shape);
            reduce_and_check(ctx, &group, &format!("{}, {place:?}", view.name), &input, &expected)?;
        }
    }
    done()
}

/// Every combination of special values over the ranks.
fn special<T: Number>(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let values = T::from_bytes(&special_elements(T::DTYPE).concat());
    let k = values.len();
    let n = k.pow(ctx.world() as u32);
    let of = |rank: usize| (0..n).map(|i| values[i / k.pow(rank as u32) % k]).collect::<Vec<T>>();
    let parts: Vec<Vec<T>> = (0..ctx.world()).map(of).collect();
    let input = Tensor::from_slice(&[n], &parts[ctx.rank()])?;
    reduce_and_check(ctx, &group, "special values", &input, &expected_sum(&parts)?)
}

/// Each decimal digit of the sum says how often a rank was counted.
fn digits<T: Number>(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for n in lengths(ctx.world(), T::DTYPE.size()) {
        let mine: Vec<T> = (0..n).map(|i| T::from_int(digit_coded(ctx.rank(), i % 9))).collect();
        let ones: i64 = (0..ctx.world()).map(|r| digit_coded(r, 0)).sum();
        let all: Vec<T> = (0..n).map(|i| T::from_int(ones * (i as i64 % 9 + 1))).collect();
        let expected = Tensor::from_slice(&[n], &all)?;
        let input = Tensor::from_slice(&[n], &mine)?;
        reduce_and_check(ctx, &group, &format!("{n} elements"), &input, expected.bytes()?)?;
    }
    done()
}

/// Numbers whose sum depends on the order in which they are added.
fn order<T: Number>(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    // One unit in the last place of 2^24 or 2^53 is 2: small numbers vanish beside it, one by one.
    let large = 1i64 << if T::DTYPE == DType::F32 { 24 } else { 53 };
    let choices = [large, -large, 1, 3, -1, large / 2 + 1];
    let mut orders = 0;
    for (round, n) in [1, ctx.world(), 1000, 65_537].into_iter().enumerate() {
        let rng = ctx.common_rng().fork(round as u64);
        let of = |rank: usize| {
            let mut rng = rng.fork(rank as u64);
            (0..n).map(|_| T::from_int(choices[rng.below(choices.len() as u64) as usize])).collect::<Vec<T>>()
        };
        let parts: Vec<Vec<T>> = (0..ctx.world()).map(of).collect();
        let expected = expected_sum(&parts)?;
        let reversed: Vec<Vec<T>> = parts.iter().rev().cloned().collect();
        orders += usize::from(expected_sum(&reversed)? != expected);
        let input = Tensor::from_slice(&[n], &parts[ctx.rank()])?;
        for _ in 0..5 {
            reduce_and_check(ctx, &group, &format!("{n} elements"), &input, &expected)?;
        }
    }
    // Of two numbers there is one sum only.
    check!(ctx.world() == 2 || orders >= 2, "another order would not have been noticed");
    done()
}

fn one_rank(ctx: &RankCtx) -> RankResult {
    let team = comm_core::team::Team::join(&ctx.name(&format!("solo-{}", ctx.rank())), 0, 1, ctx.deadline())?;
    let group = ThreadGroup::new(team, ctx.deadline())?;
    let odd = [f32::from_bits(0xffc0_1234), -0.0, 1.5, f32::from_bits(1), f32::NEG_INFINITY];
    for place in PLACES {
        let view = Strided::cases().remove(5);
        let bytes = contribution(&ctx.rng(), 0, DType::F32, view.storage);
        let input = strided(&group, place, &view, DType::F32, &bytes)?;
        let expected = expected_sum(&[f32::from_bytes(&view.row_major(&bytes, 4))])?;
        reduce_and_check(ctx, &group, view.name, &input, &expected)?;
    }
    let input = Tensor::from_slice(&[5], &odd)?;
    reduce_and_check(ctx, &group, "odd values", &input, &expected_sum(&[odd.to_vec()])?)?;
    group.barrier(ctx.deadline())?;
    check_eq!(group.all_gather(&input, 0, ctx.deadline())?.bytes()?, input.bytes()?);
    done()
}

/// Results of different ranks, and a result and the inputs, are different memory: writing one changes no other.
fn nothing_shared(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mut rng = SplitMix64::new(ctx.seed());
    for place in PLACES {
        for n in [1, 64, 5000] {
            let n = n + rng.below(3) as usize;
            let parts: Vec<Vec<i64>> = (0..ctx.world()).map(|r| vec![digit_coded(r, 0); n]).collect();
            let bytes = Tensor::from_slice(&[n], &parts[ctx.rank()])?;
            let input = tensor(&group, place, &[n], DType::I64, bytes.bytes()?)?;
            let result = group.all_reduce(&input, ReduceOp::Sum, ctx.deadline())?;
            let gathered = group.all_gather(&input, 0, ctx.deadline())?;
            check_eq!(result.to_vec::<i64>()?, oracle::sum(&parts));
            let mine = -1 - ctx.rank() as i64;
            let mut result = result.try_into_buf().map_err(|_| "the result is held by somebody")?;
            let mut gathered = gathered.try_into_buf().map_err(|_| "the result is held by somebody")?;
            group.barrier(ctx.deadline())?;
            result.fill(mine)?;
            gathered.fill(mine)?;
            group.barrier(ctx.deadline())?;
            check!(result.as_slice::<i64>()?.iter().all(|&x| x == mine), "another rank wrote here");
            check!(gathered.as_slice::<i64>()?.iter().all(|&x| x == mine), "another rank wrote here");
            check_eq!(input.to_vec::<i64>()?, parts[ctx.rank()]);
            check!(input.try_into_buf().is_ok(), "somebody holds the input after the call");
        }
    }
    done()
}
