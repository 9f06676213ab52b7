//! A panic of a rank inside a collective: the others hear of it as they would of a death.

use std::time::Duration;

use comm_testkit::fault::{Action, Fault};
use comm_testkit::report::{Notice, in_time, is_lost};
use comm_testkit::{Case, LauncherCtx, Outcome, RankResult, check, check_eq, done};
use serde_json::{Value, json};

use super::kill::{ONCE, inside, points};
use super::{BACKEND, SOON, SUITE, dice};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for point in points() {
        // At every point in the largest world, in every layout; in the others one will do.
        let worlds: fn(usize) -> bool = if point == "group.reduced" { |w| w >= 2 } else { |w| w == 4 };
        let case = Case::launcher(SUITE, format!("panic/-/-/{point}"), move |ctx| {
            falls_at(ctx, point, Action::Panic)
        });
        all.push(case.worlds(worlds));
    }
    let unwinds = |ctx: &LauncherCtx| falls_at(ctx, "window.read", Action::Unwind);
    all.push(Case::launcher(SUITE, "panic/-/-/unwind", unwinds).worlds(|w| w == 4));
    all.into_iter().map(|case| case.backend(BACKEND).limit(Duration::from_secs(60))).collect()
}

fn falls_at(ctx: &LauncherCtx, point: &'static str, action: Action) -> RankResult {
    let mut rng = dice(ctx, point);
    let victim = rng.below(ctx.world() as u64) as usize;
    let nth = inside(point, 5 + rng.below(4));
    fall_one(ctx, json!({}), point, victim, nth, action)
}

pub fn fall_one(
    ctx: &LauncherCtx,
    args: Value,
    point: &'static str,
    victim: usize,
    nth: u64,
    action: Action,
) -> RankResult {
    let fault = Fault::at(point).rank(victim).hit(nth).does(action);
    let running = ctx.launch("group-loop").arg(args).fault(fault).limit(SOON).spawn()?;
    let mut notes = Vec::new();
    for rank in (0..ctx.world()).filter(|&r| r != victim) {
        let note = running.wait_note(rank, "error", SOON)?;
        is_lost(&note, &[victim], "Panicked").map_err(|e| format!("rank {rank}: {e}"))?;
        notes.push((rank, note));
    }
    running.go("look")?;
    let mut slowest = Notice::default();
    for report in running.wait(SOON) {
        if report.rank != victim {
            check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
            continue;
        }
        check!(matches!(report.outcome, Outcome::Panicked(_)), "{}", report.outcome);
        // A group that was never made has no frame to fall through.
        if let Some(fell) = report.note("falling") {
            for (rank, note) in &notes {
                let took = in_time(note, fell.at_ns, &[]).map_err(|e| format!("rank {rank}: {e}"))?;
                slowest = slowest.max(took);
            }
        } else {
            check!(ONCE.contains(&point), "{point}");
        }
    }
    ctx.progress(&format!("rank {victim} fell at {point}, hit {nth}: noticed after {slowest}"));
    done()
}
