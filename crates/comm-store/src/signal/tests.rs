//! Signals and the credit barrier, with real threads and plain cells.

use std::cell::Cell as Plain;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use comm_core::Error;
use comm_core::wait::{Bell, Cell};

use super::credits::{self, OddCredit};
use super::{Cmp, NotifyOp, notify, value};

/// Nobody sleeps in these tests.
struct Silent;

impl Bell for Silent {
    fn ring(&self, slot: usize, _tag: u32) {
        panic!("nobody waits, and slot {slot} rings");
    }
}

fn cell_of(word: u64) -> Cell {
    let cell = Cell::default();
    cell.set(word, &Silent);
    cell
}

#[test]
fn additions_wrap_as_i32_does() {
    for (before, n) in
        [(i32::MAX, 1), (i32::MAX, i32::MAX), (i32::MIN, -1), (i32::MIN, i32::MIN), (-1, 1), (0, -1)]
    {
        for upper in [0, 1, u32::MAX] {
            let cell = cell_of(u64::from(upper) << 32 | u64::from(before as u32));
            assert_eq!(value(&cell), before);
            notify(&cell, n, NotifyOp::Add, &Silent);
            assert_eq!(value(&cell), before.wrapping_add(n), "{before} + {n}, upper half {upper:#x}");
        }
    }
}

#[test]
fn negative_additions_take_away() {
    let cell = Cell::default();
    for (n, sum) in [(5, 5), (-7, -2), (-1, -3), (3, 0), (i32::MIN, i32::MIN), (i32::MAX, -1), (1, 0)] {
        notify(&cell, n, NotifyOp::Add, &Silent);
        assert_eq!(value(&cell), sum, "after adding {n}");
    }
}

#[test]
fn a_set_replaces_whatever_was_added() {
    let cell = Cell::default();
    for n in [-1, i32::MIN, 0, i32::MAX, 7] {
        notify(&cell, -3, NotifyOp::Add, &Silent);
        notify(&cell, n, NotifyOp::Set, &Silent);
        assert_eq!(
            (value(&cell), cell.load()),
            (n, i64::from(n) as u64),
            "the upper half is the sign and nothing of before"
        );
        notify(&cell, 1, NotifyOp::Add, &Silent);
        assert_eq!(value(&cell), n.wrapping_add(1));
    }
}

#[test]
fn comparisons_are_signed() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let holding = [
        (Cmp::Eq, "==", &[Equal] as &[_]),
        (Cmp::Ne, "!=", &[Less, Greater]),
        (Cmp::Ge, ">=", &[Equal, Greater]),
        (Cmp::Gt, ">", &[Greater]),
        (Cmp::Le, "<=", &[Equal, Less]),
        (Cmp::Lt, "<", &[Less]),
    ];
    // In ascending order, so that the places of two of them say how they compare.
    let numbers = [i32::MIN, i32::MIN + 1, -2, -1, 0, 1, 2, i32::MAX - 1, i32::MAX];
    for (cmp, sign, holds_for) in holding {
        assert_eq!(cmp.to_string(), sign);
        for (i, seen) in numbers.into_iter().enumerate() {
            for (j, expected) in numbers.into_iter().enumerate() {
                let holds = holds_for.contains(&i.cmp(&j));
                assert_eq!(cmp.holds(seen, expected), holds, "{seen} {cmp} {expected}");
            }
        }
    }
}

/// What the ranks of a barrier share.
struct Board {
    /// `cells[me][src]`.
    cells: Vec<Vec<Cell>>,
    /// The call that each rank has come to.
    calls: Vec<AtomicU32>,
}

const FIRST: u32 = u32::MAX - 100;

impl Board {
    /// No credits, and upper halves that the next carry would wrap; calls are counted from shortly before their end.
    fn new(size: usize) -> Board {
        let row = || (0..size).map(|_| cell_of(u64::from(u32::MAX) << 32)).collect();
        Board {
            cells: (0..size).map(|_| row()).collect(),
            calls: (0..size).map(|_| AtomicU32::new(FIRST)).collect(),
        }
    }

