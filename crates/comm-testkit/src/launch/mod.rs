//! Starts the ranks of a program as child processes of this one, and watches them.
//!
//! Ranks are re-executions of the current executable, never forks: the child's `main` calls
//! [`child_main`](crate::child_main) first, finds its orders in the environment, and runs its ranks, one thread
//! each. A child dies with its launcher, whatever becomes of the launcher, and dropping a [`Running`] ends
//! whatever is left of it, forked grandchildren included.

mod io;
mod running;
mod shared;
mod spawn;

use std::time::Duration;

use comm_core::Deadline;
use serde_json::Value;

use crate::fault::{Fault, FaultPlan};
use crate::layout::Layout;

pub use running::{Running, Signal};
pub(crate) use shared::{CaseState, kill_all_of};

/// A launch failed, or something asked of a running one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The launch does not make sense.
    #[error("cannot launch {program:?}: {why}")]
    Invalid {
        /// The program.
        program: String,
        /// What is wrong.
        why: String,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something did not happen in time.
    #[error("waited for {what}, but {state}")]
    Missing {
        /// What was waited for.
        what: String,
        /// How it stood when the wait ended.
        state: String,
    },
}

impl LaunchError {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> LaunchError {
        LaunchError::Io { what: what.into(), source: source.into() }
    }
}

/// A resource limit that a launch can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Open descriptors (`RLIMIT_NOFILE`).
    OpenFiles,
    /// Largest file, memfds included (`RLIMIT_FSIZE`), in bytes.
    FileSize,
    /// Address space (`RLIMIT_AS`), in bytes.
    AddressSpace,
}

/// What to launch. See [`child_main`](crate::child_main) for a whole program.
#[derive(Debug, Clone)]
#[must_use]
pub struct Launch {
    pub(crate) program: String,
    pub(crate) world: usize,
    pub(crate) layout: Layout,
    pub(crate) placement: Option<Vec<Vec<usize>>>,
    pub(crate) seed: u64,
    pub(crate) env: Vec<(String, Option<String>)>,
    pub(crate) args: Value,
    pub(crate) faults: FaultPlan,
    pub(crate) record: bool,
    pub(crate) limit: Option<Duration>,
    pub(crate) limits: Vec<(Limit, u64)>,
    pub(crate) uid: Option<u32>,
    pub(crate) instance: Option<String>,
    pub(crate) backend: String,
    pub(crate) device: String,
    pub(crate) full: bool,
    pub(crate) owner: u64,
}

impl Launch {
    /// A launch of a program of this executable. Each launch gets an instance of its own (`COMM_INSTANCE_ID`).
    pub fn new(program: &'static str, world: usize, layout: Layout) -> Launch {
        Launch {
            program: program.to_string(),
            world,
            layout,
            placement: None,
            seed: 1,
            env: Vec::new(),
            args: Value::Null,
            faults: FaultPlan::new(),
            record: false,
            limit: None,
            limits: Vec::new(),
            uid: None,
            instance: None,
            backend: "-".to_string(),
            device: "cpu".to_string(),
            full: false,
            owner: 0,
        }
    }

    /// The seed that ranks see.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets an environment variable for all processes.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Removes an environment variable for all processes.
    pub fn env_remove(mut self, name: impl Into<String>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// The arguments that ranks see.
    pub fn arg(mut self, args: impl Into<Value>) -> Self {
        self.args = args.into();
        self
    }

    /// Adds a fault.
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Adds the faults of a plan.
    pub fn faults(mut self, plan: &FaultPlan) -> Self {
        for fault in plan.faults() {
            self.faults.push(fault.clone());
        }
        self
    }

    /// Counts the hits of every point; see [`Running::hits`].
    pub fn record(mut self) -> Self {
        self.record = true;
        self
    }

    /// How long a rank's program may take before the watchdog says where all ranks are and the launch counts
    /// as hung.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets a resource limit, soft and hard, before the program starts.
    pub fn rlimit(mut self, limit: Limit, value: u64) -> Self {
        self.limits.push((limit, value));
        self
    }

    /// Runs the processes as another user (needs root).
    pub fn uid(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// Uses this instance instead of a fresh one, so that ranks of several launches can meet.
    pub fn instance(mut self, id: impl Into<String>) -> Self {
        self.instance = Some(id.into());
        self
    }

    /// Spreads ranks over processes otherwise than the layout says, or leaves some out.
    pub fn placement(mut self, ranks_of_processes: Vec<Vec<usize>>) -> Self {
        self.placement = Some(ranks_of_processes);
        self
    }

    /// The backend that ranks see.
    pub fn backend(mut self, backend: impl Into<String>) -> Self {
        self.backend = backend.into();
        self
    }

    /// The device that ranks see.
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = device.into();
        self
    }

    /// Whether ranks see that the long version was asked for.
    pub fn full(mut self, full: bool) -> Self {
        self.full = full;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// [`LaunchError`] if the launch makes no sense or a process cannot be started; the others are ended.
    pub fn spawn(&self) -> Result<Running, LaunchError> {
        spawn::spawn(self)
    }

    /// Starts it and waits for its end: [`Launch::spawn`], then [`Running::wait`].
    ///
    /// # Errors
    /// As [`Launch::spawn`].
    pub fn run(&self, deadline: impl Into<Deadline>) -> Result<Vec<crate::RankReport>, LaunchError> {
        Ok(self.spawn()?.wait(deadline))
    }
}
