//! A reset: all come, all forget, all go on.

use std::fmt::Debug;
use std::task::{Context, Waker};

use comm_core::Error;
use comm_core::team::BOARD_BYTES;
use comm_store::store::{self, Kind};
use comm_testkit::{RankCtx, RankResult, block_on, check, check_eq, done, now_ns};

use super::{Run, Scene, tensor, values, waits};
use crate::support::{Any, eventually};

pub const CASES: &[(&str, Run)] = &[
    ("reset/-/-/keys-again", keys_again),
    ("reset/-/-/all-come", all_come),
    ("reset/-/-/never-the-old-value", never_the_old_value),
    ("reset/-/-/readers-that-wait", readers_that_wait),
    ("reset/-/-/guards-from-before", guards_from_before),
    ("reset/-/-/unread-values", unread_values),
    ("reset/-/-/another-store", another_store),
    ("reset/-/-/in-its-turn", in_its_turn),
];

fn keys_again(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..100 {
        let producer = round % ctx.world();
        if ctx.rank() == producer {
            s.publish("key", &tensor(&values(producer, round))?, ctx.world() - 1)?;
        } else {
            check_eq!(s.read("key")?, values(producer, round));
        }
        s.store.reset(s.by)?;
    }
    s.end()
}

/// Each rank says when it came and when it went on.
fn all_come(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..50 {
        // Somebody is late, by turns.
        if ctx.rank() == round % ctx.world() {
            (0..20).for_each(|_| std::thread::yield_now());
        }
        let came = now_ns();
        s.store.reset(s.by)?;
        let went = now_ns();
        let mut board = [0; BOARD_BYTES];
        board[..8].copy_from_slice(&came.to_ne_bytes());
        board[8..16].copy_from_slice(&went.to_ne_bytes());
        let said = s.team.exchange(&board, s.by)?;
        let at =
            |i: usize| move |b: &[u8; BOARD_BYTES]| u64::from_ne_bytes(std::array::from_fn(|k| b[i + k]));
        let last = said.iter().map(at(0)).max();
        let first = said.iter().map(at(8)).min();
        check!(last <= first, "round {round}: one went on at {first:?}, and one came at {last:?}");
    }
    s.end()
}

/// Whoever fetches after a reset waits for the new value, though the old one was never read to the end.
fn never_the_old_value(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..100 {
        let producer = round % ctx.world();
        if ctx.rank() == producer {
            // Half of the time the readers are first.
            if round % 2 == 0 {
                let last = (ctx.world() - 1 + producer) % ctx.world();
                eventually("a reader waits", || waits(&s.team, last, "key \"x\""))?;
            }
            s.publish("x", &s.in_arena(&values(producer, round))?, 100)?;
        }
        check_eq!(s.read("x")?, values(producer, round));
        s.store.reset(s.by)?;
        if round == 99 {
            s.not_there("x")?;
            check!(matches!(s.store.finish("x", &s.cpu), Err(Error::UnknownKey { .. })));
            check!(matches!(s.wait_consumed("x"), Err(Error::UnknownKey { .. })));
        }
    }
    s.end()
}

/// Reads that wait, as a thread and as a task, while their rank comes to a reset: they get what is published after it.
fn readers_that_wait(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..20 {
        let key = format!("x{round}");
        // Before the reset, under another key, and after it the first thing that there is.
        let producer = round % ctx.world();
        if ctx.rank() == producer {
            s.publish("before", &s.in_arena(&[-1.0])?, ctx.world())?;
        }
        std::thread::scope(|scope| -> Any<()> {
            let thread = scope.spawn(|| s.read(&key));
            let task = scope.spawn(|| -> Any<Vec<f32>> {
                Ok(block_on(s.store.fetch_async(&key, &s.cpu, s.by))?.to_vec()?)
            });
            eventually("the thread waits", || waits(&s.team, ctx.rank(), &format!("key {key:?}")))?;
            check_eq!(s.read("before")?, [-1.0]);
            s.store.reset(s.by)?;
            check!(!thread.is_finished() && !task.is_finished(), "there is no such key yet");
            s.all()?;
            if ctx.rank() == producer {
                s.publish(&key, &s.in_arena(&values(producer, round))?, 2 * ctx.world())?;
            }
            check_eq!(thread.join().map_err(|_| "a thread panicked")??, values(producer, round));
            check_eq!(task.join().map_err(|_| "a thread panicked")??, values(producer, round));
            Ok(())
        })?;
        if ctx.rank() == producer {
            s.wait_consumed(&key)?;
        }
        s.store.reset(s.by)?;
    }
    s.end()
}

