//! How the ranks of a launch are spread over processes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the ranks of a launch are spread over processes.
///
/// ```
/// use comm_testkit::Layout;
///
/// assert_eq!(Layout::Threads.placement(3), vec![vec![0, 1, 2]]);
/// assert_eq!(Layout::Processes.placement(2), vec![vec![0], vec![1]]);
/// assert_eq!(Layout::Mixed.placement(3), vec![vec![0, 1], vec![2]]);
/// assert!(!Layout::Mixed.supports(2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// All ranks are threads of one process.
    Threads,
    /// Every rank is a process.
    Processes,
    /// Two processes; the first holds ranks `0..ceil(n/2)`. From world size 3 on.
    Mixed,
}

impl Layout {
    /// All layouts, in the order in which they run.
    pub const ALL: &'static [Layout] = &[Layout::Threads, Layout::Processes, Layout::Mixed];

    /// Whether the layout exists for this world size.
    pub fn supports(self, world: usize) -> bool {
        world >= 1 && (self != Layout::Mixed || world >= 3)
    }

    /// The ranks of each process.
    pub fn placement(self, world: usize) -> Vec<Vec<usize>> {
        match self {
            Layout::Threads => vec![(0..world).collect()],
            Layout::Processes => (0..world).map(|rank| vec![rank]).collect(),
            Layout::Mixed => {
                let first = world.div_ceil(2);
                vec![(0..first).collect(), (first..world).collect()]
            }
        }
    }

    /// The name used on the command line and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Threads => "threads",
            Layout::Processes => "processes",
            Layout::Mixed => "mixed",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Layout::ALL
            .iter()
            .copied()
            .find(|l| l.name() == s)
            .ok_or_else(|| format!("{s:?} is not a layout (threads, processes, mixed)"))
    }
}
