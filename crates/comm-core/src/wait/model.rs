//! The wait under loom: a futex, patience without a clock, a scope to wait in, and the models.
//!
//! Run with `cargo xtask test --loom`. The cells, the fences and the loops are the shipped ones. The crates above
//! model what they build on cells within a [`Scope`].

use loom::sync::{Condvar, Mutex};

use super::sync::{AtomicU64, Ordering, fence};
use super::{Bell, Cell, ParkWord, Waiter, until};

/// What the kernel does for a futex word: look and fall asleep in one step.
#[derive(Debug)]
pub(crate) struct Futex {
    bucket: Mutex<()>,
    sleepers: Condvar,
}

impl Default for Futex {
    fn default() -> Self {
        Futex { bucket: Mutex::new(()), sleepers: Condvar::new() }
    }
}

impl Futex {
    pub(crate) fn wake_all(&self) {
        drop(self.bucket.lock());
        self.sleepers.notify_all();
    }

    pub(crate) fn wait_while(&self, asleep: impl Fn() -> bool) {
        let Ok(mut bucket) = self.bucket.lock() else { return };
        while asleep() {
            match self.sleepers.wait(bucket) {
                Ok(again) => bucket = again,
                Err(_) => return,
            }
        }
    }
}

/// Patience that sleeps at once, without end or so many times.
#[derive(Debug)]
pub struct Patience(Option<usize>);

pub(crate) enum Next {
    #[allow(dead_code, reason = "nothing spins in a model")]
    Look,
    Sleep(()),
    GiveUp,
}

impl Patience {
    /// Never ends.
    pub fn endless() -> Patience {
        Patience(None)
    }

    /// Ends after so many sleeps: with none, a deadline that has passed.
    pub fn sleeps(n: usize) -> Patience {
        Patience(Some(n))
    }

    pub(crate) fn next(&mut self) -> Next {
        match &mut self.0 {
            None => Next::Sleep(()),
            Some(0) => Next::GiveUp,
            Some(left) => {
                *left -= 1;
                Next::Sleep(())
            }
        }
    }
}

/// What a team's control block is to the wait: park words, and the word that says that it is over.
#[derive(Debug)]
pub struct Scope {
    parks: Vec<ParkWord>,
    over: AtomicU64,
}

/// The scope ended before what was waited for had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over;

impl Scope {
    /// A scope of so many ranks. It is made inside of a model, as everything of loom is.
    pub fn new(ranks: usize) -> Scope {
        Scope { parks: (0..ranks).map(|_| ParkWord::default()).collect(), over: AtomicU64::new(0) }
    }

    /// Waits as `rank` until `ready`, which looks at `cell`, gives something. This is the shipped wait.
    ///
    /// # Errors
    /// [`Over`] if the scope ended before.
    pub fn wait<T>(&self, rank: usize, cell: &Cell, ready: impl FnMut() -> Option<T>) -> Result<T, Over> {
        // Nothing times out in a model.
        until(cell, self.waiter(rank), &mut Patience::endless(), ready, || self.ended()).map_err(|_| Over)
    }

    /// As the team ends: store, fence, wake everybody.
    pub fn end(&self) {
        self.over.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.parks.iter().for_each(ParkWord::wake);
    }

    fn waiter(&self, rank: usize) -> Waiter<'_> {
        Waiter { slot: rank, park: &self.parks[rank] }
    }

    fn ended(&self) -> Option<Over> {
        (self.over.load(Ordering::Acquire) != 0).then_some(Over)
    }
}

impl Bell for Scope {
    fn ring(&self, slot: usize, _tag: u32) {
        if let Some(park) = self.parks.get(slot) {
            park.wake();
        }
    }
}

#[cfg(test)]
mod loom_models {
    use super::*;
    use crate::wait::{Unmet, rendezvous};
    use loom::sync::Arc;
    use loom::thread;

    /// Every interleaving with at most so many preemptions; three threads without a bound take hours.
    fn bounded(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(body);
    }

    fn await_value(scope: &Scope, rank: usize, cell: &Cell, value: u64) -> Result<(), Over> {
        scope.wait(rank, cell, || (cell.load() >= value).then_some(()))
    }

