//! Wakers are the user's code, and futures are dropped when it suits him.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use comm_core::Error;
use comm_core::shm::Block;
use comm_core::team::{CellRef, TaskWait, Team};
use comm_core::wait::Cell as Word;
use comm_testkit::{Case, RankCtx, RankResult, block_on, check, check_eq, done};

pub fn cases() -> Vec<Case> {
    vec![
        Case::ranks("rendezvous", "task/-/-/cancelled", cancelled),
        Case::ranks("rendezvous", "task/-/-/wakers-that-panic-and-drop", unruly),
        Case::ranks("rendezvous", "task/-/-/waker-dropped-with-a-wait", nested),
        Case::ranks("rendezvous", "task/-/-/timeout", timeout),
    ]
}

/// A cell of this rank's own.
#[derive(Clone)]
struct Own(Arc<Block>);

impl Own {
    fn new(team: &Team) -> Result<Own, Error> {
        Ok(Own(Arc::new(team.hub().windows().alloc_zeroed(64)?)))
    }

    fn set(&self, team: &Team, value: u64) {
        self.cell().set(value, team.bell());
    }

    fn wait(&self, team: &Team, value: u64, ctx: &RankCtx) -> Wait {
        team.wait_task(
            "a value",
            self.clone(),
            None,
            value as i64,
            Box::new(move |v| v == value),
            ctx.deadline(),
        )
    }
}

impl CellRef for Own {
    fn cell(&self) -> &Word {
        self.0.typed(0).unwrap()
    }
}

type Wait = TaskWait<Own, Box<dyn Fn(u64) -> bool + Send>>;

fn poll(wait: &mut Wait, waker: &Waker) -> bool {
    Pin::new(wait).poll(&mut Context::from_waker(waker)).is_ready()
}

struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

/// However often it was polled, a wait that is dropped leaves no waker behind.
fn cancelled(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("cancel"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let own = Own::new(&team)?;
    for polls in 0..50 {
        let counted = Arc::new(Nothing);
        let waker = Waker::from(counted.clone());
        let mut wait = own.wait(&team, u64::MAX, ctx);
        for _ in 0..polls {
            check!(!poll(&mut wait, &waker));
            if polls % 3 == 0 {
                own.set(&team, polls);
            }
        }
        check!(polls == 0 || Arc::strong_count(&counted) > 2, "a wait that was polled keeps its waker");
        drop(wait);
        drop(waker);
        // The reactor may be about to wake it.
        while Arc::strong_count(&counted) > 1 {
            check!(!ctx.deadline().has_passed(), "{} wakers are left", Arc::strong_count(&counted) - 1);
            std::thread::yield_now();
        }
    }
    team.barrier(ctx.deadline())?;
    done()
}

struct Panics;

impl Wake for Panics {
    #[allow(clippy::panic, reason = "that is what it is for")]
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("a waker that panics"));
    }
}

/// Drops the future that it should have polled again.
#[derive(Default)]
struct Drops(Mutex<Option<Wait>>);

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

/// What one waker does is no concern of the others, not even of those at the same cell.
fn unruly(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("unruly"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let own = Own::new(&team)?;
    for round in 1..=20 {
        let mut panics = own.wait(&team, round, ctx);
        check!(!poll(&mut panics, &Waker::from(Arc::new(Panics))));
        let drops = Arc::new(Drops::default());
        let mut dropped = own.wait(&team, u64::MAX, ctx);
        check!(!poll(&mut dropped, &Waker::from(drops.clone())));
        *drops.0.lock().unwrap() = Some(dropped);
        std::thread::scope(|scope| {
            let well = scope.spawn(|| block_on(own.wait(&team, round, ctx)));
            own.set(&team, round);
            check_eq!(well.join().unwrap()?, round);
            done()
        })?;
        while drops.0.lock().unwrap().is_some() {
            check!(!ctx.deadline().has_passed(), "round {round}: a waker was not called");
            std::thread::yield_now();
        }
        check!(poll(&mut panics, Waker::noop()), "its value is there, whatever its waker did");
    }
    team.barrier(ctx.deadline())?;
    done()
}

/// A waker may be the last one to hold a task, and with it other waits.
fn nested(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("nested"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let own = Own::new(&team)?;
    for replaced in [false, true] {
        let holder = Arc::new(Drops::default());
        let mut inner = own.wait(&team, u64::MAX, ctx);
        check!(!poll(&mut inner, Waker::noop()));
        *holder.0.lock().unwrap() = Some(inner);
        let mut outer = own.wait(&team, u64::MAX, ctx);
        check!(!poll(&mut outer, &Waker::from(holder)));
        if replaced {
            check!(!poll(&mut outer, Waker::noop()));
        }
        drop(outer);
    }
    check_eq!(
        block_on({
            let wait = own.wait(&team, 1, ctx);
            own.set(&team, 1);
            wait
        })?,
        1
    );
    team.barrier(ctx.deadline())?;
    done()
}

/// A deadline is the caller's own: it names who is missing and changes nothing.
fn timeout(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("late"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let own = Own::new(&team)?;
    let peer = (ctx.rank() + 1) % ctx.world();
    let patience = Duration::from_millis(60);
    let mut panics = team.wait_task("nothing", own.clone(), None, 1, |v| v == 1, patience);
    let unruly = Waker::from(Arc::new(Panics));
    check!(Pin::new(&mut panics).poll(&mut Context::from_waker(&unruly)).is_pending());
    let wait = team.wait_task("a value", own.clone(), Some(peer), 1, |v| v == 1, patience);
    match block_on(wait) {
        Err(Error::Timeout { missing, waited, seen, expected, .. }) => {
            check_eq!((missing.len(), missing[0].rank), (1, peer));
            check_eq!((seen, expected), (0, 1));
            check!(waited >= patience, "{waited:?}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    team.barrier(ctx.deadline())?;
    done()
}
