//! One tensor handed from a producer to two readers, one of whom, at one of four moments, is killed, stopped, or panics: who
//! gets what.
//!
//! The moments: before it is published; between publishing and fetching; while it is read; when all have finished and the
//! producer has not waited for that. Who is killed had no chance to finish; who panics finishes by unwinding.

use std::time::Duration;

use comm_core::device::Stream;
use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_core::{Error, Result};
use comm_store::store::{self, TensorStore};
use comm_testkit::report::{self, in_time, is_lost};
use comm_testkit::witness::Witness;
use comm_testkit::{
    Case, LauncherCtx, Layout, Note, Outcome, Program, RankCtx, RankResult, check, check_eq, done, probe,
};
use serde_json::json;

use super::program::{OP, nothing_is_left};
use super::store::BACKEND;
use super::{SOON, SUITE};
use crate::support::{Any, team};

pub const PROGRAM: Program = Program { name: "store-handover", run: hand_over };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Kill,
    Stop,
    Panic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Unpublished,
    Unfetched,
    Reading,
    Finished,
}

/// Rank 0 publishes, 1 and 2 read.
const PRODUCER: usize = 0;
const READER: usize = 1;

/// What a survivor gets in a call. In all cells a barrier afterwards gets [`Lost`](Gets::Lost), unless the victim was
/// stopped and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gets {
    Done,
    Lost,
    /// Out of time; and done, when the victim goes on.
    Late,
    /// It is the victim's own call.
    Nobody,
}

use Gets::{Done, Late, Lost, Nobody};
use Moment::{Finished, Reading, Unfetched, Unpublished};
use What::{Kill, Panic, Stop};

/// Publishing; fetching by the reader who survives (or both); finishing; and the producer's wait.
type Cell = [Gets; 4];

/// When, who, and what befalls him; and what it is to the others.
type Row = (Moment, usize, [(What, Cell); 3]);

#[rustfmt::skip]
const TABLE: [Row; 8] = [
    (Unpublished, PRODUCER, [
        (Kill,  [Nobody, Lost, Lost, Nobody]),
        (Stop,  [Nobody, Late, Done, Nobody]),
        (Panic, [Nobody, Lost, Lost, Nobody])]),
    (Unpublished, READER, [
        (Kill,  [Lost, Lost, Lost, Lost]),
        (Stop,  [Done, Done, Done, Late]),
        (Panic, [Lost, Lost, Lost, Lost])]),
    (Unfetched, PRODUCER, [
        (Kill,  [Nobody, Done, Done, Nobody]),
        (Stop,  [Nobody, Done, Done, Nobody]),
        (Panic, [Nobody, Done, Done, Nobody])]),
    (Unfetched, READER, [
        (Kill,  [Done, Done, Done, Lost]),
        (Stop,  [Done, Done, Done, Late]),
        (Panic, [Done, Done, Done, Lost])]),
    (Reading, PRODUCER, [
        (Kill,  [Nobody, Done, Done, Nobody]),
        (Stop,  [Nobody, Done, Done, Nobody]),
        (Panic, [Nobody, Done, Done, Nobody])]),
    (Reading, READER, [
        (Kill,  [Done, Done, Done, Lost]),
        (Stop,  [Done, Done, Done, Late]),
        (Panic, [Done, Done, Done, Done])]),
    (Finished, PRODUCER, [
        (Kill,  [Nobody, Done, Done, Nobody]),
        (Stop,  [Nobody, Done, Done, Nobody]),
        (Panic, [Nobody, Done, Done, Nobody])]),
    (Finished, READER, [
        (Kill,  [Done, Done, Done, Done]),
        (Stop,  [Done, Done, Done, Done]),
        (Panic, [Done, Done, Done, Done])]),
];

const CALLS: [&str; 4] = ["publish", "fetch", "finish", "wait"];

pub fn cases() -> Vec<Case> {
    let on = |case: Case| case.worlds(|world| world == 3).limit(Duration::from_secs(90)).backend(BACKEND);
    let mut all = Vec::new();
    for (moment, victim, cells) in TABLE {
        for (what, cell) in cells {
            let who = if victim == PRODUCER { "producer" } else { "reader" };
            let name = format!("handover/-/-/{what:?}-{who}-{moment:?}").to_lowercase();
            // A process that is killed or stopped takes all of its ranks along.
            let layouts: &[Layout] =
                if what == Panic { &[Layout::Processes, Layout::Threads] } else { &[Layout::Processes] };
            let case = Case::launcher(SUITE, name, move |ctx| strike(ctx, what, moment, victim, cell));
            all.push(on(case.layouts(layouts)));
        }
    }
    all
}