    fn meet(&self, me: usize) -> Result<(), Error> {
        let own = |src: usize| &self.cells[me][src];
        credits::meet(
            self.cells.len(),
            me,
            |peer| {
                notify(&self.cells[peer][me], 1, NotifyOp::Add, &Silent);
                Ok(())
            },
            || {
                let start = Instant::now();
                for src in (0..self.cells.len()).filter(|&src| src != me) {
                    while !Cmp::Ge.holds(value(own(src)), 1) {
                        assert!(
                            start.elapsed() < Duration::from_secs(60),
                            "rank {me} waits for rank {src} forever"
                        );
                        std::thread::yield_now();
                    }
                }
                Ok(())
            },
            |src| Ok(credits::take_one(own(src), &Silent)),
        )
    }
}

#[test]
fn threads_meet_again_and_again() {
    for size in [1, 2, 3, 4, 8] {
        let (board, rounds) = (Board::new(size), if size < 8 { 2000 } else { 500 });
        let rank_main = |me: usize| {
            for round in 1..=rounds {
                let call = FIRST.wrapping_add(round);
                board.calls[me].store(call, Ordering::Relaxed);
                board.meet(me).unwrap();
                for (src, theirs) in board.calls.iter().enumerate() {
                    let ahead = theirs.load(Ordering::Relaxed).wrapping_sub(call);
                    assert!(ahead <= 1, "{me} is back from {call}, and {src} is ahead by {}", ahead as i32);
                    let left = value(&board.cells[me][src]);
                    assert!(matches!(left, 0 | 1), "{left} credits of {src} are left to {me} after {call}");
                }
            }
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..size).map(|me| scope.spawn(move || rank_main(me))).collect();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        });
        assert_eq!(board.calls[0].load(Ordering::Relaxed), FIRST.wrapping_add(rounds));
        assert!(
            board.cells.iter().flatten().all(|cell| value(cell) == 0),
            "credits of {size} ranks are left"
        );
    }
}

#[test]
fn all_are_notified_and_waited_for_before_anything_is_taken() {
    let steps = Plain::new(Vec::new());
    let step = |what: &'static str, rank: usize| {
        let mut so_far = steps.take();
        so_far.push((what, rank));
        steps.set(so_far);
    };
    let met: Result<(), OddCredit> = credits::meet(
        4,
        2,
        |peer| {
            step("notify", peer);
            Ok(())
        },
        || {
            step("gather", 2);
            Ok(())
        },
        |src| {
            step("take", src);
            Ok(1)
        },
    );
    assert_eq!(met, Ok(()));
    let [notified, taken] = ["notify", "take"].map(|what| [0, 1, 3].map(|rank| (what, rank)));
    assert_eq!(steps.take(), [&notified[..], &[("gather", 2)], &taken].concat());
}

#[test]
fn an_error_ends_the_meeting_before_anything_is_taken() {
    fn at(place: &'static str, here: &'static str) -> Result<(), Error> {
        if place == here { Err(Error::bad_peer(here)) } else { Ok(()) }
    }
    for (place, takes) in [("notify", 0), ("gather", 0), ("take", 1)] {
        let taken = Plain::new(0);
        let met: Result<(), Error> = credits::meet(
            3,
            0,
            |_| at(place, "notify"),
            || at(place, "gather"),
            |_| {
                taken.set(taken.get() + 1);
                at(place, "take").map(|()| 1)
            },
        );
        assert!(matches!(met, Err(Error::BadPeer { what }) if what == place));
        assert_eq!(taken.get(), takes, "{place}");
    }
}

#[test]
fn a_number_that_no_peer_can_have_left_is_a_bad_peer() {
    for (found, ok) in
        [(i32::MIN, false), (-1, false), (0, false), (1, true), (2, true), (3, false), (i32::MAX, false)]
    {
        let cell = cell_of(u64::from(found as u32));
        let met: Result<(), OddCredit> =
            credits::meet(2, 1, |_| Ok(()), || Ok(()), |_| Ok(credits::take_one(&cell, &Silent)));
        assert_eq!(met, if ok { Ok(()) } else { Err(OddCredit { src: 0, seen: found }) });
    }
    let said = Error::from(OddCredit { src: 4, seen: 17 }).to_string();
    assert_eq!(said, "bad peer: 17 credits of rank 4 in a barrier, where there can be 1 or 2");
}
