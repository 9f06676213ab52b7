//! Stopped processes are named as such; a whole job that is stopped and continued accuses nobody.

use std::sync::Arc;
use std::time::Duration;

use comm_core::Error;
use comm_core::error::PeerState;
use comm_core::shm::{Block, Segment};
use comm_core::team::{BOARD_BYTES, CellRef, Team};
use comm_core::wait::Cell as Word;
use comm_testkit::fault::Fault;
use comm_testkit::{
    Case, LauncherCtx, Layout, Outcome, RankCtx, RankResult, Running, Signal, block_on, check, check_eq,
    done, now_ns,
};
use serde_json::json;

use super::kill::{SOON, processes};
use super::member::{Ops, Orders};
use super::verdict::Told;

type Failed = Box<dyn std::error::Error + Send + Sync>;

const BOTH: &[Layout] = &[Layout::Processes, Layout::Mixed];

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&LauncherCtx) -> RankResult| Case::launcher("fault", name, run);
    vec![
        case("stop/one-process", one_process).layouts(BOTH),
        case("stop/at-points", at_points).worlds(|world| world == 4).layouts(&[Layout::Processes]),
        case("stop/all", all).worlds(|world| world == 4),
        case("stop/all/nobody-comes", nobody_comes).worlds(|world| world == 4).layouts(&[Layout::Processes]),
    ]
}

/// How long the others wait for a process that is stopped.
const PATIENCE: u64 = 700;

/// Between operations: all of its ranks are missing, and stopped; when they go on they are told so too.
fn one_process(ctx: &LauncherCtx) -> RankResult {
    let mut launches = Vec::new();
    for (victim, ops) in (0..processes(ctx)).flat_map(|v| [(v, Ops::Barrier), (v, Ops::Exchange)]) {
        let orders = Orders { ops, op_ms: PATIENCE, pause_after: Some(3), ..Orders::default() };
        let running = ctx.launch("fault.member").arg(orders.json()).spawn()?;
        for rank in 0..ctx.world() {
            running.wait_note(rank, "paused", SOON)?;
        }
        running.stop(victim)?;
        running.go("on")?;
        launches.push((victim, running));
    }
    for (victim, running) in launches {
        for process in (0..running.processes()).filter(|&p| p != victim) {
            running.wait_exit(process, SOON)?;
        }
        let continued = running.cont(victim)?;
        let stopped = running.ranks_of(victim);
        for report in running.wait(SOON) {
            let told = Told::by(&report)?;
            check!(told.is_missing(stopped, PeerState::Stopped), "rank {}: {}", report.rank, told.text);
            check!(told.waited_ms >= PATIENCE, "{}", told.text);
            check_eq!(told.at_ns >= continued, report.process == victim);
        }
    }
    done()
}

/// Where it stands when it stops itself decides in which operation it is missed.
fn at_points(ctx: &LauncherCtx) -> RankResult {
    let points = [
        "join.welcomed",
        "join.linked",
        "join.met",
        "barrier.begun",
        "barrier.met",
        "exchange.begun",
        "exchange.met",
    ];
    let mut launches = Vec::new();
    for (i, point) in points.into_iter().enumerate() {
        let victim = i % ctx.world();
        // Last to come, so that it is not the host of the join: who is stopped must have welcomed everybody.
        let orders = Orders { op_ms: PATIENCE, join_ms: 3000, late: Some(victim), ..Orders::default() };
        let hit = if point.starts_with("join.") { 1 } else { 2 };
        let fault = Fault::at(point).rank(victim).hit(hit).stop();
        let running = ctx.launch("fault.member").arg(orders.json()).fault(fault).spawn()?;
        for rank in 0..ctx.world() {
            running.wait_note(rank, "comes", SOON)?;
        }
        std::thread::sleep(Duration::from_millis(50));
        running.go("late")?;
        running.wait_stopped(victim, SOON)?;
        launches.push((point, victim, running));
    }
    for (point, victim, running) in launches {
        for process in (0..running.processes()).filter(|&p| p != victim) {
            running.wait_exit(process, SOON)?;
        }
        running.cont(victim)?;
        for report in running.wait(SOON) {
            let told = Told::by(&report)?;
            let fine = told.is_missing(&[victim], PeerState::Stopped);
            check!(fine, "{point}, rank {} in {}: {}", report.rank, told.call, told.text);
        }
    }
    done()
}

/// A cell of a window block.
struct Shared {
    block: Arc<Block>,
}

impl CellRef for Shared {
    fn cell(&self) -> &Word {
        self.block.typed(0).unwrap()
    }
}

/// The same, as seen by the rank that sets it.
enum Target {
    #[allow(clippy::redundant_allocation, reason = "a team shares things behind an Arc of its own")]
    Here(Arc<Arc<Block>>),
    There(Arc<Segment>, u64),
}

impl Target {
    fn word(&self) -> Result<&Word, Error> {
        Ok(match self {
            Target::Here(block) => block.typed(0)?,
            Target::There(segment, offset) => segment.typed(*offset)?,
        })
    }
}

