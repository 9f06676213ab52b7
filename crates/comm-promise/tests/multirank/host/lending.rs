//! Memory of a value: as long as it is read, and no longer.

use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_promise::{Promise, Wire};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq};

use crate::support::{Any, Scene, host, until_blocks};

pub fn cases() -> Vec<Case> {
    vec![
        host("lend/-/f32/kept-while-it-is-read", kept),
        host("lend/-/f32/given-back-unread", unread),
        host("lend/-/-/nothing-is-kept-of-what-is-copied", copied),
        host("lend/-/-/slots-are-used-again", again),
    ]
}

/// What cases before this one have left is given back, and nobody makes anything before that is so everywhere.
fn none_yet(s: &Scene) -> Any<()> {
    s.all()?;
    until_blocks(s, 0)?;
    s.all()
}

/// A tensor in the arena whose elements all name its round.
fn stamped(s: &Scene, round: u32) -> Any<Tensor> {
    let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[1000], DType::U32)?;
    buf.as_mut_slice::<u32>()?.fill(round);
    Ok(buf.freeze())
}

/// The worker drops what it has set and makes more in its arena at once, while the client still reads.
fn kept(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    none_yet(&s)?;
    let mut values = Vec::new();
    for round in 0..50 {
        let (future, promise) = s.ask::<Vec<Tensor>>()?;
        if let Some(promise) = promise {
            promise.set(vec![stamped(&s, round)?, stamped(&s, 1000 + round)?])?;
        }
        if let Some(future) = future {
            let mut value = future.get(s.by)?;
            // Of every other one a part alone is kept, and a view.
            if round % 2 == 0 {
                value.remove(0);
            }
            values.push((round, value.remove(0).narrow(0, 10, 5)?));
        }
    }
    s.all()?;
    // Whatever the worker makes of its memory now.
    let _more =
        if s.is_worker() { (0..50).map(|_| stamped(&s, 9999)).collect::<Any<Vec<_>>>()? } else { vec![] };
    s.all()?;
    for (round, value) in &values {
        let stamp = if round % 2 == 0 { 1000 + round } else { *round };
        check_eq!(value.to_vec::<u32>()?, [stamp; 5]);
    }
    drop(values);
    drop(_more);
    s.all()?;
    until_blocks(&s, 0)?;
    s.end()
}

/// What nobody has read goes back when the future goes.
fn unread(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    none_yet(&s)?;
    let mut futures = Vec::new();
    for round in 0..20 {
        let (future, promise) = s.ask::<Tensor>()?;
        if let Some(promise) = promise {
            promise.set(stamped(&s, round)?)?;
            check!(s.team.hub().tensors().stats().blocks > 0, "it is kept");
        }
        futures.extend(future);
    }
    s.all()?;
    drop(futures);
    until_blocks(&s, 0)?;
    s.end()
}

/// Long values that have no tensors go back when they have been read, though the future is still there.
fn copied(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    none_yet(&s)?;
    let mut futures = Vec::new();
    for round in 0..20 {
        let (future, promise) = s.ask::<Wire<Vec<u8>>>()?;
        if let Some(promise) = promise {
            promise.set(Wire(vec![round; 10_000]))?;
        }
        if let Some(future) = future {
            check_eq!(future.get(s.by)?.0, vec![round; 10_000]);
            futures.push(future);
        }
    }
    s.all()?;
    until_blocks(&s, 0)?;
    s.end()
}

/// A slot is used for the next promise, and what has to do with the one before does not reach that.
fn again(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let mut stale = Vec::new();
    let mut windows = None;
    for round in 0..100_u32 {
        let (future, promise) = s.ask::<Wire<u32>>()?;
        if let Some(promise) = promise {
            promise.set(Wire(round))?;
            // Kept when the home has done with it.
            stale.push(promise);
        }
        if let Some(future) = future {
            check_eq!(*future.get(s.by)?, round);
        }
        s.all()?;
        let now = s.team.hub().windows().stats().blocks;
        check_eq!(*windows.get_or_insert(now), now, "round {round}");
    }
    let (future, promise) = s.ask::<Wire<u32>>()?;
    if s.is_worker() {
        for promise in &stale {
            check!(promise.set(Wire(9999)).is_err());
            check!(!promise.is_set() || !s.is_abroad());
        }
        drop(stale);
    }
    s.all()?;
    if let Some(promise) = promise {
        promise.set(Wire(7))?;
    }
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 7);
    }
    // The ticket of one that is over is no ticket for the one that has its slot now.
    let old = s.is_client().then(|| Promise::<Wire<u32>>::new(s.kind)).transpose()?;
    let future = old.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, old.map(Promise::into_ticket).transpose()?)?;
    drop(future);
    s.all()?;
    let (future, promise) = s.ask::<Wire<u32>>()?;
    if s.is_worker() {
        check!(Promise::attach(&ticket, s.by).is_err());
    }
    if let Some(promise) = promise {
        promise.set(Wire(8))?;
    }
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 8);
    }
    s.end()
}
