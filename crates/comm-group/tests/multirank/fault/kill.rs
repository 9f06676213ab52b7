//! SIGKILL of a process at every point inside a collective.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comm_testkit::fault::Fault;
use comm_testkit::report::{Notice, in_time, is_lost};
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, RankResult, Running, check, check_eq, done};
use serde_json::{Value, json};

use super::{BACKEND, SOON, SUITE, dice, message};
use crate::support::{Any, all_ok};

const SPREAD: &[Layout] = &[Layout::Processes, Layout::Mixed];

pub fn cases() -> Vec<Case> {
    let mut all = vec![
        Case::launcher(SUITE, "kill/-/-/points-listed", every_point_is_visited)
            .worlds(|w| w == 4)
            .layouts(&[Layout::Processes]),
    ];
    for &point in points().iter() {
        let case = Case::launcher(SUITE, format!("kill/-/-/{point}"), move |ctx| kill_at(ctx, point));
        all.push(case.worlds(|w| w == 4).layouts(SPREAD).limit(Duration::from_secs(120)));
    }
    all.into_iter().map(|case| case.backend(BACKEND)).collect()
}

/// The points that a group passes: its own, and those of the window that it makes, signals through and reads. The others of
/// a window are visited in comm-store, and those of messages beside them.
pub fn points() -> Vec<&'static str> {
    let own = comm_group::POINTS.iter().filter(|point| !message::POINTS.contains(point));
    own.copied().chain(["window.made", "window.notify", "window.read"]).collect()
}

/// The points that are passed when the group is made, and not inside a collective.
pub const ONCE: &[&str] = &["group.made", "window.made"];

/// The nth hit of a point of a rank that lies well inside the loop; the group is made once.
pub fn inside(point: &str, nth: u64) -> u64 {
    if ONCE.contains(&point) { 1 } else { nth }
}

/// The list is what a run really passes: every listed point, and no other on the way of a collective.
fn every_point_is_visited(ctx: &LauncherCtx) -> RankResult {
    // Each operation ten times.
    const ROUNDS: u64 = 120;
    let visited = |rounds: u64| -> Any<BTreeMap<String, u64>> {
        let running = ctx.launch("group-loop").arg(json!({"rounds": rounds})).record().limit(SOON).spawn()?;
        all_ok(&running.wait(SOON))?;
        let hits = running.hits().into_iter().filter(|(_, _, rank, _)| *rank == Some(1));
        Ok(hits.map(|(point, _, _, n)| (point, n)).collect())
    };
    let (none, some) = (visited(0)?, visited(ROUNDS)?);
    // In one operation at least; a join may take a few more attempts in one run than in the other.
    let grown = |&(point, n): &(&String, &u64)| *n >= none.get(point).unwrap_or(&0) + ROUNDS / 12;
    let grown: BTreeSet<&str> = some.iter().filter(grown).map(|(point, _)| point.as_str()).collect();
    let mut listed: BTreeSet<&str> = points().into_iter().collect();
    for point in ONCE {
        check!(some.contains_key(*point), "{point}");
        listed.remove(point);
    }
    check_eq!(grown, listed);
    done()
}

/// Rank 0 to 3 in their first operation and in a later one; without `--full` one of these, drawn.
fn kill_at(ctx: &LauncherCtx, point: &'static str) -> RankResult {
    let mut rng = dice(ctx, point);
    let later = 5 + rng.below(4);
    let mut all: Vec<(usize, u64)> = (0..ctx.world()).flat_map(|rank| [(rank, 1), (rank, later)]).collect();
    if ONCE.contains(&point) {
        all.retain(|&(_, hit)| hit == 1);
    }
    if !ctx.full() {
        all = vec![*rng.choose(&all).ok_or("there are ranks")?];
    }
    for (victim, hit) in all {
        let slowest = kill_one(ctx, json!({}), point, victim, hit)
            .map_err(|e| format!("rank {victim} killed at {point}, hit {hit}: {e}"))?;
        ctx.progress(&format!("rank {victim} killed at {point}, hit {hit}: noticed after {slowest}"));
    }
    done()
}

/// The victim is held at the point, so that the moment of its death is known.
pub fn kill_one(ctx: &LauncherCtx, args: Value, point: &str, victim: usize, hit: u64) -> Any<Notice> {
    let fault = Fault::at(point).rank(victim).hit(hit).hold("never");
    let running = ctx.launch("group-loop").arg(args).fault(fault).limit(SOON).spawn()?;
    running.wait_held(victim, "never", SOON)?;
    let process = running.process_of(victim).ok_or("the launch runs it")?;
    let lost = running.ranks_of(process).to_vec();
    let killed = running.kill(process)?;
    survivors(&running, &lost, killed)
}

/// Every survivor names the lost ranks in time, keeps its memory, and ends well.
fn survivors(running: &Running, lost: &[usize], killed: u64) -> Any<Notice> {
    let all = || (0..running.processes()).flat_map(|p| running.ranks_of(p).to_vec());
    let mut slowest = Notice::default();
    for rank in all().filter(|r| !lost.contains(r)) {
        let note = running.wait_note(rank, "error", SOON)?;
        is_lost(&note, lost, "Died").map_err(|e| format!("rank {rank}: {e}"))?;
        slowest = slowest.max(in_time(&note, killed, &[]).map_err(|e| format!("rank {rank}: {e}"))?);
    }
    running.go("look")?;
    for report in running.wait(SOON) {
        let expected =
            if lost.contains(&report.rank) { Outcome::Killed(9) } else { Outcome::Ok(json!(null)) };
        check_outcome(&report, &expected)?;
    }
    Ok(slowest)
}

fn check_outcome(report: &comm_testkit::RankReport, expected: &Outcome) -> RankResult {
    check_eq!(&report.outcome, expected, "rank {}", report.rank);
    done()
}
