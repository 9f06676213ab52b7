//! The link to a process is lost, and the process is not.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use comm_core::error::BrokenHow;
use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{Promise, SetError};
use comm_testkit::{
    Case, LauncherCtx, Program, RankCtx, RankResult, check, check_eq, done, eventually, probe,
};

use super::unheard::Keeps;
use super::{SOON, case};
use crate::support::{Any, Scene, blocks, is_broken, tensor};

pub const PROGRAMS: &[Program] = &[HANGS_UP, LATE];

const HANGS_UP: Program = Program { name: "promise-hangs-up", run: hangs_up };
const LATE: Program = Program { name: "promise-claimed-late", run: late };

pub fn cases() -> Vec<Case> {
    vec![case("link/-/-/worker-hangs-up", lost), case("link/-/-/claimed-late-and-killed", killed_late)]
}

fn lost(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(HANGS_UP.name).limit(SOON).spawn()?;
    running.wait_note(0, "read one", SOON)?;
    running.go("hang up")?;
    running.wait_note(0, "noticed", SOON)?;
    running.wait_note(1, "noticed", SOON)?;
    running.go("meet again")?;
    running.end_well(SOON)
}

/// What is open breaks, on both sides; what has been read stays; and a ticket that nobody has attached is as good as before.
fn hangs_up(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let (mut futures, mut tickets) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
        futures.extend(promise.as_ref().map(Promise::future).transpose()?);
        tickets.push(s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?);
    }
    let is_worker = ctx.rank() == 1;
    let values = [1.5f32; 5000];
    let held = is_worker.then(|| Promise::attach(&tickets[0], s.by)).transpose()?;
    let (before, descriptors) = (blocks(&s).0, probe::fds()?);
    if is_worker {
        Promise::attach(&tickets[1], s.by)?.set(tensor(&values)?)?;
    }
    s.all()?;
    if let [open, set, later] = &futures[..] {
        let value = set.get(s.by)?;
        ctx.note("read one");
        let pid = is_broken(open.get(s.by), BrokenHow::LinkBroke)?;
        check!(pid.is_some(), "the worker has a pid");
        ctx.note("noticed");
        check_eq!(later.get(s.by)?.to_vec::<f32>()?, [2.5]);
        check_eq!(value.to_vec::<f32>()?, values);
    }
    if let Some(held) = held {
        ctx.await_go("hang up")?;
        check!(probe::hang_up()? > 0, "it has links");
        eventually("the end of the link is noticed", || probe::fds().is_ok_and(|now| now < descriptors))?;
        ctx.note("noticed");
        ctx.await_go("meet again")?;
        match held.set(tensor(&[0.5])?) {
            Err(SetError::Broken { why, .. }) => is_broken::<()>(Err(*why), BrokenHow::LinkBroke)?,
            other => return Err(format!("the link is lost: {other:?}").into()),
        };
        // The reader may look for as long as it lives: nobody can tell it to stop, nor hear that it has.
        check!(blocks(&s).0 > before, "what was set is kept");
        Promise::attach(&tickets[2], s.by)?.set(tensor(&[2.5])?)?;
        let again: Any<()> = Promise::attach(&tickets[0], s.by).map(drop).map_err(Into::into);
        check!(again.is_err());
    }
    match s.team.barrier(s.by) {
        Err(Error::Aborted { .. }) => done(),
        other => Err(format!("the team was of all three: {other:?}").into()),
    }
}

fn killed_late(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(LATE.name).limit(SOON).spawn()?;
    running.wait_note(1, "deaf", SOON)?;
    running.go("hang up")?;
    running.wait_note(0, "noticed", SOON)?;
    running.go("claim")?;
    running.wait_note(1, "claimed", SOON)?;
    running.go("read")?;
    running.wait_note(0, "read", SOON)?;
    running.kill(1)?;
    running.wait_exit(1, SOON)?;
    running.go("worker is gone")?;
    let reports = running.wait(SOON);
    check!(reports[0].outcome.is_ok(), "the client: {}", reports[0].outcome);
    done()
}

/// A worker that has not heard that its link is lost claims two more and sets one of them, which is read, and dies: that breaks the other.
fn late(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let (mut futures, mut tickets) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
        futures.extend(promise.as_ref().map(Promise::future).transpose()?);
        tickets.push(s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?);
    }
    let _held = (ctx.rank() == 1).then(|| Promise::attach(&tickets[0], s.by)).transpose()?;
    // In a segment that the home has by then.
    let _sent = tensor(&[3.5])?.contiguous_in(s.team.hub().tensors())?;
    s.all()?;
    if ctx.rank() == 1 {
        let keeps = Arc::new(Keeps::default());
        let never = Promise::<()>::process();
        let mut future = never.future()?.with_deadline(Duration::from_millis(1));
        let waker = Waker::from(keeps.clone());
        let polled = std::future::Future::poll(Pin::new(&mut future), &mut Context::from_waker(&waker));
        check!(polled.is_pending());
        check!(keeps.entered.wait(SOON).is_some(), "the thread that serves links is kept");
        ctx.note("deaf");
        ctx.await_go("claim")?;
        let _late = Promise::attach(&tickets[1], s.by)?;
        Promise::attach(&tickets[2], s.by)?.set(tensor(&[3.5])?)?;
        ctx.note("claimed");
        ctx.await_go("nothing")?;
    }
    if let [held, late, set] = &futures[..] {
        ctx.await_go("hang up")?;
        check!(probe::hang_up()? > 0, "it has links");
        is_broken(held.get(s.by), BrokenHow::LinkBroke)?;
        ctx.note("noticed");
        ctx.await_go("read")?;
        check_eq!(set.get(s.by)?.to_vec::<f32>()?, [3.5]);
        ctx.note("read");
        ctx.await_go("worker is gone")?;
        check!(is_broken(late.get(SOON / 3), BrokenHow::Died)?.is_some(), "the worker had a pid");
    }
    done()
}
