//! What becomes of one side when the other one goes.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use comm_core::error::BrokenHow;
use comm_core::{Error, Kind};
use comm_promise::{Promise, SetError, Wire};
use comm_testkit::{RankCtx, RankResult, check, check_eq};

use crate::support::{Run, Scene, is_broken, tensor};

pub const CASES: &[(&str, Run)] = &[
    ("end/-/-/dropped-unset", dropped_unset),
    ("end/-/-/dropped-while-waited-for", dropped_while_waited_for),
    ("end/-/-/holder-panics", holder_panics),
    ("end/-/-/dropped-when-set", dropped_when_set),
    ("end/-/-/future-dropped", future_dropped),
    ("end/-/-/value-that-nobody-reads", unread),
    ("end/-/-/cancelled", cancelled),
    ("end/-/-/guards-go-with-the-future", guards),
];

fn dropped_unset(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    drop(promise);
    s.all()?;
    if let Some(future) = future {
        check!(future.is_ready(), "it can be read without waiting");
        let pid = is_broken(future.get(s.by), BrokenHow::Dropped)?;
        check_eq!(pid.is_some(), s.is_abroad());
        check!(!future.is_ready());
        check!(matches!(future.get(s.by), Err(Error::AlreadyConsumed { .. })));
    }
    s.end()
}

fn dropped_while_waited_for(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    std::thread::scope(|scope| {
        let reader = future.as_ref().map(|future| scope.spawn(|| future.get(s.by)));
        s.all()?;
        drop(promise);
        if let Some(reader) = reader {
            is_broken(reader.join().unwrap(), BrokenHow::Dropped)?;
        }
        s.end()
    })
}

fn holder_panics(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    if let Some(promise) = promise {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _promise = promise;
            resume_unwind(Box::new("no panic message"));
        }));
        check!(unwound.is_err());
    }
    if let Some(future) = future {
        is_broken(future.get(s.by), BrokenHow::Panicked)?;
    }
    s.end()
}

fn dropped_when_set(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Wire<u32>>()?;
    if let Some(promise) = promise {
        promise.set(Wire(3))?;
        drop(promise);
    }
    s.all()?;
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 3);
    }
    s.end()
}

/// Whoever sets what nobody reads has it back.
fn future_dropped(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask()?;
    drop(future);
    s.all()?;
    if let Some(promise) = promise {
        match promise.set(tensor(&[4.0])?) {
            Err(SetError::Broken { value, why }) => {
                check_eq!(value.to_vec::<f32>()?, [4.0]);
                is_broken::<()>(Err(*why), BrokenHow::Unwanted)?;
            }
            other => return Err(format!("nobody reads it: {other:?}").into()),
        }
        check!(promise.set_error(Error::Forked).is_err());
        check!(!promise.is_set());
    }
    s.end()
}

/// A value that nobody reads goes with the future, though its promise is still held at home.
fn unread(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let value = tensor(&[1.0])?;
    let promise = Promise::new(kind)?;
    let future = promise.future()?;
    promise.set(vec![value.clone()])?;
    check!(value.clone().try_into_buf().is_err());
    drop(future);
    check!(value.try_into_buf().is_ok(), "the promise still holds it");
    check!(promise.set(vec![]).is_err());
    s.end()
}

fn cancelled(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    // Before it is set.
    let (future, promise) = s.ask()?;
    if let Some(future) = &future {
        future.cancel();
        future.cancel();
        is_broken(future.get(s.by), BrokenHow::Cancelled)?;
    }
    s.all()?;
    if let Some(promise) = promise {
        is_broken(promise.set(Wire(1)).map_err(Error::from), BrokenHow::Cancelled)?;
    }
    s.all()?;
    // While it is waited for.
    let (future, promise) = s.ask::<()>()?;
    if let Some(future) = &future {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| future.get(s.by));
            future.cancel();
            is_broken(reader.join().unwrap(), BrokenHow::Cancelled).map(drop)
        })?;
    }
    s.all()?;
    drop((future, promise));
    // Too late.
    let (future, promise) = s.ask()?;
    if let Some(promise) = promise {
        promise.set(Wire(2))?;
    }
    s.all()?;
    if let Some(future) = future {
        future.cancel();
        check_eq!(*future.get(s.by)?, 2);
    }
    s.end()
}

/// What a future keeps lives as long as it, whatever the client has dropped.
fn guards(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    if let Some(promise) = promise {
        promise.set(())?;
    }
    if let Some(future) = future {
        let source = std::sync::Arc::new(tensor(&[1.0])?);
        let seen = std::sync::Arc::downgrade(&source);
        let future = future.guarding(source);
        check!(seen.upgrade().is_some());
        future.get(s.by)?;
        check!(seen.upgrade().is_some(), "the future is still there");
        drop(future);
        check!(seen.upgrade().is_none());
    }
    s.end()
}
