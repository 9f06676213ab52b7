//! What can be shown with threads of one process; processes are in the `multirank` target.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::{CellRef, Team};
use crate::error::{Error, LostHow};
use crate::shm::Block;
use crate::wait::Cell;

const SOON: Duration = Duration::from_millis(300);
const AMPLE: Duration = Duration::from_secs(20);

/// Runs `body` on `n` ranks of a fresh team and gives their results in rank order.
fn ranks<T: Send>(name: &str, n: usize, body: impl Fn(Team) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let start = |rank| scope.spawn(move || body(Team::join(name, rank, n, AMPLE).unwrap()));
        let threads: Vec<_> = (0..n).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn ranks_meet_and_know_each_other() {
    for n in 1..=5 {
        let seen = ranks(&format!("meet-{n}"), n, |team| {
            assert!((0..n).all(|r| team.shares_process(r)) && !team.shares_process(n));
            for _ in 0..50 {
                team.barrier(AMPLE).unwrap();
            }
            team.rank()
        });
        assert_eq!(seen, (0..n).collect::<Vec<_>>());
    }
}

#[test]
fn what_each_says_reaches_all() {
    ranks("say", 4, |team| {
        for round in 0..100u8 {
            let said = team.exchange(&[team.rank() as u8 * 10 + round; 64], AMPLE).unwrap();
            assert_eq!(said, (0..4).map(|r| [r * 10 + round; 64]).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_live_name_is_in_use_and_its_team_goes_on() {
    ranks("busy", 2, |team| {
        assert!(matches!(Team::join("busy", team.rank(), 2, AMPLE), Err(Error::NameInUse { .. })));
        team.barrier(AMPLE).unwrap();
    });
    ranks("busy", 3, |team| team.barrier(AMPLE).unwrap());
}

#[test]
fn the_same_name_again_and_again() {
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                for _ in 0..100 {
                    Team::join("again", rank, 3, AMPLE).unwrap().barrier(AMPLE).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let started = Instant::now();
    let error = Team::join("lonely", 1, 3, SOON).unwrap_err();
    assert!(started.elapsed() >= SOON);
    match &error {
        Error::Timeout { missing, what, .. } => {
            assert_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [0, 2]);
            assert!(what.contains("COMM_INSTANCE_ID"), "{what}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn another_world_size_is_a_mismatch_for_all() {
    std::thread::scope(|scope| {
        let join = |rank, size| scope.spawn(move || Team::join("sizes", rank, size, AMPLE).unwrap_err());
        let threads = [join(0, 3), join(1, 3), join(2, 4)];
        for thread in threads {
            match thread.join().unwrap() {
                Error::Mismatch { field: "size", .. } => {}
                other => panic!("{other}"),
            }
        }
    });
    ranks("sizes", 3, |team| team.barrier(AMPLE).unwrap());
}

#[test]
fn a_rank_taken_twice_is_a_mismatch_for_all() {
    std::thread::scope(|scope| {
        let join = |rank| scope.spawn(move || Team::join("twice", rank, 3, AMPLE).unwrap_err());
        for thread in [join(0), join(1), join(1)] {
            match thread.join().unwrap() {
                Error::Mismatch { field: "rank", rank: 1, .. } => {}
                other => panic!("{other}"),
            }
        }
    });
}

#[test]
fn leaving_is_not_dying() {
    let results = ranks("leave", 3, |team| {
        team.barrier(AMPLE).unwrap();
        if team.rank() == 1 {
            return None;
        }
        Some(team.barrier(AMPLE).unwrap_err())
    });
    for rank in [0, 2] {
        assert!(matches!(results[rank], Some(Error::PeerLeft { rank: 1, .. })), "{:?}", results[rank]);
    }
}

#[test]
fn a_panic_ends_the_team_with_its_name() {
    let results = std::thread::scope(|scope| {
        let start = |rank| {
            scope.spawn(move || {
                let team = Team::join("panic", rank, 3, AMPLE).unwrap();
                if rank == 2 {
                    std::panic::resume_unwind(Box::new("as a test wants it"));
                }
                team.barrier(AMPLE).unwrap_err()
            })
        };
        let threads: Vec<_> = (0..3).map(start).collect();
        threads.into_iter().map(|t| t.join()).collect::<Vec<_>>()
    });
    for result in &results[..2] {
        match result.as_ref().unwrap() {
            Error::PeerLost { rank: 2, how: LostHow::Panicked, ranks, .. } => assert_eq!(ranks, &[2]),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn an_operation_that_is_abandoned_ends_the_team() {
    let results = ranks("abandon", 3, |team| {
        if team.rank() == 0 {
            drop(team.begin("something", AMPLE).unwrap());
        }
        let error = team.barrier(AMPLE).unwrap_err();
        assert!(team.barrier(AMPLE).is_err(), "and every later call says so");
        error
    });
    for error in results {
        assert!(matches!(error, Error::PeerLost { rank: 0, how: LostHow::DroppedInside, .. }), "{error}");
    }
}

#[test]
fn abort_reaches_a_rank_that_waits() {
    let results = ranks("abort", 2, |team| {
        if team.rank() == 1 {
            let handle = team.abort_handle();
            std::thread::spawn(move || handle.abort("enough")).join().unwrap();
        }
        team.barrier(AMPLE).unwrap_err()
    });
    for error in results {
        assert!(matches!(&error, Error::Aborted { by: 1, reason, .. } if reason == "enough"), "{error}");
    }
}

#[test]
fn who_aborts_and_leaves_has_aborted() {
    std::thread::scope(|scope| {
        let join = |rank| {
            move || {
                for round in 0..2000 {
                    let team = Team::join("abort-and-leave", rank, 2, AMPLE).unwrap();
                    if rank == 1 {
                        team.abort("enough");
                        continue;
                    }
                    let error = team.barrier(AMPLE).unwrap_err();
                    assert!(matches!(error, Error::Aborted { by: 1, .. }), "round {round}: {error}");
                }
            }
        };
        scope.spawn(join(1));
        join(0)();
    });
}

#[test]
fn a_timeout_in_a_barrier_names_the_missing_and_ends_the_team() {
    let results = ranks("late", 3, |team| {
        if team.rank() == 2 {
            // Comes only once the others have given up.
            while team.snapshot().ended.is_none() {
                std::thread::yield_now();
            }
            return team.barrier(AMPLE).unwrap_err();
        }
        team.barrier(SOON).unwrap_err()
    });
    for error in results {
        match error {
            Error::Timeout { what, missing, waited, .. } => {
                assert_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [2]);
                assert!(waited >= SOON);
                // Also the late one reads whose wait it was.
                assert!(
                    ["barrier #2 of rank 0: ", "barrier #2 of rank 1: "]
                        .iter()
                        .any(|whose| what.starts_with(whose)),
                    "{what}"
                );
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_second_thread_inside_is_refused() {
    ranks("two-threads", 2, |team| {
        if team.rank() == 0 {
            let op = team.begin("first", AMPLE).unwrap();
            std::thread::scope(|s| {
                let second = s.spawn(|| team.barrier(AMPLE).unwrap_err());
                let error = second.join().unwrap();
                assert!(
                    matches!(&error, Error::ConcurrentUse { inside, .. } if inside == "first"),
                    "{error}"
                );
            });
            op.finish();
        } else {
            team.begin("first", AMPLE).unwrap().finish();
        }
        team.barrier(AMPLE).unwrap();
    });
}

#[test]
fn a_subset_goes_on_without_the_others() {
    ranks("whole", 4, |team| {
        let rank = team.rank();
        if rank % 2 == 1 {
            let odd = team.subset(&[3, 1], AMPLE).unwrap();
            assert_eq!(odd.rank(), if rank == 3 { 0 } else { 1 });
            odd.barrier(AMPLE).unwrap();
            team.abort("the whole is over");
            odd.barrier(AMPLE).unwrap();
        } else {
            assert!(matches!(team.subset(&[1, 3], AMPLE), Err(Error::InvalidArgument { .. })));
        }
    });
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    for (name, rank, size) in [("x", 0, 0), ("x", 3, 3), ("x", 0, 129), ("", 0, 1)] {
        let error = Team::join(name, rank, size, AMPLE).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
    let long = "n".repeat(4000);
    Team::join(&long, 0, 1, AMPLE).unwrap();
}

/// Cells in memory of this process.
#[derive(Clone)]
struct Cells(Arc<Block>);

impl Cells {
    fn new(team: &Team, n: u64) -> Cells {
        let cells = Cells(Arc::new(team.hub().windows().alloc_zeroed(n * 64).unwrap()));
        // Each in a bucket of its own: a task is woken for any cell of its bucket.
        (0..n).for_each(|i| cells.at(i).cell().set_tag(i as u32));
        cells
    }

    fn at(&self, index: u64) -> OneCell {
        OneCell(self.0.clone(), index)
    }
}

struct OneCell(Arc<Block>, u64);

impl CellRef for OneCell {
    fn cell(&self) -> &Cell {
        self.0.typed(self.1 * 64).unwrap()
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_task_that_is_dropped_leaves_nothing_behind_however_often_it_was_polled() {
    let team = Team::join("polls", 0, 1, AMPLE).unwrap();
    let cells = Cells::new(&team, 1);
    for polls in 0..5 {
        let mut wait = Box::pin(team.wait_task("a cell", cells.at(0), None, 1, |v| v == 1, AMPLE));
        for _ in 0..polls {
            // Each poll comes with another waker, as when a task moves between executors.
            let waker = Waker::from(Arc::new(Count::default()));
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(team.shared().tasks.len(), 1);
        }
        drop(wait);
        assert_eq!(team.shared().tasks.len(), 0);
    }
}

#[test]
fn a_task_is_woken_by_a_set_by_its_deadline_and_by_the_end_of_the_team() {
    let team = Team::join("tasks", 0, 1, AMPLE).unwrap();
    let cells = Cells::new(&team, 3);
    let poll = |wait: &mut Pin<Box<dyn Future<Output = crate::Result<u64>>>>, waker: &Waker| {
        wait.as_mut().poll(&mut Context::from_waker(waker))
    };
    let start = |index, deadline: Duration| {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut wait: Pin<Box<dyn Future<Output = _>>> =
            Box::pin(team.wait_task("a cell", cells.at(index), Some(0), 5, |v| v == 5, deadline));
        assert!(poll(&mut wait, &waker).is_pending());
        (count, waker, wait)
    };
    let woken = |count: &Count| {
        let began = Instant::now();
        while count.0.load(Ordering::SeqCst) == 0 {
            assert!(began.elapsed() < AMPLE, "nobody wakes the task");
            std::thread::yield_now();
        }
    };
    let (mut set, mut late, mut over) = (start(0, AMPLE), start(1, SOON), start(2, AMPLE));
    cells.at(0).cell().set(5, team.bell());
    woken(&set.0);
    assert!(matches!(poll(&mut set.2, &set.1), Poll::Ready(Ok(5))));
    woken(&late.0);
    match poll(&mut late.2, &late.1) {
        Poll::Ready(Err(Error::Timeout { missing, expected: 5, seen: 0, .. })) => {
            assert_eq!(missing[0].rank, 0)
        }
        other => panic!("{other:?}"),
    }
    team.barrier(AMPLE).expect("a time-out of a task changes nothing");
    team.abort("enough");
    woken(&over.0);
    assert!(matches!(poll(&mut over.2, &over.1), Poll::Ready(Err(Error::Aborted { .. }))));
}

#[test]
fn an_abort_handle_does_not_hold_the_name() {
    let team = Team::join("held", 0, 1, AMPLE).unwrap();
    let handle = team.abort_handle();
    drop(team);
    Team::join("held", 0, 1, SOON).unwrap().barrier(AMPLE).unwrap();
    handle.abort("of a team that is gone");
    Team::join("held", 0, 1, SOON).unwrap();
}

#[test]
fn who_has_left_is_named_also_while_a_slower_rank_is_waited_for() {
    let results = ranks("slow", 3, |team| {
        match team.rank() {
            // Comes only when the others have their verdict.
            0 => {
                while !team.snapshot().ranks[2].left {
                    std::thread::yield_now();
                }
                None
            }
            1 => None,
            _ => Some(team.barrier(AMPLE).unwrap_err()),
        }
    });
    assert!(matches!(results[2], Some(Error::PeerLeft { rank: 1, .. })), "{:?}", results[2]);
}

/// Waits for the first of three cells; `from` is the rank whose doing it is.
fn wait_for(team: &Team, cell: &Cell, from: Option<usize>, deadline: Duration) -> crate::Result<u64> {
    team.wait(&"a five", cell, from, 5, |v| (v >= 5).then_some(v), deadline)
}

#[test]
fn a_thread_that_gives_up_says_all_it_knows_and_may_wait_again() {
    ranks("give-up", 3, |team| {
        // All in one process: any of them may reach the cell.
        let cell = team.share(7, Cell::default);
        if team.rank() == 0 {
            match wait_for(&team, &cell, Some(2), SOON) {
                Err(Error::Timeout { what, waited, missing, seen: 0, expected: 5, at }) => {
                    assert_eq!((what.as_str(), missing.len(), missing[0].rank), ("a five", 1, 2));
                    assert!(waited >= SOON && at.rank == 0 && at.team == "give-up");
                }
                other => panic!("{other:?}"),
            }
            match wait_for(&team, &cell, None, Duration::ZERO) {
                Err(Error::Timeout { missing, .. }) => assert!(missing.is_empty(), "nobody in particular"),
                other => panic!("{other:?}"),
            }
            team.barrier(AMPLE).expect("it changes nothing");
            assert_eq!(wait_for(&team, &cell, Some(2), AMPLE).unwrap(), 6);
        } else {
            team.barrier(AMPLE).unwrap();
            if team.rank() == 2 {
                cell.add(6, team.bell());
            }
        }
        team.barrier(AMPLE).unwrap();
    });
}

#[test]
fn a_wait_ends_when_who_is_awaited_has_left_and_not_before() {
    let results = ranks("left-alone", 3, |team| {
        let cell = team.share(7, Cell::default);
        match team.rank() {
            0 => Some(wait_for(&team, &cell, Some(1), AMPLE).unwrap_err()),
            2 => Some(wait_for(&team, &cell, None, AMPLE).unwrap_err()),
            // Not before the others wait.
            _ => {
                let on = |rank: usize| {
                    let wait = team.snapshot().ranks[rank].wait.clone();
                    wait.filter(|wait| wait.what == "a five").map(|wait| wait.rank)
                };
                while (on(0), on(2)) != (Some(Some(1)), Some(None)) {
                    std::thread::yield_now();
                }
                None
            }
        }
    });
    assert!(matches!(results[0], Some(Error::PeerLeft { rank: 1, .. })), "{:?}", results[0]);
    assert!(matches!(results[2], Some(Error::PeerLeft { rank: 0, .. })), "both have left: {:?}", results[2]);
}

#[test]
fn what_is_there_counts_also_when_the_team_is_over() {
    let team = Team::join("over-there", 0, 1, AMPLE).unwrap();
    let cell = Cell::default();
    cell.set(5, team.bell());
    team.abort("enough");
    assert_eq!(wait_for(&team, &cell, None, AMPLE).unwrap(), 5);
    cell.set(4, team.bell());
    assert!(matches!(wait_for(&team, &cell, None, AMPLE), Err(Error::Aborted { .. })));
}

#[test]
fn a_handle_that_outlives_the_team_begins_nothing_and_ends_nothing() {
    ranks("outlived", 2, |team| {
        let member = team.clone();
        let abort = team.abort_handle();
        if team.rank() == 0 {
            team.barrier(AMPLE).unwrap();
            drop(team);
            let left = |error: Option<Error>| matches!(error, Some(Error::PeerLeft { rank: 0, .. }));
            assert!(left(member.begin("x", AMPLE).err()) && left(member.check("x").err()));
            abort.abort("by one who has left");
        } else {
            team.barrier(AMPLE).unwrap();
            while !team.snapshot().ranks[0].left {
                std::thread::yield_now();
            }
            assert!(team.check("x").is_ok(), "the team goes on");
        }
    });
}

#[test]
fn what_is_shared_goes_with_its_last_handle() {
    let team = Team::join("shelf", 0, 1, AMPLE).unwrap();
    let first = team.share(1, || 1u32);
    assert!(Arc::ptr_eq(&first, &team.share(1, || 2)));
    assert!(!Arc::ptr_eq(&first, &team.share(2, || 2u32)));
    assert_eq!(*team.share(1, || 5u64), 5, "another type");
    let weak = Arc::downgrade(&first);
    drop(first);
    assert!(weak.upgrade().is_none());
    assert_eq!(*team.share(1, || 3u32), 3);
}

#[test]
fn memory_that_nobody_else_can_use_is_not_kept() {
    let team = Team::join("kept", 0, 1, AMPLE).unwrap();
    let thing = Arc::new(());
    team.keep(thing.clone(), |_| false);
    // There is no other process; but another team's thread may just be clearing up.
    let began = Instant::now();
    while Arc::strong_count(&thing) > 1 {
        assert!(began.elapsed() < AMPLE, "it is kept");
        std::thread::yield_now();
    }
}

#[test]
fn who_joins_a_part_is_told_of_the_end_of_the_whole() {
    let results = ranks("whole-ends", 3, |team| {
        if team.rank() == 2 {
            // The others come to a subset that this one has a place in.
            while !team.snapshot().ranks[0].op.contains("barrier") {
                std::thread::yield_now();
            }
            team.abort("enough");
            return None;
        }
        let _ = (team.rank() == 0).then(|| team.begin("barrier", AMPLE).map(super::OpGuard::finish));
        let started = Instant::now();
        let error = team.subset(&[0, 1, 2], AMPLE).unwrap_err();
        assert!(started.elapsed() < AMPLE, "it does not wait for its deadline");
        Some(error)
    });
    for error in results.into_iter().flatten() {
        assert!(matches!(error, Error::Aborted { by: 2, .. }), "{error}");
    }
}

/// A task that ends when it is woken, and panics when its last handle goes.
#[derive(Default)]
struct Falling(std::sync::Mutex<Option<OneWait>>);

type OneWait = super::TaskWait<OneCell, fn(u64) -> bool>;

impl Wake for Falling {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

impl Drop for Falling {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("as a test wants it"));
    }
}

#[test]
fn a_task_that_panics_when_it_goes_costs_nobody_else_the_reactor() {
    let team = Team::join("falling", 0, 1, AMPLE).unwrap();
    let cells = Cells::new(&team, 2);
    for _ in 0..3 {
        let task = Arc::new(Falling::default());
        let waker = Waker::from(task.clone());
        let is_one: fn(u64) -> bool = |v| v == 1;
        let mut wait = team.wait_task("a cell", cells.at(0), None, 1, is_one, SOON / 10);
        assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
        *task.0.lock().unwrap() = Some(wait);
        // The reactor's is the last handle, when the deadline has come.
        drop((waker, task));
    }
    let count = Arc::new(Count::default());
    let mut wait = Box::pin(team.wait_task("a cell", cells.at(1), None, 1, |v| v == 1, SOON));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&Waker::from(count.clone()))).is_pending());
    let began = Instant::now();
    while count.0.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < AMPLE, "the reactor is gone");
        std::thread::yield_now();
    }
}
