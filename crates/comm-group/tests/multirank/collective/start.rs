//! Operations that are started: in flight together, waited for in any order, given up, left behind.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

use comm_core::Error;
use comm_core::error::LostHow;
use comm_core::tensor::Tensor;
use comm_group::{ReduceOp, ThreadGroup, Work};
use comm_testkit::{Case, RankCtx, RankResult, block_on, check, check_eq, done};

use super::case;
use crate::support::{Any, group, shuffled};

pub fn cases() -> Vec<Case> {
    vec![
        case("start/-/-/several-in-any-order", several),
        case("start/-/-/timeout-then-wait", timeout).worlds(|w| w > 1),
        case("start/-/-/await", awaited),
        case("start/-/-/dropped-and-forgotten", dropped),
        case("start/-/-/group-dropped", group_dropped),
        case("start/-/-/panic-before-wait", panics).worlds(|w| w > 1),
        case("start/-/-/blocking-behind-started", behind),
        case("start/-/-/two-groups-two-threads", two_groups),
        case("start/-/-/many-groups-in-any-order", many_groups),
        case("start/-/-/errors-are-the-works", errors).worlds(|w| w > 1),
        case("start/-/-/a-verdict-in-between", verdicts).worlds(|w| w > 1),
    ]
}

/// What a rank brings to step `i`: small and large by turns.
fn mine(rank: usize, i: usize) -> Any<Tensor> {
    let n = if i.is_multiple_of(2) { 5 } else { 1500 };
    let values: Vec<i64> = (0..n).map(|k| value(rank, i, k)).collect();
    Ok(Tensor::from_slice(&[n], &values)?)
}

fn value(rank: usize, i: usize, k: usize) -> i64 {
    (rank * 1_000_000 + i * 10_000 + k % 1000) as i64
}

fn sum(world: usize, i: usize, seen: &Tensor) -> RankResult {
    let expected = |k: usize| (0..world).map(|r| value(r, i, k)).sum::<i64>();
    let seen = seen.as_slice::<i64>()?;
    check!(seen.iter().enumerate().all(|(k, &x)| x == expected(k)), "step {i}: {:?}", &seen[..3]);
    done()
}

fn start(ctx: &RankCtx, group: &ThreadGroup, i: usize) -> Any<Work<Tensor>> {
    Ok(group.all_reduce_start(&mine(ctx.rank(), i)?, ReduceOp::Sum, ctx.deadline())?)
}

/// Eight in flight, waited for in an order that each rank draws; inputs are given up at once.
fn several(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mut rng = ctx.rng();
    for round in 0..10 {
        let mut works = Vec::new();
        for i in 0..8 {
            works.push((i, start(ctx, &group, 8 * round + i)?));
        }
        while !works.is_empty() {
            let (i, work) = works.swap_remove(rng.below(works.len() as u64) as usize);
            sum(ctx.world(), 8 * round + i, &work.wait()?)?;
        }
    }
    done()
}

fn timeout(ctx: &RankCtx) -> RankResult {
    let (group, gate) = (group(ctx, "g")?, group(ctx, "gate")?);
    for first in 0..ctx.world() {
        // One rank starts before the others may: its work cannot be over.
        let mut early = None;
        if ctx.rank() == first {
            let mut work = start(ctx, &group, first)?;
            let begun = std::time::Instant::now();
            check!(work.wait_timeout(Duration::from_millis(3))?.is_none());
            check!(begun.elapsed() >= Duration::from_millis(3));
            check!(!work.is_ready() && format!("{work:?}").contains("in flight"), "{work:?}");
            check!(work.wait_timeout(Duration::ZERO)?.is_none());
            early = Some(work);
        }
        gate.barrier(ctx.deadline())?;
        let work = match early {
            Some(work) => work,
            None => start(ctx, &group, first)?,
        };
        gate.barrier(ctx.deadline())?;
        let mut work = work;
        let seen = work.wait_timeout(ctx.deadline())?.ok_or("it is not over")?;
        sum(ctx.world(), first, &seen)?;
        check!(!work.is_ready(), "its result is taken");
        let again = work.wait();
        check!(matches!(again, Err(Error::InvalidArgument { .. })), "{again:?}");
        // Ready says that waiting takes no time.
        let work = start(ctx, &group, first + 1)?;
        while !work.is_ready() {
            thread::yield_now();
        }
        sum(ctx.world(), first + 1, &work.wait()?)?;
    }
    done()
}

