//! Strangers at the desk of a join, while a rank waits there for another.

use super::*;

/// Runs `body` while rank 0 of two waits, then lets rank 1 come: whatever happened, the two meet.
fn while_one_waits(team: &str, body: impl FnOnce()) {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Team::join(team, 0, 2, AMPLE).unwrap().barrier(AMPLE).unwrap());
        let ask = greet(Purpose::Join, Nonce::draw().unwrap(), &wire::encode(&Request::WhoArrived).unwrap());
        while self::ask(team, &ask) != Some(Answer::Arrived(vec![0])) {}
        body();
        assert!(!first.is_finished());
        Team::join(team, 1, 2, AMPLE).unwrap().barrier(AMPLE).unwrap();
        first.join().unwrap();
    });
}

fn refused(answer: Option<Answer>) -> String {
    match answer {
        Some(Answer::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn another_build_is_told_both_builds_and_the_others_go_on() {
    while_one_waits("desk-build", || {
        for place in [8, 12, 16, 23] {
            let mut packet = greet(Purpose::Join, Nonce::draw().unwrap(), &join("desk-build", 1, 2));
            packet[place] ^= 0x10;
            packet[64..128].fill(0);
            packet[64..80].copy_from_slice(b"comm-core 77 (x)");
            let why = refused(ask("desk-build", &packet));
            assert!(why.contains("comm-core 77 (x)") && why.contains(&crate::layout::build()), "{why}");
        }
    });
}

#[test]
fn a_socket_answers_for_its_own_name_alone() {
    // As when two names had the same hash.
    while_one_waits("desk-name", || {
        for other in ["desk-nam", "desk-name2", "desk-namf", "", "\0"] {
            let packet = greet(Purpose::Join, Nonce::draw().unwrap(), &join(other, 1, 2));
            let why = refused(ask("desk-name", &packet));
            assert!(why.contains("\"desk-name\""), "{why}");
        }
    });
}

#[test]
fn ranks_and_sizes_that_cannot_be_are_refused() {
    while_one_waits("desk-rank", || {
        for (rank, size) in
            [(0, 0), (2, 2), (u32::MAX, 2), (1, 129), (1, u32::MAX), (u32::MAX, u32::MAX), (128, 128)]
        {
            let packet = greet(Purpose::Join, Nonce::draw().unwrap(), &join("desk-rank", rank, size));
            let why = refused(ask("desk-rank", &packet));
            assert!(why.contains(&format!("rank {rank} of {size}")), "{why}");
        }
    });
}

#[test]
fn a_request_cut_or_flipped_anywhere_is_refused() {
    while_one_waits("desk-flip", || {
        // Of another name, so that what is changed into a sound request does not get in.
        for body in [join("xesk-flop", 1, 2), wire::encode(&Request::WhoArrived).unwrap()] {
            let packet = greet(Purpose::Join, Nonce::draw().unwrap(), &body);
            for bytes in mutations(&packet) {
                match ask("desk-flip", &bytes) {
                    Some(Answer::Refused(_)) => {}
                    Some(Answer::Arrived(ranks)) => assert_eq!(ranks, [0]),
                    other => panic!("{other:?} to {bytes:02x?}"),
                }
            }
        }
    });
}

#[test]
fn a_second_request_is_read_without_a_greeting() {
    while_one_waits("desk-twice", || {
        let socket = visit("desk-twice");
        let ask = wire::encode(&Request::WhoArrived).unwrap();
        socket.send(&greet(Purpose::Join, Nonce::draw().unwrap(), &ask), &[]).unwrap();
        for _ in 0..500 {
            assert_eq!(answer(&socket), Some(Answer::Arrived(vec![0])));
            socket.send(&ask, &[]).unwrap();
        }
        assert_eq!(answer(&socket), Some(Answer::Arrived(vec![0])));
        socket.send(&greet(Purpose::Join, Nonce::draw().unwrap(), &ask), &[]).unwrap();
        refused(answer(&socket));
        assert!(reply(&socket).is_none(), "and closed");
    });
}

#[test]
fn the_guard_of_a_live_team_is_as_careful() {
    let team = Team::join("desk-guard", 0, 1, AMPLE).unwrap();
    let body = join("desk-guard", 0, 1);
    let packet = greet(Purpose::Join, Nonce::draw().unwrap(), &body);
    assert_eq!(ask("desk-guard", &packet), Some(Answer::InUse));
    for bytes in mutations(&packet) {
        match ask("desk-guard", &bytes) {
            Some(Answer::Refused(_) | Answer::InUse) => {}
            Some(Answer::Later) => assert!(bytes.len() == packet.len()),
            other => panic!("{other:?} to {bytes:02x?}"),
        }
    }
    team.barrier(AMPLE).unwrap();
    drop(team);
    Team::join("desk-guard", 0, 1, AMPLE).unwrap();
}

#[test]
fn an_abort_handle_does_not_hold_the_name() {
    let team = Team::join("desk-handle", 0, 1, AMPLE).unwrap();
    let handle = team.abort_handle();
    drop(team);
    Team::join("desk-handle", 0, 1, Duration::from_secs(5)).unwrap().barrier(AMPLE).unwrap();
    handle.abort("a team that is gone");
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    while_one_waits("desk-fds", || {
        let pipe = || {
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
            (read, vec![write])
        };
        let (read, write) = pipe();
        let ask = wire::encode(&Request::WhoArrived).unwrap();
        let socket = visit("desk-fds");
        socket.send(&greet(Purpose::Join, Nonce::draw().unwrap(), &ask), &borrow(&write)).unwrap();
        drop(write);
        assert_eq!(answer(&socket), Some(Answer::Arrived(vec![0])));
        let until = Instant::now() + AMPLE;
        // The end of the pipe shows that nobody holds its other end any more.
        while rustix::io::read(&read, &mut [0; 1]) != Ok(0) {
            assert!(Instant::now() < until);
        }
    });
}

#[test]
fn a_join_that_has_failed_gives_its_name_back_when_its_time_is_over() {
    // Of three ranks one never comes to be told, and nobody comes again.
    let soon = Duration::from_millis(300);
    std::thread::scope(|scope| {
        for (rank, size) in [(0, 3), (1, 4)] {
            scope.spawn(move || {
                let error = Team::join("desk-forget", rank, size, soon).unwrap_err();
                assert!(matches!(error, Error::Mismatch { field: "size", .. }), "{error}");
            });
        }
    });
    let until = Instant::now() + AMPLE;
    while socket::connect(&address("desk-forget")).is_ok() {
        assert!(Instant::now() < until, "the desk is closed");
        std::thread::sleep(Duration::from_millis(10));
    }
}
