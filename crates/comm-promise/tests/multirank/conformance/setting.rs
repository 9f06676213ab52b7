//! A value is set once and read once.

use std::time::Duration;

use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{Promise, SetError, Wire};
use comm_testkit::{RankCtx, RankResult, check, check_eq};

use crate::support::{Run, Scene, in_vain, tensor};

pub const CASES: &[(&str, Run)] = &[
    ("set/-/f32/before-and-after-it-is-asked-for", before_and_after),
    ("set/-/-/values-of-all-forms", all_forms),
    ("set/-/-/once", once),
    ("set/-/-/to-an-error", to_an_error),
    ("get/-/-/states", states),
    ("get/-/-/in-any-order", in_any_order),
    ("get/-/-/future-once", future_once),
    ("get/-/-/in-vain-and-again", in_vain_and_again),
];

fn before_and_after(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for first in [true, false] {
        let (future, promise) = s.ask::<Tensor>()?;
        if let Some(promise) = &promise
            && first
        {
            promise.set(tensor(&[1.0, 2.0])?)?;
        }
        if first {
            s.all()?;
        }
        std::thread::scope(|scope| {
            let reader = future.as_ref().map(|future| scope.spawn(|| future.get(s.by)));
            // Where the reader waits, as a rule.
            s.all()?;
            if let Some(promise) = &promise
                && !first
            {
                promise.set(tensor(&[1.0, 2.0])?)?;
            }
            if let Some(reader) = reader {
                check_eq!(reader.join().unwrap()?.to_vec::<f32>()?, [1.0, 2.0]);
            }
            s.end()
        })?;
    }
    s.end()
}

fn all_forms(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    macro_rules! goes {
        ($type:ty, $value:expr, $same:expr) => {{
            let (future, promise) = s.ask::<$type>()?;
            if let Some(promise) = promise {
                promise.set($value)?;
            }
            if let Some(future) = future {
                let same: fn($type) -> bool = $same;
                check!(same(future.get(s.by)?), "{}", stringify!($type));
            }
        }};
    }
    goes!((), (), |()| true);
    goes!(Tensor, tensor(&[3.0])?, |t| t.to_vec::<f32>().unwrap() == [3.0]);
    goes!(Vec<Tensor>, vec![], |all| all.is_empty());
    let many: Vec<Tensor> = (0..100).map(|n| tensor(&vec![n as f32; n])).collect::<Result<_, _>>()?;
    goes!(Vec<Tensor>, many, |all| {
        all.iter().enumerate().all(|(n, t)| t.to_vec::<f32>().unwrap() == vec![n as f32; n])
    });
    goes!(Wire<u64>, Wire(7), |n| *n == 7);
    goes!(Wire<(String, Option<i8>)>, Wire(("x".into(), Some(-1))), |w| w.0 == ("x".into(), Some(-1)));
    // More than a control message can be.
    goes!(Wire<Vec<u64>>, Wire((0..1 << 17).collect()), |w| w.0.iter().copied().eq(0..1 << 17));
    goes!((Wire<String>, Vec<Tensor>), (Wire("loss".into()), vec![tensor(&[0.5])?]), |(name, values)| {
        *name == "loss" && values[0].to_vec::<f32>().unwrap() == [0.5]
    });
    s.end()
}

fn once(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Wire<u32>>()?;
    if let Some(promise) = promise {
        check!(!promise.is_set());
        promise.set(Wire(1))?;
        check!(promise.is_set());
        match promise.set(Wire(2)) {
            Err(SetError::AlreadySet { value: Wire(2), .. }) => {}
            other => return Err(format!("set twice: {other:?}").into()),
        }
        let refused = promise.set_error(Error::Forked);
        check!(matches!(refused, Err(SetError::AlreadySet { value: Error::Forked, .. })), "{refused:?}");
        let error: Error = promise.set(Wire(3)).unwrap_err().into();
        check!(matches!(error, Error::AlreadySet { .. }), "{error}");
    }
    s.all()?;
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 1);
    }
    s.end()
}

