//! How a waiter spends its time: spin, yield, sleep in slices, give up.

use std::cell::Cell;
use std::sync::{Condvar, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{Deadline, clock};

/// The longest sleep without looking up: bounds the harm of a peer that is stopped between a store and its wake-up.
const SLICE: Duration = Duration::from_millis(200);

const SPINS: u32 = 2000;
const YIELDS: u32 = 8;

/// After so many waits in a row that spun in vain, a thread sleeps at once, but for one wait in [`PROBE`]. Then those whom it waits
/// for have no core of their own, whatever the system says of cores, and spinning keeps them from coming; or they come much later.
const IN_VAIN: u32 = 4;
const PROBE: u32 = 16;

thread_local! {
    /// How many waits of this thread have spun in vain, or not at all, since one did not.
    static VAIN: Cell<u32> = const { Cell::new(0) };
}

/// What to do before looking again.
pub(crate) enum Next {
    /// Look again at once.
    Look,
    /// Sleep at most this long.
    Sleep(Duration),
    /// The deadline has passed.
    GiveUp,
}

/// How long one waiter waits, and how: at first awake, then asleep.
#[derive(Debug)]
pub struct Patience {
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

impl Restless {
    const NOT: Restless = Restless { spins: 0, yields: 0 };

    /// Nothing of it, if spinning is not worth it at present.
    fn worthwhile(self) -> Restless {
        let vain = VAIN.get();
        let spins_in_vain = self.spins > 0 && vain >= IN_VAIN && !vain.is_multiple_of(PROBE);
        if spins_in_vain { Restless::NOT } else { self }
    }
}

impl Patience {
    /// `contenders` is how many ranks share this machine with the waiter, itself included: it spins only while
    /// there is a core for each of them.
    pub fn new(deadline: Deadline, contenders: usize) -> Patience {
        let spins = if contenders <= cores() { SPINS } else { 0 };
        Patience::with(deadline, Restless { spins, yields: YIELDS })
    }

    /// Patience that neither spins nor yields: for waits that are rare, or that hold a lock when they look.
    pub(crate) fn sleeping(deadline: Deadline) -> Patience {
        Patience::with(deadline, Restless::NOT)
    }

    fn with(deadline: Deadline, at_first: Restless) -> Patience {
        let (started, stopped) = (Instant::now(), clock::stopped());
        let restless = at_first.worthwhile();
        Patience { deadline, started, stopped, restless, at_first, slice: SLICE }
    }

    /// Remembers whether the wait that is over was worth its spinning. What came when this thread had yielded came because of that.
    fn learn(&self) {
        if self.restless.spins == self.at_first.spins {
            return;
        }
        if self.restless.yields < YIELDS {
            VAIN.set(VAIN.get().wrapping_add(1));
        } else {
            VAIN.set(0);
        }
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

    /// When it ends.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Begins another wait under the same deadline.
    pub(crate) fn refresh(&mut self) {
        self.learn();
        self.restless = self.at_first.worthwhile();
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
    pub fn waited(&self) -> Duration {
        self.started.elapsed().saturating_sub(clock::stopped().saturating_sub(self.stopped))
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.learn();
    }
}

/// Cores that this process may use; affinity and the cgroup's quota count.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: Duration = Duration::from_secs(20);

    /// How often a wait looks before it would sleep, or is over after `looks`.
    fn looks(patience: &mut Patience, looks: u32) -> u32 {
        (0..looks).take_while(|_| matches!(patience.next(), Next::Look)).count() as u32
    }

    fn waits(spins: u32) -> Patience {
        Patience::with(AMPLE.into(), Restless { spins, yields: YIELDS })
    }

    const ALL: u32 = SPINS + YIELDS - 1;

    #[test]
    fn who_spins_in_vain_stops_and_tries_again_now_and_then() {
        std::thread::spawn(|| {
            let seen: Vec<bool> =
                (0..IN_VAIN + 2 * PROBE).map(|_| looks(&mut waits(SPINS), u32::MAX) >= ALL).collect();
            let expected: Vec<bool> =
                (0..IN_VAIN + 2 * PROBE).map(|i| i < IN_VAIN || i.is_multiple_of(PROBE)).collect();
            assert_eq!(seen, expected);
            // One that is worth it changes that: the first probe that is.
            while looks(&mut waits(SPINS), 100) < 100 {}
            assert!(looks(&mut waits(SPINS), u32::MAX) >= ALL);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn waits_under_one_deadline_learn_each_by_itself() {
        std::thread::spawn(|| {
            let mut patience = waits(SPINS);
            for _ in 0..IN_VAIN {
                assert!(looks(&mut patience, u32::MAX) >= ALL);
                patience.refresh();
            }
            assert_eq!(looks(&mut patience, u32::MAX), 0);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn who_does_not_spin_learns_nothing() {
        std::thread::spawn(|| {
            for _ in 0..2 * IN_VAIN {
                assert_eq!(looks(&mut waits(0), u32::MAX), YIELDS);
                assert_eq!(looks(&mut Patience::sleeping(AMPLE.into()), u32::MAX), 0);
                // Over before a second look.
                drop(waits(SPINS));
            }
            assert!(looks(&mut waits(SPINS), u32::MAX) >= ALL);
        })
        .join()
        .unwrap();
    }
}
