//! The only place of this crate that knows teams: what the watchdog asks them, and what a case's team is called.

use std::sync::mpsc::channel;
use std::time::Duration;

use comm_core::team::{TeamSnapshot, snapshots};

/// How long the watchdog waits for the teams. What hangs may hold a lock that they need.
const PATIENCE: Duration = Duration::from_millis(200);

/// What the live teams of this process say about all their ranks.
pub(crate) struct Teams(Result<Vec<TeamSnapshot>, &'static str>);

impl Teams {
    /// Asks them.
    pub fn look() -> Teams {
        let (done, result) = channel();
        let asked = std::thread::Builder::new().name("testkit-teams".into()).spawn(move || {
            // Nobody listens any more if it took too long.
            let _ = done.send(snapshots());
        });
        Teams(match asked {
            Ok(_) => result.recv_timeout(PATIENCE).map_err(|_| "the teams do not answer"),
            Err(_) => Err("no thread to ask the teams"),
        })
    }

    /// Where a rank is, a line for each team that has such a rank: operation, and if it waits, for whom, the value
    /// seen, the value expected, and for how long. A team of a subset numbers its ranks itself.
    pub fn of_rank(&self, rank: usize) -> Vec<String> {
        self.lines(|r| r == rank)
    }

    /// The same for all ranks of all teams, those of other processes included.
    pub fn of_all(&self) -> Vec<String> {
        self.lines(|_| true)
    }

    fn lines(&self, wanted: impl Fn(usize) -> bool) -> Vec<String> {
        let teams = match &self.0 {
            Ok(teams) => teams,
            Err(why) => return vec![why.to_string()],
        };
        let mut lines = Vec::new();
        for team in teams {
            let over = team.ended.as_ref().map(|e| format!(" (over: {e})")).unwrap_or_default();
            for rank in team.ranks.iter().filter(|r| wanted(r.rank)) {
                lines.push(format!("team {:?}{over}: {rank}", team.name));
            }
        }
        lines
    }
}

/// The name of a case's team: the same on all ranks, and different for every case of a launch.
pub(crate) fn team_name(case: Option<usize>, name: &str) -> String {
    match case {
        Some(case) => format!("c{case}.{name}"),
        None => name.to_string(),
    }
}
