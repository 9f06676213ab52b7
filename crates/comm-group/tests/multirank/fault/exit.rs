//! Leaving is not dying: a program may end with a collective.

use std::time::Duration;

use comm_testkit::{Case, LauncherCtx, Layout, Outcome, RankResult, check_eq, done};
use serde_json::json;

use super::program::OPS;
use super::{BACKEND, SOON, SUITE};

pub fn cases() -> Vec<Case> {
    let case = Case::launcher(SUITE, "exit/-/-/after-the-last", at_once).worlds(|w| w == 4);
    let spread = &[Layout::Processes, Layout::Mixed];
    vec![case.layouts(spread).limit(Duration::from_secs(300)).backend(BACKEND)]
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
