//! Leaving is not dying.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use comm_core::Error;
use comm_core::team::{BOARD_BYTES, Team};
use comm_testkit::{Case, Exit, LauncherCtx, Layout, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use super::kill::{SOON, processes};
use super::member::Orders;
use super::verdict::Told;

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher("fault", "leave/exit-at-once", exits)
            .layouts(&[Layout::Processes, Layout::Mixed])
            .limit(Duration::from_secs(300)),
        Case::ranks("fault", "leave/then-a-barrier", then_a_barrier),
        Case::ranks("fault", "leave/in-turn", in_turn),
        Case::launcher("fault", "leave/then-exit", then_exit).layouts(&[Layout::Processes, Layout::Mixed]),
    ]
}

/// How many ranks of this process are through: the last one ends it.
static THROUGH: AtomicUsize = AtomicUsize::new(0);

/// A program that ends with a collective, and whose processes end as soon as their ranks are through: some by leaving
/// the team, some by going without a word.
pub fn leaver(ctx: &RankCtx) -> RankResult {
    let mut rng = ctx.rng();
    let team = Team::join("leavers", ctx.rank(), ctx.world(), ctx.deadline())?;
    for round in 0..ctx.args()["rounds"].as_u64().unwrap_or(1) {
        team.exchange(&[round as u8; BOARD_BYTES], ctx.deadline())?;
    }
    std::thread::sleep(Duration::from_micros(rng.below(2000)));
    if ctx.args()["last"] == json!("exchange") {
        team.exchange(&[7; BOARD_BYTES], ctx.deadline())?;
    } else {
        team.barrier(ctx.deadline())?;
    }
    ctx.note("ok");
    let abrupt = rng.below(2) == 0;
    let ranks = (0..ctx.world()).filter(|&rank| ctx.shares_process(rank)).count();
    let last = THROUGH.fetch_add(1, Ordering::SeqCst) + 1 == ranks;
    if abrupt {
        // Gone, or about to be, without having left.
        std::mem::forget(team);
    } else {
        drop(team);
    }
    if last {
        std::process::exit(0);
    }
    loop {
        std::thread::park();
    }
}

fn exits(ctx: &LauncherCtx) -> RankResult {
    // Five combinations of world and layout share 200 runs, or 1000.
    let runs = if ctx.full() { 200 } else { 40 };
    for run in 0..runs {
        let last = if run % 2 == 0 { "barrier" } else { "exchange" };
        let running = ctx
            .launch("fault.leaver")
            .seed(ctx.seed() * 100_003 + run)
            .arg(json!({ "rounds": run % 4, "last": last }))
            .spawn()?;
        for process in 0..running.processes() {
            let exit = running.wait_exit(process, SOON)?;
            check_eq!(exit, Exit::Code(0), "run {run}, process {process}: {}", running.logs());
        }
        for report in running.wait(SOON) {
            check!(report.note("ok").is_some(), "run {run}, rank {}: {}", report.rank, report.outcome);
        }
    }
    ctx.progress(&format!("{runs} runs ended well everywhere"));
    done()
}

/// Operations up to the last one of the rank that left end well; the next one that needs it says that it left.
fn then_a_barrier(ctx: &RankCtx) -> RankResult {
    for gone in 0..ctx.world() {
        let name = ctx.name(&format!("b{gone}"));
        let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
        for _ in 0..10 {
            team.barrier(ctx.deadline())?;
            team.exchange(&[1; BOARD_BYTES], ctx.deadline())?;
        }
        if ctx.rank() == gone {
            continue;
        }
        for call in ["barrier", "exchange", "barrier"] {
            let outcome = match call {
                "barrier" => team.barrier(ctx.deadline()),
                _ => team.exchange(&[0; BOARD_BYTES], ctx.deadline()).map(drop),
            };
            match outcome {
                // The others, having been told so, leave too.
                Err(Error::PeerLeft { rank, .. }) if rank == gone || ctx.world() > 2 => {}
                other => return Err(format!("{call} without rank {gone}: {other:?}").into()),
            }
        }
        check!(team.snapshot().ended.is_none(), "somebody leaving ends nothing");
    }
    done()
}

/// Ranks leave one after the other; it is seen, and ends nothing for those who stay.
fn in_turn(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("slow"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let others = Team::join(&ctx.name("others"), ctx.rank(), ctx.world(), ctx.deadline())?;
    team.barrier(ctx.deadline())?;
    let mut team = Some(team);
    for turn in 0..ctx.world() {
        if turn == ctx.rank() {
            drop(team.take());
        }
        others.barrier(ctx.deadline())?;
        if let Some(team) = &team {
            let left = team.snapshot().ranks.iter().take(turn + 1).all(|r| r.left);
            check!(left, "those of turn {turn} have left");
            check!(team.snapshot().ended.is_none());
        }
    }
    done()
}

/// A rank that has left stays one that has left when its process ends.
fn then_exit(ctx: &LauncherCtx) -> RankResult {
    let gone = ctx.layout().placement(ctx.world())[processes(ctx) - 1].clone();
    let orders = Orders { leaver: Some((gone[0], 4)), ..Orders::default() };
    for report in ctx.launch("fault.member").arg(orders.json()).run(SOON)? {
        if report.rank == gone[0] {
            check!(report.outcome.is_ok(), "{}", report.outcome);
            continue;
        }
        let told = Told::by(&report)?;
        check_eq!(told.kind, "PeerLeft", "{}", told.text);
    }
    done()
}
