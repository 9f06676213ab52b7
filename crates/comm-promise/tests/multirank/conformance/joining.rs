//! Several futures: all of them, the first of them, and a guard around the sleep.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use comm_core::error::BrokenHow;
use comm_core::{Error, Kind};
use comm_promise::{JoinAll, Wire, select};
use comm_testkit::{RankCtx, RankResult, block_on, check, check_eq};

use crate::support::{Run, Scene, is_broken, poll};

pub const CASES: &[(&str, Run)] = &[
    ("join/-/-/values-in-order", in_order),
    ("join/-/-/none", none),
    ("join/-/-/first-error", first_error),
    ("join/-/-/in-vain-and-again", again),
    ("select/-/-/first", first),
    ("get/-/-/guard-around-the-sleep", guarded),
];

fn in_order(ctx: &RankCtx, kind: Kind) -> RankResult {
    const MANY: usize = 12;
    let s = Scene::new(ctx, kind)?;
    for by_task in [false, true] {
        let (mut all, mut promises) = (JoinAll::default(), Vec::new());
        for _ in 0..MANY {
            let (future, promise) = s.ask::<Wire<usize>>()?;
            future.into_iter().for_each(|future| all.push(future));
            promises.extend(promise);
        }
        if s.is_client() {
            check_eq!(all.len(), MANY);
            check!(!all.is_ready());
            check_eq!(all.wait(Duration::ZERO)?, None);
            check!(poll(&mut all).is_pending());
        }
        // Half of them, and then the rest: nothing of the first half is lost in between.
        for half in [1, 0] {
            for (n, promise) in promises.iter().enumerate().rev().filter(|(n, _)| n % 2 == half) {
                promise.set(Wire(n))?;
            }
            s.all()?;
            if s.is_client() && half == 1 {
                check_eq!(all.wait(Duration::from_millis(2))?, None);
                check!(!all.is_ready());
            }
            s.all()?;
        }
        if s.is_client() {
            check!(all.is_ready());
            let values = if by_task { block_on(&mut all)? } else { all.get(s.by)? };
            check!(values.iter().map(|value| **value).eq(0..MANY));
            check!(!all.is_ready());
            check!(matches!(all.get(s.by), Err(Error::AlreadyConsumed { .. })));
        }
    }
    s.end()
}

fn none(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let mut all = JoinAll::<()>::default();
    check!(all.is_empty() && all.is_ready());
    check_eq!(all.wait(Duration::ZERO)?, Some(vec![]));
    check_eq!(block_on(JoinAll::<()>::default())?, []);
    s.end()
}

fn first_error(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (mut all, mut promises) = (JoinAll::default(), Vec::new());
    for _ in 0..5 {
        let (future, promise) = s.ask::<()>()?;
        future.into_iter().for_each(|future| all.push(future));
        promises.extend(promise);
    }
    // The others are still open: it does not wait for them.
    if s.is_worker() {
        drop(promises.remove(3));
    }
    if s.is_client() {
        match all.get(s.by) {
            Err(Error::OneOf { index: 3, source }) => {
                is_broken::<()>(Err(*source), BrokenHow::Dropped)?;
            }
            other => return Err(format!("the fourth was dropped: {other:?}").into()),
        }
        check!(matches!(all.get(s.by), Err(Error::AlreadyConsumed { .. })));
    }
    s.end()
}

fn again(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Wire<u8>>()?;
    let mut all: JoinAll<_> = future.into_iter().collect();
    if s.is_client() {
        match all.get(Duration::from_millis(5)) {
            Err(Error::Timeout { seen: 0, expected: 1, .. }) => {}
            other => return Err(format!("not yet: {other:?}").into()),
        }
    }
    s.all()?;
    if let Some(promise) = promise {
        promise.set(Wire(1))?;
    }
    if s.is_client() {
        check_eq!(all.get(s.by)?, [Wire(1)]);
    }
    s.end()
}

fn first(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (mut futures, mut promises) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (future, promise) = s.ask::<Wire<usize>>()?;
        futures.extend(future);
        promises.extend(promise);
    }
    if s.is_client() {
        check_eq!(select(&mut futures).wait(Duration::ZERO)?, None);
    }
    for next in [2, 0, 3, 1] {
        s.all()?;
        if s.is_worker() {
            promises[next].set(Wire(next))?;
        }
        if s.is_client() {
            // It does not read: asked again it says the same.
            check_eq!(select(&mut futures).wait(s.by)?, Some(next));
            check_eq!(block_on(select(&mut futures))?, next);
            check_eq!(*futures[next].get(s.by)?, next);
        }
    }
    if s.is_client() {
        check!(select(&mut futures).wait(s.by).is_err(), "all have been read");
    }
    s.end()
}

/// While a thread sleeps for a future it does not hold what its guard has let go of; and afterwards it does again.
fn guarded(ctx: &RankCtx, kind: Kind) -> RankResult {
    /// An interpreter's lock, and how often it was let go of.
    static LOCK: Mutex<()> = Mutex::new(());
    let entered = Arc::new(AtomicUsize::new(0));
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    if let Some(future) = future {
        let count = entered.clone();
        let future = future.on_blocking(move || {
            count.fetch_add(1, Ordering::Relaxed);
            // As far as this test can show it: nobody holds it while the guard lives.
            let held: MutexGuard<'static, ()> = LOCK.lock().unwrap();
            drop(held);
        });
        check_eq!(future.wait(Duration::from_millis(1))?, None);
        check_eq!(entered.load(Ordering::Relaxed), 1);
        s.all()?;
        future.get(s.by)?;
        s.all()?;
        // What is there is not slept for.
        let before = entered.load(Ordering::Relaxed);
        check!(future.get(s.by).is_err());
        check_eq!(entered.load(Ordering::Relaxed), before);
    } else {
        s.all()?;
        if let Some(promise) = promise {
            promise.set(())?;
        }
        s.all()?;
    }
    s.end()
}