/// How long a survivor waits for a process that is stopped.
const PATIENCE: Duration = Duration::from_millis(200);

fn strike(ctx: &LauncherCtx, what: What, moment: Moment, victim: usize, cell: Cell) -> RankResult {
    let names = probe::dev_shm();
    let orders =
        json!({"victim": victim, "moment": moment as usize, "stop": what == Stop, "panic": what == Panic});
    let running = ctx.launch(PROGRAM.name).arg(orders).limit(SOON).spawn()?;
    for rank in 0..ctx.world() {
        running.wait_note(rank, "at the moment", SOON)?;
    }
    let process = running.process_of(victim).ok_or("the launch runs it")?;
    let witness = Witness::start();
    let since = match what {
        Kill => running.kill(process)?,
        Stop => running.stop(process)?,
        Panic => {
            running.go("panic")?;
            running.wait_note(victim, "panics", SOON)?.at_ns
        }
    };
    let survivors = (0..ctx.world()).filter(|&rank| rank != victim);
    let notes = |call: &'static str, gets: Gets| -> RankResult {
        // Who does not make it says nothing.
        let makes = |&rank: &usize| (call == "publish" || call == "wait") == (rank == PRODUCER);
        for rank in survivors.clone().filter(makes).filter(|_| gets != Nobody) {
            let note = running.wait_note(rank, call, SOON)?;
            judge(&note, what, gets, victim).map_err(|e| format!("rank {rank}, {call}: {e}"))?;
        }
        done()
    };
    if what != Stop {
        // The team is over for all of them, and they know in time.
        for rank in survivors.clone() {
            let note = running.wait_note(rank, "over", SOON)?;
            is_lost(&note, &[victim], if what == Kill { "Died" } else { "Panicked" })?;
            in_time(&note, since, &witness.gaps()).map_err(|e| format!("rank {rank}: {e}"))?;
        }
    }
    running.go("on")?;
    let mut stopped = what == Stop;
    for (call, gets) in CALLS.into_iter().zip(cell) {
        if call == "wait" {
            // Only now: what it gets depends on whether the readers have finished.
            running.go("wait")?;
        }
        notes(call, gets)?;
        if gets == Late {
            running.cont(process)?;
            stopped = false;
        }
    }
    if stopped {
        running.cont(process)?;
    }
    // When all have made their calls, the producer uses its memory for something else, and readers look once more.
    running.go("spend")?;
    if victim != PRODUCER || what == Stop {
        running.wait_note(PRODUCER, "spent", SOON)?;
    }
    running.go("look")?;
    running.go("end")?;
    for report in running.wait(SOON) {
        let expected = match what {
            Kill if report.rank == victim => Outcome::Killed(9),
            _ => Outcome::Ok(json!(null)),
        };
        if what == Panic && report.rank == victim {
            check!(matches!(report.outcome, Outcome::Panicked(_)), "{}", report.outcome);
        } else {
            check_eq!(report.outcome, expected, "rank {}", report.rank);
        }
    }
    check!(probe::processes_of_launch(running.id()).is_empty(), "a process is left");
    check_eq!(probe::sockets_named(running.instance())?, Vec::<String>::new());
    let new: Vec<_> = probe::dev_shm().into_iter().filter(|name| !names.contains(name)).collect();
    check!(new.is_empty(), "left in /dev/shm: {new:?}");
    done()
}

fn judge(note: &Note, what: What, gets: Gets, victim: usize) -> RankResult {
    match gets {
        Done => check_eq!(note.value, json!(null)),
        Lost => drop(is_lost(note, &[victim], if what == Kill { "Died" } else { "Panicked" })?),
        // Of whom it is out of time it cannot say: it may be anybody's to publish, or to read.
        Late => check_eq!(note.value["kind"], json!("timeout"), "{}", note.value),
        Nobody => {}
    }
    done()
}

fn values() -> Vec<i64> {
    (0..5000).map(|i| i * 7).collect()
}

