//! Barriers that pass too early, or never.

use std::sync::atomic::{AtomicBool, Ordering};

use comm_core::tensor::DType;
use comm_store::window::{Signals, WindowSpec};
use comm_store::{Cmp, NotifyOp};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq};

use super::super::arrival::{WAYS, by_hand};
use super::super::case;
use crate::support::{Any, SHORT, Scene, gave_up, others, waits_for};

pub fn cases() -> Vec<Case> {
    vec![
        case("pitfall/-/-/shared-cell-set", shared_cell_set).worlds(|world| world >= 3),
        case("pitfall/-/-/second-barrier/reset", |ctx| second_barrier(ctx, Remedy::Reset)),
        case("pitfall/-/-/second-barrier/generations", |ctx| second_barrier(ctx, Remedy::Generations)),
        case("pitfall/-/-/second-barrier/builtin", |ctx| second_barrier(ctx, Remedy::Builtin)),
        case("pitfall/-/-/own-row", own_row),
        case("pitfall/-/-/one-row-for-two-barriers", one_row),
        case("pitfall/-/-/wait-before-notify", wait_first),
        case("pitfall/-/-/builtin-signals-read-zero", reads_zero),
    ]
}

const GO: usize = 0;
const NEXT: usize = 1;

/// All ranks on one cell. Set leaves no count: the first to come looks like all of them.
fn shared_cell_set(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(2))?;
    let signals = scene.window.signals(&[2])?;
    let (set, add) = (&[0], &[1]);
    let arrive = || -> Any<()> {
        signals.notify(0, set, 1, NotifyOp::Set)?;
        Ok(signals.notify(0, add, 1, NotifyOp::Add)?)
    };
    match ctx.rank() {
        0 => {
            let all = ctx.world() as i32 - 1;
            // All but rank 1 are behind a gate that is shut, and yet:
            check_eq!(signals.wait(set, Cmp::Eq, 1, None, scene.by)?, 1, "it passes");
            signals.wait(add, Cmp::Ge, 1, Some(1), scene.by)?;
            let early = gave_up(signals.wait(add, Cmp::Ge, all, None, SHORT))?;
            check_eq!((early.seen, early.expected), (1, all.into()), "a count does not pass");
            check!(early.missing.is_empty(), "nobody in particular is awaited: {early:?}");
            scene.script.open(GO)?;
            check_eq!(signals.wait(add, Cmp::Ge, all, None, scene.by)?, all, "and then it does");
        }
        1 => arrive()?,
        _ => {
            scene.script.pass(GO)?;
            arrive()?;
        }
    }
    scene.end()
}

enum Remedy {
    /// All cells to zero, between two barriers.
    Reset,
    /// The second barrier waits for 2.
    Generations,
    /// The barrier that takes away what it has waited for.
    Builtin,
}

/// Once more with the same signals, which are up from the first time. Rank 1 comes late, with something to read.
fn second_barrier(ctx: &RankCtx, remedy: Remedy) -> RankResult {
    let n = ctx.world();
    let scene = Scene::new(ctx, WindowSpec::bytes(64).signals(2 * n))?;
    let window = &scene.window;
    let (wrong, fine) = (window.signals(&[n])?, window.signals_from(n, &[n])?);
    let data = window.view(0, &[1], DType::I32)?;
    let of_rank_1 = || -> Any<i32> { Ok(data.remote_load(1, &[0], &[1])?.as_slice::<i32>()?[0]) };
    // The first time all is well.
    data.write(&[0], 1)?;
    by_hand(ctx, &wrong, WAYS[0])?;
    if let Remedy::Builtin = remedy {
        fine.barrier(scene.by)?;
    } else {
        by_hand(ctx, &fine, WAYS[0])?;
    }
    check_eq!(of_rank_1()?, 1);
    scene.all()?;
    // The second time the wrong one has passed before it began.
    if ctx.rank() == 1 {
        scene.script.pass(GO)?;
        data.write(&[0], 2)?;
    }
    if ctx.rank() == 0 {
        check_eq!(wrong.wait(&[1], Cmp::Ge, 1, Some(1), scene.by)?, 1, "it passes");
        check_eq!(of_rank_1()?, 1, "and what is read is stale");
    }
    match remedy {
        Remedy::Reset => {
            if ctx.rank() == 0 {
                // Rank 1 has not come yet, and the reset waits for it.
                scene.script.open(GO)?;
            }
            window.reset(scene.by)?;
            check!(all_zero(&fine)?, "a reset makes all of them zero");
            check_eq!(of_rank_1()?, 0, "and the bytes");
            scene.all()?;
            if ctx.rank() == 1 {
                scene.script.pass(NEXT)?;
                data.write(&[0], 3)?;
            }
            late(ctx, &scene, &fine, NEXT, (0, 1))?;
            check_eq!(of_rank_1()?, 3);
        }
        Remedy::Generations => {
            late(ctx, &scene, &fine, GO, (1, 2))?;
            check_eq!(of_rank_1()?, 2);
        }
        Remedy::Builtin => {
            let opened = AtomicBool::new(false);
            let over = AtomicBool::new(false);
            std::thread::scope(|s| -> Any<()> {
                if ctx.rank() == 0 {
                    s.spawn(|| {
                        while !over.load(Ordering::Acquire) && !waits_for(&scene.team, 0, 1) {
                            std::thread::yield_now();
                        }
                        opened.store(true, Ordering::Release);
                        // If it fails, so does rank 1, which waits for it.
                        let _ = scene.script.open(GO);
                    });
                }
                let outcome = fine.barrier(scene.by);
                let early = ctx.rank() == 0 && !opened.load(Ordering::Acquire);
                over.store(true, Ordering::Release);
                outcome?;
                check!(!early, "rank 0 has passed before rank 1 was let go");
                Ok(())
            })?;
            check_eq!(of_rank_1()?, 2);
        }
    }
    scene.end()
}

