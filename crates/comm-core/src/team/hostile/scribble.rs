//! A peer that scribbles over the control block: whatever he writes, calls end in time, with a result or an error.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::control::{Head, RankLine};
use super::*;

const SOON: Duration = Duration::from_millis(60);

/// Two ranks; one waits in a barrier while `scribble` writes, then the other comes too. Gives what both got.
fn disturbed(name: &str, scribble: impl FnOnce(&Team)) -> [Result<(), Error>; 2] {
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let team = Team::join(name, 1, 2, AMPLE)?;
            let outcome = team.barrier(SOON);
            let _ = team.exchange(&[1; 64], SOON);
            let _ = team.snapshot().ranks.iter().map(ToString::to_string).collect::<String>();
            outcome
        });
        let team = Team::join(name, 0, 2, AMPLE).unwrap();
        let until = Instant::now() + SOON / 3;
        while team.snapshot().ranks[1].wait.is_none() && Instant::now() < until {
            std::thread::yield_now();
        }
        scribble(&team);
        let outcome = team.barrier(SOON);
        let _ = team.exchange(&[0; 64], SOON);
        drop(team);
        [waits.join().unwrap(), outcome]
    })
}

fn word(team: &Team, index: u64) -> &AtomicU64 {
    team.shared.control().segment().typed::<AtomicU64>(8 * index).unwrap()
}

#[test]
fn every_word_at_its_extremes_is_an_error_or_the_result_in_time() {
    let words = (size_of::<Head>() + 2 * size_of::<RankLine>()) as u64 / 8;
    let len = control::Control::len(2, 1) / 8;
    assert!(words > 200 && words < len);
    let mut errors = 0;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut slowest = Duration::ZERO;
    for index in 0..words {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for value in [0, 1, u64::MAX, random] {
            let started = Instant::now();
            let outcomes = disturbed("scribble", |team| word(team, index).store(value, Ordering::SeqCst));
            slowest = slowest.max(started.elapsed());
            for error in outcomes.into_iter().filter_map(Result::err) {
                errors += 1;
                assert!(
                    matches!(
                        error,
                        Error::Timeout { .. }
                            | Error::PeerLost { .. }
                            | Error::PeerLeft { .. }
                            | Error::Aborted { .. }
                            | Error::BadPeer { .. }
                    ),
                    "word {index} = {value:#x}: {error}"
                );
            }
        }
    }
    // The word that ends a team, at least, was seen.
    assert!(errors >= 6, "{errors}");
    assert!(slowest < AMPLE, "{slowest:?}");
}

#[test]
fn a_block_of_noise_is_an_error_in_time() {
    for fill in [u64::MAX, 0, 0x0101_0101_0101_0101, 0x8000_0000_0000_0000] {
        let started = Instant::now();
        let outcomes = disturbed("scribble-all", |team| {
            for index in 0..control::Control::len(2, 1) / 8 {
                word(team, index).store(fill, Ordering::SeqCst);
            }
        });
        assert!(started.elapsed() < AMPLE);
        // Zeros say that nobody has come anywhere yet, so whether the second comes in time is a matter of luck.
        assert!(fill == 0 || outcomes.iter().any(Result::is_err), "{fill:#x}");
    }
    all_is_well("scribble-after");
}

#[test]
fn a_peer_that_scribbles_without_end_delays_nobody_past_the_deadline() {
    let started = Instant::now();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let join = |rank| Team::join("scribble-on", rank, 2, AMPLE).unwrap();
        let other = scope.spawn(move || join(1));
        let team = join(0);
        let other = other.join().unwrap();
        let (control, over) = (team.shared.clone(), &over);
        scope.spawn(move || {
            let mut value = 1_u64;
            while !over.load(Ordering::Relaxed) {
                for index in 0..control.control().segment().len() / 8 {
                    value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    control
                        .control()
                        .segment()
                        .typed::<AtomicU64>(8 * index)
                        .unwrap()
                        .store(value, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..20 {
            let _ = team.barrier(SOON);
            let _ = other.exchange(&[3; 64], SOON);
            let _ = team.snapshot();
        }
        over.store(true, Ordering::Relaxed);
        assert!(started.elapsed() < AMPLE);
    });
}
