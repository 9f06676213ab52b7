//! Every point inside every operation: a kill, a panic and a stop. Without `--full` each pair is visited once, by one of the
//! three and in one layout, drawn.

use std::time::Duration;

use comm_testkit::fault::Action;
use comm_testkit::{Case, LauncherCtx, Layout, RankResult, done};
use serde_json::json;

use super::kill::{ONCE, kill_one, points};
use super::panic::fall_one;
use super::program::OPS;
use super::stop::{stop_one, together};
use super::{BACKEND, SUITE};
use crate::support::Any;

const LAYOUTS: &[Layout] = &[Layout::Processes, Layout::Mixed];

pub fn cases() -> Vec<Case> {
    let of = |(fate, name): (Fate, &str)| {
        Case::launcher(SUITE, format!("{name}/-/-/each-point-of-each-operation"), move |ctx| visit(ctx, fate))
            .worlds(|w| w == 4)
            .layouts(LAYOUTS)
            .limit(Duration::from_secs(300))
            .backend(BACKEND)
    };
    [(Fate::Killed, "kill"), (Fate::Panics, "panic"), (Fate::Stopped, "stop")].map(of).to_vec()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Killed,
    Panics,
    Stopped,
}

const FATES: [Fate; 3] = [Fate::Killed, Fate::Panics, Fate::Stopped];

/// The points that every rank passes inside the operation. Others it passes in the operations behind it.
fn inside(op: &str) -> Vec<&'static str> {
    let reduces = matches!(op, "all_reduce" | "reduce");
    points()
        .into_iter()
        .filter(|point| !ONCE.contains(point))
        .filter(|&point| point != "group.reduced" || reduces)
        .filter(|&point| !(op == "barrier" && matches!(point, "group.gathered" | "window.read")))
        .collect()
}

/// What is visited in this layout: operation, point, victim.
fn visits(ctx: &LauncherCtx, fate: Fate) -> Vec<(usize, &'static str, usize)> {
    let mut visits = Vec::new();
    for (op, (i, point)) in
        (0..OPS.len()).flat_map(|op| inside(OPS[op]).into_iter().enumerate().map(move |p| (op, p)))
    {
        // The same draw in all layouts and for all fates: the pair comes up once.
        let mut rng = ctx.rng().fork((op * 100 + i) as u64);
        let (layout, drawn) = (LAYOUTS[rng.below(2) as usize], FATES[rng.below(3) as usize]);
        if !ctx.full() && (layout != ctx.layout() || drawn != fate) {
            continue;
        }
        // The root of the first round is rank 0: only it reads what comes together there, and all but it what it hands out.
        let victim = match (OPS[op], point) {
            ("gather", "window.read") => 0,
            ("broadcast" | "scatter", "window.read") => 1 + rng.below(ctx.world() as u64 - 1) as usize,
            _ => rng.below(ctx.world() as u64) as usize,
        };
        visits.push((op, point, victim));
    }
    visits
}

/// Deaths are timed and go alone; stops wait for a deadline and go together.
fn visit(ctx: &LauncherCtx, fate: Fate) -> RankResult {
    let all = visits(ctx, fate);
    match fate {
        Fate::Stopped => together(all, |(op, point, victim)| one(ctx, op, point, victim, fate))?,
        _ => all.into_iter().try_for_each(|(op, point, victim)| one(ctx, op, point, victim, fate))?,
    }
    done()
}

fn one(ctx: &LauncherCtx, op: usize, point: &'static str, victim: usize, fate: Fate) -> Any<()> {
    let what = format!("{}, {point}, rank {victim} {fate:?}", OPS[op]);
    let outcome = match fate {
        Fate::Killed => kill_one(ctx, json!({"first": op}), point, victim, 1).map(|slowest| {
            ctx.progress(&format!("{what}: noticed after {slowest}"));
        }),
        Fate::Panics => fall_one(ctx, json!({"first": op}), point, victim, 1, Action::Unwind).map(|_| ()),
        Fate::Stopped => {
            stop_one(ctx, json!({"first": op, "op_ms": 1000}), point, victim, 1).map(|_| ctx.progress(&what))
        }
    };
    outcome.map_err(|e| format!("{what}: {e}").into())
}
