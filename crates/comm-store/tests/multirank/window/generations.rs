//! A barrier by hand that counts on instead of clearing, and what happens where counters wrap.
//!
//! Counters that only grow are compared with `>=`, until they wrap: then the number that is expected is negative, and
//! every old count is at least that. `==` does not mind the wrap, but misses a peer that is one barrier ahead and has
//! counted on. So it needs two rows, used by turns: a peer that is ahead counts in the other one, and cannot be two ahead.

use comm_core::tensor::DType;
use comm_store::window::{Signals, WindowSpec};
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::stress::delay;
use super::{case, long};
use crate::support::{Any, SHORT, Scene, gave_up, others, team};

pub fn cases() -> Vec<Case> {
    vec![
        long("generations/-/-/ge", ge),
        long("generations/-/-/eq-over-the-wrap", eq_over_the_wrap),
        case("pitfall/-/-/ge-over-the-wrap", ge_over_the_wrap),
        case("pitfall/-/-/eq-on-one-row", eq_on_one_row),
    ]
}

/// Where counters start: a few barriers before they wrap.
const START: i32 = i32::MAX - 20;

fn count_on(ctx: &RankCtx, row: &Signals<'_>, cmp: Cmp, expected: i32) -> Any<()> {
    for peer in others(ctx) {
        row.notify(peer, &[ctx.rank()], 1, NotifyOp::Add)?;
    }
    for src in others(ctx) {
        row.wait(&[src], cmp, expected, Some(src), ctx.deadline())?;
    }
    Ok(())
}

/// Barriers on one or two rows of counters that start at `start`, each checked by what the peers have written before.
fn rounds(ctx: &RankCtx, rows: usize, cmp: Cmp, start: i32) -> RankResult {
    let n = ctx.world();
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(16).signals(rows * n), ctx.deadline())?;
    let row_of = |row: usize| window.signals_from(row * n, &[n]);
    let (all, turns) =
        ((0..rows).map(row_of).collect::<Result<Vec<_>, _>>()?, window.view(0, &[2], DType::I64)?);
    for row in &all {
        (0..n).try_for_each(|cell| row.write(&[cell], start))?;
    }
    team.barrier(ctx.deadline())?;
    let mut rng = ctx.rng();
    let mut expected = vec![start; rows];
    for round in 0..if ctx.full() { 20_000 } else { 1000 } {
        let (row, turn) = (round % rows, [round % 2]);
        expected[row] = expected[row].wrapping_add(1);
        turns.write(&turn, round as i64)?;
        delay(&mut rng);
        count_on(ctx, &all[row], cmp, expected[row])?;
        let peer = rng.below(n as u64) as usize;
        let seen = turns.remote_load(peer, &turn, &[1])?;
        check_eq!(seen.as_slice::<i64>()?, [round as i64], "rank {peer}");
    }
    team.barrier(ctx.deadline())?;
    check!(start < START || expected[0] < 0, "nothing has wrapped");
    done()
}

fn ge(ctx: &RankCtx) -> RankResult {
    rounds(ctx, 1, Cmp::Ge, 0)
}

fn eq_over_the_wrap(ctx: &RankCtx) -> RankResult {
    rounds(ctx, 2, Cmp::Eq, START)
}

/// The number after the largest is the smallest, and every count is at least that: the barrier passes without rank 1.
fn ge_over_the_wrap(ctx: &RankCtx) -> RankResult {
    const GO: usize = 0;
    let n = ctx.world();
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(n))?;
    let row = scene.window.signals(&[n])?;
    (0..n).try_for_each(|cell| row.write(&[cell], i32::MAX - 1))?;
    scene.all()?;
    count_on(ctx, &row, Cmp::Ge, i32::MAX)?;
    scene.all()?;
    let wrapped = i32::MAX.wrapping_add(1);
    if ctx.rank() == 1 {
        scene.script.pass(GO)?;
    }
    if ctx.rank() == 0 {
        check_eq!(row.wait(&[1], Cmp::Ge, wrapped, Some(1), scene.by)?, i32::MAX, "it passes");
        let early = gave_up(row.wait(&[1], Cmp::Eq, wrapped, Some(1), SHORT))?;
        check_eq!((early.seen, early.expected, early.missing), (i32::MAX.into(), wrapped.into(), vec![1]));
        scene.script.open(GO)?;
    }
    count_on(ctx, &row, Cmp::Eq, wrapped)?;
    scene.end()
}

/// With one row, `==` misses a peer that has come to the next barrier already.
fn eq_on_one_row(ctx: &RankCtx) -> RankResult {
    const AHEAD: usize = 0;
    const TOLD: usize = 1;
    let n = ctx.world();
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(2 * n))?;
    let (one, two) = (scene.window.signals(&[n])?, scene.window.signals_from(n, &[n])?);
    // Rank 0 has come to the first barrier, but has not looked yet; rank 1 has passed it and come to the second.
    match ctx.rank() {
        0 => {
            one.notify(1, &[0], 1, NotifyOp::Add)?;
            scene.script.pass(AHEAD)?;
            let missed = gave_up(one.wait(&[1], Cmp::Eq, 1, Some(1), SHORT))?;
            check_eq!((missed.seen, missed.expected, missed.missing), (2, 1, vec![1]));
            // With two rows the second one's is in the other.
            check_eq!(two.wait(&[1], Cmp::Eq, 1, Some(1), SHORT)?, 1);
            scene.script.open(TOLD)?;
        }
        1 => {
            one.notify(0, &[1], 1, NotifyOp::Add)?;
            one.wait(&[0], Cmp::Eq, 1, Some(0), scene.by)?;
            one.notify(0, &[1], 1, NotifyOp::Add)?;
            two.notify(0, &[1], 1, NotifyOp::Add)?;
            scene.script.open(AHEAD)?;
            scene.script.pass(TOLD)?;
        }
        _ => {}
    }
    scene.end()
}
