//! Large teams.

use std::time::Instant;

use comm_testkit::{LauncherCtx, Layout};

use super::*;

pub fn cases() -> Vec<Case> {
    let once = |name, run: fn(&LauncherCtx) -> RankResult| {
        let case = Case::launcher("rendezvous", name, run).worlds(|w| w == 4);
        case.layouts(&[Layout::Threads]).limit(Duration::from_secs(60))
    };
    vec![
        once("join/-/-/64-threads", |ctx| crowd(ctx, 64, Layout::Threads)),
        once("join/-/-/32-processes", |ctx| crowd(ctx, 32, Layout::Processes)),
        once("join/-/-/128-mixed", |ctx| crowd(ctx, 128, Layout::Mixed)),
    ]
}

fn crowd(ctx: &LauncherCtx, world: usize, layout: Layout) -> RankResult {
    let started = Instant::now();
    let patience = Duration::from_secs(50);
    let running = ctx.launch_on("rendezvous/meet", world, layout).limit(patience).spawn()?;
    let reports = running.wait(patience);
    check_eq!(reports.len(), world);
    for report in &reports {
        check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
    }
    let slowest = reports.iter().map(|r| r.elapsed).max().unwrap_or_default();
    ctx.progress(&format!("{world} {layout}: {:?} in all, {slowest:?} at most in a rank", started.elapsed()));
    done()
}