fn to_an_error(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Tensor>()?;
    if let Some(promise) = promise {
        promise.set_error(Error::invalid("compute", "no such operator"))?;
    }
    if let Some(future) = future {
        let error = future.get(s.by).unwrap_err();
        check!(error.to_string().contains("no such operator"), "{error}");
        match error {
            Error::SetToError { .. } if s.is_abroad() => {}
            Error::InvalidArgument { op: "compute", .. } if !s.is_abroad() => {}
            other => return Err(format!("another error: {other:?}").into()),
        }
        check!(matches!(future.get(s.by), Err(Error::AlreadyConsumed { .. })));
    }
    s.end()
}

/// What each call says before, with and after the value.
fn states(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Wire<u32>>()?;
    check_eq!(promise.as_ref().map_or(kind, Promise::kind), kind);
    if let Some(future) = &future {
        check_eq!(future.kind(), kind);
        check!(!future.is_ready());
        check_eq!(future.wait(Duration::ZERO)?, None);
        in_vain(future)?;
    }
    s.all()?;
    if let Some(promise) = &promise {
        promise.set(Wire(5))?;
    }
    s.all()?;
    if let Some(future) = &future {
        check!(future.is_ready());
        check_eq!(future.wait(Duration::ZERO)?, Some(Wire(5)));
        check!(!future.is_ready());
        for _ in 0..2 {
            check!(matches!(future.get(s.by), Err(Error::AlreadyConsumed { .. })));
            check!(matches!(future.wait(Duration::ZERO), Err(Error::AlreadyConsumed { .. })));
        }
    }
    s.end()
}

/// Many at once, set in one order and read in another.
fn in_any_order(ctx: &RankCtx, kind: Kind) -> RankResult {
    const MANY: u32 = 60;
    let s = Scene::new(ctx, kind)?;
    let mut rng = ctx.common_rng();
    let (mut futures, mut promises) = (Vec::new(), Vec::new());
    for _ in 0..MANY {
        let (future, promise) = s.ask::<Tensor>()?;
        futures.extend(future);
        promises.extend(promise);
    }
    for (n, promise) in promises.iter().enumerate().rev() {
        promise.set(tensor(&[n as f32])?)?;
    }
    let mut left: Vec<u32> = (0..MANY).collect();
    while s.is_client() && !left.is_empty() {
        let n = left.swap_remove(rng.below(left.len() as u64) as usize);
        check_eq!(futures[n as usize].get(s.by)?.to_vec::<f32>()?, [n as f32]);
    }
    s.end()
}

fn future_once(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let mut first = None;
    let promise = if s.is_client() {
        let promise = Promise::<()>::new(kind)?;
        first = Some(promise.future()?);
        check!(matches!(promise.future(), Err(Error::FutureTaken { .. })));
        Some(promise)
    } else {
        None
    };
    let promise = s.hand_over(promise)?;
    if let Some(promise) = promise {
        let error = promise.future().unwrap_err();
        check!(matches!(error, Error::FutureTaken { .. }), "{error}");
        promise.set(())?;
    }
    if let Some(first) = first {
        first.get(s.by)?;
    }
    s.end()
}

/// A wait that gives up says what it waited for, changes nothing, and may be tried again.
fn in_vain_and_again(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    if let Some(future) = &future {
        for _ in 0..3 {
            let said = in_vain(future)?;
            if s.is_abroad() {
                check!(said.contains("lies with process "), "{said}");
            }
        }
    }
    s.all()?;
    std::thread::scope(|scope| {
        let reader = future.as_ref().map(|future| scope.spawn(|| future.wait(s.by)));
        if let Some(promise) = &promise {
            promise.set(())?;
        }
        if let Some(reader) = reader {
            check_eq!(reader.join().unwrap()?, Some(()));
        }
        s.end()
    })
}
