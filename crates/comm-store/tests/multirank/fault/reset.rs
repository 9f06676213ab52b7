//! Resets of stores that go wrong, or come in between.

use std::time::Duration;

use comm_core::device::Stream;
use comm_core::tensor::Tensor;
use comm_core::{Error, Result};
use comm_store::store;
use comm_testkit::fault::{Fault, set_rank};
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use super::program::OP;
use super::store::BACKEND;
use super::{SOON, SUITE};
use crate::support::{Any, eventually, team};

pub const PROGRAMS: &[Program] = &[HALF, OVERTAKEN, MET];

const HALF: Program = Program { name: "store-half-reset", run: half_reset };
const OVERTAKEN: Program = Program { name: "store-overtaken", run: overtaken };
const MET: Program = Program { name: "store-met", run: met };

/// Rank 0 publishes, and 1 and 2 do what the case is about.
const PRODUCER: usize = 0;
const READER: usize = 1;
const OTHER: usize = 2;

pub fn cases() -> Vec<Case> {
    let of = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        let case = Case::launcher(SUITE, format!("reset/-/-/{name}"), run).backend(BACKEND);
        case.worlds(|world| world == 3).limit(Duration::from_secs(90))
    };
    vec![
        of("half-done", half_done).layouts(&[Layout::Processes]),
        of("overtakes-a-fetch", overtakes).layouts(&[Layout::Processes, Layout::Threads]),
        of("meets-a-fetch", meets).layouts(&[Layout::Processes, Layout::Mixed, Layout::Threads]),
    ]
}

/// A reset that comes to nothing when some have forgotten already: who has a tensor keeps it, whatever its producer does with
/// its memory afterwards.
fn half_done(ctx: &LauncherCtx) -> RankResult {
    let forgotten = Fault::at("store.reset").rank(PRODUCER).hold("forgotten");
    let victim = Fault::at("store.reset").rank(OTHER).hold("never");
    let running = ctx.launch(HALF.name).fault(forgotten).fault(victim).limit(SOON).spawn()?;
    running.wait_held(PRODUCER, "forgotten", SOON)?;
    running.wait_held(OTHER, "never", SOON)?;
    running.go("forgotten")?;
    running.kill(running.process_of(OTHER).ok_or("the launch runs it")?)?;
    running.wait_note(PRODUCER, "spent", SOON)?;
    running.go("look")?;
    for report in running.wait(SOON) {
        let expected = if report.rank == OTHER { Outcome::Killed(9) } else { Outcome::Ok(json!(null)) };
        check_eq!(report.outcome, expected, "rank {}", report.rank);
    }
    done()
}

fn half_reset(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let (cpu, store) = (Stream::cpu(), store::open(&team, OP)?);
    let fresh = |n: i64| Tensor::from_slice(&[5000], &vec![n; 5000])?.contiguous_in(team.hub().tensors());
    if ctx.rank() == PRODUCER {
        store.publish("x", &fresh(7)?, &cpu, 1, None)?;
    }
    let read = if ctx.rank() == READER { Some(store.fetch("x", &cpu, OP.into())?) } else { None };
    let lost = store.reset(OP.into());
    check!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
    if ctx.rank() == PRODUCER {
        let spent = (0..20).map(|_| fresh(-1)).collect::<Result<Vec<_>>>()?;
        ctx.note("spent");
        drop(spent);
    }
    ctx.await_go("look")?;
    if let Some(read) = read {
        check!(read.to_vec::<i64>()? == [7; 5000], "memory that is read was used for something else");
    }
    drop(store);
    let hub = team.hub().clone();
    drop(team);
    eventually("all memory was given back", || hub.tensors().stats().blocks == 0)?;
    done()
}

