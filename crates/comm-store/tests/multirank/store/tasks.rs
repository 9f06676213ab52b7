//! Fetching and waiting as tasks: many at once, given up at every point, and out of time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use comm_core::Error;
use comm_store::store::Kind;
use comm_testkit::{RankCtx, RankResult, block_on, check, check_eq};

use super::{Run, Scene, in_vain, tensor, values};
use crate::support::{Any, eventually, gave_up_after, right};

pub const CASES: &[(&str, Run)] = &[
    ("fetch_async/-/f32/by-turns", by_turns),
    ("fetch_async/-/f32/many-at-once", many_at_once),
    ("fetch_async/-/-/given-up", given_up_fetches),
    ("wait_consumed_async/-/-/given-up", given_up_waits),
    ("timeout/-/-/changes-nothing", out_of_time),
    ("timeout/-/-/at-once", no_time_at_all),
];

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn by_turns(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let next = right(ctx);
    for round in 0..50 {
        let (mine, theirs) = (format!("{}-{round}", ctx.rank()), format!("{next}-{round}"));
        let mut fetch = s.store.fetch_async(&theirs, &s.cpu, s.by);
        let early = poll(&mut fetch);
        // Given up, if the other one has not published yet.
        drop(fetch);
        s.publish(&mine, &tensor(&values(ctx.rank(), round))?, 1)?;
        let read = match early {
            Poll::Ready(read) => read?,
            Poll::Pending => block_on(s.store.fetch_async(&theirs, &s.cpu, s.by))?,
        };
        check_eq!(read.to_vec::<f32>()?, values(next, round));
        read.finish()?;
        block_on(s.store.wait_consumed_async(&mine, s.by))?;
    }
    s.end()
}

/// Runs all of them on this thread.
fn all_of<T>(mut futures: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    block_on(std::future::poll_fn(|context| {
        for (future, slot) in futures.iter_mut().zip(&mut done) {
            if slot.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *slot = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    }));
    done.into_iter().flatten().collect()
}

/// Every rank waits for all values of all ranks before anybody has published one, in one thread.
fn many_at_once(ctx: &RankCtx, kind: Kind) -> RankResult {
    const EACH: usize = 100;
    let s = Scene::new(ctx, kind)?;
    let keys: Vec<String> =
        (0..ctx.world()).flat_map(|rank| (0..EACH).map(move |i| format!("{rank}-{i}"))).collect();
    let mut fetches: Vec<_> = keys.iter().map(|key| s.store.fetch_async(key, &s.cpu, s.by)).collect();
    for (fetch, key) in fetches.iter_mut().zip(&keys) {
        check!(poll(fetch).is_pending(), "nobody has published {key:?}");
    }
    s.all()?;
    for i in 0..EACH {
        s.publish(&format!("{}-{i}", ctx.rank()), &tensor(&values(ctx.rank(), i))?, ctx.world())?;
    }
    for (n, read) in all_of(fetches).into_iter().enumerate() {
        check_eq!(read?.to_vec::<f32>()?, values(n / EACH, n % EACH));
    }
    let own = &keys[ctx.rank() * EACH..][..EACH];
    let waits: Vec<_> = own.iter().map(|key| s.store.wait_consumed_async(key, s.by)).collect();
    all_of(waits).into_iter().collect::<Result<Vec<()>, Error>>()?;
    s.end()
}

/// A fetch that is dropped before it is ready has not fetched, whether it was never polled, waits, could go on, or could
/// have been ready.
fn given_up_fetches(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (waiting, published, given_up) = (0, 1, 2);
    if ctx.rank() == 0 {
        s.script.pass(waiting)?;
        s.publish("x", &tensor(&values(0, 1))?, 1)?;
        s.script.open(published)?;
        s.script.pass(given_up)?;
        check_eq!(s.not_consumed("x")?.seen, 0);
        s.script.open(3)?;
        s.wait_consumed("x")?;
    }
    if ctx.rank() == 1 {
        drop(s.store.fetch_async("x", &s.cpu, s.by));
        let mut fetches: Vec<_> = (0..5).map(|_| s.store.fetch_async("x", &s.cpu, s.by)).collect();
        for (polls, fetch) in fetches.iter_mut().enumerate() {
            (0..polls).try_for_each(|_| -> Any<()> {
                check!(poll(fetch).is_pending());
                Ok(())
            })?;
        }
        s.script.open(waiting)?;
        s.script.pass(published)?;
        drop(fetches);
        s.script.open(given_up)?;
        s.script.pass(3)?;
        // There is one read, and it is still to be had.
        let mut fetch = s.store.fetch_async("x", &s.cpu, s.by);
        let Poll::Ready(read) = poll(&mut fetch) else { return Err("it is there".into()) };
        check_eq!(read?.to_vec::<f32>()?, values(0, 1));
        check_eq!(s.store.stats().fetched, 1);
    }
    s.end()
}

fn given_up_waits(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &tensor(&values(0, 1))?, 1)?;
        for polls in 0..4 {
            let mut wait = s.store.wait_consumed_async("x", s.by);
            for _ in 0..polls {
                check!(poll(&mut wait).is_pending());
            }
        }
        let mut ready = s.store.wait_consumed_async("x", s.by);
        check!(poll(&mut ready).is_pending());
        s.script.open(0)?;
        s.script.pass(1)?;
        // It could be ready, and is given up: the value is still to be let go of.
        drop(ready);
        check!(!s.store.context().is_over());
        block_on(s.store.wait_consumed_async("x", s.by))?;
        block_on(s.store.wait_consumed_async("x", s.by))?;
    }
    if ctx.rank() == 1 {
        s.script.pass(0)?;
        check_eq!(s.read("x")?, values(0, 1));
        s.script.open(1)?;
    }
    s.end()
}

