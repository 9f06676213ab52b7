//! The link to a process is lost, and the process is not.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use comm_core::error::BrokenHow;
use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{Promise, SetError, Ticket, Wire};
use comm_testkit::fault::{self, Fault};
use comm_testkit::{
    Case, LauncherCtx, Program, RankCtx, RankResult, check, check_eq, done, eventually, probe,
};

use super::unheard::Keeps;
use super::{SOON, case};
use crate::support::{Any, Scene, blocks, is_broken, of_text, tensor, text_of};

pub const PROGRAMS: &[Program] = &[HANGS_UP, LATE, AGAIN, WRITING];

const HANGS_UP: Program = Program { name: "promise-hangs-up", run: hangs_up };
const LATE: Program = Program { name: "promise-claimed-late", run: late };
const AGAIN: Program = Program { name: "promise-attached-again", run: again };
const WRITING: Program = Program { name: "promise-still-writing", run: writing };

pub fn cases() -> Vec<Case> {
    vec![
        case("link/-/-/worker-hangs-up", |ctx| lost(ctx, HANGS_UP)),
        case("link/-/-/claimed-late-and-killed", killed_late),
        case("link/-/-/attached-again", |ctx| lost(ctx, AGAIN)),
        case("link/-/-/still-writing", still_writing),
    ]
}

/// The worker loses its link when both are ready, and meets the client again when both have noticed.
fn lost(ctx: &LauncherCtx, program: Program) -> RankResult {
    let running = ctx.launch(program.name).limit(SOON).spawn()?;
    running.wait_note(0, "ready", SOON)?;
    running.go("hang up")?;
    running.wait_note(0, "noticed", SOON)?;
    running.wait_note(1, "noticed", SOON)?;
    running.go("meet again")?;
    running.end_well(SOON)
}

/// The worker's part in that, up to when it has noticed.
fn hang_up(ctx: &RankCtx, descriptors: usize) -> Any<()> {
    ctx.await_go("hang up")?;
    if probe::hang_up()? == 0 {
        return Err("it has no links".into());
    }
    eventually("the end of the link is noticed", || probe::fds().is_ok_and(|now| now < descriptors))?;
    ctx.note("noticed");
    ctx.await_go("meet again")?;
    Ok(())
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
        ctx.note("ready");
        let pid = is_broken(open.get(s.by), BrokenHow::LinkBroke)?;
        check!(pid.is_some(), "the worker has a pid");
        ctx.note("noticed");
        check_eq!(later.get(s.by)?.to_vec::<f32>()?, [2.5]);
        check_eq!(value.to_vec::<f32>()?, values);
    }
    if let Some(held) = held {
        hang_up(ctx, descriptors)?;
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

/// A holder whose link is lost can attach again what others keep open, and what it held before takes nothing from that.
fn again(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let (mut futures, mut tickets) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
        futures.extend(promise.as_ref().map(Promise::future).transpose()?);
        tickets.push(s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?);
    }
    let attach = |tickets: &[Ticket<Tensor>]| {
        tickets.iter().map(|ticket| Promise::attach(ticket, s.by)).collect::<Result<Vec<_>, _>>()
    };
    let mut held = if ctx.rank() == 1 { attach(&tickets)? } else { Vec::new() };
    // The home holds all but the first, too.
    let _kept = if s.is_client() { attach(&tickets[1..])? } else { Vec::new() };
    let descriptors = probe::fds()?;
    s.all()?;
    if let [open, dropped, handed_on] = &futures[..] {
        ctx.note("ready");
        is_broken(open.get(s.by), BrokenHow::LinkBroke)?;
        check!(!dropped.is_ready() && !handed_on.is_ready(), "others hold them");
        ctx.note("noticed");
        for future in [dropped, handed_on] {
            check_eq!(future.get(s.by)?.to_vec::<f32>()?, [2.5]);
        }
        return done();
    }
    if ctx.rank() == 1 {
        hang_up(ctx, descriptors)?;
        let anew = attach(&tickets[1..])?;
        match held[1].set(tensor(&[0.5])?) {
            Err(SetError::Broken { why, .. }) => is_broken::<()>(Err(*why), BrokenHow::LinkBroke)?,
            other => return Err(format!("its link is lost: {other:?}").into()),
        };
        let _ = held.pop().map(Promise::into_ticket).transpose()?;
        drop(held);
        for promise in anew {
            promise.set(tensor(&[2.5])?)?;
        }
    }
    done()
}

fn still_writing(ctx: &LauncherCtx) -> RankResult {
    let held = Fault::at("promise.begun").rank(1).hit(1).hold("write");
    let running = ctx.launch(WRITING.name).fault(held).limit(SOON).spawn()?;
    running.wait_held(1, "write", SOON)?;
    running.go("hang up")?;
    let ticket = running.wait_note(0, "next", SOON)?.value;
    running.send(1, ticket.as_str().unwrap_or_default())?;
    running.wait_note(1, "set the next", SOON)?;
    running.go("write")?;
    running.wait_note(1, "through", SOON)?;
    running.go("read")?;
    running.end_well(SOON)
}

/// A writer whose link is lost may go on writing as long as it lives: until then its slot is not used for another promise.
fn writing(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Wire<String>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    if let Some(first) = future {
        s.all()?;
        is_broken(first.get(s.by).map(drop), BrokenHow::LinkBroke)?;
        drop(first);
        let promise = Promise::<Wire<String>>::new(Kind::Host)?;
        let second = promise.future()?;
        ctx.note_value("next", text_of(&promise.into_ticket()?));
        ctx.await_go("read")?;
        check_eq!(*second.get(s.by)?, "of the second");
    } else if ctx.rank() == 1 {
        let first = Promise::attach(&ticket, s.by)?;
        s.all()?;
        let writer = std::thread::spawn(move || {
            fault::set_rank(Some(1));
            first.set(Wire("of the first".into()))
        });
        ctx.await_go("hang up")?;
        check!(probe::hang_up()? > 0, "it has links");
        let next = ctx.line(SOON).ok_or("no ticket")?;
        Promise::attach(&of_text::<Wire<String>>(&next)?, s.by)?.set(Wire("of the second".into()))?;
        ctx.note("set the next");
        match writer.join().map_err(|_| "the thread panicked")? {
            Err(SetError::Broken { why, .. }) => is_broken::<()>(Err(*why), BrokenHow::LinkBroke)?,
            other => return Err(format!("its link is lost: {other:?}").into()),
        };
        ctx.note("through");
    } else {
        s.all()?;
    }
    done()
}
