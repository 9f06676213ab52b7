//! A process that dies before its home has heard who it is: what it held breaks, and what it has set is read.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::{pin::Pin, thread};

use comm_core::error::BrokenHow;
use comm_core::tensor::Tensor;
use comm_core::wait::OneShot;
use comm_core::{Deadline, Kind};
use comm_promise::Promise;
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, check, check_eq, done};

use super::{SOON, case};
use crate::support::{is_broken, of_text, tensor, text_of};

pub const PROGRAMS: &[Program] = &[HOME, WORKER];

const HOME: Program = Program { name: "promise-deaf-home", run: home };
const WORKER: Program = Program { name: "promise-unheard", run: worker };

/// More than there is room for in a slot.
const ELEMENTS: usize = 10_000;

pub fn cases() -> Vec<Case> {
    vec![case("kill/-/-/unheard", killed)]
}

fn killed(ctx: &LauncherCtx) -> RankResult {
    let launch = |program: Program| ctx.launch_on(program.name, 1, Layout::Processes).limit(SOON);
    let worker = launch(WORKER).spawn()?;
    let of_worker = worker.wait_note(0, "ticket", SOON)?.value;
    let home = launch(HOME).instance(worker.instance()).arg(of_worker).spawn()?;
    let of_home = home.wait_note(0, "deaf", SOON)?.value;
    worker.send(0, of_home.to_string())?;
    worker.wait_note(0, "set", SOON)?;
    worker.kill(0)?;
    worker.wait_exit(0, SOON)?;
    home.go("hear")?;
    home.end_well(SOON)
}

/// A waker that keeps the thread which wakes it: that of the hub, which hears who links to this process.
#[derive(Default)]
pub struct Keeps {
    pub entered: OneShot<()>,
    left: OneShot<()>,
}

impl Wake for Keeps {
    fn wake(self: Arc<Self>) {
        let _ = self.entered.set(());
        self.left.wait(Deadline::from(SOON));
    }
}

fn home(ctx: &RankCtx) -> RankResult {
    let of_worker = of_text::<()>(ctx.args().as_str().unwrap_or_default())?;
    let promises = [Promise::<Tensor>::new(Kind::Host)?, Promise::new(Kind::Host)?];
    let [open, set] = [promises[0].future()?, promises[1].future()?];
    let mut tickets = Vec::new();
    for promise in promises {
        tickets.push(text_of(&promise.into_ticket()?));
    }
    let keeps = Arc::new(Keeps::default());
    let late = Promise::<()>::process();
    let mut never = late.future()?.with_deadline(Duration::from_millis(1));
    let polled = Pin::new(&mut never).poll(&mut Context::from_waker(&Waker::from(keeps.clone())));
    check!(matches!(polled, Poll::Pending), "{polled:?}");
    check!(keeps.entered.wait(SOON).is_some(), "the hub wakes at the deadline");
    // So that each is linked to the other, and this one does not hear of it.
    let attached = thread::spawn(move || Promise::attach(&of_worker, SOON).map(drop));
    ctx.note_value("deaf", tickets);
    ctx.await_go("hear")?;
    check!(keeps.left.set(()).is_none());
    is_broken(open.get(SOON), BrokenHow::Died)?;
    check_eq!(set.get(SOON)?.to_vec::<f32>()?, [1.5; ELEMENTS]);
    let attached = attached.join().map_err(|_| "the thread panicked")?;
    is_broken(attached, BrokenHow::HomeGone)?;
    done()
}

fn worker(ctx: &RankCtx) -> RankResult {
    let own = Promise::<()>::new(Kind::Host)?;
    let _own = own.future()?;
    ctx.note_value("ticket", text_of(&own.into_ticket()?));
    let tickets = ctx.line(SOON).ok_or("no tickets")?;
    let [open, set] = serde_json::from_str::<[String; 2]>(&tickets).map_err(|e| e.to_string())?;
    let _open = Promise::attach(&of_text::<Tensor>(&open)?, SOON)?;
    Promise::attach(&of_text::<Tensor>(&set)?, SOON)?.set(tensor(&[1.5; ELEMENTS])?)?;
    ctx.note("set");
    ctx.await_go("be killed")?;
    done()
}