/// Whoever gives up says what was missing, and can ask again.
fn out_of_time(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..2 {
        let key = format!("late-{round}");
        let gates = 4 * round;
        if ctx.rank() == 0 {
            let waited = [
                in_vain(|by| s.store.fetch(&key, &s.cpu, by))?,
                in_vain(|by| block_on(s.store.fetch_async(&key, &s.cpu, by)))?,
                in_vain(|by| s.store.fetch_to_device(&key, &s.cpu, comm_core::device::Device::Cpu, by))?,
            ];
            for gave_up in waited {
                check_eq!((gave_up.seen, gave_up.expected), (0, 1));
                check!(gave_up.what.contains(&format!("key {key:?}")), "{}", gave_up.what);
            }
            s.script.open(gates)?;
            check_eq!(s.read(&key)?, values(1, round));
            s.script.open(gates + 1)?;
        }
        if ctx.rank() == 1 {
            s.script.pass(gates)?;
            s.publish(&key, &tensor(&values(1, round))?, 2)?;
            s.script.pass(gates + 1)?;
            let waited =
                [s.not_consumed(&key)?, in_vain(|by| block_on(s.store.wait_consumed_async(&key, by)))?];
            for gave_up in waited {
                check_eq!((gave_up.seen, gave_up.expected), (1, 2));
                check!(gave_up.what.contains(&format!("key {key:?}")), "{}", gave_up.what);
            }
            check_eq!(s.read(&key)?, values(1, round));
            s.wait_consumed(&key)?;
        }
        s.all()?;
        s.store.reset(s.by)?;
    }
    s.end()
}

/// A deadline that is over is no reason not to take what is there.
fn no_time_at_all(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let none = Duration::ZERO;
    gave_up_after(none, s.store.fetch("x", &s.cpu, none.into()))?;
    gave_up_after(none, block_on(s.store.fetch_async("x", &s.cpu, none.into())))?;
    s.all()?;
    if ctx.rank() == 0 {
        s.publish("x", &tensor(&values(0, 1))?, 2 * ctx.world())?;
    }
    s.all()?;
    // Where it lies in another process, that one's segment may still be on its way to this one.
    eventually("it can be had at once", || s.store.fetch("x", &s.cpu, none.into()).is_ok())?;
    block_on(s.store.fetch_async("x", &s.cpu, none.into()))?.finish()?;
    s.all()?;
    if ctx.rank() == 0 {
        s.store.wait_consumed("x", none.into())?;
        block_on(s.store.wait_consumed_async("x", none.into()))?;
    }
    s.end()
}
