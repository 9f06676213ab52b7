//! Clients that are slow, silent, or do not read what they have asked for.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use comm_rendezvous::{Limits, Rendezvous, ServerOptions};

use crate::raw::{Bystander, GREETING, Raw, get, set, soon, store, text, wait};

/// A server that is impatient.
fn server(change: impl FnOnce(&mut Limits)) -> comm_rendezvous::TcpServer {
    let mut limits = Limits::default();
    change(&mut limits);
    ServerOptions::new().limits(limits).start().unwrap()
}

const SHORT: Duration = Duration::from_millis(200);

#[test]
fn who_does_not_greet_is_let_go() {
    let server = server(|limits| limits.greeting = SHORT);
    let bystander = Bystander::new(&server);
    let started = Instant::now();
    let mut silent = Raw::connect(server.address());
    let mut slow = Raw::connect(server.address());
    slow.send(&GREETING[..2]);
    silent.is_closed();
    slow.is_closed();
    assert!(started.elapsed() >= SHORT);
    bystander.is_well();
}

/// Saying it byte by byte gains no time.
#[test]
fn who_greets_too_slowly_is_let_go() {
    let server = server(|limits| limits.greeting = SHORT);
    let mut slow = Raw::connect(server.address());
    slow.send(&GREETING[..1]);
    std::thread::sleep(SHORT / 2);
    slow.send(&GREETING[1..2]);
    std::thread::sleep(SHORT);
    slow.send(&GREETING[2..]);
    slow.is_closed();
}

#[test]
fn who_stops_in_a_request_is_let_go_and_who_asks_for_nothing_is_not() {
    let server = server(|limits| limits.stall = SHORT);
    let bystander = Bystander::new(&server);
    let mut idle = Raw::greeted(server.address());
    let mut waiting = Raw::greeted(server.address());
    waiting.send(&wait("/late"));
    let started = Instant::now();
    let mut stopped = Raw::greeted(server.address());
    stopped.send(&set("/key", b"value")[..20]);
    stopped.is_closed();
    assert!(started.elapsed() >= SHORT);
    std::thread::sleep(2 * SHORT);
    assert!(idle.is_served());
    bystander.is_well();
    store(&server).set("late", b"", soon()).unwrap();
    assert_eq!(waiting.read(1), [0]);
}

/// Its answers stay at the server up to a bound, after which it is not read from; others go on.
#[test]
fn who_does_not_read_is_held_back_and_then_let_go() {
    let server = server(|limits| limits.stall = Duration::from_millis(500));
    let bystander = Bystander::new(&server);
    store(&server).set("large", &vec![7; 4 << 20], soon()).unwrap();
    let mut greedy = Raw::greeted(server.address());
    greedy.0.set_write_timeout(Some(SHORT)).unwrap();
    let asks = get("/large").repeat(1000);
    for _ in 0..100 {
        // Fails once the server does not read any more.
        greedy.send(&asks);
    }
    bystander.is_well();
    // It does not read, so it learns of the end when it writes.
    comm_testkit::eventually("it is let go", || {
        let written = std::io::Write::write(&mut greedy.0, b"\x07");
        written.is_err_and(|e| !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    })
    .unwrap();
    bystander.is_well();
}

/// One that reads slowly, but reads, gets all it has asked for.
#[test]
fn who_reads_slowly_is_served() {
    let server = server(|limits| limits.stall = Duration::from_secs(20));
    let value: Vec<u8> = (0..1 << 20).map(|n: u32| n as u8).collect();
    store(&server).set("large", &value, soon()).unwrap();
    let mut slow = Raw::greeted(server.address());
    slow.send(&[get("/large").repeat(8), b"\x0dping".to_vec()].concat());
    for _ in 0..8 {
        assert_eq!(slow.read(8), (1u64 << 20).to_le_bytes());
        for part in value.chunks(1 << 18) {
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(slow.read(part.len()), part);
        }
    }
    assert_eq!(slow.read(4), b"ping");
}

/// Requests that never end take memory, which is limited for all together: the largest goes first.
#[test]
fn requests_under_way_have_one_bound() {
    let server = server(|limits| limits.buffers = 8 << 20);
    let bystander = Bystander::new(&server);
    let begin = |announced: u64, size: usize| {
        let mut raw = Raw::greeted(server.address());
        raw.send(&[&[1][..], &text(b"/key"), &announced.to_le_bytes(), &vec![0; size]].concat());
        raw
    };
    let mut small = begin(2 << 20, 1 << 20);
    let mut large: Vec<Raw> = (0..3).map(|_| begin(8 << 20, 4 << 20)).collect();
    // Of the three large ones not all have room.
    large.iter_mut().for_each(|raw| raw.0.set_read_timeout(Some(Duration::from_millis(50))).unwrap());
    let is_closed = |raw: &mut Raw| match std::io::Read::read(&mut raw.0, &mut [0]) {
        Ok(n) => n == 0,
        Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    };
    comm_testkit::eventually("one of them is let go", || large.iter_mut().any(is_closed)).unwrap();
    small.send(&vec![0; 1 << 20]);
    assert!(small.is_served());
    bystander.is_well();
}
