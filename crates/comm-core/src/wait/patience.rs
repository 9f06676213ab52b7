//! How a waiter spends its time: spin, yield, sleep in slices, give up.

use std::sync::{Condvar, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{Deadline, clock};

/// The longest sleep without looking up: bounds the harm of a peer that is stopped between a store and its wake-up.
const SLICE: Duration = Duration::from_millis(200);

const SPINS: u32 = 2000;
const YIELDS: u32 = 8;

/// What to do before looking again.
pub(crate) enum Next {
    /// Look again at once.
    Look,
    /// Sleep at most this long.
    Sleep(Duration),
    /// The deadline has passed.
    GiveUp,
}

/// The state of one wait.
#[derive(Debug)]
pub(crate) struct Patience {
    deadline: Deadline,
    started: Instant,
    /// What had been credited to this process as time stopped when the wait began.
    stopped: Duration,
    /// How often to spin and to yield before sleeping: what is left of it, and what each wait begins with.
    restless: Restless,
    at_first: Restless,
    slice: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Restless {
    spins: u32,
    yields: u32,
}

impl Patience {
    /// `contenders` is how many ranks share this machine with the waiter, itself included: it spins only while
    /// there is a core for each of them.
    pub(crate) fn new(deadline: Deadline, contenders: usize) -> Patience {
        let spins = if contenders <= cores() { SPINS } else { 0 };
        Patience::with(deadline, Restless { spins, yields: YIELDS })
    }

    /// Patience that neither spins nor yields: for waits that are rare, or that hold a lock when they look.
    pub(crate) fn sleeping(deadline: Deadline) -> Patience {
        Patience::with(deadline, Restless { spins: 0, yields: 0 })
    }

    fn with(deadline: Deadline, restless: Restless) -> Patience {
        let (started, stopped) = (Instant::now(), clock::stopped());
        Patience { deadline, started, stopped, restless, at_first: restless, slice: SLICE }
    }

    /// Sleeps on a condition variable, a slice at most; `None` once the deadline has passed.
    pub(crate) fn on<'a, T>(
        &mut self,
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
    ) -> Option<MutexGuard<'a, T>> {
        match self.next() {
            Next::GiveUp => None,
            Next::Look => Some(guard),
            Next::Sleep(slice) => {
                Some(condition.wait_timeout(guard, slice).unwrap_or_else(PoisonError::into_inner).0)
            }
        }
    }

    /// Sleeps no longer than this without looking up.
    pub(crate) fn look_up_every(&mut self, slice: Duration) {
        self.slice = slice.min(SLICE);
    }

    /// Begins another wait under the same deadline.
    pub(crate) fn refresh(&mut self) {
        self.restless = self.at_first;
    }

    pub(crate) fn next(&mut self) -> Next {
        if self.restless.spins > 0 {
            self.restless.spins -= 1;
            std::hint::spin_loop();
            // A look at the clock costs as much as many looks at a cell.
            if !self.restless.spins.is_multiple_of(64) {
                return Next::Look;
            }
        }
        let left = self.deadline.remaining();
        if left.is_zero() {
            return Next::GiveUp;
        }
        if self.restless.spins > 0 {
            return Next::Look;
        }
        if self.restless.yields > 0 {
            self.restless.yields -= 1;
            std::thread::yield_now();
            return Next::Look;
        }
        Next::Sleep(left.min(self.slice))
    }

    /// Time waited so far, without the time in which this process was stopped.
    pub(crate) fn waited(&self) -> Duration {
        self.started.elapsed().saturating_sub(clock::stopped().saturating_sub(self.stopped))
    }
}

/// Cores that this process may use; affinity and the cgroup's quota count.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
