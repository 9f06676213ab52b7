//! Managers among threads; processes are in the `multirank` target.

use std::collections::HashSet;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use comm_core::Error;
use comm_core::device::Device;
use comm_core::tensor::Tensor;

use super::entry::Seat;
use super::{DeviceKind, ThreadGroupKey, ThreadGroupManager, lock};
use crate::{ReduceOp, ThreadGroup};

const AMPLE: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(100);

/// Runs a body for each id, each in a thread.
fn ids<T: Send>(ids: &[usize], body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ids.iter().map(|&id| scope.spawn(move || body(id))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn sum(group: &ThreadGroup, mine: i64) -> i64 {
    let mine = Tensor::from_slice(&[1], &[mine]).unwrap();
    group.all_reduce(&mine, ReduceOp::Sum, AMPLE).unwrap().as_slice::<i64>().unwrap()[0]
}

#[test]
fn a_key_is_its_kind_and_its_whole_list_in_order() {
    let long: Vec<usize> = (0..1000).collect();
    let mut other = long.clone();
    other[999] = 1000;
    let keys = [
        ThreadGroupKey::from([1]),
        [1, 0].into(),
        [0, 1].into(),
        [10].into(),
        [0, 0].into(),
        [0].into(),
        Vec::new().into(),
        long.clone().into(),
        other.into(),
        long[..999].into(),
        ThreadGroupKey::new(Device::Sim(0), [1]),
        ThreadGroupKey::new(DeviceKind::Sim, [1, 0]),
    ];
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "no two are equal");
    let texts: HashSet<String> = keys.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), keys.len(), "nor their texts");
    assert_eq!(keys[0].to_string(), "cpu:1[1]");
    assert_eq!(keys[1].to_string(), "cpu:2[1,0]");
    assert!(keys[7].to_string().ends_with(",998,999]") && keys[7].to_string().starts_with("cpu:1000[0,"));
    assert_eq!(ThreadGroupKey::from(&keys[7]), ThreadGroupKey::new(DeviceKind::Cpu, long));
}

#[test]
fn the_same_list_in_another_order_is_another_group_with_other_ranks() {
    let manager = ThreadGroupManager::with_prefix("order");
    ids(&[0, 1], |id| {
        let forth = manager.group([0, 1], id, AMPLE).unwrap();
        let back = manager.group([1, 0], id, AMPLE).unwrap();
        assert_eq!((forth.rank(), back.rank()), (id, 1 - id));
        assert_ne!(forth.team().id(), back.team().id());
        assert_eq!(sum(&back, 10), sum(&forth, 10));
        assert!(Arc::ptr_eq(&forth, &manager.group([0, 1], id, Duration::ZERO).unwrap()));
    });
    assert_eq!(manager.keys(), [ThreadGroupKey::from([0, 1]), [1, 0].into()]);
}

#[test]
fn wrong_ids_are_refused_and_nothing_is_kept() {
    let manager = ThreadGroupManager::with_prefix("wrong");
    let refused = |key: ThreadGroupKey, id, text: &str| match manager.group(key, id, AMPLE).unwrap_err() {
        Error::InvalidArgument { why, .. } => assert!(why.contains(text), "{why}"),
        other => panic!("{other}"),
    };
    refused([0, 1].into(), 2, "2 is not in cpu:2[0,1]");
    refused([0, 1, 0].into(), 0, "0 comes twice");
    refused(Vec::new().into(), 0, "not in");
    assert!(manager.keys().is_empty());
    let many: Vec<usize> = (0..1000).collect();
    assert!(matches!(manager.group(many, 0, AMPLE), Err(Error::InvalidArgument { .. })));
}

#[test]
fn first_calls_at_once_make_one_group() {
    const RANKS: usize = 4;
    for round in 0..200 {
        let manager = ThreadGroupManager::with_prefix(format!("race-{round}"));
        let gate = Barrier::new(2 * RANKS);
        // Two threads for each rank.
        let groups = ids(&[0, 1, 2, 3, 0, 1, 2, 3], |id| {
            gate.wait();
            manager.group([0, 1, 2, 3], id, AMPLE).unwrap()
        });
        assert_eq!(manager.keys().len(), 1);
        let teams: HashSet<u128> = groups.iter().map(|group| group.team().id()).collect();
        assert_eq!(teams.len(), 1, "round {round}");
        for id in 0..RANKS {
            assert_eq!(groups[id].rank(), id);
            assert!(Arc::ptr_eq(&groups[id], &groups[id + RANKS]), "one handle for each rank");
        }
    }
}

