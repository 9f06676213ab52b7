//! Leaving is not dying: a program may end with a collective.

use std::time::Duration;

use comm_core::tensor::Tensor;
use comm_group::ReduceOp;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check_eq, done};
use serde_json::json;

use super::program::OPS;
use super::{BACKEND, SOON, SUITE};
use crate::support::group;

pub const STARTS: Program = Program { name: "group-starts", run: starts };
pub const CLOSES: Program = Program { name: "group-closes", run: closes };

pub fn cases() -> Vec<Case> {
    let spread = &[Layout::Processes, Layout::Mixed];
    let of = |case: Case| case.worlds(|w| w == 4).layouts(spread).limit(Duration::from_secs(300));
    [
        Case::launcher(SUITE, "exit/-/-/after-the-last", at_once),
        Case::launcher(SUITE, "exit/-/-/after-the-last-started", |ctx| exits(ctx, "group-starts")),
        Case::launcher(SUITE, "exit/-/-/after-close", |ctx| exits(ctx, "group-closes")),
    ]
    .map(|case| of(case).backend(BACKEND))
    .to_vec()
}

/// The ranks of a program end with it, and are lost to nobody.
fn exits(ctx: &LauncherCtx, program: &'static str) -> RankResult {
    for run in 0..if ctx.full() { 500 } else { 25 } {
        let running = ctx.launch(program).limit(SOON).spawn()?;
        for report in running.wait(SOON) {
            let exits = ctx.layout() == Layout::Processes;
            let expected = if exits { Outcome::Exited(0) } else { Outcome::Ok(json!(null)) };
            check_eq!(report.outcome, expected, "run {run}, rank {}", report.rank);
        }
    }
    done()
}

/// The last operation was started and waited for: who has all results has nothing that could still die.
fn starts(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mine = Tensor::from_slice(&[2000], &[1i64; 2000])?;
    let works: Vec<_> = (0..3)
        .map(|_| group.all_reduce_start(&mine, ReduceOp::Sum, ctx.deadline()))
        .collect::<Result<_, _>>()?;
    for work in works {
        check_eq!(work.wait()?.as_slice::<i64>()?[1999], ctx.world() as i64);
    }
    drop(group);
    exit(ctx)
}

/// Nobody waits for what was started on the first rank, which is still at it when it comes to the end.
fn closes(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mine = Tensor::from_slice(&[1 << 18], &[1i64; 1 << 18])?;
    if ctx.rank() == 0 {
        drop(group.all_reduce_start(&mine, ReduceOp::Sum, ctx.deadline())?);
        group.close(ctx.deadline())?;
    } else {
        let sum = group.all_reduce(&mine, ReduceOp::Sum, ctx.deadline())?;
        check_eq!(sum.as_slice::<i64>()?[1999], ctx.world() as i64);
        drop(group);
    }
    exit(ctx)
}

/// At once, and not when the process comes to it.
#[allow(clippy::exit, reason = "that is what is tested")]
fn exit(ctx: &RankCtx) -> RankResult {
    if ctx.layout() == Layout::Processes {
        std::process::exit(0);
    }
    done()
}

/// The ranks do a few operations and exit, nobody waits for anybody: each operation is the last in turn.
fn at_once(ctx: &LauncherCtx) -> RankResult {
    for run in 0..if ctx.full() { 500 } else { 25 } {
        let running = ctx
            .launch("group-loop")
            .arg(json!({"rounds": run % 3 + 1, "first": run % OPS.len()}))
            .limit(SOON)
            .spawn()?;
        for report in running.wait(SOON) {
            check_eq!(report.outcome, Outcome::Ok(json!(null)), "run {run}, rank {}", report.rank);
            check_eq!(report.note("error"), None, "run {run}, rank {}", report.rank);
        }
    }
    done()
}