/// What a call got, told to the launcher; tried again when it was out of time.
fn told<T>(ctx: &RankCtx, call: &str, mut attempt: impl FnMut(Duration) -> Result<T>) -> Option<T> {
    let stops = ctx.args()["stop"] == json!(true);
    let outcome = attempt(if stops { PATIENCE } else { OP });
    ctx.note_value(call, outcome.as_ref().err().map_or(json!(null), report::to_json));
    match outcome {
        Err(Error::Timeout { .. }) => attempt(OP).ok(),
        outcome => outcome.ok(),
    }
}

fn hand_over(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let store = store::open(&team, OP)?;
    let outcome = played(ctx, &*store, &team);
    drop(store);
    outcome?;
    nothing_is_left(team)
}

fn played(ctx: &RankCtx, store: &dyn TensorStore, team: &Team) -> Any<()> {
    let cpu = Stream::cpu();
    let moment = ctx.args()["moment"].as_u64().unwrap_or_default() as usize;
    let comes_to = |at: Moment| -> Any<bool> {
        if moment != at as usize {
            return Ok(false);
        }
        // All are as far as the moment says.
        team.barrier(OP)?;
        ctx.note("at the moment");
        stricken(ctx, team)?;
        Ok(true)
    };
    comes_to(Unpublished)?;
    if ctx.rank() == PRODUCER {
        let t = Tensor::from_slice(&[5000], &values())?.contiguous_in(team.hub().tensors())?;
        told(ctx, "publish", |_| store.publish("x", &t, &cpu, 2, None));
        drop(t);
    }
    comes_to(Unfetched)?;
    let read = match ctx.rank() {
        PRODUCER => None,
        _ => told(ctx, "fetch", |by| store.fetch("x", &cpu, by.into())),
    };
    comes_to(Reading)?;
    // Kept to the end by the one who survives; the other one's goes with it.
    let mut kept = None;
    if ctx.rank() != PRODUCER {
        match read {
            Some(read) => {
                check!(read.to_vec::<i64>()? == values(), "what is read is what was published");
                kept = Some(read.tensor().clone());
                let mut read = Some(read);
                told(ctx, "finish", |_| read.take().map_or(Ok(()), |read| read.finish()));
            }
            None => {
                told(ctx, "finish", |_| team.barrier(OP));
            }
        }
    }
    comes_to(Finished)?;
    if ctx.rank() == PRODUCER {
        ctx.await_go("wait")?;
        if ctx.args()["moment"] == json!(Unpublished as usize) && team.is_over() {
            told(ctx, "wait", |_| team.barrier(OP));
        } else {
            told(ctx, "wait", |by| store.wait_consumed("x", by.into()));
        }
        ctx.await_go("spend")?;
        let spent = (0..20)
            .map(|_| Tensor::from_slice(&[5000], &[-1_i64; 5000])?.contiguous_in(team.hub().tensors()));
        let spent = spent.collect::<Result<Vec<_>>>()?;
        ctx.note("spent");
        drop(spent);
    }
    ctx.await_go("look")?;
    if let Some(kept) = &kept {
        check!(kept.to_vec::<i64>()? == values(), "memory that is read was used for something else");
    }
    drop(kept);
    ctx.await_go("end")?;
    match store.barrier(OP.into()) {
        Ok(()) if ctx.args()["stop"] == json!(true) => Ok(()),
        Err(Error::PeerLost { .. }) if ctx.args()["stop"] != json!(true) => Ok(()),
        other => Err(format!("at the end: {other:?}").into()),
    }
}

/// The moment: the victim waits to be stricken, and panics if it is to; the others wait until they may go on, and say first
/// when they know that it is lost.
fn stricken(ctx: &RankCtx, team: &Team) -> Any<()> {
    let is_victim = ctx.args()["victim"] == json!(ctx.rank());
    if is_victim && ctx.args()["panic"] == json!(true) {
        ctx.await_go("panic")?;
        ctx.note("panics");
        // As by a panic, without the message, whose backtrace takes its time.
        std::panic::resume_unwind(Box::new("on purpose"));
    }
    if !is_victim && ctx.args()["stop"] != json!(true) {
        let before = report::busy();
        // Nobody wakes it but the end of the team.
        let never = comm_core::wait::Cell::default();
        let over = team.wait(&"the end of the team", &never, None, 1, |_| None::<()>, OP);
        let error = over.err().ok_or("it waits for nothing")?;
        ctx.note_value("over", {
            let mut value = report::to_json(&error);
            value["busy_ns"] = json!(report::busy().saturating_sub(before).as_nanos() as u64);
            value
        });
    }
    ctx.await_go("on")?;
    Ok(())
}