#[test]
fn groups_may_be_asked_for_in_any_order() {
    for round in 0..20 {
        let manager = ThreadGroupManager::with_prefix(format!("crosswise-{round}"));
        let gate = Barrier::new(2);
        ids(&[0, 1], |id| {
            if round % 2 == 1 {
                // They know of each other, and neither comes to the manager while the other waits.
                assert!(manager.group([id, 2], id, SOON / 10).is_err());
                gate.wait();
            }
            let keys = if id == 0 { [[0, 1], [1, 0]] } else { [[1, 0], [0, 1]] };
            let groups = keys.map(|key| manager.group(key, id, AMPLE).unwrap());
            let straight = if id == 0 { &groups[0] } else { &groups[1] };
            assert_eq!(sum(straight, 1), 2);
        });
    }
}

#[test]
fn many_groups_at_once() {
    let manager = ThreadGroupManager::with_prefix("many");
    let lists: [&[usize]; 6] = [&[0, 1], &[1, 2], &[2, 0], &[0, 1, 2], &[2, 1, 0], &[1, 0, 2]];
    ids(&[0, 1, 2], |id| {
        // Each id begins elsewhere.
        let mine: Vec<&[usize]> =
            (0..6).map(|i| lists[(i + 2 * id) % 6]).filter(|list| list.contains(&id)).collect();
        let threads =
            [0, 1, 2].map(|turn| mine[turn % mine.len()..].iter().chain(&mine[..turn % mine.len()]));
        // And each of its threads as well.
        std::thread::scope(|scope| {
            for lists in threads {
                let manager = &manager;
                scope.spawn(move || {
                    for &list in lists {
                        assert_eq!(manager.group(list, id, AMPLE).unwrap().size(), list.len());
                    }
                });
            }
        });
        // Operations of each group in one order on all ranks.
        for list in lists.iter().filter(|list| list.contains(&id)) {
            let group = manager.group(*list, id, AMPLE).unwrap();
            assert_eq!(sum(&group, 1 << id), list.iter().map(|&id| 1 << id).sum::<i64>());
        }
    });
}

#[test]
fn a_group_that_could_not_be_made_is_tried_again() {
    let manager = ThreadGroupManager::with_prefix("retry");
    let started = Instant::now();
    let error = manager.group([5, 6], 5, SOON).unwrap_err();
    assert!(started.elapsed() >= SOON);
    assert!(matches!(&error, Error::Timeout { missing, .. } if missing[0].rank == 1), "{error}");
    assert!(error.at().is_some_and(|at| at.team == "groups/retry|cpu:2[5,6]"), "{error}");
    assert!(manager.keys().is_empty() && lock(&manager.known).groups.is_empty());
    ids(&[5, 6], |id| assert_eq!(sum(&manager.group([5, 6], id, AMPLE).unwrap(), 1), 2));
}

