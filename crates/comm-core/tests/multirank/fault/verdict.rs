//! What a rank was told, and whether that is what it should have been told.

use comm_core::Error;
use comm_core::error::{LostHow, PeerState};
use comm_testkit::{Outcome, RankReport, now_ns};
use serde::{Deserialize, Serialize};

/// An error as a rank hands it to the launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The call that failed: `join`, `barrier`, `exchange`, `task`.
    pub call: String,
    /// When it came back.
    pub at_ns: u64,
    pub kind: String,
    /// Of `PeerLost`, `PeerLeft`, `Aborted`: who. Of `Timeout`: who is missing.
    pub ranks: Vec<usize>,
    /// Of `PeerLost`: how. Of `Timeout`: the state of each that is missing.
    pub how: Vec<String>,
    /// Of `Timeout`: how long the call says that it waited.
    pub waited_ms: u64,
    pub text: String,
    /// When this process was seen not to get a core, from and to.
    pub gaps: Vec<(u64, u64)>,
}

impl Told {
    pub fn of(call: &str, error: &Error) -> Told {
        let (mut ranks, mut how, mut waited_ms) = (vec![], vec![], 0);
        let kind = match error {
            Error::PeerLost { rank, ranks: all, how: lost, .. } => {
                assert_eq!(all.iter().min(), Some(rank), "the rank is the lowest of those that were lost");
                ranks.clone_from(all);
                how.push(format!("{lost:?}"));
                "PeerLost"
            }
            Error::PeerLeft { rank, .. } => {
                ranks.push(*rank);
                "PeerLeft"
            }
            Error::Aborted { by, .. } => {
                ranks.push(*by);
                "Aborted"
            }
            Error::Timeout { missing, waited, .. } => {
                ranks.extend(missing.iter().map(|m| m.rank));
                how.extend(missing.iter().map(|m| format!("{:?}", m.state)));
                waited_ms = waited.as_millis() as u64;
                "Timeout"
            }
            Error::NameInUse { .. } => "NameInUse",
            Error::Forked => "Forked",
            _ => "other",
        };
        Told {
            call: call.to_string(),
            at_ns: now_ns(),
            kind: kind.to_string(),
            ranks,
            how,
            waited_ms,
            text: error.to_string(),
            gaps: vec![],
        }
    }

    /// What a report says that a rank was told.
    pub fn by(report: &RankReport) -> Result<Told, String> {
        match &report.outcome {
            Outcome::Ok(value) => serde_json::from_value(value.clone())
                .map_err(|_| format!("rank {} was told nothing: {value}", report.rank)),
            other => Err(format!("rank {}: {other} ({:?})", report.rank, report.detail)),
        }
    }

    pub fn is_lost(&self, ranks: &[usize], how: LostHow) -> bool {
        self.kind == "PeerLost" && self.ranks == ranks && self.how == [format!("{how:?}")]
    }

    pub fn is_missing(&self, ranks: &[usize], state: PeerState) -> bool {
        let state = format!("{state:?}");
        self.kind == "Timeout" && self.ranks == ranks && self.how.iter().all(|s| *s == state)
    }
}
