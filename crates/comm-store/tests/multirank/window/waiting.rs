//! Waits: what they say when they give up, when they end, and what they compare.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use comm_core::Error;
use comm_core::error::PeerState;
use comm_core::tensor::DType;
use comm_store::window::WindowSpec;
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::{Case, RankCtx, RankResult, block_on, check, check_eq, done};

use super::case;
use crate::support::{Any, SHORT, Scene, Script, gave_up, left, right, team};

pub fn cases() -> Vec<Case> {
    vec![
        case("wait/-/-/gives-up-and-goes-on", gives_up),
        case("wait/-/-/six-comparisons", comparisons),
        case("wait/-/-/self-notify", self_notify),
        case("wait/-/-/two-threads", two_threads),
        case("wait/-/-/awaited-rank-left", awaited_left),
        case("wait/-/-/all-others-left", all_left),
        case("barrier/-/-/of-one-less", barrier_of_one_less).worlds(|world| world >= 2),
        case("wait/-/-/aborted", aborted),
        case("wait_async/-/-/dropped", dropped),
        case("barrier_named/-/-/absent", absent),
    ]
}

const GO: usize = 0;

/// A wait that gives up says for what, and whom, and what it saw; it changes nothing, and succeeds when it is tried again
/// and the signal comes. So does one of a task.
fn gives_up(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(8))?;
    let signals = scene.window.signals(&[2, 4])?;
    let cell = &[1, 2];
    let from = right(ctx);
    signals.notify(ctx.rank(), cell, -4, NotifyOp::Set)?;
    let waits = [
        gave_up(signals.wait(cell, Cmp::Ge, 3, Some(from), SHORT))?,
        gave_up(block_on(signals.wait_async(cell, Cmp::Ge, 3, Some(from), SHORT)?))?,
    ];
    for wait in waits {
        check_eq!(wait.what, "signal [1, 2] >= 3");
        check_eq!((wait.seen as i32, wait.expected, wait.missing), (-4, 3, vec![from]));
    }
    let waits = [
        gave_up(signals.wait(cell, Cmp::Lt, -9, None, SHORT))?,
        gave_up(block_on(signals.wait_async(cell, Cmp::Lt, -9, None, SHORT)?))?,
    ];
    for wait in waits {
        check_eq!(wait.what, "signal [1, 2] < -9");
        check_eq!((wait.seen as i32, wait.expected), (-4, -9));
        check!(wait.missing.is_empty(), "nobody in particular was awaited: {:?}", wait.missing);
    }
    check!(!signals.test(cell, Cmp::Ge, 3)? && signals.test(cell, Cmp::Le, -4)?);
    scene.all()?;
    if ctx.rank() == 0 {
        scene.script.open(GO)?;
    }
    let told = left(ctx);
    std::thread::scope(|s| -> Any<()> {
        let task = s.spawn(|| block_on(signals.wait_async(cell, Cmp::Ge, 3, Some(from), scene.by)?));
        scene.script.pass(GO)?;
        signals.notify(told, cell, 7, NotifyOp::Add)?;
        check_eq!(signals.wait(cell, Cmp::Ge, 3, Some(from), scene.by)?, 3);
        check_eq!(task.join().map_err(|_| "a thread panicked")??, 3);
        Ok(())
    })?;
    check!(signals.test(cell, Cmp::Ge, 3)?);
    check_eq!(signals.read(cell)?, 3, "to wait changes nothing");
    scene.end()
}

