//! Small inputs travel in letters, large ones are exposed: what is on either side of the border, and both at once.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor};
use comm_group::{Operation, ReduceOp, ThreadGroup, cost};
use comm_store::window::Cost;
use comm_testkit::values::{SplitMix64, random_elements};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::support::{Any, Place, bytes_of, group, tensor};

/// The most bytes that travel in a letter.
const CARRIED: usize = 512;

pub fn cases() -> Vec<Case> {
    vec![
        case("all_reduce/sum/i64/around-the-letter", reduce_around),
        case("all_gather/-/u8/carried-and-exposed", gather_mixed),
        case("costs/-/-/as-foretold", costs),
        case("costs/-/-/never-less-than-foretold", uneven_costs),
        case("two-groups/-/-/in-a-random-order", two_groups),
        case("two-groups/-/-/in-two-threads", two_threads),
    ]
}

/// Digit-coded, so that a missing, doubled or stale contribution shows; the round keeps letters of before apart.
fn reduce_around(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mut rng = ctx.common_rng();
    for round in 0..300i64 {
        let n = [0, 1, 2, CARRIED / 8 - 1, CARRIED / 8, CARRIED / 8 + 1, 1000][rng.below(7) as usize];
        let digit = 10i64.pow(ctx.rank() as u32);
        let values: Vec<i64> = (0..n as i64).map(|i| digit * ((i + round) % 9 + 1)).collect();
        let sum = group.all_reduce(&Tensor::from_slice(&[n], &values)?, ReduceOp::Sum, ctx.deadline())?;
        let ones: i64 = (0..ctx.world() as u32).map(|r| 10i64.pow(r)).sum();
        for (i, &seen) in sum.as_slice::<i64>()?.iter().enumerate() {
            check_eq!(seen, ones * ((i as i64 + round) % 9 + 1), "element {i} of {n} in round {round}");
        }
    }
    done()
}

/// Shards of which some fit into a letter and others do not.
fn gather_mixed(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mut rng = ctx.common_rng();
    for round in 0..200u64 {
        let size =
            |rng: &mut SplitMix64| [0, 1, CARRIED - 1, CARRIED, CARRIED + 1, 3000][rng.below(6) as usize];
        let sizes: Vec<usize> = (0..ctx.world()).map(|_| size(&mut rng)).collect();
        let place = if rng.below(2) == 0 { Place::Heap } else { Place::Arena };
        let of = |rank: usize| {
            random_elements(&mut ctx.common_rng().fork(round).fork(rank as u64), DType::U8, sizes[rank])
        };
        let mine = tensor(&group, place, &[sizes[ctx.rank()]], DType::U8, &of(ctx.rank()))?;
        let whole = group.all_gather(&mine, 0, ctx.deadline())?;
        let expected = (0..ctx.world()).flat_map(of).collect::<Vec<_>>();
        check!(bytes_of(&whole)? == expected, "sizes {sizes:?} in round {round}");
    }
    done()
}

fn spent(group: &ThreadGroup, run: impl FnOnce() -> RankResult) -> Any<Cost> {
    let before = group.costs();
    run()?;
    Ok(group.costs() - before)
}

