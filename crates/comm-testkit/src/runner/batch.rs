//! The cases that run on every rank of one launch, in order, in lockstep.
//!
//! The launcher gives out one case at a time and waits until all ranks have reported. After a crash or a hang it
//! kills the launch, and a new one takes the cases that are left.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;

use super::report::Report;
use super::{Case, Group, Kind, Row, Status};
use crate::child::attempt;
use crate::ctx::{CaseScope, RankCtx};
use crate::launch::{CaseState, Launch, Running};
use crate::outcome::{Outcome, RankResult};
use crate::proto::{BATCH, End, Event, Step};

/// How much longer than the limit the launcher waits for a word from the watchdog. Only a stopped or starved
/// process needs it.
const BACKSTOP: Duration = Duration::from_secs(5);
/// How long the others get to notice that a process has crashed.
const AFTERMATH: Duration = Duration::from_secs(2);

/// The batch program: what each rank runs.
pub(crate) fn run_rank(ctx: &RankCtx, cases: &[Case]) -> RankResult {
    let child = &ctx.child;
    let day = Duration::from_secs(24 * 3600);
    for nth in 0.. {
        let index = match child.link.step(nth, day.into()) {
            Some(Step::Case(index)) => index,
            Some(Step::End) | None => break,
        };
        let Some(case) = cases.get(index) else { return Err(format!("there is no case {index}").into()) };
        let Kind::Ranks(run) = &case.kind else {
            return Err(format!("case {index} is not for ranks").into());
        };
        let scope = CaseScope { index, title: case.title(), backend: case.backend.to_string() };
        child.watchdog.begin(ctx.rank(), &case.title(), Some(case.limit));
        let (end, time) = attempt(|| run(&ctx.for_case(scope, case.limit)));
        child.watchdog.end(ctx.rank());
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        child.link.send(Some(ctx.rank()), Event::Row { case: index, end, ms });
    }
    Ok(Value::Null)
}

/// Runs the cases of a group and reports a row each.
pub(super) fn run(group: &Group<'_>, cases: &[(usize, &Case)], report: &mut Report) {
    let mut left: VecDeque<(usize, &Case)> = cases.iter().copied().collect();
    while !left.is_empty() {
        let launch = Launch::new(BATCH, group.world, group.layout)
            .seed(group.args.seed)
            .device(group.args.device.clone())
            .full(group.args.full);
        let running = match launch.spawn() {
            Ok(running) => running,
            Err(e) => {
                for (_, case) in left.drain(..) {
                    report.add(group.row(case, Status::Failed, 0, Some(format!("no launch: {e}"))), "");
                }
                return;
            }
        };
        let mut last = None;
        let mut healthy = true;
        while healthy && let Some((index, case)) = left.pop_front() {
            let (row, goes_on) = run_case(group, &running, index, case);
            let logs = if row.status == Status::Ok { String::new() } else { running.logs() };
            report.add(row, &logs);
            last = Some(case);
            healthy = goes_on;
        }
        if healthy && let Some(case) = last {
            end_well(group, &running, case, report);
        }
    }
}

/// A launch that has run all its cases must also end well: a crash after the last case belongs to somebody.
fn end_well(group: &Group<'_>, running: &Running, last: &Case, report: &mut Report) {
    // A process that cannot take the step has crashed, and the report says so.
    let _ = running.step(Step::End);
    let reports = running.wait(Duration::from_secs(20));
    let bad: Vec<String> = reports
        .iter()
        .filter(|r| !r.outcome.is_ok())
        .map(|r| format!("rank {}: {}", r.rank, r.outcome))
        .collect();
    if !bad.is_empty() {
        let exit = Case { name: "launch/end".to_string(), ..last.clone() };
        let reason = format!("after all cases the launch did not end well: {}", bad.join("; "));
        report.add(group.row(&exit, Status::Failed, 0, Some(reason)), &running.logs());
    }
}

/// One case: its row, and whether the launch is fit for another.
fn run_case(group: &Group<'_>, running: &Running, index: usize, case: &Case) -> (Row, bool) {
    if let Err(e) = running.step(Step::Case(index)) {
        let reports = running.wait(AFTERMATH);
        let ends =
            reports.iter().map(|r| format!("rank {}: {}", r.rank, r.outcome)).collect::<Vec<_>>().join("; ");
        return (
            group.row(case, Status::Failed, 0, Some(format!("the launch was broken before: {e} ({ends})"))),
            false,
        );
    }
    let (state, mut ends) = running.wait_case(index, (case.limit + BACKSTOP).into());
    if state == CaseState::Crashed {
        ends = running.wait_survivors(index, AFTERMATH.into());
    }
    let reports = if state == CaseState::Over { Vec::new() } else { running.wait(Duration::ZERO) };
    let ms = ends.iter().filter_map(|(_, e)| e.as_ref()).map(|e| e.ms).max().unwrap_or(0);
    let (mut faults, mut skips, mut value) = (Vec::new(), Vec::new(), Value::Null);
    for (rank, end) in &ends {
        match end.as_ref().map(|e| &e.end) {
            Some(End::Ok(of_first)) if *rank == 0 => value = of_first.clone(),
            Some(End::Ok(_)) => {}
            Some(End::Err(text)) => faults.push(format!("rank {rank}: {text}")),
            Some(End::Panicked(text)) => faults.push(format!("rank {rank} panicked: {text}")),
            Some(End::Skipped(why)) => skips.push(why.clone()),
            None => {
                let report = reports.iter().find(|r| r.rank == *rank);
                let outcome = report.map_or(&Outcome::Hung, |r| &r.outcome);
                let place =
                    report.and_then(|r| r.detail.as_ref()).map(|d| format!(" ({d})")).unwrap_or_default();
                faults.push(format!("rank {rank}: {outcome}{place}"));
            }
        }
    }
    if state == CaseState::Over && !skips.is_empty() && faults.is_empty() {
        if skips.len() == ends.len() {
            return (group.row(case, Status::Skipped, ms, skips.into_iter().next()), true);
        }
        faults.push(format!("{} of {} ranks skipped it ({})", skips.len(), ends.len(), skips[0]));
    }
    let status = match state {
        CaseState::Hung => Status::Hung,
        CaseState::Crashed => Status::Failed,
        CaseState::Over if faults.is_empty() => Status::Ok,
        CaseState::Over => Status::Failed,
    };
    let reason = (!faults.is_empty()).then(|| faults.join("\n"));
    (Row { value, ..group.row(case, status, ms, reason) }, state == CaseState::Over)
}