/// Signals have a sign. What does not hold gives up with what was seen; what comes to hold wakes.
fn comparisons(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(1))?;
    let signals = scene.window.signals(&[1])?;
    let (told, from) = (right(ctx), left(ctx));
    let now = std::time::Duration::ZERO;
    for value in [-5, 0, 5, i32::MIN, i32::MAX] {
        signals.notify(told, &[0], value, NotifyOp::Set)?;
        check_eq!(signals.wait(&[0], Cmp::Eq, value, Some(from), scene.by)?, value);
        for expected in [i32::MIN, -6, -5, -4, 0, 4, 5, 6, i32::MAX] {
            let all = [
                (Cmp::Eq, value == expected),
                (Cmp::Ne, value != expected),
                (Cmp::Ge, value >= expected),
                (Cmp::Gt, value > expected),
                (Cmp::Le, value <= expected),
                (Cmp::Lt, value < expected),
            ];
            for (cmp, holds) in all {
                check_eq!(signals.test(&[0], cmp, expected)?, holds, "{value} {cmp} {expected}");
                match signals.wait(&[0], cmp, expected, Some(from), now) {
                    Ok(seen) => check!(holds && seen == value, "{value} {cmp} {expected}"),
                    Err(Error::Timeout { expected: wanted, .. }) => {
                        check!(!holds && wanted == i64::from(expected), "{value} {cmp} {expected}, {wanted}");
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        scene.all()?;
    }
    // From 3 down to -3 in single steps: each wait is there before its step is taken, or comes after it.
    signals.notify(told, &[0], 3, NotifyOp::Set)?;
    signals.wait(&[0], Cmp::Eq, 3, Some(from), scene.by)?;
    scene.all()?;
    for step in (-3..3).rev() {
        signals.notify(told, &[0], -1, NotifyOp::Add)?;
        let (cmp, expected) = [(Cmp::Le, step), (Cmp::Lt, step + 1), (Cmp::Ne, step + 1), (Cmp::Eq, step)]
            [(step + 3) as usize % 4];
        check_eq!(signals.wait(&[0], cmp, expected, Some(from), scene.by)?, step, "{cmp} {expected}");
        scene.all()?;
    }
    scene.end()
}

/// A rank takes away what a peer has given, by notifying itself.
fn self_notify(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(1))?;
    let signals = scene.window.signals(&[1])?;
    for _ in 0..50 {
        (0..4).try_for_each(|_| signals.notify(right(ctx), &[0], 1, NotifyOp::Add))?;
        check_eq!(signals.wait(&[0], Cmp::Ge, 4, Some(left(ctx)), scene.by)?, 4);
        signals.notify(ctx.rank(), &[0], -4, NotifyOp::Add)?;
        check_eq!(signals.read(&[0])?, 0);
        scene.all()?;
    }
    scene.end()
}

/// Two threads of one rank wait for signals in cells of one window, and each hears its own.
fn two_threads(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(4))?;
    let signals = scene.window.signals(&[2, 2])?;
    let (told, from) = (right(ctx), left(ctx));
    std::thread::scope(|s| {
        let play = |thread: usize| {
            let (signals, by) = (&signals, scene.by);
            // The left one's count in column 0, and the right one's answer in column 1.
            move || -> Any<()> {
                for round in 1..=if ctx.full() { 20_000 } else { 500 } {
                    signals.notify(told, &[thread, 0], 1, NotifyOp::Add)?;
                    signals.wait(&[thread, 0], Cmp::Ge, round, Some(from), by)?;
                    signals.notify(from, &[thread, 1], 1, NotifyOp::Add)?;
                    signals.wait(&[thread, 1], Cmp::Ge, round, Some(told), by)?;
                }
                Ok(())
            }
        };
        let threads = [s.spawn(play(0)), s.spawn(play(1))];
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked")?)
    })?;
    scene.end()
}

/// Who has left will not send any more: the wait ends, for a thread and for a task. What it sent before counts.
fn awaited_left(ctx: &RankCtx) -> RankResult {
    let script = Script::new(ctx)?;
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(0).signals(3), ctx.deadline())?;
    let signals = window.signals(&[3])?;
    let leaver = ctx.world() - 1;
    if ctx.rank() == leaver {
        for peer in 0..leaver {
            signals.notify(peer, &[1], 1, NotifyOp::Add)?;
        }
        script.pass(GO)?;
        drop(team);
    } else {
        let by = ctx.deadline();
        if ctx.rank() == 0 {
            // While it is still there, too.
            gave_up(signals.wait(&[0], Cmp::Ge, 1, Some(leaver), SHORT))?;
            script.open(GO)?;
        }
        for _ in 0..2 {
            let outcomes = [
                signals.wait(&[0], Cmp::Ge, 1, Some(leaver), by),
                block_on(signals.wait_async(&[0], Cmp::Ge, 1, Some(leaver), by)?),
            ];
            for outcome in outcomes {
                match outcome {
                    Err(Error::PeerLeft { rank, at }) => {
                        check_eq!(rank, leaver);
                        check!(at.op.contains("signal [0] >= 1"), "{at}");
                    }
                    other => return Err(format!("{other:?}").into()),
                }
            }
        }
        check_eq!(signals.wait(&[1], Cmp::Ge, 1, Some(leaver), by)?, 1);
        // Those who are left go on among themselves.
        let others = 0..leaver;
        others.clone().try_for_each(|peer| signals.notify(peer, &[2], 1, NotifyOp::Add))?;
        signals.wait(&[2], Cmp::Ge, leaver as i32, None, by)?;
    }
    // The script's team is whole.
    drop(window);
    script.open(1)?;
    script.pass(1)?;
    done()
}

/// A wait for anybody ends when nobody else is left.
fn all_left(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(0).signals(1), ctx.deadline())?;
    let signals = window.signals(&[1])?;
    if ctx.rank() != 0 {
        return done();
    }
    for _ in 0..2 {
        let outcomes = [
            signals.wait(&[0], Cmp::Ge, 1, None, ctx.deadline()),
            block_on(signals.wait_async(&[0], Cmp::Ge, 1, None, ctx.deadline())?),
        ];
        for outcome in outcomes {
            check!(matches!(outcome, Err(Error::PeerLeft { rank: 1, .. })), "{outcome:?}");
        }
    }
    // What it does itself it can still wait for.
    signals.notify(0, &[0], 1, NotifyOp::Add)?;
    check_eq!(signals.wait(&[0], Cmp::Ge, 1, None, ctx.deadline())?, 1);
    done()
}