fn costs(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    let measured = spent(&group, || {
        group.barrier(ctx.deadline())?;
        done()
    })?;
    check_eq!(measured, cost(Operation::Barrier, n, 0));
    check_eq!((measured.notifies, measured.waits, measured.bytes), (n as u64 - 1, n as u64 - 1, 0));
    // As many elements as all of these worlds divide.
    for elements in [0usize, 120, 840 * 2] {
        let t = tensor(&group, Place::Heap, &[elements], DType::F32, &vec![0; 4 * elements])?;
        let measured = spent(&group, || {
            group.all_reduce(&t, ReduceOp::Sum, ctx.deadline())?;
            done()
        })?;
        check_eq!(measured, cost(Operation::AllReduce, n, 4 * elements as u64), "{elements} elements");
        let measured = spent(&group, || {
            group.all_gather(&t, 0, ctx.deadline())?;
            done()
        })?;
        check_eq!(measured, cost(Operation::AllGather, n, (4 * elements * n) as u64), "{elements} elements");
        let measured = spent(&group, || {
            group.replicate_to_shard(&t, 0, None)?;
            done()
        })?;
        check_eq!(measured, cost(Operation::ReplicateToShard, n, 4 * elements as u64));
        let (at, bytes) = (ctx.deadline(), 4 * elements as u64);
        check_eq!(busiest(&group, |g| g.reduce(&t, ReduceOp::Sum, n - 1, at).map(drop))?, {
            cost(Operation::Reduce, n, bytes)
        });
        check_eq!(busiest(&group, |g| g.reduce_scatter(&t, ReduceOp::Sum, 0, at).map(drop))?, {
            cost(Operation::ReduceScatter, n, bytes)
        });
        let whole = bytes * n as u64;
        let all_gather = cost(Operation::AllGather, n, whole);
        check_eq!(busiest(&group, |g| g.all_gather_equal(&t, at).map(drop))?, all_gather);
        check_eq!(busiest(&group, |g| g.all_gather_into_vec(&t, at).map(drop))?, all_gather);
        check_eq!(busiest(&group, |g| g.gather(&t, 0, n - 1, at).map(drop))?, {
            cost(Operation::Gather, n, whole)
        });
        let given = (ctx.rank() == n - 1).then_some(&t);
        check_eq!(busiest(&group, |g| g.broadcast(given, n - 1, at).map(drop))?, {
            cost(Operation::Broadcast, n, bytes)
        });
        check_eq!(busiest(&group, |g| g.scatter(given, 0, n - 1, at).map(drop))?, {
            cost(Operation::Scatter, n, bytes)
        });
        let table = t.reshape(&[1, elements])?;
        let all_to_all = cost(Operation::AllToAll, n, bytes);
        check_eq!(busiest(&group, |g| g.all_to_all(&table, 0, 1, at).map(drop))?, all_to_all);
        let rows = vec![elements / n; n];
        check_eq!(busiest(&group, |g| g.all_to_all_rows(&t, &rows, &rows, at).map(drop))?, all_to_all);
    }
    done()
}

/// What an operation costs the rank that copies most. Of all else it costs each of them the same.
fn busiest(group: &ThreadGroup, run: impl FnOnce(&ThreadGroup) -> Result<(), Error>) -> Any<Cost> {
    let measured = spent(group, || {
        run(group)?;
        done()
    })?;
    let bytes = Tensor::from_slice(&[1], &[measured.bytes])?;
    let most = group.all_reduce(&bytes, ReduceOp::Max, Duration::from_secs(20))?;
    Ok(Cost { bytes: most.as_slice::<u64>()?[0], ..measured })
}

fn uneven_costs(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    for elements in [1usize, 7, 1001, 4999] {
        let t = tensor(&group, Place::Heap, &[elements], DType::F32, &vec![0; 4 * elements])?;
        let measured = spent(&group, || {
            group.all_reduce(&t, ReduceOp::Sum, ctx.deadline())?;
            done()
        })?;
        let foretold = cost(Operation::AllReduce, n, 4 * elements as u64);
        check_eq!(measured.rounds, foretold.rounds);
        // A rank's share may be larger than the even one by an element, which no bytes tell.
        let slack = 2 * 4 * n as u64;
        check!(measured.bytes <= foretold.bytes + slack, "{measured}, foretold {foretold}");
        check!(measured.bytes + slack >= foretold.bytes, "{measured}, foretold {foretold}");
    }
    done()
}

/// Two groups of the same ranks, used in an order that all draw alike: nothing of one is taken for the other's.
fn two_groups(ctx: &RankCtx) -> RankResult {
    let groups = [group(ctx, "a")?, group(ctx, "b")?];
    let mut rng = ctx.common_rng();
    for round in 0..400i32 {
        let which = rng.below(2) as usize;
        let value = 1000 * round + which as i32 * 100 + ctx.rank() as i32;
        match rng.below(3) {
            0 => groups[which].barrier(ctx.deadline())?,
            _ => {
                let mine = Tensor::from_slice(&[1], &[value])?;
                let all = groups[which].all_gather(&mine, 0, ctx.deadline())?;
                for (rank, &seen) in all.as_slice::<i32>()?.iter().enumerate() {
                    check_eq!(seen, 1000 * round + which as i32 * 100 + rank as i32);
                }
            }
        }
    }
    done()
}

/// The same from two threads of each rank, a group each, in whatever order they come.
fn two_threads(ctx: &RankCtx) -> RankResult {
    let groups = [group(ctx, "a")?, group(ctx, "b")?];
    let work = |which: usize| -> Result<(), comm_core::Error> {
        for round in 0..300i32 {
            let value = |rank: usize| 1000 * round + which as i32 * 100 + rank as i32;
            let mine = Tensor::from_slice(&[1], &[value(ctx.rank())])?;
            let all = groups[which].all_gather(&mine, 0, ctx.deadline())?;
            let expected: Vec<i32> = (0..ctx.world()).map(value).collect();
            assert_eq!(all.as_slice::<i32>()?, expected);
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let other = s.spawn(|| work(1));
        work(0)?;
        other.join().map_err(|_| "a thread panicked")??;
        done()
    })
}