/// A reset overtakes a fetch, in another thread of the same rank, that has found its record and not taken its tensor yet: it
/// is told so, and does not get what has been published at the same place since.
fn overtakes(ctx: &LauncherCtx) -> RankResult {
    let running = ctx
        .launch(OVERTAKEN.name)
        .fault(Fault::at("store.found").rank(READER).hold("found"))
        .limit(SOON)
        .spawn()?;
    running.wait_held(READER, "found", SOON)?;
    running.go("reset")?;
    running.wait_note(PRODUCER, "spent", SOON)?;
    running.go("found")?;
    running.end_well(SOON)
}

/// As before, but the reader's own rank has not forgotten yet, and only the producer has: what has been found is still there,
/// and the fetch gets it.
fn meets(ctx: &LauncherCtx) -> RankResult {
    let running = ctx
        .launch(MET.name)
        .fault(Fault::at("store.found").rank(READER).hold("found"))
        .fault(Fault::at("window.wipe").rank(READER).hold("wipe"))
        .fault(Fault::at("store.reset").rank(PRODUCER).hold("forgotten"))
        .limit(SOON)
        .spawn()?;
    running.wait_held(READER, "found", SOON)?;
    running.go("reset")?;
    running.wait_held(READER, "wipe", SOON)?;
    running.wait_held(PRODUCER, "forgotten", SOON)?;
    running.go("found")?;
    running.wait_note(READER, "finished", SOON)?;
    running.go("wipe")?;
    running.go("forgotten")?;
    running.end_well(SOON)
}

fn met(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let (cpu, store) = (Stream::cpu(), store::open(&team, OP)?);
    if ctx.rank() == PRODUCER {
        let t = Tensor::from_slice(&[5000], &[7_i64; 5000])?.contiguous_in(team.hub().tensors())?;
        store.publish("x", &t, &cpu, 1, None)?;
    }
    std::thread::scope(|scope| -> Any<()> {
        let fetching = (ctx.rank() == READER).then(|| {
            scope.spawn(|| -> Any<()> {
                set_rank(Some(READER));
                let outcome = store.fetch("x", &cpu, OP.into()).and_then(|read| {
                    let values = read.to_vec::<i64>()?;
                    read.finish()?;
                    Ok(values)
                });
                ctx.note("finished");
                check!(outcome? == [7; 5000]);
                Ok(())
            })
        });
        ctx.await_go("reset")?;
        store.reset(OP.into())?;
        fetching.map_or(Ok(()), |fetching| fetching.join().map_err(|_| "a thread panicked")?)
    })?;
    check!(matches!(store.finish("x", &cpu), Err(Error::UnknownKey { .. })), "it is forgotten");
    team.barrier(OP)?;
    done()
}

fn overtaken(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let (cpu, store) = (Stream::cpu(), store::open(&team, OP)?);
    let fresh = |n: i64| Tensor::from_slice(&[5000], &vec![n; 5000])?.contiguous_in(team.hub().tensors());
    if ctx.rank() == PRODUCER {
        store.publish("x", &fresh(7)?, &cpu, 1, None)?;
    }
    std::thread::scope(|scope| -> Any<()> {
        let fetching = (ctx.rank() == READER).then(|| {
            scope.spawn(|| {
                set_rank(Some(READER));
                store.fetch("x", &cpu, OP.into()).map(drop)
            })
        });
        ctx.await_go("reset")?;
        store.reset(OP.into())?;
        if ctx.rank() == PRODUCER {
            // At the place of the record, of its tensor, and of what is noted about that.
            (0..20).try_for_each(|i| store.publish(&i.to_string(), &fresh(-1)?, &cpu, 1, None))?;
            ctx.note("spent");
        }
        if let Some(fetching) = fetching {
            let outcome = fetching.join().map_err(|_| "a thread panicked")?;
            check!(matches!(outcome, Err(Error::ConcurrentUse { .. })), "{outcome:?}");
        }
        Ok(())
    })?;
    team.barrier(OP)?;
    // It has not counted for anybody else's.
    if ctx.rank() == READER {
        for i in 0..20 {
            check!(store.fetch(&i.to_string(), &cpu, OP.into())?.to_vec::<i64>()? == [-1; 5000]);
        }
    }
    team.barrier(OP)?;
    done()
}
