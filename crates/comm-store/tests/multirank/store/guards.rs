//! Reads end once, whichever way.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use comm_core::Error;
use comm_core::device::{Device, Stream};
use comm_core::tensor::Tensor;
use comm_store::store::{Fetched, Kind};
use comm_testkit::{RankCtx, RankResult, check, check_eq};

use super::{Run, Scene, tensor, values};
use crate::support::Any;

pub const CASES: &[(&str, Run)] = &[
    ("finish/-/-/each-way-counts-once", each_way_counts_once),
    ("finish/-/-/clones-live-on", clones_live_on),
    ("fetch_to_device/-/f32/where-it-is", to_where_it_is),
    ("publish/-/any/misuse", misuse),
    ("finish/-/-/too-many", too_many),
    ("finish/-/-/of-another-rank", of_another_rank),
];

/// How a read ends.
type End = fn(&Scene, &str, Fetched) -> Any<()>;

const WAYS: [(&str, End); 6] = [
    ("dropped", |_, _, read| {
        drop(read);
        Ok(())
    }),
    ("finished", |_, _, read| Ok(read.finish()?)),
    ("by-name", |s, key, read| {
        let kept = read.into_tensor();
        s.store.finish(key, &s.cpu)?;
        check_eq!(kept.numel(), 5);
        Ok(())
    }),
    ("in-another-thread", |_, _, read| {
        std::thread::spawn(move || drop(read)).join().map_err(|_| "a thread panicked".into())
    }),
    ("unwinding", |_, _, read| {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _read = read;
            resume_unwind(Box::new("on purpose"));
        }));
        check!(unwound.is_err());
        Ok(())
    }),
    ("behind-a-clone", |_, _, read| {
        let clone = read.clone();
        drop(read);
        check_eq!(clone.numel(), 5);
        Ok(())
    }),
];

/// One of two reads ends in each way; the other one is still awaited.
fn each_way_counts_once(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for (i, (key, end)) in WAYS.into_iter().enumerate() {
        let (first, second) = (2 * i, 2 * i + 1);
        match ctx.rank() {
            0 => {
                s.publish(key, &tensor(&values(0, i))?, 2)?;
                check_eq!(s.not_consumed(key)?.seen, 0, "{key}");
                s.script.open(first)?;
                s.script.pass(second)?;
                check_eq!(s.not_consumed(key)?.seen, 1, "{key}");
                check_eq!(s.read(key)?, values(0, i));
                s.wait_consumed(key)?;
            }
            1 => {
                let read = s.fetch(key)?;
                s.script.pass(first)?;
                check_eq!(read.to_vec::<f32>()?, values(0, i));
                end(&s, key, read).map_err(|e| format!("{key}: {e}"))?;
                s.script.open(second)?;
            }
            _ => {}
        }
    }
    s.end()
}

/// A reader keeps a clone after it has finished: the producer goes on, and the memory is not used for anything else.
fn clones_live_on(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let mut kept = Vec::new();
    for round in 0..30 {
        let key = round.to_string();
        if ctx.rank() == 0 {
            let t = s.in_arena(&values(0, round))?;
            s.publish(&key, &t, ctx.world() - 1)?;
            drop(t);
            s.wait_consumed(&key)?;
        } else {
            kept.push(s.fetch(&key)?.clone());
        }
    }
    for (round, t) in kept.iter().enumerate() {
        check_eq!(t.to_vec::<f32>()?, values(0, round));
    }
    s.end()
}

/// To the device where it is already: the tensor itself, which is still its reader's to finish.
fn to_where_it_is(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &s.in_arena(&values(0, 0))?, ctx.world() - 1)?;
        check_eq!(s.not_consumed("x")?.seen, 0);
        s.script.open(0)?;
        s.wait_consumed("x")?;
    } else {
        let read = s.store.fetch_to_device("x", &s.cpu, Device::Cpu, s.by)?;
        check_eq!(read.to_vec::<f32>()?, values(0, 0));
        s.script.pass(0)?;
        drop(read);
    }
    s.all()?;
    check_eq!(s.store.stats().bytes_copied, 0);
    s.end()
}

