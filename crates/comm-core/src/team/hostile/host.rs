//! Strangers who host a join: what they answer, and what they push.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::control::{Control, TeamId};
use super::super::messages::{Field, Welcome};
use super::*;
use crate::shm::{Access, Segment};

const SOON: Duration = Duration::from_millis(300);

/// Joins a name that a stranger holds, who answers each request with what `says` makes of it.
fn hosted<T>(team: &str, says: impl FnMut(&Listener, &Socket) + Send, body: impl FnOnce() -> T) -> T {
    let claim = || hub().namespace().claim(&address(team), AMPLE.into()).unwrap();
    // A process that another test starts has the last listener too, for a moment.
    let listener = std::iter::repeat_with(claim).flatten().next().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (listener, over) = (&listener, &over);
        let host = scope.spawn(move || serve(listener, over, says));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        over.store(true, Ordering::Release);
        host.join().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn serve(
    listener: &Listener,
    over: &std::sync::atomic::AtomicBool,
    mut says: impl FnMut(&Listener, &Socket),
) {
    // Kept, so that it is not the end of the connection that ends an attempt.
    let mut held = Vec::new();
    while !over.load(Ordering::Acquire) {
        match listener.accept() {
            Ok(Some(socket)) => {
                if let Some(packet) = reply(&socket) {
                    hello::check(&packet.bytes, Purpose::Join, hub().boot()).unwrap();
                    says(listener, &socket);
                }
                held.push(socket);
                if held.len() > 8 {
                    held.remove(0);
                }
            }
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

fn say(socket: &Socket, answer: &Answer, fds: &[OwnedFd]) {
    let body = wire::encode(answer).unwrap();
    // Who has given up does not listen.
    let _ = socket.send(&greet(Purpose::Answer, Nonce::from_bytes([9; 16]), &body), &borrow(fds));
}

/// The tests of this process run side by side: each has ids of its own.
fn id(n: u64) -> TeamId {
    TeamId([n, 77])
}

/// The welcome of a team of this process alone.
fn welcome(id: TeamId) -> Welcome {
    Welcome { id, processes: vec![(hub().nonce(), hub().hub_name().to_string())], process_of: vec![0] }
}

fn name_of(listener: &Listener) -> OwnedFd {
    listener.as_fd().try_clone_to_owned().unwrap()
}

fn block(id: TeamId) -> OwnedFd {
    Control::create(id, 1, 1).unwrap().segment().share().unwrap()
}

#[test]
fn a_sound_welcome_from_a_stranger_is_taken() {
    // Else what follows would show nothing.
    let says =
        |l: &Listener, s: &Socket| say(s, &Answer::Welcome(welcome(id(1))), &[block(id(1)), name_of(l)]);
    hosted("host-sound", says, || Team::join("host-sound", 0, 1, AMPLE).unwrap().barrier(AMPLE).unwrap());
}

#[test]
fn a_host_of_another_build_is_named_with_ours() {
    for place in [8, 12, 16] {
        let says = |_: &Listener, s: &Socket| {
            let body = wire::encode(&Answer::InUse).unwrap();
            let mut packet = greet(Purpose::Answer, Nonce::from_bytes([9; 16]), &body);
            packet[place] ^= 0x20;
            packet[64..128].fill(0);
            packet[64..80].copy_from_slice(b"comm-core 78 (y)");
            s.send(&packet, &[]).unwrap();
        };
        hosted("host-build", says, || {
            let outcome = Team::join("host-build", 0, 1, AMPLE);
            let why = outcome.unwrap_err().to_string();
            assert!(why.contains("bad peer") && why.contains("comm-core 78 (y)"), "{why}");
            assert!(why.contains(&crate::layout::build()), "{why}");
        });
    }
}

#[test]
fn a_welcome_needs_a_sound_control_block_and_a_name() {
    const ID: TeamId = TeamId([13, 78]);
    type Fds = fn(&Listener) -> Vec<OwnedFd>;
    let wrong: [(Fds, &str); 9] = [
        (|_| vec![], "0 descriptors"),
        (|_| vec![block(ID)], "1 descriptors"),
        (|l| vec![block(ID), name_of(l), name_of(l)], "3 descriptors"),
        (|l| vec![unsealed(Control::len(1, 1)), name_of(l)], "lacks the seals"),
        (|l| vec![Control::create(ID, 9, 9).unwrap().segment().share().unwrap(), name_of(l)], "bytes, not"),
        (|l| vec![tempfile::tempfile().unwrap().into(), name_of(l)], "not a memfd"),
        (|l| vec![name_of(l), name_of(l)], "not a memfd"),
        (
            |l| vec![Segment::create(4096, Access::ReadOnly).unwrap().share().unwrap(), name_of(l)],
            "does not allow",
        ),
        (|l| vec![block(id(5)), name_of(l)], "id"),
    ];
    for (fds, said) in wrong {
        let says = |l: &Listener, s: &Socket| say(s, &Answer::Welcome(welcome(ID)), &fds(l));
        hosted("host-fds", says, || bad_peer(Team::join("host-fds", 0, 1, AMPLE), said));
    }
}

#[test]
fn every_field_of_a_control_block_is_checked() {
    const ID: TeamId = TeamId([14, 78]);
    for (word, field) in ["magic", "layout", "size", "processes", "id", "id"].into_iter().enumerate() {
        for value in [0, 1 << 63, u64::MAX, 2] {
            let says = move |l: &Listener, s: &Socket| {
                let control = Control::create(ID, 1, 1).unwrap();
                control.segment().typed::<AtomicU64>(8 * word as u64).unwrap().store(value, Ordering::SeqCst);
                say(s, &Answer::Welcome(welcome(ID)), &[control.segment().share().unwrap(), name_of(l)]);
            };
            let said = format!("control block with {field} {value:#x}");
            hosted("host-block", says, || bad_peer(Team::join("host-block", 0, 1, AMPLE), &said));
        }
    }
}

#[test]
fn a_welcome_must_not_contradict_itself() {
    const ID: TeamId = TeamId([15, 78]);
    let us = || (hub().nonce(), hub().hub_name().to_string());
    let other = || (Nonce::from_bytes([5; 16]), "nobody".to_string());
    let wrong: [(Vec<_>, Vec<u16>); 9] = [
        (vec![us()], vec![0]),
        (vec![us()], vec![0, 0, 0]),
        (vec![], vec![0, 0]),
        (vec![us()], vec![0, 1]),
        (vec![us()], vec![0, u16::MAX]),
        (vec![us(), other()], vec![0, 0]),
        (vec![other()], vec![0, 0]),
        (vec![other(), us()], vec![0, 1]),
        (vec![us(), us()], vec![0, 1]),
    ];
    for (processes, process_of) in wrong {
        let says = |l: &Listener, s: &Socket| {
            let control = Control::create(ID, 2, processes.len().max(1)).unwrap();
            let (processes, process_of) = (processes.clone(), process_of.clone());
            let answer = Answer::Welcome(Welcome { id: ID, processes, process_of });
            say(s, &answer, &[control.segment().share().unwrap(), name_of(l)]);
        };
        hosted("host-odd", says, || bad_peer(Team::join("host-odd", 0, 2, AMPLE), "contradicts itself"));
    }
}

#[test]
fn the_id_of_another_team_is_refused_and_that_team_goes_on() {
    let team = Team::join("host-first", 0, 1, AMPLE).unwrap();
    let id = team.shared.id();
    let says = |l: &Listener, s: &Socket| {
        let control = Control::create(id, 3, 1).unwrap();
        let answer = Answer::Welcome(Welcome { process_of: vec![0; 3], ..welcome(id) });
        say(s, &answer, &[control.segment().share().unwrap(), name_of(l)]);
    };
    hosted("host-second", says, || {
        bad_peer(Team::join("host-second", 2, 3, AMPLE), "the id of another team");
    });
    team.barrier(AMPLE).unwrap();
}

#[test]
fn an_answer_cut_or_flipped_anywhere_is_an_error_in_time() {
    const ID: TeamId = TeamId([17, 78]);
    let mismatch = Answer::Mismatch { rank: 0, field: Field::Size, theirs: "1".into(), others: "2".into() };
    let answers = [
        Answer::Welcome(welcome(ID)),
        mismatch,
        Answer::InUse,
        Answer::Later,
        Answer::Arrived(vec![0, 1, 2]),
        Answer::Refused("no".into()),
    ];
    let (mut errors, mut joined) = (0, 0);
    for answer in answers {
        let packet = greet(Purpose::Answer, Nonce::from_bytes([9; 16]), &wire::encode(&answer).unwrap());
        // The greeting in front is the same for all answers.
        let in_front = if matches!(answer, Answer::Welcome(_)) { 0..64 } else { 0..0 };
        let told = |b: &Vec<u8>| {
            b.len() != packet.len()
                || (0..b.len()).any(|i| b[i] != packet[i] && (in_front.contains(&i) || i >= 128))
        };
        for bytes in mutations(&packet).filter(told) {
            let says = |l: &Listener, s: &Socket| {
                let _ = s.send(&bytes, &borrow(&[block(ID), name_of(l)]));
                let _ = rustix::net::shutdown(s, rustix::net::Shutdown::Both);
            };
            let deadline = Duration::from_millis(20);
            let started = Instant::now();
            let outcome = hosted("host-flip", says, || Team::join("host-flip", 0, 1, deadline));
            assert!(started.elapsed() < AMPLE, "{bytes:02x?}");
            match outcome {
                // A nonce of a process of which nothing is wanted, for instance.
                Ok(team) => {
                    joined += 1;
                    team.barrier(AMPLE).unwrap();
                }
                Err(
                    Error::BadPeer { .. }
                    | Error::Mismatch { .. }
                    | Error::NameInUse { .. }
                    | Error::Timeout { .. },
                ) => errors += 1,
                Err(other) => panic!("{other} to {bytes:02x?}"),
            }
        }
    }
    assert!(errors > 1500 && joined > 100, "{errors} errors, {joined} teams");
    all_is_well("host-after");
}

#[test]
fn a_host_that_says_nothing_or_hangs_up_or_babbles_is_a_timeout_at_the_deadline() {
    type Way = fn(&Listener, &Socket);
    let ways: [(&str, Way); 3] = [
        ("host-silent", |_, _| {}),
        ("host-hangs-up", |_, s| rustix::net::shutdown(s, rustix::net::Shutdown::Both).unwrap()),
        ("host-babbles", |_, s| {
            let until = Instant::now() + 2 * SOON;
            while Instant::now() < until {
                say(s, &Answer::Arrived(vec![0, 7, u32::MAX]), &[]);
            }
        }),
    ];
    for (name, says) in ways {
        let started = Instant::now();
        let error = hosted(name, says, || {
            let error = Team::join(name, 0, 2, SOON).unwrap_err();
            assert!((SOON..AMPLE).contains(&started.elapsed()), "{name}: {:?}", started.elapsed());
            error
        });
        match error {
            Error::Timeout { missing, .. } => {
                assert_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [1], "{name}");
            }
            other => panic!("{name}: {other}"),
        }
    }
}