#[test]
fn nothing_is_kept_of_groups_that_could_not_be_made() {
    let manager = ThreadGroupManager::with_prefix("nothing");
    let kept = manager.group([5], 5, AMPLE).unwrap();
    ids(&[5, 6], |id| {
        for other in 7..40 {
            // Each of them is brought into what the other wants.
            let error = manager.group([5, 6, other], id, SOON / 50).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
    });
    // Threads that have brought ids in may be a moment behind.
    while lock(&manager.known).groups.len() > 1 {
        std::thread::yield_now();
    }
    assert_eq!(manager.keys(), [ThreadGroupKey::from([5])]);
    drop(kept);
    manager.forget([5], 5);
    assert!(manager.keys().is_empty());
}

#[test]
fn a_group_that_is_over_is_replaced_although_somebody_holds_it() {
    let manager = ThreadGroupManager::with_prefix("over");
    ids(&[0, 1], |id| {
        let old = manager.group([0, 1], id, AMPLE).unwrap();
        sum(&old, 1);
        if id == 1 {
            old.abort_handle().abort("enough");
        }
        while !old.is_over() {
            std::thread::yield_now();
        }
        let new = manager.group([0, 1], id, AMPLE).unwrap();
        assert!(!Arc::ptr_eq(&old, &new) && old.team().id() != new.team().id());
        assert_eq!(sum(&new, 1), 2);
        assert!(old.barrier(AMPLE).is_err());
    });
}

#[test]
fn a_group_that_a_rank_has_left_is_forgotten_by_hand() {
    let manager = ThreadGroupManager::with_prefix("forget");
    ids(&[0, 1], |id| {
        let old = manager.group([0, 1], id, AMPLE).unwrap().team().id();
        if id == 1 {
            manager.forget([0, 1], 1);
        } else {
            let group = manager.group([0, 1], 0, AMPLE).unwrap();
            assert!(matches!(group.barrier(AMPLE), Err(Error::PeerLeft { rank: 1, .. })));
            assert_eq!(manager.group([0, 1], 0, AMPLE).unwrap().team().id(), old, "it is kept");
            drop(group);
            manager.forget([0, 1], 0);
        }
        assert_ne!(manager.group([0, 1], id, AMPLE).unwrap().team().id(), old);
    });
}

#[test]
fn groups_are_dropped_in_one_order() {
    let lists = [vec![0, 1], vec![1, 0], vec![10, 0, 1], vec![2, 0, 1]];
    let orders: Vec<Vec<String>> = (0..2)
        .map(|turn| {
            let manager = ThreadGroupManager::with_prefix(format!("drops-{turn}"));
            ids(&[0, 1, 2, 10], |id| {
                for i in 0..lists.len() {
                    let list = &lists[if turn == 0 { i } else { lists.len() - 1 - i }];
                    if list.contains(&id) {
                        manager.group(list.clone(), id, AMPLE).unwrap();
                    }
                }
            });
            let mut dropped = Vec::new();
            manager.close(|key, rank| dropped.push(format!("{key}/{rank}")));
            assert!(manager.keys().is_empty());
            dropped
        })
        .collect();
    assert_eq!(orders[0], orders[1], "whatever the order in which they were made");
    let expected = ["cpu:2[0,1]", "cpu:2[1,0]", "cpu:3[10,0,1]", "cpu:3[2,0,1]"];
    let expected: Vec<String> = expected
        .iter()
        .flat_map(|key| (0..key[4..5].parse().unwrap()).map(move |r: usize| format!("{key}/{r}")))
        .collect();
    assert_eq!(orders[0], expected);
}

#[test]
fn a_panic_reaches_the_peers_of_all_groups() {
    let manager = ThreadGroupManager::with_prefix("watch");
    let errors = std::thread::scope(|scope| {
        let run = |id: usize| {
            let manager = &manager;
            move || {
                let _watch = manager.watch(id);
                let groups = [[0, 1], [1, 0]].map(|key| manager.group(key, id, AMPLE).unwrap());
                if id == 1 {
                    std::panic::resume_unwind(Box::new("as a test wants it"));
                }
                groups.map(|group| group.barrier(AMPLE).unwrap_err())
            }
        };
        let (survivor, victim) = (scope.spawn(run(0)), scope.spawn(run(1)));
        assert!(victim.join().is_err());
        survivor.join().unwrap()
    });
    for (error, lost) in errors.iter().zip([1, 0]) {
        assert!(matches!(error, Error::PeerLost { rank, .. } if *rank == lost), "{error}");
    }
}

/// The manager brings in an id that it has heard of, and that one is gone before the group is there: what the others get.
fn gone_while_it_is_made(prefix: &str, go: impl FnOnce(&ThreadGroupManager) + Send) -> [Error; 2] {
    let manager = ThreadGroupManager::with_prefix(prefix);
    manager.group([1], 1, AMPLE).unwrap();
    std::thread::scope(|scope| {
        let (manager, key) = (&manager, [0, 1, 2]);
        let use_it = move |id| {
            scope.spawn(move || manager.group(key, id, AMPLE).and_then(|group| group.barrier(AMPLE)))
        };
        let first = use_it(0);
        let is_making = || {
            let known = lock(&manager.known);
            let entry = known.groups.get(&key.into());
            entry.is_some_and(|entry| matches!(lock(&entry.seats)[1], Seat::Making { .. }))
        };
        while !is_making() {
            std::thread::yield_now();
        }
        go(manager);
        // Only now can the group be made.
        [use_it(2), first].map(|rank| rank.join().unwrap().unwrap_err())
    })
}

#[test]
fn a_panic_reaches_the_peers_of_a_group_that_is_being_made() {
    let errors = gone_while_it_is_made("watch-making", |manager| {
        let victim = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _watch = manager.watch(1);
            std::panic::resume_unwind(Box::new("as a test wants it"));
        }));
        assert!(victim.is_err());
    });
    assert!(errors.iter().all(|error| matches!(error, Error::PeerLost { rank: 1, .. })), "{errors:?}");
}

#[test]
fn a_thread_that_returns_leaves_a_group_that_is_being_made() {
    let errors = gone_while_it_is_made("watch-return-making", |manager| drop(manager.watch(1)));
    assert!(errors.iter().all(|error| matches!(error, Error::PeerLeft { rank: 1, .. })), "{errors:?}");
}

/// Whoever waits for a thread that has returned is told, of all groups; and the id may come again.
#[test]
fn a_thread_that_returns_leaves_its_groups() {
    let manager = ThreadGroupManager::with_prefix("watch-return");
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let run = |id: usize| {
                let manager = &manager;
                move || {
                    let _watch = manager.watch(id);
                    let groups = [[0, 1], [1, 0]].map(|key| manager.group(key, id, AMPLE).unwrap());
                    (id == 0).then(|| groups.map(|group| group.barrier(AMPLE).unwrap_err()))
                }
            };
            let (waits, returns) = (scope.spawn(run(0)), scope.spawn(run(1)));
            assert!(returns.join().unwrap().is_none());
            for (error, left) in waits.join().unwrap().unwrap().iter().zip([1, 0]) {
                assert!(matches!(error, Error::PeerLeft { rank, .. } if *rank == left), "{error}");
            }
        });
        assert_eq!(manager.keys(), [], "nothing is kept");
    }
}

#[test]
fn managers_go_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<ThreadGroupManager>();
}
