//! Every point inside every operation, with everything that may become of a rank there. Without `--full` as many of these as hold
//! every pair: of operation and point, of either and what becomes of the rank, of all of them and layout and way to call.

use std::time::Duration;

use comm_testkit::fault::Action;
use comm_testkit::pairwise::Factors;
use comm_testkit::{Case, LauncherCtx, Layout, RankResult, check, check_eq};
use serde_json::json;

use super::kill::{ONCE, kill_one, points};
use super::late::{late_one, too_late_one};
use super::panic::fall_one;
use super::program::OPS;
use super::stop::{stop_one, together};
use super::{BACKEND, SUITE};
use crate::support::Any;

const LAYOUTS: &[Layout] = Layout::ALL;

pub fn cases() -> Vec<Case> {
    let of = |(fate, name): (Fate, &str)| {
        Case::launcher(SUITE, format!("{name}/-/-/each-point-of-each-operation"), move |ctx| visit(ctx, fate))
            .worlds(|w| w == 4)
            .layouts(if fate.is_of_a_process() { &[Layout::Processes, Layout::Mixed] } else { LAYOUTS })
            .limit(Duration::from_secs(600))
            .backend(BACKEND)
    };
    FATES.map(of).to_vec()
}

/// What becomes of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Killed,
    Panics,
    Stopped,
    /// It goes on before the others have lost patience, or after that.
    Late,
    TooLate,
    /// It is late in an operation in which, or right behind which, another rank does something else.
    Mismatch,
}

const FATES: [(Fate, &str); 6] = [
    (Fate::Killed, "kill"),
    (Fate::Panics, "panic"),
    (Fate::Stopped, "stop"),
    (Fate::Late, "late"),
    (Fate::TooLate, "too-late"),
    (Fate::Mismatch, "mismatch"),
];

impl Fate {
    /// What becomes of a process becomes of all its ranks, so there are others.
    fn is_of_a_process(self) -> bool {
        matches!(self, Fate::Killed | Fate::Stopped)
    }
}

/// Whether every rank passes the point inside the operation. Others it passes in the operations behind it.
fn is_inside(op: &str, point: &str) -> bool {
    match point {
        "group.reduced" => matches!(op, "all_reduce" | "reduce"),
        "group.gathered" | "window.read" => op != "barrier",
        _ => true,
    }
}

/// What can be visited: operation, point, fate, layout, and whether the result goes into a buffer of the caller.
struct Space {
    points: Vec<&'static str>,
    factors: Factors<5>,
}

struct Visit {
    op: usize,
    point: &'static str,
    fate: Fate,
    layout: Layout,
    into: bool,
}

impl Space {
    fn new() -> Any<Space> {
        let points: Vec<_> = points().into_iter().filter(|point| !ONCE.contains(point)).collect();
        let levels = [OPS.len(), points.len(), FATES.len(), LAYOUTS.len(), 2];
        let goes = |a: (usize, usize), b: (usize, usize)| match (a, b) {
            ((0, op), (1, point)) => is_inside(OPS[op], points[point]),
            ((0, op), (4, 1)) => !matches!(OPS[op], "barrier" | "all_gather_into_vec"),
            ((2, fate), (3, layout)) => {
                !FATES[fate].0.is_of_a_process() || LAYOUTS[layout] != Layout::Threads
            }
            _ => true,
        };
        let factors = Factors::new(levels, goes).ok_or("so many levels are too many")?;
        Ok(Space { points, factors })
    }

    fn visit(&self, [op, point, fate, layout, into]: [usize; 5]) -> Visit {
        let (fate, layout) = (FATES[fate].0, LAYOUTS[layout]);
        Visit { op, point: self.points[point], fate, layout, into: into == 1 }
    }
}

/// Deaths are timed and go alone; what waits for a deadline goes together.
fn visit(ctx: &LauncherCtx, fate: Fate) -> RankResult {
    let space = Space::new()?;
    let rows =
        if ctx.full() { space.factors.product().collect() } else { space.factors.covering(ctx.seed()) };
    check_eq!(space.factors.missing(&rows), []);
    let all = rows.into_iter().map(|row| space.visit(row));
    let all: Vec<Visit> = all.filter(|visit| (visit.fate, visit.layout) == (fate, ctx.layout())).collect();
    check!(!all.is_empty());
    let count = all.len();
    match fate {
        Fate::Stopped | Fate::TooLate => together(all, |visit| one(ctx, &visit))?,
        _ => all.iter().try_for_each(|visit| one(ctx, visit))?,
    }
    Ok(json!(count))
}

fn one(ctx: &LauncherCtx, visit: &Visit) -> Any<()> {
    let Visit { op, point, fate, into, .. } = *visit;
    let mut rng = ctx.rng().fork((op * 100 + point.len()) as u64);
    let mut draw = |from: usize| from + rng.below((ctx.world() - from) as u64) as usize;
    // The root of the first round is rank 0: only it reads what comes together there, and all but it what it hands out.
    let victim = match (OPS[op], point) {
        ("gather", "window.read") => 0,
        ("broadcast" | "scatter", "window.read") => draw(1),
        _ => draw(0),
    };
    let what = format!("{}{}, {point}, rank {victim} {fate:?}", OPS[op], if into { " into" } else { "" });
    let args = json!({"first": op, "into": into});
    let outcome = match fate {
        Fate::Killed => {
            kill_one(ctx, args, point, victim, 1).map(|slowest| format!(": noticed after {slowest}"))
        }
        Fate::Panics => fall_one(ctx, args, point, victim, 1, Action::Unwind).map(|_| String::new()),
        Fate::Stopped => {
            let args = json!({"first": op, "into": into, "op_ms": 1000});
            stop_one(ctx, args, point, victim, 1).map(|_| String::new())
        }
        Fate::Late => late_one(ctx, args, point, victim).map(|_| String::new()),
        Fate::TooLate => too_late_one(ctx, args, point, victim).map(|_| String::new()),
        Fate::Mismatch => {
            // What is refused comes no further than to the agreement: then it is the operation behind that.
            let is_passed = matches!(point, "group.described" | "window.notify" | "group.done");
            let odd = (draw(0), op + usize::from(!is_passed));
            let args = json!({"first": op, "into": into, "odd": odd});
            late_one(ctx, args, point, victim).map(|_| format!(", rank {} is odd", odd.0))
        }
    };
    let more = outcome.map_err(|e| format!("{what}: {e}"))?;
    ctx.progress(&format!("{what}{more}"));
    Ok(())
}
