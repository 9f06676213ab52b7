//! One rank has no memory: it says so, and the others hear who and why.

use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::report::tell;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use super::{BACKEND, SOON, SUITE};
use crate::support::group;

pub const POOR: Program = Program { name: "group-poor", run: poor };

const BUDGET: u64 = 24 << 20;
const INPUT: usize = 4 << 20;

pub fn cases() -> Vec<Case> {
    let of = |when: &'static str, layouts| {
        Case::launcher(SUITE, format!("memory/-/-/{when}"), move |ctx| one_is_poor(ctx, when))
            .layouts(layouts)
            .limit(Duration::from_secs(60))
            .backend(BACKEND)
    };
    // Before the group is made: of two ranks of one process the first may still get what both need.
    let window = of("window", &[Layout::Processes]);
    // For the copy of an input that peers cannot reach; for the part of a sum.
    let both = &[Layout::Processes, Layout::Mixed];
    // Alone, a rank copies for nobody.
    let shared = |when| of(when, both).worlds(|w| w > 1);
    vec![window, shared("input"), shared("part")]
}

fn one_is_poor(ctx: &LauncherCtx, when: &'static str) -> RankResult {
    let launch = ctx.launch("group-poor").env("COMM_ARENA_MAX_BYTES", BUDGET.to_string());
    let running = launch.arg(when).limit(SOON).spawn()?;
    let victim = ctx.world() - 1;
    let process = running.process_of(victim).ok_or("the launch runs it")?;
    let reports = running.wait(SOON);
    for report in &reports {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
    }
    let error = |rank: usize| reports[rank].note("error").map(|n| n.value.clone()).ok_or("it says its error");
    let poor = running.ranks_of(process).to_vec();
    let mut found = Vec::new();
    for rank in 0..ctx.world() {
        let error = error(rank)?;
        if error["kind"] == "memory" {
            check!(poor.contains(&rank), "rank {rank}: {error}");
            found.push(rank);
            continue;
        }
        check_eq!(error["kind"], json!("aborted"), "rank {rank}: {error}");
        let reason = error["reason"].as_str().unwrap_or_default();
        check!(reason.contains("out of memory"), "{error}");
        let by = error["by"].as_u64().unwrap_or(u64::MAX) as usize;
        check!(poor.contains(&by), "rank {rank}: {error}");
    }
    // Those of one process share its budget: one of them was first.
    check!(!found.is_empty(), "nobody says that it is out of memory");
    check!(poor.len() > 1 || found == [victim], "{found:?}");
    done()
}

fn poor(ctx: &RankCtx) -> RankResult {
    let when = ctx.args().as_str().unwrap_or_default();
    let victim = ctx.world() - 1;
    let team = Team::join(&ctx.name("g"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let arena = team.hub().tensors().clone();
    let input = || -> Result<Tensor, Error> {
        let mut buf = match when {
            "part" => TensorBuf::zeros_in(&arena, &[INPUT / 4], DType::F32)?,
            _ => TensorBuf::zeros(&[INPUT / 4], DType::F32)?,
        };
        buf.fill(1f32)?;
        Ok(buf.freeze())
    };
    let mine = input()?;
    let mut hoard = Vec::new();
    let mut take_all = || {
        for size in [1 << 20, 1 << 16, 1 << 12, 64] {
            while let Ok(block) = arena.alloc(size) {
                hoard.push(block);
            }
        }
    };
    let outcome = if when == "window" {
        if ctx.rank() == victim {
            take_all();
        }
        ThreadGroup::new(team, ctx.deadline()).map(drop)
    } else {
        let group = ThreadGroup::new(team, ctx.deadline())?;
        if ctx.rank() == victim {
            take_all();
        }
        group.barrier(ctx.deadline())?;
        group.all_reduce(&mine, ReduceOp::Sum, ctx.deadline()).map(drop)
    };
    let error = outcome.err().ok_or("there was enough memory after all")?;
    tell(ctx, "poor", &error, Duration::ZERO);
    // The memory comes back, and so does everything that needs it.
    drop(mine);
    hoard.clear();
    let again = group(ctx, "again")?;
    let sum = again.all_reduce(&input()?, ReduceOp::Sum, ctx.deadline())?;
    check!(sum.as_slice::<f32>()?.iter().all(|&x| x == ctx.world() as f32));
    done()
}
