//! Starting the ranks of one layout, and collecting what they measured.

use std::time::{Duration, Instant};

use comm_core::Deadline;
use comm_core::team::Team;
use comm_group::ThreadGroup;
use comm_testkit::{Launch, Program, RankCtx, RankResult};

use super::rank::{Measured, Plan, run};
use crate::cli::Layout;
use crate::fail::Fail;
use crate::out::note;
use crate::ranks::{self, PROGRESS, TICK, Work};

const PROGRAM: &str = "bench";

/// What a rank does.
pub const RANK: Program = Program { name: PROGRAM, run: rank };

fn rank(ctx: &RankCtx) -> RankResult {
    let plan: Plan = serde_json::from_value(ctx.args().clone())?;
    let team = Team::join(&ctx.name(PROGRAM), ctx.rank(), ctx.world(), Deadline::default())?;
    let group = ThreadGroup::new(team, Deadline::default())?;
    let said = std::cell::Cell::new(Instant::now());
    let measured = run(&group, &plan, &|through| {
        if ctx.rank() == 0 && said.get().elapsed() >= TICK {
            said.set(Instant::now());
            ctx.note_value(PROGRESS, through);
        }
    })?;
    Ok(serde_json::to_value(measured)?)
}

/// Runs all ranks to their end; what each has measured, in rank order, one for each case.
///
/// # Errors
/// [`Fail::Check`] if a rank failed; each one's end is said on stderr.
pub fn launch(plan: &Plan, world: usize, layout: Layout) -> Result<Vec<Vec<Measured>>, Fail> {
    let rows = plan.cases.len();
    note(&format!("bench: {rows} rows, {world} ranks, layout {}", layout.name()));
    let order = serde_json::to_value(plan).map_err(|e| Fail::usage(e.to_string()))?;
    let cannot = |e: comm_testkit::LaunchError| Fail::check(format!("cannot start the ranks: {e}"));
    let running = Launch::new(PROGRAM, world, ranks::spread(layout)).arg(order).spawn().map_err(cannot)?;
    let bar = "{bar:40} {pos}/{len} rows {elapsed}";
    ranks::watch(&running, &Work { command: PROGRAM, total: rows as u64, unit: "rows", bar });
    ranks::collect(running.wait(Duration::ZERO), &running.logs())
}
