//! Handles in a forked child: calls say so, drops do nothing, and the parent goes on.

use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{JoinAll, Promise, SetError, Wire, select};
use comm_testkit::{Case, Layout, RankCtx, RankResult, block_on, check_eq, forked};

use crate::support::{Scene, host};

pub fn cases() -> Vec<Case> {
    vec![
        host("fork/-/-/handles-in-a-child", handles).layouts(&[Layout::Processes]).worlds(|world| world == 2),
    ]
}

fn handles(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let (future, promise) = s.ask::<Tensor>()?;
    let local = Promise::<u32>::process();
    let local_future = local.future()?;
    let ticketed = Promise::<Wire<u8>>::new(Kind::Host)?;
    let ticketed_future = ticketed.future()?;
    let ticket = ticketed.into_ticket()?;
    let (there, here) = (Promise::<()>::new(Kind::Host)?, Promise::<()>::process());
    let (there_future, here_future) = (there.future()?, here.future()?);
    let is_forked = |outcome: Result<(), Error>| matches!(outcome, Err(Error::Forked));
    let child = forked::in_child(|at| {
        at(1);
        if let Some(promise) = &promise {
            let refused = promise.set(Tensor::from_slice(&[1], &[1.0f32]).unwrap());
            if !matches!(refused, Err(SetError::Failed { .. })) {
                return 1;
            }
        }
        at(2);
        if let Some(future) = &future
            && (!is_forked(future.get(s.by).map(drop)) || future.is_ready())
        {
            return 2;
        }
        at(3);
        if !is_forked(Promise::attach(&ticket, s.by).map(drop))
            || !is_forked(Promise::<()>::new(Kind::Host).map(drop))
        {
            return 3;
        }
        at(4);
        if local.set(1).is_ok() || !is_forked(local_future.get(s.by).map(drop)) {
            return 4;
        }
        at(5);
        if !is_forked(block_on(local_future).map(drop)) {
            return 5;
        }
        at(6);
        let mut all: JoinAll<_> = std::iter::once(ticketed_future).collect();
        if all.get(s.by).is_ok() {
            return 6;
        }
        at(7);
        drop((promise, future, local, all));
        at(8);
        let pending = [&there, &here].map(|promise| promise.future().map(drop));
        if !pending.into_iter().all(is_forked) {
            return 8;
        }
        for future in [there_future, here_future] {
            let mut pending = [future];
            if !is_forked(select(&mut pending).wait(s.by).map(drop))
                || !is_forked(block_on(select(&mut pending)).map(drop))
            {
                return 9;
            }
        }
        0
    })?;
    check_eq!((child.exit, child.step), (Some(0), 8));
    s.end()
}
