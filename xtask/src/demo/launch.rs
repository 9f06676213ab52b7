//! Starting the demo's ranks, and collecting what they say.

use std::time::{Duration, Instant};

use comm_group::ThreadGroupManager;
use comm_testkit::{Launch, Program, RankCtx, RankResult};
use serde::{Deserialize, Serialize};

use super::course::Course;
use super::report::RankReport;
use super::walk::{Walker, work};
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
    spoil: Option<String>,
}

/// What a rank does.
pub const RANK: Program = Program { name: PROGRAM, run: rank };

fn rank(ctx: &RankCtx) -> RankResult {
    let Order { choice, spoil } = serde_json::from_value(ctx.args().clone())?;
    let weights = Weights::open(&choice)?;
    // One for each rank: with it go the rank's groups when the rank fails, and so the others learn of it.
    let groups = ThreadGroupManager::with_prefix(ctx.name(PROGRAM));
    let walker = Walker { rank: ctx.rank(), ranks: ctx.world(), groups: &groups, spoil };
    let through = std::cell::Cell::new(0);
    let said = std::cell::Cell::new(Instant::now());
    let report = walker.run(&weights, &|bytes| {
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
pub fn launch(
    args: &DemoArgs,
    choice: Choice,
    weights: &Weights,
    courses: &[Course],
) -> Result<Vec<RankReport>, Fail> {
    let layout = args.layout;
    let ranks = usize::try_from(args.ranks).map_err(|e| Fail::usage(format!("--ranks: {e}")))?;
    let order = Order { choice, spoil: args.spoil.clone() };
    let order = serde_json::to_value(order).map_err(|e| Fail::usage(e.to_string()))?;
    let (tensors, bytes) = (weights.specs().len(), weights.bytes());
    note(&format!("demo: {tensors} tensors, {bytes} bytes, {ranks} ranks, layout {}", layout.name()));
    let cannot = |e: comm_testkit::LaunchError| Fail::check(format!("cannot start the ranks: {e}"));
    let running = Launch::new(PROGRAM, ranks, ranks::spread(layout)).arg(order).spawn().map_err(cannot)?;
    let bar = "{bar:40} {bytes}/{total_bytes} {elapsed}";
    let total = work(weights.specs(), courses);
    ranks::watch(&running, &ranks::Work { command: PROGRAM, total, unit: "bytes", bar });
    // All have ended, or had the time to: whoever is left now is ended.
    ranks::collect(running.wait(Duration::ZERO), &running.logs())
}
