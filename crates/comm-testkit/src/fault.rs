//! Faults at named points of the library.
//!
//! A [`FaultPlan`] goes with a launch. In each child a hook sits behind `comm_core::point!`; when a point is
//! hit for the nth time by the chosen rank or process, it does what the plan says. The hook also remembers the
//! last point of every rank for the watchdog and, in a recording launch, counts all hits, so that a fault
//! matrix can first list its sites and then visit each.
//!
//! ```
//! use comm_testkit::fault::{Fault, FaultPlan};
//!
//! let plan = FaultPlan::new()
//!     .with(Fault::at("barrier.arrived").rank(1).hit(2).kill())
//!     .with(Fault::at("join.welcomed").process(0).delay(std::time::Duration::from_millis(5)));
//! assert_eq!(plan.faults().len(), 2);
//! ```

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::now_about_ns;
use crate::proto::HitList;
use crate::sync::lock;

/// What happens at a point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Action {
    /// The thread panics. Passed over, with a line on stderr, in a thread that is unwinding already.
    Panic,
    /// The thread unwinds without a panic message. Passed over like [`Action::Panic`].
    Unwind,
    /// The process exits with this code, as by `std::process::exit`.
    Exit(i32),
    /// The process kills itself with SIGKILL.
    Kill,
    /// The process stops itself with SIGSTOP; the launcher's `cont` lets it go on.
    Stop,
    /// The thread sleeps for so many milliseconds.
    Delay(u64),
    /// The thread waits until the launcher opens the gate of this name.
    Hold(String),
}

/// One fault: where, when, to whom, what. Made by [`Fault::at`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    point: String,
    hit: u64,
    rank: Option<usize>,
    process: Option<usize>,
    action: Action,
}

/// A fault that does not know yet what it does.
#[derive(Debug, Clone)]
#[must_use]
pub struct FaultSite(Fault);

impl Fault {
    /// A fault at the first hit of this point by any thread of any process; narrow it down, then say what it does.
    pub fn at(point: impl Into<String>) -> FaultSite {
        FaultSite(Fault { point: point.into(), hit: 1, rank: None, process: None, action: Action::Panic })
    }

    /// The point's name.
    pub fn point(&self) -> &str {
        &self.point
    }

    /// What happens there.
    pub fn action(&self) -> &Action {
        &self.action
    }
}

impl FaultSite {
    /// Only the nth hit counts (the first is 1), among those that the other filters let through.
    pub fn hit(mut self, nth: u64) -> Self {
        self.0.hit = nth.max(1);
        self
    }

    /// Only hits by the thread of this rank. Worker threads of the library have no rank; see [`FaultSite::process`].
    pub fn rank(mut self, rank: usize) -> Self {
        self.0.rank = Some(rank);
        self
    }

    /// Only hits in this process of the launch, by any of its threads.
    pub fn process(mut self, process: usize) -> Self {
        self.0.process = Some(process);
        self
    }

    /// Does this.
    pub fn does(mut self, action: Action) -> Fault {
        self.0.action = action;
        self.0
    }

    /// [`Action::Panic`].
    pub fn panic(self) -> Fault {
        self.does(Action::Panic)
    }

    /// [`Action::Unwind`].
    pub fn unwind(self) -> Fault {
        self.does(Action::Unwind)
    }

    /// [`Action::Exit`].
    pub fn exit(self, code: i32) -> Fault {
        self.does(Action::Exit(code))
    }

    /// [`Action::Kill`].
    pub fn kill(self) -> Fault {
        self.does(Action::Kill)
    }

    /// [`Action::Stop`].
    pub fn stop(self) -> Fault {
        self.does(Action::Stop)
    }

