//! Shrinking among threads; processes are in comm-group's `multirank` target.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use super::Word;
use crate::error::{Error, LostHow};
use crate::team::Team;
use crate::team::control::{Control, TeamId};

const AMPLE: Duration = Duration::from_secs(20);

fn ranks<T: Send>(name: &str, n: usize, body: impl Fn(Team) -> T + Sync) -> Vec<std::thread::Result<T>> {
    std::thread::scope(|scope| {
        let body = &body;
        let start = |rank| scope.spawn(move || body(Team::join(name, rank, n, AMPLE).unwrap()));
        let threads: Vec<ScopedJoinHandle<'_, T>> = (0..n).map(start).collect();
        threads.into_iter().map(ScopedJoinHandle::join).collect()
    })
}

fn panics() -> ! {
    std::panic::resume_unwind(Box::new("as a test wants it"))
}

#[test]
fn a_word_holds_an_epoch_a_rank_and_a_bit() {
    assert_eq!((Word(0).epoch(), Word(0).by(), Word(0).is_confirmed()), (0, None, false));
    for (epoch, by) in [(1, 0), (2, 127), (1 << 40, 5)] {
        for word in [Word::new(epoch, by), Word::new(epoch, by).confirmed()] {
            assert_eq!((word.epoch(), word.by()), (epoch, Some(by)));
        }
        assert!(!Word::new(epoch, by).is_confirmed() && Word::new(epoch, by).confirmed().is_confirmed());
    }
}

#[test]
fn one_of_several_decides_and_what_is_final_stays() {
    let control = Control::create(TeamId([1, 2]), 70, 1).unwrap();
    let all: Vec<usize> = (0..70).collect();
    let start = control.standing();
    assert_eq!((start.word, &start.members), (Word(0), &all));
    assert!(control.decide(Word(0), 3, &[0, 3, 64, 69]));
    assert!(!control.decide(Word(0), 5, &[5]), "somebody else has");
    let first = control.standing();
    assert_eq!((first.word, &first.members[..]), (Word::new(1, 3), &[0, 3, 64, 69][..]));
    // The same rank proposes again: until that is decided on, its set of before is what is read.
    let stale = Word::new(1, 7);
    assert!(!control.decide(stale, 3, &[3]));
    assert_eq!(control.standing(), first);
    assert!(control.decide(first.word, 3, &[3, 64]));
    assert!(!control.confirm(first.word), "too late");
    let second = control.standing();
    assert_eq!(second.members, [3, 64]);
    assert!(control.confirm(second.word) && control.confirm(second.word), "whoever comes through says so");
    let last = control.standing();
    assert_eq!((last.word, &last.members), (second.word.confirmed(), &second.members));
    assert!(!control.decide(last.word, 64, &[64]) && !control.decide(second.word, 64, &[64]));
    assert_eq!(control.standing(), last);
}

#[test]
fn who_fails_after_the_others_are_through_is_excluded() {
    let done = ranks("too-late", 3, |team| {
        let limit = Duration::from_secs(2);
        let made = team.shrink_with(limit, |smaller, deadline| {
            smaller.barrier(deadline)?;
            if team.rank() == 0 {
                return Err(Error::PeerLeft { rank: 1, at: Box::default() });
            }
            Ok(())
        });
        if team.rank() == 0 {
            let error = made.unwrap_err();
            assert!(
                matches!(&error, Error::Excluded { rank: 0, members, .. } if *members == [1, 2]),
                "{error}"
            );
        } else {
            assert_eq!(made.unwrap().0.size(), 3);
        }
    });
    for result in done {
        result.unwrap();
    }
}

#[test]
fn a_healthy_team_is_the_same_anew() {
    let done = ranks("healthy", 4, |team| {
        let again = team.shrink(AMPLE).unwrap();
        assert_eq!((again.rank(), again.size()), (team.rank(), 4));
        assert_eq!(again.origin(), [0, 1, 2, 3]);
        assert_ne!(again.id(), team.id());
        again.barrier(AMPLE).unwrap();
        team.barrier(AMPLE).unwrap();
        assert_eq!(team.snapshot().ranks[team.rank()].op, "barrier");
        let error = team.shrink(AMPLE).unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument { why, .. } if why.contains("gone on")), "{error}");
        again.barrier(AMPLE).unwrap();
    });
    assert!(done.iter().all(Result::is_ok));
}

#[test]
fn survivors_of_a_panic_go_on() {
    let done = ranks("panicked", 4, |team| {
        if team.rank() == 1 {
            panics();
        }
        assert!(matches!(team.barrier(AMPLE), Err(Error::PeerLost { rank: 1, how: LostHow::Panicked, .. })));
        let started = Instant::now();
        let rest = team.shrink(4 * AMPLE).unwrap();
        // Nobody waits for the dead, which would take half of the time.
        assert!(started.elapsed() < AMPLE);
        assert_eq!((rest.size(), rest.origin()), (3, &[0, 2, 3][..]));
        assert_eq!(rest.origin()[rest.rank()], team.rank());
        rest.barrier(AMPLE).unwrap();
    });
    assert_eq!(done.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true]);
}

