//! What each rank of a team is doing, for watchdogs and people.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::control::ON_ANYBODY;
use super::shared::TeamShared;
use super::{Member, at};
use crate::error::Error;
use crate::hub::Hub;
use crate::wait::clock;

/// A wait that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenWait {
    /// What is waited for.
    pub what: String,
    /// The rank whose doing is awaited, if it is one.
    pub rank: Option<usize>,
    /// The value last seen.
    pub seen: i64,
    /// The value that will end the wait.
    pub expected: i64,
    /// How long the rank has been waiting.
    pub elapsed: Duration,
}

/// One rank, as its control block shows it.
#[derive(Debug, Clone)]
pub struct RankSnapshot {
    /// The rank.
    pub rank: usize,
    /// The index of its process in the team.
    pub process: usize,
    /// Its pid, where this process can see it.
    pub pid: Option<u32>,
    /// Its latest operation.
    pub op: String,
    /// The number of that operation.
    pub seq: u64,
    /// Whether it is inside.
    pub inside: bool,
    /// What it waits for.
    pub wait: Option<OpenWait>,
    /// Whether it has left.
    pub left: bool,
}

/// A team, as its control block shows it.
#[derive(Debug, Clone)]
pub struct TeamSnapshot {
    /// Its name.
    pub name: String,
    /// All of its ranks.
    pub ranks: Vec<RankSnapshot>,
    /// What ended it.
    pub ended: Option<Error>,
}

impl fmt::Display for RankSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.map_or("?".into(), |pid| pid.to_string());
        write!(f, "rank {} (process {}, pid {pid}): ", self.rank, self.process)?;
        let verb = match (self.left, self.inside) {
            (true, _) => "left after",
            (false, true) => "inside",
            (false, false) => "between operations, last",
        };
        write!(f, "{verb} {} #{}", if self.op.is_empty() { "nothing" } else { &self.op }, self.seq)?;
        if let Some(wait) = &self.wait {
            let rank = wait.rank.map_or("any rank".into(), |rank| format!("rank {rank}"));
            write!(
                f,
                "; waits for {rank}: {} (seen {}, expected {}, for {:.1?})",
                wait.what, wait.seen, wait.expected, wait.elapsed
            )?;
        }
        Ok(())
    }
}

impl Member {
    /// What each rank is doing now.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team};
    ///
    /// let team = Team::join("snapshot-example", 0, 1, Deadline::default())?;
    /// let seen = team.snapshot();
    /// assert_eq!((seen.ranks.len(), seen.ranks[0].op.as_str()), (1, "join"));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn snapshot(&self) -> TeamSnapshot {
        snapshot(&self.shared, self.rank)
    }
}

/// All teams of this process, for a watchdog that holds none of them. Empty if no hub can be had.
///
/// ```
/// use comm_core::{Deadline, team::{Team, snapshots}};
///
/// let team = Team::join("snapshots-example", 0, 1, Deadline::default())?;
/// assert!(snapshots().iter().any(|seen| seen.name == "snapshots-example" && seen.ended.is_none()));
/// # Ok::<(), comm_core::Error>(())
/// ```
pub fn snapshots() -> Vec<TeamSnapshot> {
    Hub::get().map_or_else(
        |_| vec![],
        |hub| hub.teams.all().iter().map(|team| snapshot(team, team.own_lowest_rank())).collect(),
    )
}

fn snapshot(team: &TeamShared, asker: usize) -> TeamSnapshot {
    let ranks = team.control().ranks().iter().enumerate().map(|(rank, line)| {
        let (status, waits) = (&line.status, &line.waits);
        let op = status.op.load(Ordering::Acquire);
        let on = waits.on.load(Ordering::Acquire);
        RankSnapshot {
            rank,
            process: team.process_of(rank),
            pid: team.pid_of(rank),
            op: status.op_name.get(),
            seq: op >> 1,
            inside: op & 1 == 1,
            wait: (on != 0).then(|| OpenWait {
                what: waits.what.get(),
                rank: (on != ON_ANYBODY).then(|| (on - 1) as usize),
                seen: waits.seen.load(Ordering::Relaxed) as i64,
                expected: waits.expected.load(Ordering::Relaxed) as i64,
                elapsed: Duration::from_nanos(
                    clock::now().saturating_sub(waits.since.load(Ordering::Relaxed)),
                ),
            }),
            left: status.left.load(Ordering::Acquire) != 0,
        }
    });
    let ended = team.ended(|| at(team, asker, "snapshot", std::time::Instant::now()));
    TeamSnapshot { name: team.name().to_string(), ranks: ranks.collect(), ended }
}
