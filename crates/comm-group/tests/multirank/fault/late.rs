//! A rank that is late: the others wait for it as long as they want, and then say who it was. Also in an operation in which one
//! of them does something else.

use std::time::Duration;

use comm_testkit::fault::Fault;
use comm_testkit::{LauncherCtx, Note, RankResult, check, check_eq, done};
use serde_json::{Value, json};

use super::SOON;

/// It comes before the others have lost patience: all go on, and everything is right.
pub fn late_one(ctx: &LauncherCtx, mut args: Value, point: &str, victim: usize) -> RankResult {
    args["rounds"] = json!(3);
    let fault = Fault::at(point).rank(victim).hold("late");
    let running = ctx.launch("group-loop").arg(args).fault(fault).limit(SOON).spawn()?;
    running.wait_held(victim, "late", SOON)?;
    for rank in 0..ctx.world() {
        check!(!running.notes(rank).iter().any(|note| note.text == "over"), "rank {rank} has not waited");
    }
    running.go("late")?;
    running.end_well(SOON)
}

/// It comes after that: everybody is told who it was, and so is it. What the others have is theirs from then on.
pub fn too_late_one(ctx: &LauncherCtx, mut args: Value, point: &str, victim: usize) -> RankResult {
    args["op_ms"] = json!(1000);
    let mut launch = ctx.launch("group-loop").arg(args).limit(SOON);
    if point == "window.read" {
        // By then all others have done their part: nothing but this read is missing.
        launch = launch.fault(Fault::at(point).rank(victim).delay(Duration::from_millis(50)));
    }
    let running = launch.fault(Fault::at(point).rank(victim).hold("late")).spawn()?;
    running.wait_held(victim, "late", SOON)?;
    for rank in (0..ctx.world()).filter(|&rank| rank != victim) {
        let note = running.wait_note(rank, "error", SOON)?;
        is_late(&note, victim).map_err(|e| format!("rank {rank}: {e}"))?;
    }
    check!(!running.notes(victim).iter().any(|note| note.text == "error"), "it was held");
    running.go("late")?;
    is_late(&running.wait_note(victim, "error", SOON)?, victim).map_err(|e| format!("rank {victim}: {e}"))?;
    running.go("look")?;
    running.end_well(SOON)
}

/// It is not there, and not stopped either.
fn is_late(note: &Note, victim: usize) -> RankResult {
    let seen = (&note.value["kind"], &note.value["ranks"], &note.value["stopped"]);
    check_eq!(seen, (&json!("timeout"), &json!([victim]), &json!([])), "{}", note.value["text"]);
    done()
}
