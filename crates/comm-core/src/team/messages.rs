//! What is said while a team is joined.

use serde::{Deserialize, Serialize};

use super::control::TeamId;
use crate::hub::Nonce;

/// From one who wants to join, to the host. The first packet carries a greeting in front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// To be this rank of this team. `caller` is the thread that asks: it tells one who is late from one who has
    /// been told and comes again.
    Join { team: String, rank: u32, size: u32, caller: u64, hub: String, patience_ms: u64 },
    /// Who has arrived so far? Asked by one who is about to give up.
    WhoArrived,
}

/// From the host. Each packet carries a greeting in front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// All are here. Descriptors: the control block, and the socket that holds the name.
    Welcome(Welcome),
    /// The ranks that have arrived.
    Arrived(Vec<u32>),
    /// The ranks disagree, and this join is over.
    Mismatch { rank: u32, field: Field, theirs: String, others: String },
    /// The name belongs to a live team, and the rank that is asked for is in it.
    InUse,
    /// The name is not free yet, but will be: the rank that is asked for has left the team that holds it.
    Later,
    /// The request makes no sense.
    Refused(String),
    /// This join is over: come again, to the next one.
    Over,
}

/// A team that has come together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) id: TeamId,
    /// The processes, in the order of their lowest ranks: nonce, and the name of its hub.
    pub(crate) processes: Vec<(Nonce, String)>,
    /// For each rank, the index of its process.
    pub(crate) process_of: Vec<u16>,
}

/// What ranks can disagree about in a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Field {
    Size,
    Rank,
}

impl Field {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Field::Size => "size",
            Field::Rank => "rank",
        }
    }
}
