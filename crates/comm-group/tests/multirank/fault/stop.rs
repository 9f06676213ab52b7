//! SIGSTOP of a process inside a collective: the others time out and say so, and when it goes on it does no harm and is
//! not fooled.

use std::sync::Mutex;
use std::time::Duration;

use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Layout, Note, RankResult, Running, check, check_eq, done};
use serde_json::{Value, json};

use super::kill::{ONCE, points};
use super::program::BYTES;
use super::{BACKEND, SOON, SUITE, dice};
use crate::support::Any;

/// Segment, and offset in it.
type Place = (u64, u64);

/// The first round of the program reduces, the second gathers.
const GATHER: u64 = 3;

pub fn cases() -> Vec<Case> {
    let read = |which: u64| move |ctx: &LauncherCtx| stops_at(ctx, "window.read", which);
    let all = [
        Case::launcher(SUITE, "stop/-/-/each-point", each_point),
        Case::launcher(SUITE, "stop/-/-/window.read/reduce", read(0)),
        Case::launcher(SUITE, "stop/-/-/window.read/pull", read(PULL)),
        Case::launcher(SUITE, "stop/-/-/window.read/gather", read(GATHER)),
    ];
    let spread = &[Layout::Processes, Layout::Mixed];
    let of = |case: Case| case.worlds(|w| w == 4).layouts(spread).limit(Duration::from_secs(120));
    all.into_iter().map(|case| of(case).backend(BACKEND)).collect()
}

fn each_point(ctx: &LauncherCtx) -> RankResult {
    let points = points().into_iter().filter(|&p| !ONCE.contains(&p) && p != "window.read").collect();
    // In a later round. Of notifies the first of a round: who has been notified waits for those who have not, too.
    let hit = |point| if point == "window.notify" { 4 } else { 3 };
    together(points, |point| {
        stops_at(ctx, point, hit(point)).map(drop).map_err(|e| format!("{point}: {e}").into())
    })?;
    done()
}

/// Does the same for all of them, a few at once: who waits for a deadline needs no core.
pub fn together<T: Send>(all: Vec<T>, one: impl Fn(T) -> Any<()> + Sync) -> Any<()> {
    let next = Mutex::new(all.into_iter());
    let work = || -> Any<()> {
        while let Some(item) = next.lock().ok().and_then(|mut next| next.next()) {
            one(item)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked")?)
    })
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
    stop_one(ctx, json!({"op_ms": 1000}), point, victim, hit)
}

pub fn stop_one(ctx: &LauncherCtx, args: Value, point: &'static str, victim: usize, hit: u64) -> RankResult {
    let world = ctx.world();
    let site = || Fault::at(point).rank(victim).hit(hit);
    let mut launch = ctx.launch("group-loop").arg(args).limit(SOON);
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
    running.end_well(SOON)
}

/// Checks that it waited for some of these ranks, which are stopped; perhaps for others, too, who wait for those themselves, or were
/// late on a machine with more to do than cores.
fn is_stopped(note: &Note, among: &[usize]) -> RankResult {
    let value = &note.value;
    check_eq!(value["kind"], json!("timeout"), "{}", value["text"]);
    let ranks: Vec<usize> = serde_json::from_value(value["stopped"].clone())?;
    check!(!ranks.is_empty() && ranks.iter().all(|r| among.contains(r)), "{}", value["text"]);
    done()
}