    /// [`Action::Delay`].
    pub fn delay(self, time: Duration) -> Fault {
        self.does(Action::Delay(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }

    /// [`Action::Hold`].
    pub fn hold(self, gate: impl Into<String>) -> Fault {
        self.does(Action::Hold(gate.into()))
    }
}

/// The faults of one launch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultPlan(Vec<Fault>);

impl FaultPlan {
    /// No faults.
    pub fn new() -> FaultPlan {
        FaultPlan::default()
    }

    /// One more.
    #[must_use]
    pub fn with(mut self, fault: Fault) -> FaultPlan {
        self.push(fault);
        self
    }

    /// One more.
    pub fn push(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// All of them.
    pub fn faults(&self) -> &[Fault] {
        &self.0
    }
}

thread_local! {
    static RANK: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Says that this thread works for a rank (or, with `None`, for nobody in particular). The thread of a rank
/// program is marked already; a thread that a program starts on behalf of its rank can mark itself.
///
/// ```
/// comm_testkit::fault::set_rank(Some(1));
/// assert_eq!(comm_testkit::fault::rank(), Some(1));
/// ```
pub fn set_rank(rank: Option<usize>) {
    RANK.set(rank);
}

/// The rank this thread works for.
pub fn rank() -> Option<usize> {
    // A point may be hit while a thread's locals are being destroyed: then the thread is nobody's.
    RANK.try_with(Cell::get).unwrap_or(None)
}

/// The point a rank passed last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastPoint {
    pub name: &'static str,
    pub at_ns: u64,
}

/// What an armed hook needs from the child it lives in.
pub(crate) trait Host: Send + Sync + 'static {
    /// Says that a thread is held, and returns when the gate is open.
    fn hold(&self, rank: Option<usize>, point: &str, gate: &str);
}

/// Hits by point and rank.
type Hits = BTreeMap<(&'static str, Option<usize>), u64>;

/// The plan of one process at work.
pub(crate) struct Armed {
    faults: Vec<(Fault, AtomicU64)>,
    /// Of each rank, in a place of its own: points are passed often, and by all ranks of a process at once.
    last: Vec<Mutex<Option<LastPoint>>>,
    hits: Option<Mutex<Hits>>,
}

impl Armed {
    /// Arms the faults that concern this process of a launch of so many ranks, and installs the hook. There is one
    /// hook per process, so this is done once.
    pub fn install(
        plan: &FaultPlan,
        process: usize,
        world: usize,
        record: bool,
        host: Arc<dyn Host>,
    ) -> Arc<Armed> {
        let mine = plan.0.iter().filter(|f| f.process.is_none_or(|p| p == process));
        let armed = Arc::new(Armed {
            faults: mine.map(|f| (f.clone(), AtomicU64::new(0))).collect(),
            last: (0..world).map(|_| Mutex::default()).collect(),
            hits: record.then(Mutex::default),
        });
        let at_work = Arc::clone(&armed);
        comm_core::points::install(move |name| {
            for action in at_work.pass(name, rank()) {
                act(action, name, host.as_ref());
            }
        });
        armed
    }

    /// Counts a hit and says what it sets off.
    fn pass(&self, name: &'static str, rank: Option<usize>) -> Vec<&Action> {
        if let Some(last) = rank.and_then(|rank| self.last.get(rank)) {
            *lock(last) = Some(LastPoint { name, at_ns: now_about_ns() });
        }
        if let Some(hits) = &self.hits {
            *lock(hits).entry((name, rank)).or_default() += 1;
        }
        let mut due = Vec::new();
        for (fault, seen) in &self.faults {
            let concerns = fault.point == name && (fault.rank.is_none() || fault.rank == rank);
            if concerns && seen.fetch_add(1, Ordering::Relaxed) + 1 == fault.hit {
                due.push(&fault.action);
            }
        }
        due
    }

    /// The point that a rank of this process passed last.
    pub fn last(&self, rank: usize) -> Option<LastPoint> {
        self.last.get(rank).and_then(|last| *lock(last))
    }

    pub fn hits(&self) -> Option<HitList> {
        let hits = lock(self.hits.as_ref()?);
        Some(hits.iter().map(|((name, rank), n)| (name.to_string(), *rank, *n)).collect())
    }
}

#[allow(clippy::panic, clippy::exit, reason = "injecting them is what this function is for")]
fn act(action: &Action, point: &str, host: &dyn Host) {
    match action {
        Action::Panic | Action::Unwind if std::thread::panicking() => {
            crate::child::complain(&format!("{action:?} at {point} passed over: the thread is unwinding"));
        }
        Action::Panic => panic!("injected at {point}"),
        Action::Unwind => std::panic::resume_unwind(Box::new(format!("unwound at {point}"))),
        Action::Exit(code) => std::process::exit(*code),
        Action::Kill => raise(libc::SIGKILL),
        Action::Stop => raise(libc::SIGSTOP),
        Action::Delay(ms) => std::thread::sleep(Duration::from_millis(*ms)),
        Action::Hold(gate) => host.hold(rank(), point, gate),
    }
}

/// Sends a signal to this very thread: unlike `kill`, it has taken effect when the call returns.
fn raise(signal: i32) {
    // SAFETY: raise takes no pointers; the two signals used here run no handler of this process.
    unsafe { libc::raise(signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(plan: FaultPlan, process: usize) -> Armed {
        Armed {
            faults: plan
                .0
                .into_iter()
                .filter(|f| f.process.is_none_or(|p| p == process))
                .map(|f| (f, AtomicU64::new(0)))
                .collect(),
            last: (0..2).map(|_| Mutex::default()).collect(),
            hits: Some(Mutex::default()),
        }
    }

    #[test]
    fn filters_and_counts() {
        let plan = FaultPlan::new()
            .with(Fault::at("a").rank(1).hit(2).kill())
            .with(Fault::at("a").process(1).stop())
            .with(Fault::at("b").panic());
        let armed = armed(plan, 0);
        assert!(armed.pass("a", Some(0)).is_empty());
        assert!(armed.pass("a", Some(1)).is_empty());
        assert!(armed.pass("a", Some(0)).is_empty());
        assert_eq!(armed.pass("a", Some(1)), [&Action::Kill]);
        assert!(armed.pass("a", Some(1)).is_empty(), "a fault happens once");
        assert_eq!(armed.pass("b", None), [&Action::Panic]);
        assert_eq!(armed.last(1).unwrap().name, "a");
        assert_eq!(
            armed.hits().unwrap(),
            [("a".to_string(), Some(0), 2), ("a".to_string(), Some(1), 3), ("b".to_string(), None, 1)]
        );
    }

    #[test]
    fn a_plan_travels() {
        let plan = FaultPlan::new().with(Fault::at("x").rank(2).hold("g"));
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<FaultPlan>(&text).unwrap(), plan);
    }
}
