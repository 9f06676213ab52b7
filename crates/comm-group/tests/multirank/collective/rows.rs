//! all_to_all_rows: numbers that do not fit together are a verdict, where others wait for rows that do not come.

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::call::{Call, check_ways, dense, rows_of};
use crate::support::{contribution, group};

pub fn cases() -> Vec<Case> {
    vec![
        case("all_to_all_rows/-/f32/random", random),
        case("all_to_all_rows/-/f32/one-awaits-another-number", wrong_count).worlds(|w| w > 1),
        case("all_to_all_rows/-/f32/not-all-rows", not_all_rows),
        case("all_to_all_rows/-/f32/not-one-for-each", wrong_length),
    ]
}

/// Numbers drawn afresh each round, as tokens for experts: most of them for few, often none at all.
fn random(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    for round in 0..30 {
        let mut rng = ctx.common_rng().fork(round);
        let favourite = rng.below(n as u64) as usize;
        let width = [0, 1, 3, 64][rng.below(4) as usize];
        let count = |rng: &mut comm_testkit::values::SplitMix64, to: usize| match rng.below(3) {
            0 => 0,
            _ => rng.below(if to == favourite { 9 } else { 3 }) as usize,
        };
        let send: Vec<Vec<usize>> = (0..n).map(|_| (0..n).map(|to| count(&mut rng, to)).collect()).collect();
        let shape = |r: usize| [send[r].iter().sum::<usize>(), width];
        let bytes: Vec<_> =
            (0..n).map(|r| contribution(&rng, r, DType::F32, shape(r).iter().product())).collect();
        let inputs: Vec<_> = (0..n).map(|r| dense(&shape(r), &bytes[r], 4)).collect();
        let mut mine = TensorBuf::zeros(&shape(ctx.rank()), DType::F32)?;
        mine.bytes_mut()?.copy_from_slice(&bytes[ctx.rank()]);
        check_ways(&group, &Call::Rows(send), &mine.freeze(), &inputs, ctx.deadline())
            .map_err(|e| format!("round {round}: {e}"))?;
    }
    done()
}

fn works(ctx: &RankCtx, group: &ThreadGroup) -> RankResult {
    let sum = group.all_reduce(&Tensor::from_slice(&[1], &[1i32])?, ReduceOp::Sum, ctx.deadline())?;
    check_eq!(sum.to_vec::<i32>()?, [ctx.world() as i32]);
    done()
}

fn matrix(rows: usize) -> Result<Tensor, Error> {
    // Larger than what a letter carries.
    Ok(TensorBuf::zeros(&[rows, 200], DType::F32)?.freeze())
}

/// One rank awaits, or sends, another number than its peers think: all hear at once who, and what both say.
fn wrong_count(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    for odd in 0..n {
        for sends in [false, true] {
            let send = vec![vec![2; n]; n];
            let (mut mine, mut from) = rows_of(&send, ctx.rank());
            if ctx.rank() == odd {
                if sends { &mut mine } else { &mut from }.iter_mut().for_each(|count| *count += 1);
            }
            let input = matrix(mine.iter().sum())?;
            match group.all_to_all_rows(&input, &mine, &from, ctx.deadline()) {
                Err(Error::Mismatch { rank, field: "sizes", theirs, others, .. }) => {
                    // With itself it is at odds, too; of two ranks both are with the other.
                    check!(rank == odd || n == 2, "rank {rank} is named, not {odd}");
                    let [said, meant] = if sends { ["sends 3", "awaits 2"] } else { ["awaits 3", "sends 2"] };
                    check!(n == 2 || theirs.contains(said), "{theirs}");
                    check!(n == 2 || others.contains(meant), "{others}");
                }
                other => return Err(format!("rank {odd} differs: {other:?}").into()),
            }
            works(ctx, &group)?;
        }
    }
    // Only one pair: the others agree with everybody.
    let (mut mine, from) = (vec![1; n], vec![1; n]);
    if ctx.rank() == 0 {
        mine[1] = 2;
    }
    let input = matrix(mine.iter().sum())?;
    match group.all_to_all_rows(&input, &mine, &from, ctx.deadline()) {
        Err(Error::Mismatch { rank, field: "sizes", theirs, others, .. }) => {
            check!(rank <= 1, "{rank}");
            let both = format!("{theirs}; {others}");
            check!(both.contains("sends 2 to") && both.contains("awaits 1 from rank 0"), "{both}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    works(ctx, &group)
}

/// A rank has other rows than it says that it sends: all refuse.
fn not_all_rows(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    for rows in [0, n - 1, n + 1, 50] {
        let input = matrix(if ctx.rank() == n - 1 { rows } else { n })?;
        match group.all_to_all_rows(&input, &vec![1; n], &vec![1; n], ctx.deadline()) {
            Err(Error::InvalidArgument { why, .. }) => {
                check!(why.contains(&format!("rank {} sends", n - 1)), "{why}");
            }
            other => return Err(format!("{other:?}").into()),
        }
        works(ctx, &group)?;
    }
    done()
}

/// Lists that are too short or too long for one rank: it hears so, the others that its arguments are wrong.
fn wrong_length(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    for (send, receive) in [(n - 1, n), (n, n + 1), (0, 0), (3 * n, n), (2 * n, 2 * n)] {
        let odd = ctx.rank() == 0;
        let (send, receive) = if odd { (vec![0; send], vec![0; receive]) } else { (vec![0; n], vec![0; n]) };
        let error = group.all_to_all_rows(&matrix(0)?, &send, &receive, ctx.deadline()).err();
        match error {
            Some(Error::InvalidArgument { .. }) if odd => {}
            Some(Error::Mismatch { rank, field: "arguments", .. }) if !odd => {
                check!(rank == 0 || n == 2, "rank {rank}");
            }
            other => return Err(format!("{other:?}").into()),
        }
        works(ctx, &group)?;
    }
    done()
}
