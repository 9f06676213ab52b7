//! Random notifies, waits and resets, against a model of the cells.
//!
//! What is done is drawn by all ranks alike, in rounds; who does it when is up to them. In a round a cell is either added
//! to by anybody, so that order does not count, or changed by one rank alone, in its order. So the number that each cell
//! ends with is known, and its rank waits for it by any comparison that this number fulfils and that no earlier one rules
//! out for good.

use comm_core::tensor::DType;
use comm_store::window::WindowSpec;
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, RankCtx, RankResult, block_on, check, check_eq, done};

use super::long;
use super::stress::delay;
use crate::support::{Any, team};

pub fn cases() -> Vec<Case> {
    vec![long("stress/-/-/model", model)]
}

/// Cells of each rank that are played with; those of the barrier come behind them.
const CELLS: usize = 6;

/// A notification: by whom, to whom, in which cell.
#[derive(Debug, Clone, Copy)]
struct Step {
    by: usize,
    to: usize,
    cell: usize,
    value: i32,
    op: NotifyOp,
}

/// The steps of one round, in the order of the model.
fn draw(rng: &mut SplitMix64, world: usize) -> Vec<Step> {
    let mut below = |n: usize| rng.below(n as u64) as usize;
    // Whose a cell is in this round; nobody's means everybody's.
    let mut owners = vec![vec![None; CELLS]; world];
    for owner in owners.iter_mut().flatten() {
        *owner = (below(2) == 0).then(|| below(world));
    }
    let steps = 1 + below(2 * world);
    let mut all = Vec::with_capacity(steps);
    for _ in 0..steps {
        let (to, cell) = (below(world), below(CELLS));
        let owner = owners[to][cell];
        let by = owner.unwrap_or_else(|| below(world));
        let op = if owner.is_some() && below(3) == 0 { NotifyOp::Set } else { NotifyOp::Add };
        let value = match below(12) {
            0 => i32::MAX,
            1 => i32::MIN,
            n => n as i32 - 6,
        };
        all.push(Step { by, to, cell, value, op });
    }
    all
}

fn apply(cells: &mut [Vec<i32>], step: Step) {
    let cell = &mut cells[step.to][step.cell];
    *cell = match step.op {
        NotifyOp::Set => step.value,
        NotifyOp::Add => cell.wrapping_add(step.value),
    };
}

/// A comparison that a number fulfils, and the number to compare it with.
fn fulfilled(rng: &mut SplitMix64, value: i32) -> (Cmp, i32) {
    let near = rng.below(3) as i32;
    match rng.below(6) {
        0 => (Cmp::Ge, value.saturating_sub(near)),
        1 => (Cmp::Le, value.saturating_add(near)),
        2 if value > i32::MIN => (Cmp::Gt, value - 1),
        3 if value < i32::MAX => (Cmp::Lt, value + 1),
        4 => (Cmp::Ne, value.wrapping_add(1 + near)),
        _ => (Cmp::Eq, value),
    }
}

fn model(ctx: &RankCtx) -> RankResult {
    let (n, me) = (ctx.world(), ctx.rank());
    let rounds = if ctx.full() { 100_000 } else { 10_000 };
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(8).signals(CELLS + n), ctx.deadline())?;
    let (signals, row) = (window.signals(&[CELLS])?, window.signals_from(CELLS, &[n])?);
    let bytes = window.view(0, &[1], DType::I64)?;
    let (mut plan, mut own) = (ctx.common_rng(), ctx.rng());
    let mut cells = vec![vec![0i32; CELLS]; n];
    for round in 0i64..rounds {
        if plan.below(20) == 0 {
            bytes.write(&[0], round)?;
            window.reset(ctx.deadline())?;
            cells.iter_mut().flatten().for_each(|cell| *cell = 0);
            check_eq!(bytes.read::<i64>(&[0])?, 0, "round {round}");
        }
        let steps = draw(&mut plan, n);
        delay(&mut own);
        for &step in steps.iter().filter(|step| step.by == me) {
            signals.notify(step.to, &[step.cell], step.value, step.op)?;
        }
        steps.iter().for_each(|&step| apply(&mut cells, step));
        for (cell, &last) in cells[me].iter().enumerate() {
            wait_for(ctx, &signals, &mut own, cell, last)
                .map_err(|e| format!("round {round}, {steps:?}: {e}"))?;
        }
        // Nobody changes a cell of the next round before all have seen this one's.
        row.barrier(ctx.deadline())?;
    }
    team.barrier(ctx.deadline())?;
    done()
}

/// First by any comparison, by a thread's wait or a task's; then by the number itself.
fn wait_for(
    ctx: &RankCtx,
    signals: &comm_store::window::Signals<'_>,
    rng: &mut SplitMix64,
    cell: usize,
    last: i32,
) -> Any<()> {
    let (cmp, expected) = fulfilled(rng, last);
    let seen = if rng.below(8) == 0 {
        block_on(signals.wait_async(&[cell], cmp, expected, None, ctx.deadline())?)?
    } else {
        signals.wait(&[cell], cmp, expected, None, ctx.deadline())?
    };
    check!(cmp.holds(seen, expected), "{seen} is not {cmp} {expected}");
    check_eq!(signals.wait(&[cell], Cmp::Eq, last, None, ctx.deadline())?, last, "cell {cell}");
    Ok(())
}
