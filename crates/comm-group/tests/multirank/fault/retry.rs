//! A rank leaves, and one that wants it tries again and again: what a slower one is doing comes right.

use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Outcome, Program, RankCtx, RankResult, check, check_eq};
use serde_json::json;

use super::{BACKEND, SOON, SUITE};

pub const RETRIES: Program = Program { name: "group-retries", run: retries };

/// In letters, and in place.
const SIZES: [usize; 2] = [8, 4096];

pub fn cases() -> Vec<Case> {
    let point = |point: &'static str| {
        Case::launcher(SUITE, format!("retry/-/-/left-at-{point}"), move |ctx| retry(ctx, point))
            .worlds(|world| world > 2)
            .limit(Duration::from_secs(60))
            .backend(BACKEND)
    };
    ["group.agreed", "group.done"].map(point).into()
}

/// Rank 1 is held inside of the sum. The last rank has it and leaves; rank 0 has it and wants another.
fn retry(ctx: &LauncherCtx, point: &'static str) -> RankResult {
    for size in SIZES {
        // What is done in place is held up for all by one; a sum in letters is done without it.
        if size > SIZES[0] && point != "group.done" {
            continue;
        }
        let fault = Fault::at(point).rank(1).hit(1).hold("slow");
        let running = ctx.launch("group-retries").fault(fault).arg(size).limit(SOON).spawn()?;
        running.wait_held(1, "slow", SOON)?;
        running.wait_note(0, "tried", SOON)?;
        running.go("slow")?;
        for report in running.wait(SOON) {
            check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {} of {size} elements", report.rank);
        }
    }
    Ok(json!(null))
}

fn retries(ctx: &RankCtx) -> RankResult {
    let size: usize = serde_json::from_value(ctx.args().clone())?;
    let team = Team::join(&ctx.name("g"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let group = ThreadGroup::new(team, ctx.deadline())?;
    let last = ctx.world() - 1;
    let mine = Tensor::from_slice(&[size], &vec![1i64 << (8 * ctx.rank()); size])?;
    let sum = group.all_reduce(&mine, ReduceOp::Sum, ctx.deadline())?;
    let expected: i64 = (0..ctx.world()).map(|rank| 1 << (8 * rank)).sum();
    check_eq!(sum.to_vec::<i64>()?, vec![expected; size]);
    if ctx.rank() == last {
        return Ok(json!(null));
    }
    if ctx.rank() == 0 {
        let other = Tensor::from_slice(&[size], &vec![0x77i64; size])?;
        for _ in 0..20 {
            let error = group.all_reduce(&other, ReduceOp::Sum, ctx.deadline()).err();
            check!(matches!(error, Some(Error::PeerLeft { rank, .. }) if rank >= 2), "{error:?}");
        }
        check!(!group.is_over());
        ctx.note("tried");
        return Ok(json!(null));
    }
    Ok(json!(null))
}