#[test]
fn one_after_the_other_until_one_is_left() {
    let done = ranks("dwindling", 4, |mut team| {
        let me = team.rank();
        for last in (1..4).rev() {
            if me == last {
                panics();
            }
            assert!(team.barrier(AMPLE).is_err());
            team = team.shrink(AMPLE).unwrap();
            assert_eq!((team.rank(), team.size()), (me, last));
            team.barrier(AMPLE).unwrap();
        }
    });
    assert!(done[0].is_ok() && done[1..].iter().all(Result::is_err));
}

#[test]
fn who_does_not_come_is_excluded_and_told_so() {
    let decided = Barrier::new(3);
    let done = ranks("absent", 3, |team| {
        if team.rank() == 1 {
            decided.wait();
            match team.shrink(AMPLE).unwrap_err() {
                Error::Excluded { rank: 1, members, at } => {
                    assert_eq!(members, [0, 2]);
                    assert_eq!(at.rank, 1);
                }
                other => panic!("{other}"),
            }
            // The old team has not ended.
            return team.barrier(AMPLE).unwrap();
        }
        let (limit, started) = (Duration::from_millis(600), Instant::now());
        // Of two who wait, the less patient one decides.
        let rest = team.shrink(if team.rank() == 0 { limit } else { AMPLE }).unwrap();
        assert!(started.elapsed() >= limit / 2 && started.elapsed() < AMPLE / 2);
        assert_eq!(rest.origin(), [0, 2]);
        decided.wait();
        rest.barrier(AMPLE).unwrap();
        team.barrier(AMPLE).unwrap();
    });
    for result in done {
        result.unwrap();
    }
}

#[test]
fn a_death_while_they_join_begins_again() {
    let done = ranks("while-joining", 4, |team| {
        let mut attempts = 0;
        let made = team.shrink_with(AMPLE, |smaller, deadline| {
            attempts += 1;
            if attempts == 1 {
                assert_eq!(smaller.size(), 4);
                if team.rank() == 2 {
                    panics();
                }
            }
            smaller.barrier(deadline)
        });
        let (rest, ()) = made.unwrap();
        assert_eq!((rest.origin(), attempts), (&[0, 1, 3][..], 2));
        rest.barrier(AMPLE).unwrap();
    });
    assert_eq!(done.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
}

#[test]
fn an_error_of_ones_own_is_given_back_and_the_others_go_on() {
    let done = ranks("own-error", 3, |team| {
        let made = team.shrink_with(Duration::from_secs(2), |smaller, deadline| {
            if team.rank() == 0 {
                return Err(Error::bad_peer("as a test wants it"));
            }
            smaller.barrier(deadline)
        });
        if team.rank() == 0 {
            assert!(matches!(made, Err(Error::BadPeer { .. })));
            // It leaves, so nobody waits for it.
            return;
        }
        let (rest, ()) = made.unwrap();
        assert_eq!(rest.origin(), [1, 2]);
    });
    for result in done {
        result.unwrap();
    }
}

#[test]
fn no_time_no_decision() {
    let done = ranks("no-time", 2, |team| {
        if team.rank() == 0 {
            let error = team.shrink(Duration::ZERO).unwrap_err();
            assert!(matches!(&error, Error::Timeout { missing, .. } if missing[0].rank == 1), "{error}");
        }
        team.barrier(AMPLE).unwrap();
        let both = team.shrink(AMPLE).unwrap();
        assert_eq!(both.size(), 2, "it is not excluded because it was in a hurry once");
    });
    for result in done {
        result.unwrap();
    }
}

#[test]
fn inside_an_operation_nobody_shrinks() {
    let team = Team::join("shrink-inside", 0, 1, AMPLE).unwrap();
    let op = team.begin("something", AMPLE).unwrap();
    assert!(matches!(team.shrink(AMPLE), Err(Error::ConcurrentUse { inside, .. }) if inside == "something"));
    op.finish();
    assert_eq!(team.shrink(AMPLE).unwrap().size(), 1);
    let member = std::sync::Arc::clone(&team);
    drop(team);
    assert!(matches!(member.shrink(AMPLE), Err(Error::PeerLeft { rank: 0, .. })));
}

/// Deadlines of all lengths and joins that fail at random: whoever gets a team that goes on is in the same one.
#[test]
fn there_is_one_successor_at_most() {
    for round in 0..60u64 {
        let failures = AtomicUsize::new(0);
        let done = ranks(&format!("lineage-{round}"), 4, |team| {
            let mut dice = round * 4 + team.rank() as u64 + 1;
            let mut roll = move || {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                dice >> 33
            };
            std::thread::sleep(Duration::from_micros(roll() % 3000));
            let limit = Duration::from_millis(300 + roll() % 300);
            let made = team.shrink_with(limit, |smaller, deadline| {
                if roll() % 4 == 0 && failures.fetch_add(1, Ordering::Relaxed) < 6 {
                    smaller.abort("as a test wants it");
                }
                if roll() % 4 == 0 {
                    std::thread::sleep(Duration::from_micros(roll() % 3000));
                }
                smaller.barrier(deadline)
            });
            match made {
                Ok((rest, ())) => Some((rest.id(), rest.size(), rest)),
                Err(Error::Excluded { .. } | Error::Timeout { .. } | Error::Aborted { .. }) => None,
                Err(other) => panic!("{other}"),
            }
        });
        let teams: Vec<_> = done.into_iter().filter_map(Result::unwrap).collect();
        assert!(teams.iter().all(|(id, ..)| *id == teams[0].0), "round {round}: {teams:?}");
    }
}
