//! What a rank program gets: who it is, its seed, its arguments, and a line to the launcher.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::Deadline;
use serde_json::Value;

use crate::child::Child;
use crate::layout::Layout;
use crate::proto::Event;
use crate::teams;
use crate::values::SplitMix64;

/// What a rank program gets.
pub struct RankCtx {
    pub(crate) child: Arc<Child>,
    rank: usize,
    case: Option<CaseScope>,
    limit: Option<Duration>,
    began: Instant,
}

/// The case that a context was made for.
#[derive(Debug, Clone)]
pub(crate) struct CaseScope {
    pub index: usize,
    pub title: String,
    pub backend: String,
}

impl RankCtx {
    pub(crate) fn new(child: Arc<Child>, rank: usize, limit: Option<Duration>) -> RankCtx {
        RankCtx { child, rank, case: None, limit, began: Instant::now() }
    }

    pub(crate) fn for_case(&self, case: CaseScope, limit: Duration) -> RankCtx {
        RankCtx {
            child: Arc::clone(&self.child),
            rank: self.rank,
            case: Some(case),
            limit: Some(limit),
            began: Instant::now(),
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks of the launch.
    pub fn world(&self) -> usize {
        self.child.spec.world
    }

    /// How the ranks are spread over processes.
    pub fn layout(&self) -> Layout {
        self.child.spec.layout
    }

    /// The number of this process within the launch.
    pub fn process(&self) -> usize {
        self.child.spec.process
    }

    /// The number of the process that holds a rank; `None` if the launch does not run it.
    pub fn process_of(&self, rank: usize) -> Option<usize> {
        self.child.spec.placement.iter().position(|ranks| ranks.contains(&rank))
    }

    /// Whether a rank lives in this process.
    pub fn shares_process(&self, rank: usize) -> bool {
        self.process_of(rank) == Some(self.process())
    }

    /// The backend under test; `"-"` where there is none to choose.
    pub fn backend(&self) -> &str {
        self.case.as_ref().map_or(&self.child.spec.backend, |c| &c.backend)
    }

    /// The device under test: `cpu`, `sim` or `cuda`.
    pub fn device(&self) -> &str {
        &self.child.spec.device
    }

    /// Whether the long version of a check was asked for.
    pub fn full(&self) -> bool {
        self.child.spec.full
    }

    /// The seed of the run, the same on all ranks.
    pub fn seed(&self) -> u64 {
        self.child.spec.seed
    }

    /// Random numbers of this rank, from the seed, the case and the rank.
    pub fn rng(&self) -> SplitMix64 {
        self.common_rng().fork(self.rank as u64 + 1)
    }

    /// Random numbers that are the same on all ranks, from the seed and the case.
    pub fn common_rng(&self) -> SplitMix64 {
        let title = self.case.as_ref().map_or(&self.child.spec.program, |c| &c.title);
        // FNV-1a: any fixed function of the title will do.
        let hash = title
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        SplitMix64::new(self.seed() ^ hash)
    }

    /// The arguments of the launch.
    pub fn args(&self) -> &Value {
        &self.child.spec.args
    }

    /// A name for a team, store or promise: the same on all ranks, and different in every case of a launch.
    pub fn name(&self, name: &str) -> String {
        teams::team_name(self.case.as_ref().map(|c| c.index), name)
    }

    /// Tells the launcher something, with the moment.
    pub fn note(&self, text: impl Into<String>) {
        self.note_value(text, Value::Null);
    }

    /// Tells the launcher something, with the moment and a value.
    pub fn note_value(&self, text: impl Into<String>, value: impl Into<Value>) {
        self.child.link.send(Some(self.rank), Event::Note { text: text.into(), value: value.into() });
    }

    /// Waits until the launcher opens a gate ([`Running::go`](crate::Running::go)).
    ///
    /// # Errors
    /// The gate is still shut at the [deadline](RankCtx::deadline).
    pub fn await_go(&self, gate: &str) -> Result<(), String> {
        self.child.link.await_go(Some(self.rank), gate, self.deadline())
    }

    /// The next line that the launcher sent to this rank ([`Running::send`](crate::Running::send)); `None` if none
    /// came in time.
    pub fn line(&self, deadline: impl Into<Deadline>) -> Option<String> {
        self.child.link.line(self.rank, deadline.into())
    }

    /// A deadline for what the program does: nine tenths of its limit, so that a wait of the library that never
    /// ends is its own `Timeout` and not a hung case. Without a limit the default of the library.
    pub fn deadline(&self) -> Deadline {
        match self.limit {
            Some(limit) => Deadline::from(self.began + limit.min(Duration::from_secs(3600)) * 9 / 10),
            None => Deadline::default(),
        }
    }
}
