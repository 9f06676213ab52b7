//! What is left behind: nothing.

use std::time::{Duration, Instant};

use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done, probe};

use super::case;
use crate::support::{Any, PLACES, group, tensor};

pub fn cases() -> Vec<Case> {
    vec![
        case("memory/-/-/1000-collectives", thousand).worlds(|w| w > 1),
        case("memory/-/-/groups", groups).worlds(|w| w > 1),
    ]
}

#[derive(Debug)]
struct Held {
    tensors: u64,
    windows: u64,
    fds: usize,
    mappings: usize,
    threads: usize,
}

/// What this process holds while none of the ranks is inside an operation: they wait for each other before and after.
///
/// The reactor closes the connections of a join when it comes to it, so `fds` is given a while to be reached.
fn held(ctx: &RankCtx, group: &ThreadGroup, fds: usize) -> Any<Held> {
    group.barrier(ctx.deadline())?;
    let hub = group.team().hub();
    let until = Instant::now() + Duration::from_secs(5);
    while probe::fds()? > fds && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let held = Held {
        tensors: hub.tensors().stats().blocks,
        windows: hub.windows().stats().blocks,
        fds: probe::fds()?,
        mappings: probe::mappings()?,
        threads: probe::threads()?,
    };
    group.barrier(ctx.deadline())?;
    Ok(held)
}

/// Heap memory and the stacks of others may be mapped piece by piece; what grew with the calls would be hundreds.
const SLACK: usize = 16;

/// The probes of the ranks beside this one have the directory open for a moment.
const PROBES: usize = 4;

fn same(before: &Held, after: &Held, windows: u64) -> RankResult {
    check_eq!(after.tensors, before.tensors, "blocks of tensors");
    check!(after.windows <= before.windows + windows, "{before:?} then {after:?}");
    check!(after.fds <= before.fds + PROBES, "{before:?} then {after:?}");
    check!(after.mappings <= before.mappings + SLACK, "{before:?} then {after:?}");
    check_eq!(after.threads, before.threads);
    done()
}

fn one(ctx: &RankCtx, group: &ThreadGroup, round: usize) -> RankResult {
    let mut rng = ctx.common_rng().fork(round as u64);
    // Mostly small, sometimes up to a quarter of a MiB.
    let n = if rng.below(10) == 0 { rng.below(1 << 16) } else { rng.below(600) } as usize;
    let place = PLACES[rng.below(2) as usize];
    let input = tensor(group, place, &[n], DType::F32, &vec![1; 4 * n])?;
    match rng.below(5) {
        0 => group.barrier(ctx.deadline())?,
        1 => drop(group.all_reduce(
            &TensorBuf::zeros(&[n], DType::Bool)?.freeze(),
            ReduceOp::Sum,
            ctx.deadline(),
        )),
        2 => drop(group.all_gather(&input, 0, ctx.deadline())?),
        3 => {
            let odd = Tensor::from_slice(&[1], &[1i32])?;
            let mine = if ctx.rank() == 0 { &odd } else { &input };
            check!(group.all_reduce(mine, ReduceOp::Sum, ctx.deadline()).is_err());
        }
        _ => drop(group.all_reduce(&input, ReduceOp::Sum, ctx.deadline())?),
    }
    done()
}

fn thousand(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    (0..200).try_for_each(|round| one(ctx, &group, round).map(drop))?;
    let before = held(ctx, &group, usize::MAX)?;
    (200..1200).try_for_each(|round| one(ctx, &group, round).map(drop))?;
    same(&before, &held(ctx, &group, before.fds + PROBES)?, 0)
}

/// Groups that come and go leave nothing either.
fn groups(ctx: &RankCtx) -> RankResult {
    let keep = group(ctx, "keep")?;
    let some = |from: usize, to: usize| -> RankResult {
        for round in from..to {
            let group = group(ctx, &format!("g{round}"))?;
            one(ctx, &group, round)?;
        }
        done()
    };
    some(0, 10)?;
    let before = held(ctx, &keep, usize::MAX)?;
    some(10, 90)?;
    // The part of a window stays until the peers have left, and is let go of when the next team is made: so the latest
    // few may be there, but not one for each group.
    same(&before, &held(ctx, &keep, before.fds + PROBES)?, 16)
}
