//! Processes that are stopped: nobody is accused, nobody waits for them who need not, and what they had to say is heard when
//! they go on, or when they are dead.

use std::time::{Duration, Instant};

use comm_core::error::BrokenHow;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Error, Kind};
use comm_promise::{Promise, Wire};
use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Program, RankCtx, RankResult, check, check_eq, done, eventually};

use super::{SOON, case};
use crate::support::{Any, Scene, is_broken};

pub const PROGRAMS: &[Program] = &[WORKER, WRITER, KILLED, HOME];

const WORKER: Program = Program { name: "promise-stopped-worker", run: worker };
const WRITER: Program = Program { name: "promise-stopped-writer", run: writer };
const KILLED: Program = Program { name: "promise-killed-writer", run: killed };
const HOME: Program = Program { name: "promise-stopped-home", run: home };

pub fn cases() -> Vec<Case> {
    vec![
        case("stop/-/-/worker", stopped_worker),
        case("stop/-/-/worker-while-it-sets", stopped_writer),
        case("stop/-/-/worker-while-it-sets-and-dies", |ctx| writer_ends(ctx, true)),
        case("stop/-/-/worker-while-it-sets-what-is-dropped", |ctx| writer_ends(ctx, false)),
        case("stop/-/-/home-and-worker-dies", stopped_home),
    ]
}

fn all_well(running: &comm_testkit::Running, ranks: &[usize]) -> RankResult {
    let reports = running.wait(SOON);
    for &rank in ranks {
        check!(reports[rank].outcome.is_ok(), "rank {rank}: {}", reports[rank].outcome);
    }
    done()
}

fn stopped_worker(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(WORKER.name).limit(SOON).spawn()?;
    running.wait_note(1, "holding", SOON)?;
    running.stop(1)?;
    running.go("worker is stopped")?;
    running.wait_note(0, "in vain", SOON)?;
    running.cont(1)?;
    running.go("worker goes on")?;
    all_well(&running, &[0, 1, 2])
}

fn worker(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    if ctx.rank() == 1 {
        let promise = Promise::attach(&ticket, s.by)?;
        s.all()?;
        ctx.note("holding");
        ctx.await_go("worker goes on")?;
        promise.set(Wire(7))?;
        return done();
    }
    s.all()?;
    if let Some(future) = future {
        ctx.await_go("worker is stopped")?;
        let began = Instant::now();
        let error = future.get(Duration::from_millis(100)).unwrap_err();
        check!(began.elapsed() >= Duration::from_millis(100));
        check!(matches!(error, Error::Timeout { .. }), "{error}");
        check!(error.to_string().contains("which is stopped"), "{error}");
        ctx.note("in vain");
        check_eq!(*future.get(s.by)?, 7);
    }
    done()
}

/// Stopped in the middle of setting: a future that is cancelled does not wait for it, and it is told when it goes on.
fn stopped_writer(ctx: &LauncherCtx) -> RankResult {
    let fault = Fault::at("promise.writing").rank(1).does(comm_testkit::fault::Action::Stop);
    let running = ctx.launch(WRITER.name).fault(fault).limit(SOON).spawn()?;
    running.wait_stopped(1, SOON)?;
    running.go("writer is stopped")?;
    running.wait_note(0, "cancelled", SOON)?;
    running.cont(1)?;
    all_well(&running, &[0, 1, 2])
}

fn writer(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let ask = || -> Any<_> {
        let promise = s.is_client().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
        let future = promise.as_ref().map(Promise::future).transpose()?;
        Ok((future, s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?))
    };
    let ((future, ticket), (later, later_ticket)) = (ask()?, ask()?);
    match ctx.rank() {
        0 => {
            let (future, later) = (future.ok_or("mine")?, later.ok_or("mine")?);
            ctx.await_go("writer is stopped")?;
            check!(matches!(future.get(Duration::from_millis(20)), Err(Error::Timeout { .. })));
            future.cancel();
            is_broken(future.get(s.by), BrokenHow::Cancelled)?;
            drop(future);
            ctx.note("cancelled");
            check_eq!(*later.get(s.by)?, 2);
        }
        1 => {
            // Stopped inside.
            let outcome = Promise::attach(&ticket, s.by)?.set(Wire(1));
            is_broken(outcome.map_err(Error::from), BrokenHow::Cancelled)?;
            Promise::attach(&later_ticket, s.by)?.set(Wire(2))?;
        }
        _ => {}
    }
    done()
}

