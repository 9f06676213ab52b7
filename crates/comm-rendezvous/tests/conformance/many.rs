//! Many at once.

use std::thread::scope;

use crate::{Place, soon};

const RANKS: usize = 8;

pub fn adds_from_all_sides(place: &Place) {
    const EACH: usize = 100;
    let mut sums: Vec<i64> = scope(|s| {
        let ranks: Vec<_> = (0..RANKS)
            .map(|_| {
                s.spawn(|| {
                    let store = place.open();
                    (0..EACH).map(|_| store.add("n", 1, soon()).unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect()
    });
    sums.sort_unstable();
    assert!((1..).zip(&sums).all(|(n, &sum)| n == sum), "{sums:?}");
    assert_eq!(sums.len(), RANKS * EACH);
}

pub fn one_wins(place: &Place) {
    for round in 0..20 {
        let key = format!("seat {round}");
        let seen: Vec<Vec<u8>> = scope(|s| {
            let key = &key;
            let ranks: Vec<_> = (0..RANKS)
                .map(|rank| {
                    s.spawn(move || {
                        let mine = format!("rank {rank}");
                        place.open().compare_set(key, b"", mine.as_bytes(), soon()).unwrap()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|winner| *winner == seen[0] && winner.starts_with(b"rank ")), "{seen:?}");
    }
}

pub fn many_keys(place: &Place) {
    const KEYS: usize = 10_000;
    let (one, two) = (place.open(), place.open());
    let keys: Vec<String> = (0..KEYS).map(|n| format!("key {n}")).collect();
    let all: Vec<&str> = keys.iter().map(String::as_str).collect();
    scope(|s| {
        let waiter = s.spawn(|| one.wait(&all, soon()));
        for (n, key) in keys.iter().enumerate() {
            two.set(key, &n.to_le_bytes(), soon()).unwrap();
        }
        waiter.join().unwrap().unwrap();
    });
    assert!(one.check(&all, soon()).unwrap());
    for n in (0..KEYS).step_by(97) {
        assert_eq!(one.get(&keys[n], soon()).unwrap(), n.to_le_bytes());
    }
    // Who comes late finds it all.
    assert!(place.open().check(&all, soon()).unwrap());
}

/// As ranks meet with nothing but this.
pub fn a_barrier_of_adds(place: &Place) {
    for round in 0..5 {
        let (count, go) = (format!("count {round}"), format!("go {round}"));
        scope(|s| {
            for _ in 0..RANKS {
                s.spawn(|| {
                    let store = place.open();
                    if store.add(&count, 1, soon()).unwrap() == RANKS as i64 {
                        store.set(&go, b"", soon()).unwrap();
                    }
                    store.wait(&[&go], soon()).unwrap();
                    assert_eq!(store.add(&count, 0, soon()).unwrap(), RANKS as i64);
                });
            }
        });
    }
}

/// Threads that wait with the same handle do not stand in each other's way.
pub fn waiters_of_one_handle(place: &Place) {
    let store = place.open();
    scope(|s| {
        let waiters: Vec<_> = (0..RANKS)
            .map(|n| {
                s.spawn({
                    let store = &store;
                    move || store.get(&format!("for {n}"), soon()).unwrap()
                })
            })
            .collect();
        for n in (0..RANKS).rev() {
            store.set(&format!("for {n}"), &[n as u8], soon()).unwrap();
        }
        for (n, waiter) in waiters.into_iter().enumerate() {
            assert_eq!(waiter.join().unwrap(), [n as u8]);
        }
    });
}
