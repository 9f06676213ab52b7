//! Starting the demo's ranks, and collecting what they say.

use std::time::{Duration, Instant};

use comm_testkit::{Launch, Program, RankCtx, RankResult};
use serde::{Deserialize, Serialize};

use super::convert::{RankReport, rank_main, work};
use super::group::Group;
use super::weights::{Choice, Weights};
use crate::cli::DemoArgs;
use crate::fail::Fail;
use crate::out::note;
use crate::ranks::{self, PROGRESS, TICK};

const PROGRAM: &str = "demo";

/// What a rank's process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    choice: Choice,
}

/// What a rank does.
pub const RANK: Program = Program { name: PROGRAM, run: rank };

fn rank(ctx: &RankCtx) -> RankResult {
    let order: Order = serde_json::from_value(ctx.args().clone())?;
    let weights = Weights::open(&order.choice)?;
    let group = Group::join(&ctx.name(PROGRAM), ctx.rank(), ctx.world())?;
    let through = std::cell::Cell::new(0);
    let said = std::cell::Cell::new(Instant::now());
    let report = rank_main(&group, &weights, &|bytes| {
        through.set(through.get() + bytes);
        if ctx.rank() == 0 && said.get().elapsed() >= TICK {
            said.set(Instant::now());
            ctx.note_value(PROGRESS, through.get());
        }
    })?;
    Ok(serde_json::to_value(report)?)
}

/// Runs all ranks to their end; their reports, in rank order.
///
/// # Errors
/// [`Fail::Check`] if a rank failed; each one's end is said on stderr.
pub fn launch(args: &DemoArgs, choice: &Choice, weights: &Weights) -> Result<Vec<RankReport>, Fail> {
    let world = usize::try_from(args.ranks).map_err(|e| Fail::usage(format!("--ranks: {e}")))?;
    let order =
        serde_json::to_value(Order { choice: choice.clone() }).map_err(|e| Fail::usage(e.to_string()))?;
    let (tensors, bytes) = (weights.specs().len(), weights.bytes());
    note(&format!("demo: {tensors} tensors, {bytes} bytes, {world} ranks, layout {}", args.layout.name()));
    let cannot = |e: comm_testkit::LaunchError| Fail::check(format!("cannot start the ranks: {e}"));
    let running =
        Launch::new(PROGRAM, world, ranks::spread(args.layout)).arg(order).spawn().map_err(cannot)?;
    let bar = "{bar:40} {bytes}/{total_bytes} {elapsed}";
    ranks::watch(
        &running,
        &ranks::Work { command: PROGRAM, total: work(weights.specs()), unit: "bytes", bar },
    );
    // All have ended, or had the time to: whoever is left now is ended.
    ranks::collect(running.wait(Duration::ZERO), &running.logs())
}
