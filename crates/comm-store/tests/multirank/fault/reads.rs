//! Reads, while others finish or forget what is read.

use std::time::Duration;

use comm_core::Error;
use comm_core::device::Stream;
use comm_core::tensor::Tensor;
use comm_store::store;
use comm_testkit::fault::{Fault, set_rank};
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, check, done};

use super::program::OP;
use super::store::BACKEND;
use super::{SOON, SUITE};
use crate::support::{Any, team};

pub const PROGRAMS: &[Program] = &[FINISHED, FORGOTTEN];

const FINISHED: Program = Program { name: "store-finished-by-another", run: finished };
const FORGOTTEN: Program = Program { name: "store-forgotten-here", run: forgotten };

const PRODUCER: usize = 0;
const READER: usize = 1;

pub fn cases() -> Vec<Case> {
    let of = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        let case = Case::launcher(SUITE, name, run).backend(BACKEND).worlds(|world| world == 2);
        case.layouts(&[Layout::Processes, Layout::Threads])
    };
    vec![of("finish/-/-/half-read", finished_by_another), of("reset/-/-/half-forgotten", forgotten_here)]
}

/// Somebody else finishes by name: that is refused, and the reader gets what was published and not what came there since.
fn finished_by_another(ctx: &LauncherCtx) -> RankResult {
    let found = Fault::at("store.found").rank(READER).hold("found");
    let running = ctx.launch(FINISHED.name).fault(found).limit(SOON).spawn()?;
    running.wait_held(READER, "found", SOON)?;
    running.go("finish")?;
    running.wait_note(PRODUCER, "spent", SOON)?;
    running.go("found")?;
    running.end_well(SOON)
}

fn finished(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let (cpu, store) = (Stream::cpu(), store::open(&team, OP)?);
    let fresh = |n: i64| Tensor::from_slice(&[5000], &vec![n; 5000])?.contiguous_in(team.hub().tensors());
    if ctx.rank() == PRODUCER {
        store.publish("x", &fresh(7)?, &cpu, 1, None)?;
        ctx.await_go("finish")?;
        let refused = store.finish("x", &cpu);
        let early = store.wait_consumed("x", Duration::from_millis(20).into());
        // At the place of its tensor, and of what is noted about that.
        (0..20).try_for_each(|i| store.publish(&i.to_string(), &fresh(-1)?, &cpu, 0, None))?;
        ctx.note("spent");
        check!(matches!(refused, Err(Error::OverFinished { .. })), "{refused:?}");
        check!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
        store.wait_consumed("x", OP.into())?;
    } else {
        let read = store.fetch("x", &cpu, OP.into())?;
        check!(read.to_vec::<i64>()? == [7; 5000], "memory that is read was used for something else");
        read.finish()?;
    }
    team.barrier(OP)?;
    done()
}

/// A rank that has forgotten finds nothing of what others are about to forget: to read it, it would be too late.
fn forgotten_here(ctx: &LauncherCtx) -> RankResult {
    let running = ctx
        .launch(FORGOTTEN.name)
        .fault(Fault::at("window.wipe").rank(PRODUCER).hold("wipe"))
        .fault(Fault::at("store.reset").rank(READER).hold("forgotten"))
        .limit(SOON)
        .spawn()?;
    running.wait_held(PRODUCER, "wipe", SOON)?;
    running.wait_held(READER, "forgotten", SOON)?;
    running.go("forgotten")?;
    running.go("fetch")?;
    running.wait_note(READER, "looked", SOON)?;
    running.go("wipe")?;
    running.end_well(SOON)
}

fn forgotten(ctx: &RankCtx) -> RankResult {
    // With a home on either rank.
    const KEYS: usize = 12;
    let team = team(ctx, "t")?;
    let (cpu, store) = (Stream::cpu(), store::open(&team, OP)?);
    if ctx.rank() == PRODUCER {
        let t = Tensor::from_slice(&[1], &[7])?;
        (0..KEYS).try_for_each(|key| store.publish(&key.to_string(), &t, &cpu, 2, None))?;
    }
    team.barrier(OP)?;
    std::thread::scope(|scope| -> Any<()> {
        let resets = scope.spawn(|| {
            set_rank(Some(ctx.rank()));
            store.reset(OP.into())
        });
        if ctx.rank() == READER {
            ctx.await_go("fetch")?;
            for key in 0..KEYS {
                let key = key.to_string();
                let read = store.fetch(&key, &cpu, Duration::from_millis(5).into());
                check!(matches!(read, Err(Error::Timeout { .. })), "{key}: {read:?}");
                let finished = store.finish(&key, &cpu);
                check!(matches!(finished, Err(Error::UnknownKey { .. })), "{key}: {finished:?}");
            }
            ctx.note("looked");
        }
        Ok(resets.join().map_err(|_| "a thread panicked")??)
    })?;
    team.barrier(OP)?;
    done()
}