fn awaited(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    block_on(async {
        for round in 0..10 {
            let first = start(ctx, &group, 2 * round)?;
            let second = start(ctx, &group, 2 * round + 1)?;
            let barrier = group.barrier_start(ctx.deadline())?;
            barrier.await?;
            sum(ctx.world(), 2 * round + 1, &second.await?)?;
            sum(ctx.world(), 2 * round, &first.await?)?;
        }
        done()
    })
}

/// A work that nobody waits for goes on: the peers need it.
fn dropped(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for (i, careless) in (0..3 * ctx.world()).map(|i| (i, i % ctx.world())) {
        let work = start(ctx, &group, i)?;
        if ctx.rank() != careless {
            sum(ctx.world(), i, &work.wait()?)?;
        } else if i % 2 == 0 {
            drop(work);
        } else {
            std::mem::forget(work);
        }
    }
    group.barrier(ctx.deadline())?;
    done()
}

/// A rank drops its group with work in flight: the work ends, here and there, and then the rank has left.
fn group_dropped(ctx: &RankCtx) -> RankResult {
    for leaver in 0..ctx.world() {
        let (group, gate) = (group(ctx, &format!("g{leaver}"))?, group(ctx, &format!("gate{leaver}"))?);
        if ctx.rank() == leaver {
            let works: Vec<_> = (0..3).map(|i| start(ctx, &group, i)).collect::<Any<_>>()?;
            drop(group);
            // Only now do the others begin.
            gate.barrier(ctx.deadline())?;
            for (i, work) in works.into_iter().enumerate() {
                sum(ctx.world(), i, &work.wait()?)?;
            }
            continue;
        }
        gate.barrier(ctx.deadline())?;
        for i in 0..3 {
            sum(ctx.world(), i, &group.all_reduce(&mine(ctx.rank(), i)?, ReduceOp::Sum, ctx.deadline())?)?;
        }
        match group.barrier(ctx.deadline()) {
            Err(Error::PeerLeft { rank, .. }) => check_eq!(rank, leaver),
            other => return Err(format!("rank {leaver} left: {other:?}").into()),
        }
    }
    done()
}

/// A rank panics between start and wait: the others hear of it, whatever they wait for.
fn panics(ctx: &RankCtx) -> RankResult {
    for victim in 0..ctx.world() {
        let group = group(ctx, &format!("g{victim}"))?;
        if ctx.rank() == victim {
            let fall = catch_unwind(AssertUnwindSafe(|| {
                let group = group;
                let _works = [start(ctx, &group, 0), start(ctx, &group, 1)];
                resume_unwind(Box::new("on purpose"));
            }));
            check!(fall.is_err());
            continue;
        }
        // What the victim has started may come about or not; what it has not cannot.
        let error = (0..3).find_map(|i| start(ctx, &group, i).ok()?.wait().err());
        match error {
            Some(Error::PeerLost { rank, how: LostHow::Panicked, .. }) => check_eq!(rank, victim),
            other => return Err(format!("rank {victim} panicked: {other:?}").into()),
        }
    }
    done()
}

/// A blocking call goes behind what has been started before, and what is started after goes behind that.
fn behind(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for round in 0..30usize {
        // The same sequence on all ranks; which of them are started, each rank draws.
        let mut rng = ctx.rng().fork(round as u64);
        let mut works = Vec::new();
        for i in 5 * round..5 * round + 5 {
            if rng.below(2) == 0 {
                works.push((i, start(ctx, &group, i)?));
            } else {
                let seen = group.all_reduce(&mine(ctx.rank(), i)?, ReduceOp::Sum, ctx.deadline())?;
                sum(ctx.world(), i, &seen)?;
            }
        }
        for (i, work) in works {
            check!(i >= 5 * round);
            sum(ctx.world(), i, &work.wait()?)?;
        }
    }
    done()
}