fn all_zero(signals: &Signals<'_>) -> Any<bool> {
    let cells = (0..signals.shape()[0]).map(|cell| signals.read(&[cell]));
    Ok(cells.collect::<Result<Vec<_>, _>>()?.iter().all(|&value| value == 0))
}

/// A barrier by hand to which rank 1 comes late: rank 0 does not pass until it has, and opens the gate then. It sees one
/// number of signals and expects another.
fn late(
    ctx: &RankCtx,
    scene: &Scene,
    signals: &Signals<'_>,
    gate: usize,
    (seen, expected): (i32, i32),
) -> Any<()> {
    for peer in others(ctx) {
        signals.notify(peer, &[ctx.rank()], 1, NotifyOp::Add)?;
    }
    if ctx.rank() == 0 {
        let early = gave_up(signals.wait(&[1], Cmp::Ge, expected, Some(1), SHORT))?;
        check_eq!((early.seen, early.expected), (seen.into(), expected.into()));
        check_eq!(early.missing, [1]);
        scene.script.open(gate)?;
    }
    for src in others(ctx) {
        signals.wait(&[src], Cmp::Ge, expected, Some(src), scene.by)?;
    }
    Ok(())
}

/// A loop over all ranks that does not skip this one: its own row gets a 1 that nobody expects, or is waited for in vain.
fn own_row(ctx: &RankCtx) -> RankResult {
    let (n, me) = (ctx.world(), ctx.rank());
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(3 * n))?;
    let [told, awaited, fine] = [0, n, 2 * n].map(|first| scene.window.signals_from(first, &[n]));
    let (told, awaited, fine) = (told?, awaited?, fine?);
    for peer in 0..n {
        told.notify(peer, &[me], 1, NotifyOp::Add)?;
    }
    for src in others(ctx) {
        told.wait(&[src], Cmp::Ge, 1, Some(src), scene.by)?;
    }
    check_eq!(told.read(&[me])?, 1, "the diagonal of the arrival matrix is not zero");

    for peer in others(ctx) {
        awaited.notify(peer, &[me], 1, NotifyOp::Add)?;
    }
    for src in 0..n {
        let outcome =
            awaited.wait(&[src], Cmp::Ge, 1, Some(src), if src == me { SHORT.into() } else { scene.by });
        if src != me {
            outcome?;
            continue;
        }
        let alone = gave_up(outcome)?;
        check_eq!((alone.seen, alone.expected, alone.missing), (0, 1, vec![me]));
        check!(alone.what.contains(&format!("[{me}]")), "{}", alone.what);
    }

    by_hand(ctx, &fine, WAYS[0])?;
    check_eq!(fine.read(&[me])?, 0);
    scene.end()
}

/// Two barriers one after the other on one row: the second is over with the first one's signals.
fn one_row(ctx: &RankCtx) -> RankResult {
    let n = ctx.world();
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(3 * n))?;
    let window = &scene.window;
    let (shared, first, second) =
        (window.signals(&[n])?, window.signals_from(n, &[n])?, window.signals_from(2 * n, &[n])?);
    by_hand(ctx, &shared, WAYS[0])?;
    by_hand(ctx, &first, WAYS[0])?;
    if ctx.rank() == 0 {
        check_eq!(
            shared.wait(&[1], Cmp::Ge, 1, Some(1), scene.by)?,
            1,
            "passes although rank 1 is not there"
        );
    }
    if ctx.rank() == 1 {
        scene.script.pass(GO)?;
    }
    late(ctx, &scene, &second, GO, (0, 1))?;
    scene.end()
}

/// If all wait first, all wait.
fn wait_first(ctx: &RankCtx) -> RankResult {
    let n = ctx.world();
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(n))?;
    let signals = scene.window.signals(&[n])?;
    let src = (ctx.rank() + 1) % n;
    let vain = gave_up(signals.wait(&[src], Cmp::Ge, 1, Some(src), SHORT))?;
    check_eq!((vain.seen, vain.expected, vain.missing), (0, 1, vec![src]));
    scene.all()?;
    by_hand(ctx, &signals, WAYS[0])?;
    scene.end()
}

/// The signals of the barrier that clears itself say nothing afterwards; what it has made visible does.
fn reads_zero(ctx: &RankCtx) -> RankResult {
    const N: usize = 8;
    let n = ctx.world();
    let scene = Scene::new(ctx, WindowSpec::tensor(&[N], DType::I32)?.signals(n))?;
    let signals = scene.window.signals(&[n, 1])?;
    let data = scene.window.view(0, &[N], DType::I32)?;
    for round in 0..20 {
        let value = |rank: usize, j: usize| 1000 * round + 100 * rank as i32 + j as i32;
        (0..N).try_for_each(|j| data.write(&[j], value(ctx.rank(), j)))?;
        signals.barrier(scene.by)?;
        let next = (ctx.rank() + 1) % n;
        let seen = data.remote_load(next, &[0], &[N])?;
        let golden: Vec<i32> = (0..N).map(|j| value(next, j)).collect();
        check_eq!(seen.as_slice::<i32>()?, golden, "y[r] = x[(r + 1) % P]");
        // Before the next round is staged all must have loaded this one.
        signals.barrier(scene.by)?;
    }
    scene.all()?;
    for src in 0..n {
        check_eq!(signals.read(&[src, 0])?, 0, "nothing is left behind");
    }
    scene.end()
}
