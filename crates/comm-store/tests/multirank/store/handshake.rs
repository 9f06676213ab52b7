//! The four steps: publish, fetch, finish, wait.

use std::task::{Context, Poll, Waker};

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_store::store::Kind;
use comm_testkit::{Case, RankCtx, RankResult, block_on, check, check_eq, done};

use super::{both, scene};

pub fn cases() -> Vec<Case> {
    [
        both("publish/-/f32/all-to-all", all_to_all),
        both("publish/-/f32/awaited", awaited),
        both("publish/-/any/misuse", misuse),
        both("publish/-/f32/clones-live-on", clones_live_on),
        both("reset/-/-/keys-again", keys_again),
    ]
    .concat()
}

fn values(rank: usize, round: usize) -> Vec<f32> {
    (0..5).map(|i| (100 * round + 10 * rank + i) as f32).collect()
}

/// Everybody publishes, and everybody reads everybody's.
fn all_to_all(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = scene(ctx, kind)?;
    let world = ctx.world();
    for round in 0..20 {
        let mut mine = TensorBuf::zeros_in(s.team.hub().tensors(), &[5], DType::F32)?;
        mine.as_mut_slice::<f32>()?.copy_from_slice(&values(ctx.rank(), round));
        let mine = mine.freeze();
        s.store.publish(&format!("{}-{round}", ctx.rank()), &mine, &s.cpu, world, None)?;
        for peer in 0..world {
            let read = s.store.fetch(&format!("{peer}-{round}"), &s.cpu, ctx.deadline())?;
            check_eq!(read.to_vec::<f32>()?, values(peer, round));
            check!(!ctx.shares_process(peer) || read.is_ours());
            if peer == ctx.rank() {
                check_eq!(read.as_ptr(), mine.as_ptr());
            }
        }
        s.store.wait_consumed(&format!("{}-{round}", ctx.rank()), ctx.deadline())?;
        if round % 7 == 6 {
            s.store.reset(ctx.deadline())?;
        }
    }
    check_eq!(s.store.stats().bytes_copied, 0);
    check_eq!((s.store.stats().published, s.store.stats().fetched), (20, 20 * world as u64));
    done()
}

/// As tasks, several of which wait at once. One that is dropped before it is ready has fetched nothing.
fn awaited(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = scene(ctx, kind)?;
    let next = (ctx.rank() + 1) % ctx.world();
    for round in 0..50 {
        let (mine, theirs) = (format!("{}-{round}", ctx.rank()), format!("{next}-{round}"));
        let mut fetch = s.store.fetch_async(&theirs, &s.cpu, ctx.deadline());
        let early = fetch.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // Cancelled, if the other one has not published yet.
        drop(fetch);
        let t = Tensor::from_slice(&[5], &values(ctx.rank(), round))?;
        s.store.publish(&mine, &t, &s.cpu, 1, None)?;
        let read = match early {
            Poll::Ready(read) => read?,
            Poll::Pending => block_on(s.store.fetch_async(&theirs, &s.cpu, ctx.deadline()))?,
        };
        check_eq!(read.to_vec::<f32>()?, values(next, round));
        read.finish()?;
        block_on(s.store.wait_consumed_async(&mine, ctx.deadline()))?;
    }
    s.team.barrier(ctx.deadline())?;
    done()
}

fn misuse(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = scene(ctx, kind)?;
    let t = Tensor::from_slice(&[2], &[1u8, 2])?;
    if ctx.rank() == 0 {
        s.store.publish("x", &t, &s.cpu, 1, None)?;
    }
    s.team.barrier(ctx.deadline())?;
    match s.store.publish("x", &t, &s.cpu, 1, None) {
        Err(Error::DuplicateKey { key, rank: 0, .. }) => check_eq!(key, "x"),
        other => return Err(format!("{other:?}").into()),
    }
    check!(matches!(s.store.finish("x", &s.cpu), Err(Error::OverFinished { fetched: 0, .. })));
    check!(matches!(s.store.finish("y", &s.cpu), Err(Error::UnknownKey { .. })));
    check!(matches!(s.store.wait_consumed("y", ctx.deadline()), Err(Error::UnknownKey { .. })));
    check!(matches!(s.store.publish("", &t, &s.cpu, 1, None), Err(Error::InvalidArgument { .. })));
    s.team.barrier(ctx.deadline())?;
    if ctx.rank() == 1 {
        check!(matches!(s.store.wait_consumed("x", ctx.deadline()), Err(Error::InvalidArgument { .. })));
        let read = s.store.fetch("x", &s.cpu, ctx.deadline())?.into_tensor();
        check!(matches!(
            s.store.fetch("x", &s.cpu, ctx.deadline()),
            Err(Error::OverFinished { fetched: 1, finished: 0, readers: 1, .. })
        ));
        check_eq!(read.to_vec::<u8>()?, [1, 2]);
        s.store.finish("x", &s.cpu)?;
        check!(matches!(s.store.finish("x", &s.cpu), Err(Error::OverFinished { .. })));
    }
    if ctx.rank() == 0 {
        s.store.wait_consumed("x", ctx.deadline())?;
        s.store.wait_consumed("x", ctx.deadline())?;
    }
    s.team.barrier(ctx.deadline())?;
    done()
}

/// A reader keeps a clone after it has finished: the producer goes on, and the memory is not used for anything else.
fn clones_live_on(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = scene(ctx, kind)?;
    let mut kept = Vec::new();
    for round in 0..30 {
        if ctx.rank() == 0 {
            let t = Tensor::from_slice(&[5], &values(0, round))?.contiguous_in(s.team.hub().tensors())?;
            s.store.publish(&round.to_string(), &t, &s.cpu, ctx.world() - 1, None)?;
            drop(t);
            s.store.wait_consumed(&round.to_string(), ctx.deadline())?;
        } else {
            kept.push(s.store.fetch(&round.to_string(), &s.cpu, ctx.deadline())?.clone());
        }
    }
    for (round, t) in kept.iter().enumerate() {
        check_eq!(t.to_vec::<f32>()?, values(0, round));
    }
    s.team.barrier(ctx.deadline())?;
    done()
}

fn keys_again(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = scene(ctx, kind)?;
    for round in 0..100 {
        let producer = round % ctx.world();
        if ctx.rank() == producer {
            let t = Tensor::from_slice(&[5], &values(producer, round))?;
            s.store.publish("key", &t, &s.cpu, ctx.world() - 1, None)?;
        } else {
            let t = s.store.fetch("key", &s.cpu, ctx.deadline())?;
            check_eq!(t.to_vec::<f32>()?, values(producer, round));
        }
        s.store.reset(ctx.deadline())?;
    }
    done()
}
