//! SIGSTOP of a process inside a collective: the others time out and say so, and when it goes on it does no harm and is
//! not fooled.

use std::time::Duration;

use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, RankResult, Running, check, check_eq, done};
use serde_json::json;

use super::kill::{ONCE, points};
use super::program::BYTES;
use super::report::is_stopped;
use super::{BACKEND, SOON, SUITE, dice};

/// Segment, and offset in it.
type Place = (u64, u64);

/// The rounds of the program take turns: even ones reduce, odd ones gather.
const GATHER: u64 = 3;

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for point in points().into_iter().filter(|&p| !ONCE.contains(&p) && p != "window.read") {
        // A reduction passes `reduced` and `gathered`, a gathering only `gathered`: any hit will do.
        all.push((format!("stop/-/-/{point}"), point, 3));
    }
    all.push(("stop/-/-/window.read/reduce".into(), "window.read", 0));
    all.push(("stop/-/-/window.read/pull".into(), "window.read", PULL));
    all.push(("stop/-/-/window.read/gather".into(), "window.read", GATHER));
    let of = |(name, point, hit)| {
        Case::launcher(SUITE, name, move |ctx: &LauncherCtx| stops_at(ctx, point, hit))
            .worlds(|w| w == 4)
            .layouts(&[Layout::Processes, Layout::Mixed])
            .limit(Duration::from_secs(60))
            .backend(BACKEND)
    };
    all.into_iter().map(of).collect()
}

/// A reduction has one read for each block of its part and rank, then one for each rank's part.
const PULL: u64 = 1;

/// Which hit of `window.read` it is: in the middle of the first reduction, in its second half, or in the gathering
/// behind it.
fn read_of(world: u64, which: u64) -> u64 {
    let blocks = (1u64 << 20).div_ceil(world).div_ceil(32 * 1024);
    let reduce = blocks * world;
    match which {
        0 => reduce / 2 + 1,
        PULL => reduce + world,
        _ => reduce + world + world,
    }
}

/// What the survivors had exposed is something else by now: the ranks of a process share its arena.
fn was_recycled(running: &Running, survivors: &[usize]) -> RankResult {
    let mut recycled: Vec<(Option<usize>, Place)> = Vec::new();
    for &rank in survivors {
        let places: Vec<Place> = serde_json::from_value(running.wait_note(rank, "recycled", SOON)?.value)?;
        recycled.extend(places.into_iter().map(|place| (running.process_of(rank), place)));
    }
    for &rank in survivors {
        let (segment, offset): Place =
            serde_json::from_value(running.wait_note(rank, "exposed", SOON)?.value)?;
        let again = recycled.iter().any(|&(process, (s, o))| {
            process == running.process_of(rank) && s == segment && o.abs_diff(offset) < BYTES as u64
        });
        check!(again, "rank {rank}: what it exposed at {offset} of {segment} was not used again");
    }
    done()
}

fn stops_at(ctx: &LauncherCtx, point: &'static str, hit: u64) -> RankResult {
    let world = ctx.world();
    // The last rank reads a survivor's memory in another process last of all if the victim is the first.
    let victim = if point == "window.read" { 0 } else { dice(ctx, point).below(world as u64) as usize };
    let hit = if point == "window.read" { read_of(world as u64, hit) } else { hit };
    let site = || Fault::at(point).rank(victim).hit(hit);
    let mut launch = ctx.launch("group-loop").arg(json!({"op_ms": 1000})).limit(SOON);
    if point == "window.read" {
        // By then all others have done their part, those of the same process too: nothing but this read is missing.
        launch = launch.fault(site().delay(Duration::from_millis(50)));
    }
    launch = launch.fault(site().stop());
    let running = launch.spawn()?;
    let process = running.process_of(victim).ok_or("the launch runs it")?;
    let stopped = running.ranks_of(process).to_vec();
    running.wait_stopped(process, SOON)?;
    let survivors: Vec<usize> = (0..world).filter(|r| !stopped.contains(r)).collect();
    for &rank in &survivors {
        let note = running.wait_note(rank, "error", SOON)?;
        is_stopped(&note, &stopped).map_err(|e| format!("rank {rank}: {e}"))?;
    }
    was_recycled(&running, &survivors)?;
    for &rank in &stopped {
        check!(
            !running.notes(rank).iter().any(|n| n.text == "error"),
            "a stopped rank cannot have said that"
        );
    }
    running.cont(process)?;
    for &rank in &stopped {
        // Every result that the program took for one was checked before this.
        let note = running.wait_note(rank, "error", SOON)?;
        is_stopped(&note, &stopped).map_err(|e| format!("stopped rank {rank}: {e}"))?;
    }
    running.go("look")?;
    for report in running.wait(SOON) {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
    }
    done()
}