/// As above, and the future is dropped: the slot is used again when the writer is dead or through, whoever looks for it.
fn writer_ends(ctx: &LauncherCtx, dies: bool) -> RankResult {
    let fault = Fault::at("promise.writing").rank(1).does(comm_testkit::fault::Action::Stop);
    let running = ctx.launch(KILLED.name).fault(fault).limit(SOON).spawn()?;
    running.wait_stopped(1, SOON)?;
    running.go("writer is stopped")?;
    running.wait_note(0, "dropped", SOON)?;
    if dies {
        running.kill(1)?;
        running.wait_exit(1, SOON)?;
    } else {
        running.cont(1)?;
    }
    running.go("writer is through")?;
    running.wait_note(0, "used", SOON)?;
    running.go("leave")?;
    all_well(&running, &[0])
}

fn killed(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    if ctx.rank() == 1 {
        let outcome = Promise::attach(&ticket, s.by)?.set(Wire(1));
        is_broken(outcome.map_err(Error::from), BrokenHow::Unwanted)?;
        ctx.await_go("leave")?;
    }
    if let Some(future) = future {
        // Of a promise its place is said, and which use of that it is.
        let place = |said: String| said.rsplit_once('/').map(|(place, _)| place.replace("Future", "Promise"));
        let used = place(format!("{future:?}"));
        let is_used = || Promise::<()>::new(Kind::Host).map(|next| place(format!("{next:?}")) == used);
        ctx.await_go("writer is stopped")?;
        drop(future);
        check!(!is_used()?, "somebody writes there");
        ctx.note("dropped");
        ctx.await_go("writer is through")?;
        eventually("the slot is used again", || is_used().is_ok_and(|is_used| is_used))?;
        ctx.note("used");
    }
    done()
}

/// The home is stopped when values are set, so it can take nothing; and when it goes on, who has set them is dead.
fn stopped_home(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(HOME.name).limit(SOON).spawn()?;
    running.wait_note(1, "holding", SOON)?;
    running.stop(0)?;
    running.go("home is stopped")?;
    // It waits for nobody.
    running.wait_note(1, "set", SOON)?;
    running.kill(1)?;
    running.wait_exit(1, SOON)?;
    running.cont(0)?;
    running.go("home goes on")?;
    all_well(&running, &[0, 2])
}

fn home(ctx: &RankCtx) -> RankResult {
    const MANY: usize = 5;
    /// Each in a segment that is made for it.
    const LARGE: usize = 20 << 20;
    let s = Scene::host(ctx)?;
    let (mut futures, mut promises) = (Vec::new(), Vec::new());
    for _ in 0..MANY {
        let promise =
            s.is_client().then(|| Promise::<(Tensor, Wire<Vec<u32>>)>::new(Kind::Host)).transpose()?;
        futures.extend(promise.as_ref().map(Promise::future).transpose()?);
        let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
        promises.extend((ctx.rank() == 1).then(|| Promise::attach(&ticket, s.by)).transpose()?);
    }
    s.all()?;
    if ctx.rank() == 1 {
        ctx.note("holding");
        ctx.await_go("home is stopped")?;
        for (n, promise) in promises.iter().enumerate() {
            let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[LARGE], DType::U8)?;
            buf.as_mut_slice::<u8>()?.fill(n as u8);
            promise.set((buf.freeze(), Wire(vec![n as u32; 10_000])))?;
        }
        ctx.note("set");
        ctx.await_go("nothing")?;
    }
    if ctx.rank() == 0 {
        ctx.await_go("home goes on")?;
        for (n, future) in futures.into_iter().enumerate().rev() {
            let (tensor, wire) = future.get(s.by)?;
            check!(tensor.to_vec::<u8>()?.iter().all(|&x| x == n as u8), "number {n}");
            check_eq!(wire.0, vec![n as u32; 10_000]);
        }
    }
    done()
}
