//! Waiting for what comes, and for what does not.

use std::thread::scope;
use std::time::{Duration, Instant};

use comm_core::Deadline;
use comm_rendezvous::Error;

use crate::{Place, soon};

/// By how much a deadline may be missed.
const LATE: Duration = Duration::from_millis(200);

pub fn get_waits(place: &Place) {
    let (one, two) = (place.open(), place.open());
    scope(|s| {
        let waiter = s.spawn(|| one.get("late", soon()));
        // Whether it waits already is not known; that it gets it is what counts.
        two.set("other", b"x", soon()).unwrap();
        two.set("late", b"here", soon()).unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), b"here");
        for change in ["add", "exchange"] {
            let waiter = s.spawn(|| one.get(change, soon()));
            match change {
                "add" => drop(two.add(change, 1, soon()).unwrap()),
                _ => drop(two.compare_set(change, b"", b"1", soon()).unwrap()),
            }
            assert_eq!(waiter.join().unwrap().unwrap(), b"1", "{change}");
        }
    });
}

pub fn wait_for_several(place: &Place) {
    let (one, two) = (place.open(), place.open());
    one.set("b", b"", soon()).unwrap();
    scope(|s| {
        let waiter = s.spawn(|| one.wait(&["a", "b", "c", "a"], soon()));
        two.set("c", b"", soon()).unwrap();
        two.set("a", b"", soon()).unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert!(one.check(&["a", "b", "c"], soon()).unwrap());
}

/// What was there since the call counts, also if it is gone when the last one comes.
pub fn seen_once_is_enough(place: &Place) {
    let (one, two) = (place.open(), place.open());
    two.set("a", b"", soon()).unwrap();
    scope(|s| {
        let waiter = s.spawn(|| one.wait(&["a", "b"], soon()));
        // Deleted only when the waiter has looked, which nobody can tell: it is set anew until the waiter has it all.
        two.set("b", b"", soon()).unwrap();
        while !waiter.is_finished() {
            two.set("a", b"", soon()).unwrap();
            two.delete("b", soon()).unwrap();
            two.set("b", b"", soon()).unwrap();
            two.delete("a", soon()).unwrap();
        }
        waiter.join().unwrap().unwrap();
    });
}

pub fn deadlines(place: &Place) {
    const TIME: Duration = Duration::from_millis(300);
    let store = place.open();
    store.set("here", b"", soon()).unwrap();
    for op in ["get", "wait"] {
        let gives_up = || {
            let started = Instant::now();
            let error = match op {
                "get" => store.get("nobody's", TIME.into()).unwrap_err(),
                _ => store.wait(&["here", "nobody's"], TIME.into()).unwrap_err(),
            };
            let waited = started.elapsed();
            assert!(matches!(&error, Error::Timeout { waited, .. } if *waited >= TIME), "{error}");
            assert!(error.to_string().contains("nobody's") && error.to_string().contains(op), "{error}");
            assert!(waited >= TIME, "{op}: {waited:?}");
            waited
        };
        // The machine may be busy with other things: one time is enough.
        let waited: Vec<_> = (0..10).map(|_| gives_up()).take_while(|&waited| waited > TIME + LATE).collect();
        assert!(waited.len() < 10, "{op}: {waited:?}");
    }
    // It goes on, and nothing has been left behind that would disturb it.
    assert_eq!(store.add("n", 1, soon()).unwrap(), 1);
    place.open().set("nobody's", b"after all", soon()).unwrap();
    assert_eq!(store.get("nobody's", soon()).unwrap(), b"after all");
}

/// Waits for what is there succeed; others fail at once.
pub fn a_deadline_that_has_passed(place: &Place) {
    let store = place.open();
    store.set("here", b"v", soon()).unwrap();
    let past = Deadline::from(Instant::now());
    for _ in 0..10 {
        let error = store.get("nobody's", past).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
    assert_eq!(store.get("here", soon()).unwrap(), b"v");
}
