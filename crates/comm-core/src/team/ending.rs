//! How a team ends: once, for everybody, with one word.
//!
//! A rank that ends the team writes its report into its own line first and then sets the word; of several that try,
//! one succeeds, and its report is the one that everybody reads. So there is no half-written end, whoever dies when.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::control::{Control, RankSet};
use super::shared::TeamShared;
use crate::error::{At, Error, LostHow, Missing, PeerState};
use crate::shm::fork;

/// Why a team is over.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ending {
    /// A rank was lost; those that share its process died with it.
    Lost { rank: usize, how: LostHow },
    /// A rank aborted.
    Aborted { by: usize, reason: String },
    /// A symmetric operation of a rank timed out.
    TimedOut { by: usize, waited: Waited },
}

/// What a wait that timed out had to say.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Waited {
    pub(crate) what: String,
    pub(crate) waited: Duration,
    pub(crate) missing: Vec<Missing>,
    pub(crate) seen: i64,
    pub(crate) expected: i64,
}

const DIED: u64 = 1;
const PANICKED: u64 = 2;
const DROPPED: u64 = 3;
const ABORTED: u64 = 4;
const TIMED_OUT: u64 = 5;

impl Ending {
    fn word(&self) -> u64 {
        let (kind, rank) = match self {
            Ending::Lost { rank, how: LostHow::Died } => (DIED, rank),
            Ending::Lost { rank, how: LostHow::Panicked } => (PANICKED, rank),
            Ending::Lost { rank, how: LostHow::DroppedInside } => (DROPPED, rank),
            Ending::Aborted { by, .. } => (ABORTED, by),
            Ending::TimedOut { by, .. } => (TIMED_OUT, by),
        };
        kind | (*rank as u64) << 8
    }

    /// Writes what the word has no room for into the line of the rank that ends the team.
    fn report(&self, control: &Control) {
        match self {
            Ending::Lost { .. } => {}
            Ending::Aborted { by, reason } => control.rank(*by).report.reason.set(reason),
            Ending::TimedOut { by, waited } => {
                let report = &control.rank(*by).report;
                let (mut missing, mut stopped, mut unknown) = <(RankSet, RankSet, RankSet)>::default();
                for m in &waited.missing {
                    missing.insert(m.rank);
                    match m.state {
                        PeerState::Stopped => stopped.insert(m.rank),
                        PeerState::Unknown => unknown.insert(m.rank),
                        PeerState::NotArrived => {}
                    }
                }
                missing.store(&report.missing);
                stopped.store(&report.stopped);
                unknown.store(&report.unknown);
                report
                    .waited
                    .store(u64::try_from(waited.waited.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
                report.seen.store(waited.seen as u64, Ordering::Relaxed);
                report.expected.store(waited.expected as u64, Ordering::Relaxed);
                report.what.set(&waited.what);
            }
        }
    }

    /// Reads how the team has ended; `None` while it goes on.
    fn read(control: &Control) -> Option<Ending> {
        let word = control.head()?.ending.load(Ordering::Acquire);
        if word == 0 {
            return None;
        }
        // A rank that does not exist can only come from a peer that scribbles: it is as good as dead.
        let rank = ((word >> 8) as usize).min(control.size() - 1);
        let report = &control.rank(rank).report;
        Some(match word & 0xff {
            PANICKED => Ending::Lost { rank, how: LostHow::Panicked },
            DROPPED => Ending::Lost { rank, how: LostHow::DroppedInside },
            ABORTED => Ending::Aborted { by: rank, reason: report.reason.get() },
            TIMED_OUT => {
                let [missing, stopped, unknown] =
                    [&report.missing, &report.stopped, &report.unknown].map(RankSet::load);
                let state = |rank| match (stopped.contains(rank), unknown.contains(rank)) {
                    (true, _) => PeerState::Stopped,
                    (_, true) => PeerState::Unknown,
                    _ => PeerState::NotArrived,
                };
                let missing = (0..control.size())
                    .filter(|&rank| missing.contains(rank))
                    .map(|rank| Missing { rank, state: state(rank) })
                    .collect();
                Ending::TimedOut {
                    by: rank,
                    waited: Waited {
                        what: report.what.get(),
                        waited: Duration::from_nanos(report.waited.load(Ordering::Relaxed)),
                        missing,
                        seen: report.seen.load(Ordering::Relaxed) as i64,
                        expected: report.expected.load(Ordering::Relaxed) as i64,
                    },
                }
            }
            _ => Ending::Lost { rank, how: LostHow::Died },
        })
    }
}

impl TeamShared {
    /// Ends the team, unless it is over already, and wakes everybody who waits in it.
    pub(crate) fn end(&self, ending: &Ending) {
        if fork::is_forked() {
            // A child is no member, and its parent's team goes on whatever becomes of it.
            return;
        }
        let control = self.control();
        let Some(head) = control.head() else { return };
        {
            // Two threads of one rank (an operation, an abort handle) must not write one report at the same time, and
            // nobody may write into the report that has been decided on.
            let _reporting = self.lock_reports();
            if head.ending.load(Ordering::Acquire) != 0 {
                return;
            }
            ending.report(control);
            if head.ending.compare_exchange(0, ending.word(), Ordering::AcqRel, Ordering::Acquire).is_err() {
                return;
            }
        }
        tracing::info!(team = self.name(), ?ending, "the team is over");
        self.wake_everybody();
    }

    /// Wakes all ranks and all processes: what they wait for may never come.
    pub(crate) fn wake_everybody(&self) {
        fence(Ordering::SeqCst);
        self.control().ranks().iter().for_each(|line| line.park.wake());
        for (process, line) in self.control().process_lines().iter().enumerate() {
            line.dirty.iter().for_each(|word| word.store(u64::MAX, Ordering::Release));
            self.ring_process(process);
        }
    }

    /// The error with which every call on a team that is over returns; `None` while it goes on.
    pub(crate) fn ended(&self, at: impl FnOnce() -> At) -> Option<Error> {
        let ending = Ending::read(self.control())?;
        let at = Box::new(at());
        Some(match ending {
            Ending::Lost { rank, how } => {
                let ranks = if how == LostHow::Died { self.ranks_lost_with(rank) } else { vec![rank] };
                Error::PeerLost { rank, ranks, how, at }
            }
            Ending::Aborted { by, reason } => Error::Aborted { by, reason, at },
            Ending::TimedOut { waited: w, .. } => Error::Timeout {
                what: w.what,
                waited: w.waited,
                missing: w.missing,
                seen: w.seen,
                expected: w.expected,
                at,
            },
        })
    }

    /// Whether the team is over because a thread of this rank has panicked.
    pub(crate) fn has_panicked(&self, rank: usize) -> bool {
        Ending::read(self.control()) == Some(Ending::Lost { rank, how: LostHow::Panicked })
    }

    /// Whether the team is over.
    pub(crate) fn is_over(&self) -> bool {
        self.control().head().is_none_or(|head| head.ending.load(Ordering::Acquire) != 0)
    }
}
