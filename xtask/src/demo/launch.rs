//! Starting the demo's ranks, and collecting what they say.
//!
//! Also threads run in a process of their own, so that a rank that takes its process with it is reported
//! like any other failure. The processes die with this one, whatever ends it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use comm_testkit::{Launch, Outcome, Program, RankCtx, RankResult, Running};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::convert::{RankReport, rank_main, work};
use super::group::Group;
use super::weights::{Choice, Weights};
use crate::cli::{DemoArgs, Layout};
use crate::fail::{Fail, one_line};
use crate::out::note;

const PROGRAM: &str = "demo";
const PROGRESS: &str = "progress";
/// How often rank 0 says how far it is, and how often we look.
const TICK: Duration = Duration::from_millis(100);
/// Without a terminal there is no bar, but a line now and then.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// The last thing that ranks do is a collective, so they end together. One that has not ended long after
/// another has is stopped or lost.
const GRACE: Duration = Duration::from_secs(60);

/// What a rank's process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    choice: Choice,
}

/// The ranks' side: in a process that [`launch`] started, runs its ranks and returns the exit code.
pub fn child_main() -> Option<ExitCode> {
    comm_testkit::child_main(&[Program { name: PROGRAM, run: rank }])
}

fn rank(ctx: &RankCtx) -> RankResult {
    let order: Order = serde_json::from_value(ctx.args().clone())?;
    let weights = Weights::open(&order.choice)?;
    let group = Group::join(&ctx.name(PROGRAM), ctx.rank(), ctx.world())?;
    let through = std::cell::Cell::new(0);
    let said = std::cell::Cell::new(Instant::now());
    let report = rank_main(&group, &weights, &|bytes| {
        through.set(through.get() + bytes);
        if ctx.rank() == 0 && said.get().elapsed() >= TICK {
            said.set(Instant::now());
            ctx.note_value(PROGRESS, through.get());
        }
    })?;
    Ok(serde_json::to_value(report)?)
}

/// Runs all ranks to their end; their reports, in rank order.
///
/// # Errors
/// [`Fail::Check`] if a rank failed; each one's end is said on stderr.
pub fn launch(args: &DemoArgs, choice: &Choice, weights: &Weights) -> Result<Vec<RankReport>, Fail> {
    let world = usize::try_from(args.ranks).map_err(|e| Fail::usage(format!("--ranks: {e}")))?;
    let layout = match args.layout {
        Layout::Threads => comm_testkit::Layout::Threads,
        Layout::Processes => comm_testkit::Layout::Processes,
        Layout::Mixed => comm_testkit::Layout::Mixed,
    };
    let order =
        serde_json::to_value(Order { choice: choice.clone() }).map_err(|e| Fail::usage(e.to_string()))?;
    let (tensors, bytes) = (weights.specs().len(), weights.bytes());
    note(&format!("demo: {tensors} tensors, {bytes} bytes, {world} ranks, layout {}", args.layout.name()));
    let cannot = |e: comm_testkit::LaunchError| Fail::check(format!("cannot start the ranks: {e}"));
    let running = Launch::new(PROGRAM, world, layout).arg(order).spawn().map_err(cannot)?;
    watch(&running, work(weights.specs()));
    // All have ended, or had the time to: whoever is left now is ended.
    collect(running.wait(Duration::ZERO), &running.logs())
}

/// Shows how far rank 0 is until all processes have ended, or some and the grace for the others is over.
fn watch(running: &Running, work: u64) {
    let bar = ProgressBar::new(work);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {elapsed}") {
        bar.set_style(style);
    }
    let mut line = Instant::now();
    let mut first_end = None;
    loop {
        let ended = (0..running.processes()).filter(|&p| running.exit_of(p).is_some()).count();
        if ended > 0 {
            first_end.get_or_insert_with(Instant::now);
        }
        if ended == running.processes() || first_end.is_some_and(|at| at.elapsed() > GRACE) {
            break;
        }
        if let Some(through) =
            running.notes(0).iter().rev().find(|n| n.text == PROGRESS).and_then(|n| n.value.as_u64())
        {
            bar.set_position(through);
            if bar.is_hidden() && line.elapsed() >= LINE_EVERY {
                line = Instant::now();
                note(&format!("demo: {} of {work} bytes", through));
            }
        }
        std::thread::sleep(TICK);
    }
    bar.finish_and_clear();
}

/// The reports of ranks that all ended well; otherwise every end that was not, and the one that came first.
fn collect(ends: Vec<comm_testkit::RankReport>, logs: &str) -> Result<Vec<RankReport>, Fail> {
    let mut reports = Vec::new();
    let mut failed = Vec::new();
    for end in ends {
        match end.outcome {
            Outcome::Ok(value) => match serde_json::from_value(value) {
                Ok(report) => reports.push(report),
                Err(e) => failed.push((1, end.elapsed, end.rank, format!("its report cannot be read: {e}"))),
            },
            // A rank that is gone comes before those that noticed.
            Outcome::Err(why) => failed.push((1, end.elapsed, end.rank, why)),
            other => {
                let detail = end.detail.map(|d| format!(" ({d})")).unwrap_or_default();
                failed.push((0, end.elapsed, end.rank, format!("{other}{detail}")));
            }
        }
    }
    if failed.is_empty() {
        return Ok(reports);
    }
    if !logs.is_empty() {
        note(logs.trim_end());
    }
    for (_, _, rank, why) in &failed {
        note(&format!("rank {rank}: {}", one_line(why)));
    }
    let count = failed.len();
    match failed.into_iter().min() {
        Some((_, _, rank, why)) => {
            Err(Fail::check(format!("{count} ranks failed, rank {rank} first: {why}")))
        }
        None => Ok(reports),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_testkit::RankReport as End;

    fn end(rank: usize, outcome: Outcome, ms: u64) -> End {
        End {
            rank,
            process: rank,
            outcome,
            elapsed: Duration::from_millis(ms),
            notes: Vec::new(),
            detail: None,
        }
    }

    fn well() -> Result<Outcome, serde_json::Error> {
        Ok(Outcome::Ok(serde_json::to_value(RankReport::default())?))
    }

    #[test]
    fn reports_are_collected() -> serde_json::Result<()> {
        let reports = collect(vec![end(0, well()?, 5), end(1, well()?, 6)], "");
        assert_eq!(reports.map(|r| r.len()), Ok(2));
        Ok(())
    }

    #[test]
    fn the_rank_that_is_gone_is_named_before_those_that_noticed() -> serde_json::Result<()> {
        let noticed = Outcome::Err("rank 2 is lost".into());
        let ends = vec![
            end(0, noticed.clone(), 5),
            end(1, well()?, 6),
            end(2, Outcome::Killed(9), 7),
            end(3, noticed, 4),
        ];
        let Err(fail) = collect(ends, "") else { panic!("it is fine with that") };
        assert_eq!(fail.status(), 1);
        let line = fail.line().unwrap_or_default();
        assert!(line.starts_with("3 ranks failed, rank 2 first: ") && line.contains("signal 9"), "{line}");
        Ok(())
    }

    #[test]
    fn of_errors_the_earliest_counts_and_reports_must_be_readable() {
        let ends = vec![end(0, Outcome::Err("late".into()), 9), end(1, Outcome::Err("early".into()), 3)];
        let Err(fail) = collect(ends, "") else { panic!("it is fine with that") };
        assert_eq!(fail.line().as_deref(), Some("2 ranks failed, rank 1 first: early"));
        assert!(collect(vec![end(0, Outcome::Ok(3.into()), 1)], "").is_err());
    }
}
