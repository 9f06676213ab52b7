//! The rows that a run produces.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::layout::Layout;

/// What became of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It held.
    Ok,
    /// It did not.
    Failed,
    /// It did not end in time. Counts as failed.
    Hung,
    /// It could not be checked here; the reason says why.
    Skipped,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Ok => "ok",
            Status::Failed => "failed",
            Status::Hung => "hung",
            Status::Skipped => "skipped",
        })
    }
}

/// One case on one world size and layout, as in the JSON output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The suite.
    pub suite: String,
    /// `op/operator/dtype/variant`.
    pub case: String,
    /// Number of ranks.
    pub world: usize,
    /// How they were spread over processes.
    pub layout: Layout,
    /// The backend, or `-`.
    pub backend: String,
    /// `cpu`, `sim` or `cuda`.
    pub device: String,
    /// The seed of the run.
    pub seed: u64,
    /// What became of it.
    pub status: Status,
    /// How long the slowest rank took, in milliseconds.
    pub ms: u64,
    /// Why it is not `ok`.
    pub reason: Option<String>,
    /// What the case returned, on ranks what rank 0 did; left out where that is nothing.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
}
