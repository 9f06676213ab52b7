//! A read that has begun and has no tensor yet, while others do what would let go of that.

use std::time::Duration;

use comm_core::Error;
use comm_core::device::Stream;
use comm_core::tensor::Tensor;
use comm_store::store;
use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use super::program::OP;
use super::store::BACKEND;
use super::{SOON, SUITE};
use crate::support::team;

pub const PROGRAMS: &[Program] = &[FINISHED];

const FINISHED: Program = Program { name: "store-finished-by-another", run: finished };

const PRODUCER: usize = 0;
const READER: usize = 1;

pub fn cases() -> Vec<Case> {
    let case = Case::launcher(SUITE, "finish/-/-/half-read", finished_by_another).backend(BACKEND);
    vec![case.worlds(|world| world == 2).layouts(&[Layout::Processes, Layout::Threads])]
}

/// Somebody else finishes by name: that is refused, and the reader gets what was published and not what came there since.
fn finished_by_another(ctx: &LauncherCtx) -> RankResult {
    let found = Fault::at("store.found").rank(READER).hold("found");
    let running = ctx.launch(FINISHED.name).fault(found).limit(SOON).spawn()?;
    running.wait_held(READER, "found", SOON)?;
    running.go("finish")?;
    running.wait_note(PRODUCER, "spent", SOON)?;
    running.go("found")?;
    for report in running.wait(SOON) {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
    }
    done()
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
