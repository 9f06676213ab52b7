//! The client is killed: while it waits, and with tickets that nobody has attached.

use comm_core::error::BrokenHow;
use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{Promise, SetError};
use comm_testkit::{
    Case, LauncherCtx, Program, RankCtx, RankResult, check, check_eq, done, eventually, probe,
};

use super::{SOON, case};
use crate::support::{Scene, blocks, is_broken, tensor, until_blocks};

pub const PROGRAMS: &[Program] = &[HOME];

const HOME: Program = Program { name: "promise-home", run: home };

pub fn cases() -> Vec<Case> {
    vec![case("kill/-/-/home-with-tickets-out", killed)]
}

fn killed(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(HOME.name).limit(SOON).spawn()?;
    running.wait_note(0, "waiting", SOON)?;
    running.wait_note(1, "holding", SOON)?;
    running.wait_note(2, "has a ticket", SOON)?;
    running.kill(0)?;
    running.wait_exit(0, SOON)?;
    running.go("home is gone")?;
    let reports = running.wait(SOON);
    for report in &reports[1..] {
        check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
    }
    done()
}

fn home(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let (mut futures, mut tickets) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
        futures.extend(promise.as_ref().map(Promise::future).transpose()?);
        tickets.push(s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?);
    }
    // Before the others have looked at what they have open.
    s.all()?;
    match ctx.rank() {
        0 => {
            ctx.note("waiting");
            futures[0].get(s.by)?;
            return Err("nobody sets it".into());
        }
        1 => {
            let before = blocks(&s).0;
            let held = Promise::attach(&tickets[0], s.by)?;
            // Set, and never read.
            for ticket in &tickets[1..3] {
                Promise::attach(ticket, s.by)?.set(tensor(&[1.0; 1000])?)?;
            }
            check_eq!(blocks(&s).0, before + 2);
            ctx.note("holding");
            ctx.await_go("home is gone")?;
            let value = tensor(&[2.0])?;
            match held.set(value.clone()) {
                Err(SetError::Broken { value: back, why }) => {
                    check!(back.shares_storage(&value));
                    is_broken::<()>(Err(*why), BrokenHow::HomeGone)?;
                }
                other => return Err(format!("its home is gone: {other:?}").into()),
            }
            is_broken(held.set_error(Error::Forked).map_err(Error::from), BrokenHow::HomeGone)?;
            drop(held);
            // What it had set is kept for nobody.
            until_blocks(&s, before)?;
            is_broken(Promise::attach(&tickets[3], s.by), BrokenHow::HomeGone)?;
        }
        _ => {
            let before = probe::fds()?;
            ctx.note("has a ticket");
            ctx.await_go("home is gone")?;
            for _ in 0..20 {
                is_broken(Promise::attach(&tickets[3], s.by), BrokenHow::HomeGone)?;
            }
            eventually("no descriptor more", || probe::fds().is_ok_and(|now| now <= before))?;
        }
    }
    done()
}
