//! Processes that are in no team together: all that they have of each other is a ticket.

use comm_core::Error;
use comm_core::error::BrokenHow;
use comm_core::tensor::Tensor;
use comm_core::{Deadline, Kind};
use comm_promise::Promise;
use comm_testkit::{
    Case, Launch, LauncherCtx, Layout, Program, RankCtx, RankResult, Running, Skip, check, check_eq, done,
};

use super::{SOON, case};
use crate::support::{Any, is_broken, of_text, tensor, text_of};

pub const PROGRAMS: &[Program] = &[ASKS, ANSWERS];

const ASKS: Program = Program { name: "promise-asks", run: asks };
const ANSWERS: Program = Program { name: "promise-answers", run: answers };

pub fn cases() -> Vec<Case> {
    vec![
        case("stranger/-/-/answers", |ctx| meet(ctx, |launch| launch, "set")),
        case("stranger/-/-/home-is-gone", home_is_gone),
        case("stranger/-/-/another-instance", |ctx| {
            meet(ctx, |launch| launch.instance("another one"), "another instance")
        }),
        case("stranger/-/-/another-user", |ctx| {
            if !is_root() {
                return Err(Skip::because("needs root to start a process of another user"));
            }
            meet(ctx, |launch| launch.uid(65534), "a ticket of user 0")
        }),
        case("stranger/-/-/of-ten-at-once", ten),
    ]
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
    })
}

/// A client with so many promises, and their tickets.
fn ask(ctx: &LauncherCtx, count: usize) -> Any<(Running, Vec<String>)> {
    let client = ctx.launch_on(ASKS.name, 1, Layout::Processes).arg(count as u64).limit(SOON).spawn()?;
    let tickets = client.wait_note(0, "tickets", SOON)?.value;
    Ok((client, serde_json::from_value(tickets)?))
}

/// A worker that is given a ticket.
fn answer(ctx: &LauncherCtx, client: &Running, ticket: &str) -> Launch {
    let launch = ctx.launch_on(ANSWERS.name, 1, Layout::Processes).limit(SOON).arg(ticket);
    launch.instance(client.instance())
}

/// Another launch is given the ticket, and says what came of it.
fn meet(ctx: &LauncherCtx, otherwise: fn(Launch) -> Launch, expected: &'static str) -> RankResult {
    let (client, tickets) = ask(ctx, 1)?;
    let worker = otherwise(answer(ctx, &client, &tickets[0])).spawn()?;
    let outcome = worker.wait_note(0, "outcome", SOON)?.value;
    let outcome = outcome.as_str().unwrap_or_default();
    check!(outcome.contains(expected), "{outcome}");
    let reports = worker.wait(SOON);
    check!(reports[0].outcome.is_ok(), "{}", reports[0].outcome);
    if expected == "set" {
        let reports = client.wait(SOON);
        check!(reports[0].outcome.is_ok(), "{}", reports[0].outcome);
    }
    done()
}

/// Nobody is there any more; and one that has started anew in its place is another one.
fn home_is_gone(ctx: &LauncherCtx) -> RankResult {
    let (client, tickets) = ask(ctx, 1)?;
    client.kill(0)?;
    client.wait_exit(0, SOON)?;
    let again = ctx.launch_on(ASKS.name, 1, Layout::Processes).arg(1).instance(client.instance());
    let again = again.limit(SOON).spawn()?;
    again.wait_note(0, "tickets", SOON)?;
    let worker = answer(ctx, &client, &tickets[0]).spawn()?;
    check_eq!(worker.wait_note(0, "outcome", SOON)?.value.as_str(), Some("home gone"));
    done()
}

/// Ten strangers at once attach tickets of one home, which has links to none of them.
fn ten(ctx: &LauncherCtx) -> RankResult {
    let (client, tickets) = ask(ctx, 10)?;
    let workers =
        tickets.iter().map(|ticket| answer(ctx, &client, ticket).spawn()).collect::<Result<Vec<_>, _>>()?;
    for worker in &workers {
        check_eq!(worker.wait_note(0, "outcome", SOON)?.value.as_str(), Some("set"));
    }
    check!(client.wait(SOON)[0].outcome.is_ok());
    done()
}

const ELEMENTS: usize = 100_000;

fn asks(ctx: &RankCtx) -> RankResult {
    let count = ctx.args().as_u64().unwrap_or(1);
    let promises = (0..count).map(|_| Promise::<Tensor>::new(Kind::Host)).collect::<Result<Vec<_>, _>>()?;
    let futures = promises.iter().map(Promise::future).collect::<Result<Vec<_>, _>>()?;
    let mut tickets = Vec::new();
    for promise in promises {
        tickets.push(text_of(&promise.into_ticket()?));
    }
    ctx.note_value("tickets", tickets);
    for future in futures {
        check_eq!(future.get(Deadline::default())?.to_vec::<f32>()?, vec![2.5; ELEMENTS]);
    }
    done()
}

fn answers(ctx: &RankCtx) -> RankResult {
    let ticket = of_text::<Tensor>(ctx.args().as_str().unwrap_or_default())?;
    match Promise::attach(&ticket, SOON) {
        Ok(promise) => {
            promise.set(tensor(&vec![2.5; ELEMENTS])?)?;
            ctx.note_value("outcome", "set");
        }
        Err(Error::BadPeer { what }) => ctx.note_value("outcome", what),
        Err(error) => {
            is_broken::<()>(Err(error), BrokenHow::HomeGone)?;
            ctx.note_value("outcome", "home gone");
        }
    }
    done()
}
