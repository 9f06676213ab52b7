//! What launcher and children say to each other: JSON lines over two pipes per process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fault::FaultPlan;
use crate::layout::Layout;

/// The environment variable that makes a process a child; it holds a [`ChildSpec`] as JSON.
pub(crate) const CHILD_VAR: &str = "COMM_TESTKIT_CHILD";
/// The environment variable by which processes of a launch, and what they fork, are found again.
pub(crate) const LAUNCH_VAR: &str = "COMM_TESTKIT_LAUNCH";
/// The built-in program that runs the cases of a test target.
pub(crate) const BATCH: &str = "testkit.batch";

/// What a child has to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChildSpec {
    pub program: String,
    pub world: usize,
    pub layout: Layout,
    pub process: usize,
    pub placement: Vec<Vec<usize>>,
    pub seed: u64,
    pub args: Value,
    pub faults: FaultPlan,
    pub record: bool,
    pub limit_ms: Option<u64>,
    pub backend: String,
    pub device: String,
    pub full: bool,
    /// Descriptors in the child: lines to the launcher, lines from it.
    pub to_launcher: i32,
    pub from_launcher: i32,
}

/// How a rank program ended, as seen from inside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum End {
    Ok(Value),
    Err(String),
    Panicked(String),
    Skipped(String),
}

/// Hits of every point: by point, then by rank (`None`: a thread of the library).
pub(crate) type HitList = Vec<(String, Option<usize>, u64)>;

/// A line from a child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Message {
    pub rank: Option<usize>,
    pub at_ns: u64,
    pub event: Event,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// The rank's program begins.
    Started,
    /// The rank says something.
    Note { text: String, value: Value },
    /// The rank's program is over.
    Result(End),
    /// A case is over on this rank.
    Row { case: usize, end: End, ms: u64 },
    /// A thread sits in a `Hold` at this point until the gate opens.
    Held { point: String, gate: String },
    /// A rank has been going for longer than its limit; the text says where every rank of the process is.
    Hung { dump: BTreeMap<usize, String> },
    /// The answer to [`Command::Dump`].
    Dump { dump: BTreeMap<usize, String> },
    /// Hits of all points, at the end of a recording process.
    Hits(HitList),
}

/// A line to a child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Opens a gate, for one rank or for all.
    Go { rank: Option<usize>, gate: String },
    /// A line of text for one rank.
    Line { rank: usize, text: String },
    /// The next step of the batch program, for all ranks of the process.
    Step(Step),
    /// Asks where every rank is.
    Dump,
}

/// A step of the batch program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Case(usize),
    End,
}
