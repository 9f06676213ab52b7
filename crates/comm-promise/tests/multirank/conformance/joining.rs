//! Several futures: all of them, and the first of them.

use std::time::{Duration, Instant};

use comm_core::error::BrokenHow;
use comm_core::{Error, Kind};
use comm_promise::{JoinAll, Wire, select};
use comm_testkit::{RankCtx, RankResult, block_on, check, check_eq, done};

use crate::support::{Run, Scene, is_broken, poll};

/// How long a wait goes on that must end in vain.
const BRIEF: Duration = Duration::from_millis(5);

pub const CASES: &[(&str, Run)] = &[
    ("join/-/-/values-in-order", in_order),
    ("join/-/-/none", none),
    ("join/-/-/first-error", first_error),
    ("join/-/-/in-vain-and-again", again),
    ("select/-/-/first", first),
    ("select/-/-/in-vain-and-again", first_again),
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
        let gives_up = |outcome| match outcome {
            Err(Error::Timeout { seen: 0, expected: 1, .. }) => done(),
            other => Err(format!("not yet: {other:?}").into()),
        };
        gives_up(all.get(Duration::from_millis(5)))?;
        let began = Instant::now();
        all = all.with_deadline(BRIEF);
        gives_up(block_on(&mut all))?;
        check!(began.elapsed() >= BRIEF);
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

fn first_again(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Wire<u8>>()?;
    let mut futures: Vec<_> = future.into_iter().collect();
    if s.is_client() {
        let began = Instant::now();
        match block_on(select(&mut futures).with_deadline(BRIEF)) {
            Err(Error::Timeout { what, .. }) if began.elapsed() >= BRIEF => check!(what.contains("of 1")),
            other => return Err(format!("not yet: {other:?}").into()),
        }
    }
    s.all()?;
    if let Some(promise) = promise {
        promise.set(Wire(1))?;
    }
    if s.is_client() {
        check_eq!(block_on(select(&mut futures))?, 0);
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
        check!(matches!(select(&mut futures).get(BRIEF), Err(Error::Timeout { .. })));
    }
    for next in [2, 0, 3, 1] {
        s.all()?;
        if s.is_worker() {
            promises[next].set(Wire(next))?;
        }
        if s.is_client() {
            // It does not read: asked again it says the same.
            check_eq!(select(&mut futures).wait(s.by)?, Some(next));
            check_eq!(select(&mut futures).get(s.by)?, next);
            check_eq!(block_on(select(&mut futures))?, next);
            check_eq!(*futures[next].get(s.by)?, next);
        }
    }
    if s.is_client() {
        check!(select(&mut futures).wait(s.by).is_err(), "all have been read");
    }
    s.end()
}
