//! Several groups, several threads, and groups that are left.

use std::sync::mpsc::channel;
use std::time::Duration;

use comm_core::Error;
use comm_core::team::{Team, snapshots};
use comm_core::tensor::Tensor;
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::support::{Any, group};

pub fn cases() -> Vec<Case> {
    vec![
        case("concurrency/-/-/two-groups", two_groups),
        case("concurrency/-/-/second-thread", second_thread).worlds(|w| w > 1),
        case("concurrency/-/-/any-thread", any_thread),
        case("leave/-/-/others-wait", others_wait),
        case("leave/-/-/at-once", at_once),
        case("abort/-/-/while-waiting", abort_while_waiting),
    ]
}

/// One operation of round `round`, checked.
fn step(ctx: &RankCtx, group: &ThreadGroup, round: u64, rng: &mut SplitMix64) -> RankResult {
    let n = 1 + rng.below(3000) as usize;
    let world = ctx.world() as i64;
    let at = |rank: usize, i: usize| rank as i64 * 1_000_000 + round as i64 * 1000 + i as i64 % 7;
    let values: Vec<i64> = (0..n).map(|i| at(ctx.rank(), i)).collect();
    let input = Tensor::from_slice(&[n], &values)?;
    match rng.below(3) {
        0 => group.barrier(ctx.deadline())?,
        1 => {
            let sum = group.all_reduce(&input, ReduceOp::Sum, ctx.deadline())?;
            let expected = |i| (0..ctx.world()).map(|r| at(r, i)).sum::<i64>();
            check!(
                sum.as_slice::<i64>()?.iter().enumerate().all(|(i, &x)| x == expected(i)),
                "round {round}"
            );
        }
        _ => {
            let whole = group.all_gather(&input, 0, ctx.deadline())?;
            let seen = whole.as_slice::<i64>()?;
            check_eq!(seen.len() as i64, n as i64 * world);
            check!(seen.iter().enumerate().all(|(i, &x)| x == at(i / n, i % n)), "round {round}");
        }
    }
    done()
}

/// Two threads of each rank drive a group each, at their own pace and in their own order.
fn two_groups(ctx: &RankCtx) -> RankResult {
    std::thread::scope(|scope| {
        let drive = |name: &'static str, which: u64| {
            move || -> Any<()> {
                let group = group(ctx, name)?;
                // What is done is the same on all ranks, when it is done is not.
                let (mut what, mut when) = (ctx.common_rng().fork(which), ctx.rng().fork(which));
                for round in 0..150 {
                    if when.below(8) == 0 {
                        std::thread::sleep(Duration::from_micros(when.below(300)));
                    }
                    step(ctx, &group, round, &mut what)?;
                }
                Ok(())
            }
        };
        let threads = [scope.spawn(drive("a", 1)), scope.spawn(drive("b", 2))];
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked")?)
    })?;
    done()
}

/// A second thread that enters while one is inside is refused, and the first one is none the worse.
fn second_thread(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let signal = Team::join(&ctx.name("signal"), ctx.rank(), ctx.world(), ctx.deadline())?;
    if ctx.rank() != 0 {
        signal.barrier(ctx.deadline())?;
        group.barrier(ctx.deadline())?;
    } else {
        std::thread::scope(|scope| -> Any<()> {
            let first = scope.spawn(|| group.barrier(ctx.deadline()));
            let inside = || {
                let teams = snapshots();
                let team = teams.iter().find(|t| t.name == group.team().name());
                team.is_some_and(|t| t.ranks.iter().any(|r| r.rank == 0 && r.inside && r.op == "barrier"))
            };
            while !inside() {
                std::thread::yield_now();
            }
            let input = Tensor::from_slice(&[1], &[1i32])?;
            let errors = [
                group.barrier(ctx.deadline()).err(),
                group.all_reduce(&input, ReduceOp::Sum, ctx.deadline()).err(),
                group.all_gather(&input, 0, ctx.deadline()).err(),
            ];
            for error in errors {
                match &error {
                    Some(Error::ConcurrentUse { inside, .. }) if inside == "barrier" => {}
                    _ => return Err(format!("{error:?}").into()),
                }
            }
            // Local calls need no turn.
            group.replicate_to_shard(&input, 0, None)?;
            signal.barrier(ctx.deadline())?;
            first.join().map_err(|_| "the first thread panicked")??;
            Ok(())
        })?;
    }
    step(ctx, &group, 1, &mut ctx.common_rng())
}

/// A group may be used by one thread after the other.
fn any_thread(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mut rng = ctx.common_rng();
    for round in 0..10 {
        let (group, rng) = (&group, &mut rng);
        std::thread::scope(|s| s.spawn(move || step(ctx, group, round, rng).map(drop)).join())
            .map_err(|_| "a thread panicked")??;
    }
    done()
}

/// A rank leaves: operations up to then are fine, a later one says who left, and says it again.
fn others_wait(ctx: &RankCtx) -> RankResult {
    for leaver in 0..ctx.world() {
        let group = group(ctx, &format!("g{leaver}"))?;
        let mut rng = ctx.common_rng();
        for round in 0..3 {
            step(ctx, &group, round, &mut rng)?;
        }
        if ctx.rank() == leaver {
            std::thread::sleep(Duration::from_millis(5));
            drop(group);
            continue;
        }
        // Nobody is told anything else, however often he asks, and nothing is left behind for a peer that is still in the last
        // operation: once it is known that a rank has left, nobody is notified any more.
        let mut notifies = None;
        for _ in 0..5 {
            let input = Tensor::from_slice(&[4], &[1f32; 4])?;
            match group.all_reduce(&input, ReduceOp::Sum, ctx.deadline()) {
                Err(Error::PeerLeft { rank, .. }) => check_eq!(rank, leaver),
                other => return Err(format!("rank {leaver} left: {other:?}").into()),
            }
            check_eq!(*notifies.get_or_insert(group.costs().notifies), group.costs().notifies);
        }
    }
    done()
}

/// All leave right after their last operation, in any order, whatever it is.
fn at_once(ctx: &RankCtx) -> RankResult {
    let mut when = ctx.rng();
    for round in 0..60 {
        let group = group(ctx, &format!("g{round}"))?;
        if when.below(3) == 0 {
            std::thread::sleep(Duration::from_micros(when.below(400)));
        }
        step(ctx, &group, round, &mut ctx.common_rng().fork(round))?;
    }
    done()
}

/// Any thread can end the team of a rank that waits.
fn abort_while_waiting(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let aborter = ctx.world() - 1;
    if ctx.rank() == aborter {
        let handle = group.team().abort_handle();
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            let _ = told.recv_timeout(Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
            handle.abort("enough");
        });
        tell.send(())?;
        thread.join().map_err(|_| "the thread panicked")?;
    }
    let input = Tensor::from_slice(&[4], &[1f32; 4])?;
    for _ in 0..2 {
        let outcome = if ctx.rank() == aborter {
            group.barrier(ctx.deadline())
        } else {
            group.all_reduce(&input, ReduceOp::Sum, ctx.deadline()).map(drop)
        };
        match outcome {
            Err(Error::Aborted { by, reason, .. }) => check_eq!((by, &reason[..]), (aborter, "enough")),
            other => return Err(format!("{other:?}").into()),
        }
    }
    done()
}