/// Waits with a deadline for the last rank, as its arguments say; the job is stopped meanwhile.
pub fn awaits(ctx: &RankCtx) -> RankResult {
    let patience = Duration::from_millis(ctx.args()["ms"].as_u64().ok_or("no patience")?);
    let what = ctx.args()["what"].as_str().ok_or("no order")?;
    let last = ctx.world() - 1;
    let began = now_ns();
    let join = |patience: Duration| Team::join(&ctx.name("team"), ctx.rank(), ctx.world(), patience);
    let outcome = if what == "join" {
        ctx.note("waits");
        if ctx.rank() == last {
            ctx.await_go("on")?;
        }
        join(patience).map(drop)
    } else {
        let team = join(SOON)?;
        // The cells that the last rank sets, one for each of the others, each in that one's own memory.
        let block = Arc::new(team.hub().windows().alloc_zeroed(64)?);
        let mut place = [0; BOARD_BYTES];
        place[..8].copy_from_slice(&block.segment().id().to_ne_bytes());
        place[8..16].copy_from_slice(&block.offset().to_ne_bytes());
        let mine = block.clone();
        let _shared = team.share(ctx.rank() as u64, move || mine);
        let mut op = team.begin("map", SOON)?;
        let places = op.say(&place)?;
        let mut targets = Vec::new();
        for (rank, place) in places.iter().enumerate().take(if ctx.rank() == last { last } else { 0 }) {
            let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| place[i + k]));
            targets.push(if team.shares_process(rank) {
                Target::Here(team.share(rank as u64, || unreachable!("rank {rank} has shared it")))
            } else {
                Target::There(op.peer_segment(rank, word(0))?, word(8))
            });
        }
        op.heard()?;
        op.finish();
        ctx.note("waits");
        let outcome = match what {
            "task" if ctx.rank() == last => {
                ctx.await_go("on")?;
                for target in &targets {
                    target.word()?.set(7, team.bell());
                }
                Ok(())
            }
            "task" => {
                let cell = Shared { block: block.clone() };
                let wait = team.wait_task("the seven", cell, Some(last), 7, |v| v == 7, patience);
                block_on(wait).map(|value| assert_eq!(value, 7))
            }
            _ => {
                if ctx.rank() == last {
                    ctx.await_go("on")?;
                }
                team.barrier(patience)
            }
        };
        // Nobody takes his memory away before all are through.
        ctx.note("through");
        ctx.await_go("end")?;
        outcome
    };
    let elapsed_ms = (now_ns() - began) / 1_000_000;
    match outcome {
        Ok(()) => Ok(json!({ "elapsed_ms": elapsed_ms })),
        Err(error @ Error::Timeout { .. }) => Ok(json!(Told::of(what, &error))),
        Err(error) => Err(error.into()),
    }
}

/// How long a whole job is stopped, and the deadline of those who wait meanwhile.
const GAP: u64 = 2500;
const DEADLINE: u64 = 2000;

/// Launches of which all ranks but the last have waited for a while.
fn waiting(ctx: &LauncherCtx, what: &[&'static str]) -> Result<Vec<Running>, Failed> {
    let mut launches = Vec::new();
    for what in what {
        let orders = json!({ "what": what, "ms": DEADLINE });
        let running = ctx.launch("fault.awaits").arg(orders).spawn()?;
        for rank in 0..ctx.world() {
            running.wait_note(rank, "waits", SOON)?;
        }
        launches.push(running);
    }
    std::thread::sleep(Duration::from_millis(300));
    Ok(launches)
}

/// Ctrl-Z for a time; says when it began and when it was over, for each.
fn pause(launches: &[Running]) -> Result<Vec<(u64, u64)>, Failed> {
    let stopped: Vec<u64> = launches.iter().map(|running| running.signal_all(Signal::Stop)).collect();
    for running in launches {
        for process in 0..running.processes() {
            running.wait_stopped(process, SOON)?;
        }
    }
    std::thread::sleep(Duration::from_millis(GAP));
    Ok(stopped.into_iter().zip(launches.iter().map(|r| r.signal_all(Signal::Continue))).collect())
}

/// Ctrl-Z for longer than the deadline, and on: the rank that comes then comes in time.
fn all(ctx: &LauncherCtx) -> RankResult {
    let ways = ["barrier", "task", "join"];
    let launches = waiting(ctx, &ways)?;
    pause(&launches)?;
    // Well within what was left of the deadline, if the clock stood still meanwhile.
    std::thread::sleep(Duration::from_millis(200));
    for running in &launches {
        running.go("on")?;
    }
    for (what, running) in ways.into_iter().zip(&launches) {
        if what != "join" {
            for rank in 0..ctx.world() {
                running.wait_note(rank, "through", SOON)?;
            }
        }
        running.go("end")?;
        for report in running.wait(SOON) {
            let Outcome::Ok(value) = &report.outcome else {
                return Err(format!("{what}, rank {}: {}", report.rank, report.outcome).into());
            };
            check!(value["elapsed_ms"].is_u64(), "{what}, rank {} accuses: {value}", report.rank);
            check!(value["elapsed_ms"].as_u64() >= Some(GAP), "{what}: stopped for longer than {value}");
        }
    }
    done()
}

/// Moved deadlines are deadlines.
fn nobody_comes(ctx: &LauncherCtx) -> RankResult {
    let launches = waiting(ctx, &["barrier", "task"])?;
    let last = ctx.world() - 1;
    for ((stopped, continued), running) in pause(&launches)?.into_iter().zip(&launches) {
        for rank in 0..last {
            running.wait_note(rank, "through", SOON)?;
        }
        running.go("end")?;
        running.go("on")?;
        for report in running.wait(SOON).iter().filter(|r| r.rank != last) {
            let told = Told::by(report)?;
            check!(told.is_missing(&[last], PeerState::NotArrived), "{}", told.text);
            let gap = (continued - stopped) / 1_000_000;
            let began = report.note("waits").ok_or("it did not wait")?.at_ns;
            let waited = (told.at_ns - began) / 1_000_000;
            // What passed between the last look at the clock and the stop may count as waited.
            check!(waited + 100 >= DEADLINE + gap, "{waited} ms, with a gap of {gap} ms: {}", told.text);
            check!(told.waited_ms <= waited, "{}", told.text);
        }
    }
    done()
}