    #[test]
    fn a_set_is_never_missed_and_carries_its_payload() {
        loom::model(|| {
            let shared = Arc::new((Scope::new(2), Cell::default(), AtomicU64::new(0)));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.2.store(7, Ordering::Relaxed);
                    shared.1.set(1, &shared.0);
                })
            };
            await_value(&shared.0, 0, &shared.1, 1).unwrap();
            assert_eq!(shared.2.load(Ordering::Relaxed), 7, "the payload came with the value");
            writer.join().unwrap();
        });
    }

    #[test]
    fn two_adders_wake_one_waiter_with_three_preemptions() {
        bounded(3, || {
            let shared = Arc::new((Scope::new(3), Cell::default()));
            let adders: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        shared.1.add(1, &shared.0);
                    })
                })
                .collect();
            await_value(&shared.0, 0, &shared.1, 2).unwrap();
            adders.into_iter().for_each(|a| a.join().unwrap());
        });
    }

    #[test]
    fn two_waiters_of_one_rank_are_both_woken() {
        bounded(3, || {
            let shared = Arc::new((Scope::new(1), Cell::default()));
            let other = {
                let shared = shared.clone();
                thread::spawn(move || await_value(&shared.0, 0, &shared.1, 1).unwrap())
            };
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || shared.1.set(1, &shared.0))
            };
            await_value(&shared.0, 0, &shared.1, 1).unwrap();
            other.join().unwrap();
            writer.join().unwrap();
        });
    }

    #[test]
    fn the_end_of_the_scope_wakes_a_waiter() {
        loom::model(|| {
            let shared = Arc::new((Scope::new(2), Cell::default()));
            let ender = {
                let shared = shared.clone();
                thread::spawn(move || shared.0.end())
            };
            assert_eq!(await_value(&shared.0, 0, &shared.1, 1), Err(Over));
            ender.join().unwrap();
        });
    }

    #[test]
    fn what_was_set_before_the_end_counts() {
        loom::model(|| {
            let shared = Arc::new((Scope::new(2), Cell::default()));
            let peer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.set(1, &shared.0);
                    shared.0.end();
                })
            };
            assert_eq!(await_value(&shared.0, 0, &shared.1, 1), Ok(()));
            peer.join().unwrap();
        });
    }

    /// As an operation of a team does.
    fn meet(scope: &Scope, cells: &[Cell], me: usize, round: u64) -> Result<(), Unmet<Over>> {
        cells[me].set(round, scope);
        let (ready, ended) = (|seen| seen >= round, |_| scope.ended());
        rendezvous::all_reach(
            0..cells.len(),
            |r| &cells[r],
            ready,
            scope.waiter(me),
            &mut Patience::endless(),
            ended,
        )
    }

    /// Ranks meet twice on the same cells; what a rank wrote before the first meeting is seen after it, and nobody
    /// passes the second before all have passed the first.
    fn barrier(ranks: usize, preemptions: usize) {
        struct Board {
            scope: Scope,
            cells: Vec<Cell>,
            written: Vec<AtomicU64>,
        }
        fn rank_main(board: &Board, me: usize) {
            for round in 1..=2 {
                board.written[me].store(round, Ordering::Relaxed);
                meet(&board.scope, &board.cells, me, round).unwrap();
                for written in &board.written {
                    assert!(written.load(Ordering::Relaxed) >= round, "somebody passed too early");
                }
            }
        }
        bounded(preemptions, move || {
            let board = Arc::new(Board {
                scope: Scope::new(ranks),
                cells: (0..ranks).map(|_| Cell::default()).collect(),
                written: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            });
            let peers: Vec<_> = (1..ranks)
                .map(|me| {
                    let board = board.clone();
                    thread::spawn(move || rank_main(&board, me))
                })
                .collect();
            rank_main(&board, 0);
            peers.into_iter().for_each(|p| p.join().unwrap());
        });
    }

    #[test]
    fn barrier_of_two_with_three_preemptions() {
        barrier(2, 3);
    }

    #[test]
    fn barrier_of_three_with_two_preemptions() {
        barrier(3, 2);
    }

    #[test]
    fn a_barrier_whose_peer_never_comes_ends_with_the_scope() {
        loom::model(|| {
            let shared = Arc::new((Scope::new(2), [Cell::default(), Cell::default()]));
            let ender = {
                let shared = shared.clone();
                thread::spawn(move || shared.0.end())
            };
            let (scope, cells) = &*shared;
            let met = meet(scope, cells, 0, 1);
            assert_eq!(met, Err(Unmet::Ended(Over)));
            ender.join().unwrap();
        });
    }
}