/// Reads that were not finished are so by a reset. Their guards still hold what they hold, and count for nothing in the
/// new round.
fn guards_from_before(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &s.in_arena(&values(0, 1))?, ctx.world() - 1)?;
        check_eq!(s.not_consumed("x")?.seen, 0);
        s.script.open(0)?;
    }
    let mut old = Vec::new();
    if ctx.rank() > 0 {
        old.push(s.fetch("x")?);
        s.script.pass(0)?;
    }
    s.all()?;
    s.store.reset(s.by)?;
    if ctx.rank() == 0 {
        // Into the memory of before, if it were free.
        for i in 0..20 {
            s.publish(&i.to_string(), &s.in_arena(&values(9, i))?, 0)?;
        }
        s.publish("x", &s.in_arena(&values(0, 2))?, ctx.world() - 1)?;
        s.script.open(1)?;
        s.script.pass(2)?;
        check!(s.not_consumed("x")?.seen < ctx.world() as i64 - 1, "an old guard has counted");
        s.script.open(3)?;
        s.wait_consumed("x")?;
        return s.end();
    }
    s.script.pass(1)?;
    for read in old {
        check_eq!(read.to_vec::<f32>()?, values(0, 1), "memory of a guard was used for something else");
        let new = s.fetch("x")?;
        check_eq!(new.to_vec::<f32>()?, values(0, 2));
        if ctx.rank() == 1 {
            // In either way, and before the new one.
            let clone = read.clone();
            read.finish()?;
            check_eq!(clone.to_vec::<f32>()?, values(0, 1));
            s.script.open(2)?;
            s.script.pass(3)?;
        }
        drop(new);
    }
    s.end()
}

/// What nobody has read is forgotten, too, and its memory comes back.
fn unread_values(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let publish = |round: usize| -> Any<()> {
        for i in 0..10 {
            let key = format!("{}-{i}", ctx.rank());
            s.publish(&key, &tensor(&values(ctx.rank(), round))?, ctx.world())?;
        }
        Ok(())
    };
    publish(0)?;
    s.store.reset(s.by)?;
    s.all()?;
    let blocks = || (s.team.hub().tensors().stats().blocks, s.team.hub().windows().stats().blocks);
    let before = blocks();
    s.all()?;
    for round in 1..20 {
        publish(round)?;
        let peer = (ctx.rank() + round) % ctx.world();
        check_eq!(s.read(&format!("{peer}-{}", round % 10))?, values(peer, round));
        s.store.reset(s.by)?;
    }
    s.all()?;
    eventually("all that was unread has gone", || blocks() == before)
        .map_err(|e| format!("{e}: {:?}, not {before:?}", blocks()))?;
    s.end()
}

/// Ranks that reset different stores are told so, and nothing is forgotten.
fn another_store(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let other = store::open_kind(&s.team, kind, s.by)?;
    if ctx.rank() == 0 {
        s.publish("x", &tensor(&values(0, 1))?, ctx.world())?;
        other.publish("x", &tensor(&values(0, 2))?, &s.cpu, ctx.world(), None)?;
    }
    s.all()?;
    let odd = if ctx.rank() == 1 { other.reset(s.by) } else { s.store.reset(s.by) };
    check!(matches!(odd, Err(Error::Mismatch { .. })), "{odd:?}");
    check_eq!(s.read("x")?, values(0, 1));
    check_eq!(other.fetch("x", &s.cpu, s.by)?.to_vec::<f32>()?, values(0, 2));
    s.end()
}

/// A reset takes records away under whoever publishes or waits for readers on the same rank: the second one is refused.
fn in_its_turn(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (refused, in_reset) = (0, 1);
    if ctx.rank() > 0 {
        s.script.pass(refused)?;
        if ctx.rank() == 1 {
            check_eq!(s.read("x")?, values(0, 0));
        }
        s.script.pass(in_reset)?;
        s.store.reset(s.by)?;
        return s.end();
    }
    s.publish("x", &s.in_arena(&values(0, 0))?, 1)?;
    std::thread::scope(|scope| -> Any<()> {
        let waiting = scope.spawn(|| s.wait_consumed("x"));
        eventually("a thread waits", || waits(&s.team, 0, "readers of key \"x\""))?;
        concurrent(s.store.reset(s.by), "wait_consumed")?;
        s.script.open(refused)?;
        Ok(waiting.join().map_err(|_| "a thread panicked")??)
    })?;
    s.publish("y", &s.in_arena(&values(0, 0))?, 1)?;
    let mut task = s.store.wait_consumed_async("y", s.by);
    check!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    concurrent(s.store.reset(s.by), "wait_consumed")?;
    drop(task);
    std::thread::scope(|scope| -> Any<()> {
        let resetting = scope.spawn(|| s.store.reset(s.by));
        eventually("a thread resets", || s.team.snapshot().ranks[0].inside)?;
        concurrent(s.publish("z", &tensor(&[1.0])?, 0), "reset")?;
        concurrent(s.wait_consumed("y"), "reset")?;
        concurrent(block_on(s.store.wait_consumed_async("y", s.by)), "reset")?;
        concurrent(s.store.reset(s.by), "reset")?;
        s.script.open(in_reset)?;
        Ok(resetting.join().map_err(|_| "a thread panicked")??)
    })?;
    check_eq!(s.store.stats().published, 2);
    s.end()
}

fn concurrent<T: Debug>(outcome: Result<T, Error>, with: &str) -> RankResult {
    match outcome {
        Err(Error::ConcurrentUse { inside, .. }) => check!(inside.contains(with), "{inside}"),
        other => return Err(format!("it was to be refused: {other:?}").into()),
    }
    done()
}
