//! What the commands that start ranks have in common: following them to their end, and collecting what they say.
//!
//! Also threads run in a process of their own, so that a rank that takes its process with it is reported
//! like any other failure. The processes die with this one, whatever ends it.

use std::time::{Duration, Instant};

use comm_testkit::{Outcome, Running};
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;

use crate::cli::Layout;
use crate::fail::{Fail, one_line};
use crate::out::note;

/// The note in which rank 0 says how far it is, with a number.
pub const PROGRESS: &str = "progress";
/// How often rank 0 should say so at most, and how often we look.
pub const TICK: Duration = Duration::from_millis(100);
/// Without a terminal there is no bar, but a line now and then.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// The last thing that ranks do is a collective, so they end together. One that has not ended long after
/// another has is stopped or lost.
const GRACE: Duration = Duration::from_secs(60);

/// The launcher's name of a layout.
pub fn spread(layout: Layout) -> comm_testkit::Layout {
    match layout {
        Layout::Threads => comm_testkit::Layout::Threads,
        Layout::Processes => comm_testkit::Layout::Processes,
        Layout::Mixed => comm_testkit::Layout::Mixed,
    }
}

/// How much work there is, and how it is shown.
pub struct Work {
    /// Who says it.
    pub command: &'static str,
    /// All of it.
    pub total: u64,
    /// What it is counted in.
    pub unit: &'static str,
    /// A template of indicatif.
    pub bar: &'static str,
}

/// Shows how far rank 0 is until all processes have ended, or some and the grace for the others is over.
pub fn watch(running: &Running, work: &Work) {
    let bar = ProgressBar::new(work.total);
    if let Ok(style) = ProgressStyle::with_template(work.bar) {
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
                note(&format!("{}: {through} of {} {}", work.command, work.total, work.unit));
            }
        }
        std::thread::sleep(TICK);
    }
    bar.finish_and_clear();
}

/// The reports of ranks that all ended well; otherwise every end that was not, and the one that came first.
///
/// # Errors
/// [`Fail::Check`] if a rank failed; each one's end is said on stderr.
pub fn collect<T: DeserializeOwned>(ends: Vec<comm_testkit::RankReport>, logs: &str) -> Result<Vec<T>, Fail> {
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
        Ok(Outcome::Ok(serde_json::to_value(7)?))
    }

    #[test]
    fn reports_are_collected() -> serde_json::Result<()> {
        let reports = collect::<u8>(vec![end(0, well()?, 5), end(1, well()?, 6)], "");
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
        let Err(fail) = collect::<u8>(ends, "") else { panic!("it is fine with that") };
        assert_eq!(fail.status(), 1);
        let line = fail.line().unwrap_or_default();
        assert!(line.starts_with("3 ranks failed, rank 2 first: ") && line.contains("signal 9"), "{line}");
        Ok(())
    }

    #[test]
    fn of_errors_the_earliest_counts_and_reports_must_be_readable() {
        let ends = vec![end(0, Outcome::Err("late".into()), 9), end(1, Outcome::Err("early".into()), 3)];
        let Err(fail) = collect::<u8>(ends, "") else { panic!("it is fine with that") };
        assert_eq!(fail.line().as_deref(), Some("2 ranks failed, rank 1 first: early"));
        assert!(collect::<u8>(vec![end(0, Outcome::Ok("x".into()), 1)], "").is_err());
    }
}