/// A barrier that cannot come about any more says so each time, and gives nobody a credit that is never spent.
fn barrier_of_one_less(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(0).signals(ctx.world()), ctx.deadline())?;
    let signals = window.signals(&[ctx.world()])?;
    signals.barrier(ctx.deadline())?;
    if ctx.rank() == 0 {
        return done();
    }
    let mut notifies = None;
    for _ in 0..4 {
        let outcome = signals.barrier(ctx.deadline());
        check!(matches!(outcome, Err(Error::PeerLeft { rank: 0, .. })), "{outcome:?}");
        check_eq!(*notifies.get_or_insert(window.costs().notifies), window.costs().notifies);
    }
    done()
}

/// A team that is ended ends all waits on its windows.
fn aborted(ctx: &RankCtx) -> RankResult {
    let script = Script::new(ctx)?;
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(8).signals(ctx.world()), ctx.deadline())?;
    let signals = window.signals(&[ctx.world()])?;
    if ctx.rank() == 0 {
        script.pass(GO)?;
        team.abort("enough");
    }
    let from = if ctx.rank() == 1 { None } else { Some(left(ctx)) };
    std::thread::scope(|s| -> Any<()> {
        let task = s.spawn(|| block_on(signals.wait_async(&[0], Cmp::Ge, 1, from, ctx.deadline())?));
        if ctx.rank() == 1 {
            script.open(GO)?;
        }
        let outcomes = [
            signals.wait(&[0], Cmp::Ge, 1, from, ctx.deadline()).err(),
            task.join().map_err(|_| "a thread panicked")?.err(),
            signals.barrier(ctx.deadline()).err(),
            signals.notify(0, &[0], 1, NotifyOp::Add).err(),
            signals.test(&[0], Cmp::Ge, 1).err(),
            window.reset(ctx.deadline()).err(),
            window.view(0, &[1], DType::U8)?.remote_load(0, &[0], &[1]).err(),
            Window::alloc(&team, 8, ctx.deadline()).err(),
        ];
        for (i, error) in outcomes.into_iter().enumerate() {
            match error {
                Some(Error::Aborted { by, reason, .. }) => check_eq!((by, &*reason), (0, "enough"), "{i}"),
                other => return Err(format!("{i}: {other:?}").into()),
            }
        }
        Ok(())
    })?;
    done()
}

/// A future that is dropped while it waits leaves nothing: the signal comes, and others get it.
fn dropped(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(1))?;
    let signals = scene.window.signals(&[1])?;
    let mut context = Context::from_waker(Waker::noop());
    for round in 1..=100 {
        {
            let unpolled = signals.wait_async(&[0], Cmp::Ge, round, None, scene.by)?;
            drop(unpolled);
            let mut polled = pin!(signals.wait_async(&[0], Cmp::Ge, round, Some(left(ctx)), scene.by)?);
            check!(polled.as_mut().poll(&mut context).is_pending());
        }
        scene.all()?;
        signals.notify(right(ctx), &[0], 1, NotifyOp::Add)?;
        check_eq!(block_on(signals.wait_async(&[0], Cmp::Ge, round, Some(left(ctx)), scene.by)?)?, round);
        scene.all()?;
    }
    scene.end()
}

/// A barrier with a name says of who is absent where it was seen last.
fn absent(ctx: &RankCtx) -> RankResult {
    let script = Script::new(ctx)?;
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(0).signals(ctx.world()), ctx.deadline())?;
    let signals = window.signals(&[ctx.world()])?;
    signals.barrier_named("together", ctx.deadline())?.barrier(ctx.deadline())?;
    let away = ctx.world() - 1;
    window.reset(ctx.deadline())?;
    let error = if ctx.rank() == away {
        // Not before all have looked where it is.
        (0..away).try_for_each(|rank| script.pass(rank))?;
        signals.barrier_named("epoch 7", ctx.deadline()).err()
    } else {
        let error = signals.barrier_named("epoch 7", SHORT).err();
        script.open(ctx.rank())?;
        error
    };
    match error {
        Some(Error::Timeout { what, waited, missing, at, .. }) => {
            check!(waited >= SHORT, "{waited:?}");
            check_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [away]);
            check!(missing[0].state != PeerState::Stopped, "{missing:?}");
            if ctx.rank() != away {
                check!(what.contains("barrier \"epoch 7\""), "{what}");
                check!(what.contains(&format!("rank {away} (process")), "{what}");
                check!(what.contains("between operations, last Window::reset"), "{what}");
                check!(at.op.contains("epoch 7"), "{at}");
            }
        }
        other => return Err(format!("{other:?}").into()),
    }
    done()
}