/// A call that cannot be is refused, says why, and changes nothing.
fn misuse(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let t = Tensor::from_slice(&[2], &[1u8, 2])?;
    if ctx.rank() == 0 {
        let sim = comm_testkit::sim::SimStream::new(3);
        match s.store.publish("x", &t, sim.stream(), 1, None) {
            Err(Error::DeviceMismatch { seen, expected, .. }) => {
                check_eq!((seen.as_str(), expected.as_str()), ("cpu", "sim:3"));
            }
            other => return Err(format!("{other:?}").into()),
        }
        let many = s.publish("x", &t, 1 << 32);
        check!(matches!(many, Err(Error::InvalidArgument { .. })), "{many:?}");
        // Nothing was stored by either.
        check!(matches!(s.store.finish("x", &s.cpu), Err(Error::UnknownKey { .. })));
        check_eq!((s.store.stats().published, s.store.stats().bytes_copied), (0, 0));
        s.publish("x", &t, 1)?;
    }
    s.all()?;
    check!(matches!(s.store.finish("x", &s.cpu), Err(Error::OverFinished { fetched: 0, .. })));
    match s.store.finish("y", &s.cpu) {
        Err(Error::UnknownKey { key, .. }) => check_eq!(key, "y"),
        other => return Err(format!("{other:?}").into()),
    }
    check!(matches!(s.wait_consumed("y"), Err(Error::UnknownKey { .. })));
    if ctx.rank() > 0 {
        let refused = s.wait_consumed("x");
        check!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
        check!(refused.unwrap_err().to_string().contains("rank 0"));
    }
    s.end()
}

/// More reads than there are, and more ends than reads: refused, and the others count as before.
fn too_many(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &tensor(&values(0, 0))?, 2)?;
        s.script.pass(0)?;
        check_eq!(s.not_consumed("x")?.seen, 1);
        s.script.open(1)?;
        s.wait_consumed("x")?;
    }
    if ctx.rank() == 1 {
        let first = s.fetch("x")?.into_tensor();
        s.store.finish("x", &s.cpu)?;
        match s.store.finish("x", &Stream::current()) {
            Err(Error::OverFinished { readers: 2, fetched: 1, finished: 1, key, .. }) => check_eq!(key, "x"),
            other => return Err(format!("{other:?}").into()),
        }
        s.script.open(0)?;
        s.script.pass(1)?;
        let second = s.fetch("x")?;
        match s.fetch("x") {
            Err(Error::OverFinished { readers: 2, fetched: 2, finished: 1, .. }) => {}
            other => return Err(format!("{other:?}").into()),
        }
        check!(first.bytes_equal(&second)?);
        drop(second);
        check!(matches!(s.store.finish("x", &s.cpu), Err(Error::OverFinished { finished: 2, .. })));
    }
    s.end()
}

/// A rank finishes its own reads, and not those that others have begun.
fn of_another_rank(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &s.in_arena(&values(0, 0))?, 2)?;
    }
    let kept = if ctx.rank() == 1 { Some((s.fetch("x")?, s.fetch("x")?.into_tensor())) } else { None };
    s.all()?;
    if ctx.rank() != 1 {
        let refused = s.store.finish("x", &s.cpu);
        check!(matches!(refused, Err(Error::OverFinished { fetched: 2, finished: 0, .. })), "{refused:?}");
    }
    if ctx.rank() == 0 {
        check_eq!(s.not_consumed("x")?.seen, 0);
    }
    s.all()?;
    if let Some((guard, by_name)) = kept {
        check_eq!(by_name.to_vec::<f32>()?, values(0, 0));
        s.store.finish("x", &s.cpu)?;
        guard.finish()?;
    }
    if ctx.rank() == 0 {
        s.wait_consumed("x")?;
    }
    s.end()
}