/// Two threads, each with a group of its own, and both start before either waits.
fn two_groups(ctx: &RankCtx) -> RankResult {
    let groups = [group(ctx, "a")?, group(ctx, "b")?];
    thread::scope(|scope| {
        let drive = |which: usize| {
            let group = &groups[which];
            move || -> Any<()> {
                for round in 0..20 {
                    let works: Vec<_> = (0..4)
                        .map(|i| Ok((i, start(ctx, group, 4 * round + i + which)?)))
                        .collect::<Any<_>>()?;
                    for (i, work) in works.into_iter().rev() {
                        sum(ctx.world(), 4 * round + i + which, &work.wait()?)?;
                    }
                }
                Ok(())
            }
        };
        let threads = [scope.spawn(drive(0)), scope.spawn(drive(1))];
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked")?)
    })?;
    done()
}

/// Three threads of each rank drive four groups each. What they start, and what they wait for first, is in an order that
/// each thread of each rank draws for itself: no two ranks meet in the same order.
fn many_groups(ctx: &RankCtx) -> RankResult {
    const THREADS: usize = 3;
    const EACH: usize = 4;
    let groups = (0..THREADS * EACH).map(|i| Ok(group(ctx, &format!("g{i}"))?)).collect::<Any<Vec<_>>>()?;
    let drive = &|thread: usize| -> Any<()> {
        let mut rng = ctx.rng().fork(thread as u64);
        let mine: Vec<usize> = (0..EACH).map(|i| thread * EACH + i).collect();
        for round in 0..20 {
            let mut works = Vec::new();
            for i in shuffled(&mut rng, mine.clone()) {
                works.push((round + i, start(ctx, &groups[i], round + i)?));
            }
            for (i, work) in shuffled(&mut rng, works) {
                sum(ctx.world(), i, &work.wait()?)?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || drive(thread))).collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked")?)
    })?;
    done()
}

/// What ends the team ends what is behind it, too.
fn errors(ctx: &RankCtx) -> RankResult {
    let (group, gate) = (group(ctx, "g")?, group(ctx, "gate")?);
    if ctx.rank() == 0 {
        let mut works: Vec<_> = (0..4).map(|i| start(ctx, &group, i)).collect::<Any<_>>()?;
        check!(works[0].wait_timeout(Duration::from_millis(2))?.is_none());
        group.team().abort("enough");
        for work in works {
            let error = work.wait().err();
            check!(matches!(error, Some(Error::Aborted { by: 0, .. })), "{error:?}");
        }
    }
    gate.barrier(ctx.deadline())?;
    let error = start(ctx, &group, 0)?.wait().err();
    check!(matches!(error, Some(Error::Aborted { by: 0, .. })), "{error:?}");
    done()
}

/// A mismatch is the work's alone: those behind it are done.
fn verdicts(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for odd in 0..ctx.world() {
        let first = start(ctx, &group, 0)?;
        let wrong = Tensor::from_slice(
            &[1 + usize::from(ctx.rank() == odd)],
            &[1i64, 2][..1 + usize::from(ctx.rank() == odd)],
        )?;
        let wrong = group.all_reduce_start(&wrong, ReduceOp::Sum, ctx.deadline())?;
        let last = start(ctx, &group, 1)?;
        sum(ctx.world(), 1, &last.wait()?)?;
        match wrong.wait() {
            Err(Error::Mismatch { rank, field: "shape", .. }) => check!(rank == odd || ctx.world() == 2),
            other => return Err(format!("{other:?}").into()),
        }
        sum(ctx.world(), 0, &first.wait()?)?;
    }
    done()
}
