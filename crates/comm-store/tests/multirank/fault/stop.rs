//! A process that is stopped is missed as such, by one-sided waits, which can be tried again, and by barriers, which
//! cannot.

use std::time::Duration;

use comm_store::window::WindowSpec;
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::report::to_json;
use comm_testkit::{
    Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, block_on, check, check_eq, done,
};
use serde_json::{Value, json};

use super::window::BACKEND;
use super::{SOON, SUITE};
use crate::support::team;

pub const PROGRAM: Program = Program { name: "window-stop", run: program };

pub fn cases() -> Vec<Case> {
    let of = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        Case::launcher(SUITE, format!("stop/-/-/{name}"), run)
            .worlds(|world| world == 4)
            .layouts(&[Layout::Processes, Layout::Mixed])
            .limit(Duration::from_secs(60))
            .backend(BACKEND)
    };
    vec![of("one-sided", one_sided), of("barrier-named", barrier_named)]
}

/// How long a survivor waits for a process that is stopped.
const PATIENCE: Duration = Duration::from_millis(300);

/// Argument: `named` for the barrier; else it is the waits. The last rank is the victim.
fn program(ctx: &RankCtx) -> RankResult {
    let n = ctx.world();
    let victim = n - 1;
    let is_victims = ctx.process_of(victim) == Some(ctx.process());
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(0).signals(n), SOON)?;
    let signals = window.signals(&[n])?;
    if ctx.args() == "named" {
        signals.barrier_named("first", SOON)?;
        ctx.note("ready");
        ctx.await_go("stopped")?;
        let patience = if is_victims { SOON } else { PATIENCE };
        let error = signals.barrier_named("second", patience).map(drop).err();
        ctx.note_value("barrier", error.as_ref().map_or(json!(null), to_json));
        return done();
    }
    ctx.note("ready");
    ctx.await_go("stopped")?;
    if is_victims {
        for peer in 0..n {
            signals.notify(peer, &[ctx.rank()], 1, NotifyOp::Add)?;
        }
        ctx.await_go("end")?;
        return done();
    }
    let waits = [
        ("wait", signals.wait(&[victim], Cmp::Ge, 1, Some(victim), PATIENCE)),
        ("task", block_on(signals.wait_async(&[victim], Cmp::Ge, 1, Some(victim), PATIENCE)?)),
    ];
    for (name, outcome) in waits {
        ctx.note_value(name, outcome.err().as_ref().map_or(json!(null), to_json));
    }
    // It goes on, and so do the others.
    check_eq!(signals.wait(&[victim], Cmp::Ge, 1, Some(victim), SOON)?, 1);
    ctx.note("came");
    ctx.await_go("end")?;
    done()
}

fn one_sided(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(PROGRAM.name).limit(SOON).spawn()?;
    let victim = ctx.world() - 1;
    let process = running.process_of(victim).ok_or("the launch runs it")?;
    let survivors = (0..ctx.world()).filter(|&rank| running.process_of(rank) != Some(process));
    let survivors: Vec<usize> = survivors.collect();
    for rank in 0..ctx.world() {
        running.wait_note(rank, "ready", SOON)?;
    }
    running.stop(process)?;
    running.go("stopped")?;
    for &rank in &survivors {
        for name in ["wait", "task"] {
            let note = running.wait_note(rank, name, SOON)?;
            is_stopped(&note.value, &[victim]).map_err(|e| format!("rank {rank}, {name}: {e}"))?;
            let text = note.value["text"].as_str().unwrap_or_default();
            check!(text.contains(&format!("signal [{victim}] >= 1")), "{text}");
        }
    }
    running.cont(process)?;
    for &rank in &survivors {
        running.wait_note(rank, "came", SOON)?;
    }
    running.go("end")?;
    running.end_well(SOON)
}

fn barrier_named(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(PROGRAM.name).arg("named").limit(SOON).spawn()?;
    let process = running.process_of(ctx.world() - 1).ok_or("the launch runs it")?;
    let stopped = running.ranks_of(process).to_vec();
    for rank in 0..ctx.world() {
        running.wait_note(rank, "ready", SOON)?;
    }
    running.stop(process)?;
    running.go("stopped")?;
    let survivors = (0..ctx.world()).filter(|rank| !stopped.contains(rank));
    for rank in survivors {
        let note = running.wait_note(rank, "barrier", SOON)?;
        is_stopped(&note.value, &stopped).map_err(|e| format!("rank {rank}: {e}"))?;
        let text = note.value["text"].as_str().unwrap_or_default();
        check!(text.contains("barrier \"second\""), "{text}");
        for absent in &stopped {
            check!(text.contains(&format!("rank {absent} (process")), "{text}");
        }
        check!(text.contains("between operations, last barrier \"first\""), "{text}");
    }
    running.cont(process)?;
    for report in running.wait(SOON) {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
        if stopped.contains(&report.rank) {
            // When it comes it is told that it was too late.
            let note = report.note("barrier").ok_or("it has said so")?;
            is_stopped(&note.value, &stopped).map_err(|e| format!("rank {}: {e}", report.rank))?;
        }
    }
    done()
}

/// Checks that it gave up on ranks that are stopped.
fn is_stopped(value: &Value, ranks: &[usize]) -> RankResult {
    check_eq!(value["kind"], json!("timeout"), "{value}");
    check_eq!(value["stopped"], json!(ranks), "{value}");
    check_eq!(value["ranks"], json!(ranks), "{value}");
    done()
}
