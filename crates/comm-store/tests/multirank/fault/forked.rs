//! A forked child of a rank with reads and waits in flight: whatever it calls says at once that it is one, what it drops
//! counts for nothing, and the parent goes on.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use comm_core::Error;
use comm_core::device::{Device, Stream};
use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_store::store::{self, Awaitable, Fetched, TensorStore};
use comm_testkit::forked::in_child;
use comm_testkit::{
    Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, block_on, check, check_eq, done,
};
use serde_json::json;

use super::program::nothing_is_left;
use super::store::BACKEND;
use super::{SOON, SUITE};
use crate::support::{SHORT, gave_up, team};

pub const PROGRAM: Program = Program { name: "store-forker", run: forker };

/// A child that waits so long is taken to hang.
const AMPLE: Duration = Duration::from_secs(60);

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher(SUITE, "fork/-/-/store-in-use", in_use)
            .worlds(|world| world == 2)
            .layouts(&[Layout::Threads, Layout::Processes])
            .limit(Duration::from_secs(120))
            .backend(BACKEND),
    ]
}

fn in_use(ctx: &LauncherCtx) -> RankResult {
    for report in ctx.launch(PROGRAM.name).limit(AMPLE).run(SOON)? {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}: {:?}", report.rank, report.detail);
    }
    done()
}

/// What rank 0 has in hand when it forks.
struct InHand<'s> {
    guard: Fetched,
    kept: Fetched,
    fetch: Awaitable<'s, Fetched>,
    wait: Awaitable<'s, ()>,
}

/// Rank 0 forks, twice: the second child drops all that it has.
fn forker(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let (cpu, store) = (Stream::cpu(), store::open(&team, AMPLE)?);
    let mine =
        Tensor::from_slice(&[1000], &[ctx.rank() as i32; 1000])?.contiguous_in(team.hub().tensors())?;
    if ctx.rank() == 0 {
        store.publish("mine", &mine, &cpu, 1, None)?;
        drop(mine);
        let mut in_hand = InHand {
            guard: store.fetch("theirs", &cpu, AMPLE.into())?,
            kept: store.fetch("theirs", &cpu, AMPLE.into())?,
            fetch: store.fetch_async("later", &cpu, AMPLE.into()),
            wait: store.wait_consumed_async("mine", AMPLE.into()),
        };
        let mut context = Context::from_waker(Waker::noop());
        check!(in_hand.fetch.as_mut().poll(&mut context).is_pending());
        check!(in_hand.wait.as_mut().poll(&mut context).is_pending());
        for ends in [false, true] {
            let child = in_child(|at| says_so(&store, &team, &mut in_hand, ends, at))?;
            check_eq!(child.exit, Some(0), "the child having come to step {}", child.step);
        }
        team.barrier(AMPLE)?;
        let InHand { guard, kept, fetch, wait } = in_hand;
        team.barrier(AMPLE)?;
        check_eq!(guard.to_vec::<i32>()?, [1; 1000]);
        let clones = [guard.tensor().clone(), kept.tensor().clone()];
        guard.finish()?;
        drop(kept);
        check_eq!(block_on(fetch)?.to_vec::<i32>()?, [1; 1000]);
        block_on(wait)?;
        team.barrier(AMPLE)?;
        for clone in clones {
            check_eq!(clone.to_vec::<i32>()?, [1; 1000], "a child has given back what its parent has");
        }
        team.barrier(AMPLE)?;
    } else {
        store.publish("theirs", &mine, &cpu, 2, None)?;
        team.barrier(AMPLE)?;
        let early = gave_up(store.wait_consumed("theirs", SHORT.into()))?;
        check_eq!(early.seen, 0, "a child has finished a read of its parent's");
        store.publish("later", &mine, &cpu, 1, None)?;
        drop(mine);
        team.barrier(AMPLE)?;
        check_eq!(store.fetch("mine", &cpu, AMPLE.into())?.to_vec::<i32>()?, [0; 1000]);
        store.wait_consumed("theirs", AMPLE.into())?;
        store.wait_consumed("later", AMPLE.into())?;
        // Into that memory, if it were free.
        let fresh = || Tensor::from_slice(&[1000], &[-1; 1000])?.contiguous_in(team.hub().tensors());
        let spent = (0..20).map(|_| fresh()).collect::<Result<Vec<_>, Error>>()?;
        team.barrier(AMPLE)?;
        team.barrier(AMPLE)?;
        drop(spent);
    }
    store.reset(AMPLE.into())?;
    drop(store);
    nothing_is_left(team)
}

/// The child's code: 0, or the step that went wrong.
fn says_so(
    store: &Arc<dyn TensorStore>,
    team: &Team,
    in_hand: &mut InHand<'_>,
    ends: bool,
    at: &dyn Fn(u64),
) -> i32 {
    fn forked<T>(outcome: Result<T, Error>) -> bool {
        matches!(outcome, Err(Error::Forked))
    }
    let (cpu, by) = (Stream::cpu(), AMPLE.into());
    let t = Tensor::from_slice(&[1], &[1]).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    if ends {
        at(50);
        // SAFETY: the bytes of the handles are those of the parent's, which this process, being a copy, owns; what they were
        // read from is not used again, for the process ends here.
        let (InHand { guard, kept, fetch, wait }, store, team) =
            unsafe { (std::ptr::read(in_hand), std::ptr::read(store), std::ptr::read(team)) };
        if !forked(guard.finish()) {
            return 50;
        }
        at(51);
        drop(kept);
        at(52);
        drop(fetch);
        drop(wait);
        at(53);
        drop(store);
        at(54);
        drop(team);
        return 0;
    }
    let InHand { fetch, wait, .. } = in_hand;
    let mut checks: Vec<Box<dyn FnMut() -> bool + '_>> = vec![
        Box::new(|| forked(store.publish("x", &t, &cpu, 1, None))),
        Box::new(|| forked(store.fetch("theirs", &cpu, by)) && forked(store.fetch("never", &cpu, by))),
        Box::new(|| forked(block_on(store.fetch_async("theirs", &cpu, by)))),
        Box::new(|| forked(store.fetch_to_device("theirs", &cpu, Device::Cpu, by))),
        Box::new(|| forked(store.finish("theirs", &cpu))),
        Box::new(|| forked(store.wait_consumed("mine", by))),
        Box::new(|| forked(block_on(store.wait_consumed_async("mine", by)))),
        Box::new(|| matches!(fetch.as_mut().poll(&mut context), Poll::Ready(Err(Error::Forked)))),
        Box::new(|| {
            matches!(
                wait.as_mut().poll(&mut Context::from_waker(Waker::noop())),
                Poll::Ready(Err(Error::Forked))
            )
        }),
        Box::new(|| forked(store.barrier(by)) && forked(store.reset(by))),
        Box::new(|| forked(store::open(team, AMPLE))),
        Box::new(|| store.stats() == store.stats()),
    ];
    for (i, check) in checks.iter_mut().enumerate() {
        at(i as u64 + 1);
        if !check() {
            return i as i32 + 1;
        }
    }
    0
}
