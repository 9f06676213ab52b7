//! Messages that are cut, or have wrong lengths, or are no messages.

use std::net::Shutdown;

use comm_rendezvous::{Rendezvous, TcpServer};

use crate::raw::{Bystander, GREETING, Raw, store, text};

/// One of each request but the greeting, and whether it is answered when nothing is there.
fn messages() -> Vec<Vec<u8>> {
    let (key, value) = (text(b"/key"), text(b"value"));
    let many =
        |code: u8, texts: &[&[u8]], count: u64| [&[code][..], &count.to_le_bytes(), &texts.concat()].concat();
    let number = 2u64.to_le_bytes();
    let with = |code: u8, rest: &[&[u8]]| [&[code][..], &rest.concat()].concat();
    vec![
        with(1, &[&key, &value]),
        with(2, &[&key, &text(b""), &value]),
        with(3, &[&key]),
        with(4, &[&text(b"/n"), &number]),
        many(5, &[&key, &value], 2),
        many(6, &[&text(b"/never"), &text(b"/ever")], 2),
        with(7, &[]),
        with(8, &[&key]),
        with(9, &[&key, &value]),
        many(10, &[&key, &value], 2),
        many(11, &[&key, &value], 1),
        with(12, &[]),
        with(13, &[b"ping"]),
        with(14, &[&text(b"/q"), &value]),
        with(15, &[&text(b"/q")]),
        with(16, &[&text(b"/q")]),
        with(17, &[]),
        with(18, &[&text(b"/bar"), &number]),
    ]
}

#[test]
fn each_message_cut_at_each_byte() {
    let server = TcpServer::start().unwrap();
    let bystander = Bystander::new(&server);
    for message in messages() {
        for cut in 0..message.len() {
            // Closed, or half closed, in the middle.
            for whole in [true, false] {
                let mut raw = Raw::greeted(server.address());
                raw.send(&message[..cut]);
                if !whole {
                    raw.0.shutdown(Shutdown::Write).unwrap();
                    raw.is_closed();
                }
            }
        }
        bystander.is_well();
    }
    for cut in 0..GREETING.len() {
        let mut raw = Raw::connect(server.address());
        raw.send(&GREETING[..cut]);
        raw.0.shutdown(Shutdown::Write).unwrap();
        raw.is_closed();
    }
    bystander.is_well();
    // Nothing of what was cut has been done.
    assert_eq!(store(&server).num_keys(crate::raw::AMPLE).unwrap(), 2);
}

#[test]
fn each_message_with_each_length_wrong() {
    let server = TcpServer::start().unwrap();
    let bystander = Bystander::new(&server);
    for message in messages() {
        for at in 1..message.len().saturating_sub(7) {
            for wrong in [u64::MAX, 1 << 63, 1 << 40, (8 << 20) + 1, (8 << 10) + 1] {
                let mut bytes = message.clone();
                bytes[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
                let mut raw = Raw::greeted(server.address());
                raw.send(&bytes);
                raw.0.shutdown(Shutdown::Write).unwrap();
                raw.is_closed();
            }
        }
        bystander.is_well();
    }
}

#[test]
fn lengths_beyond_the_limits_end_the_connection_at_once() {
    let server = TcpServer::start().unwrap();
    let bystander = Bystander::new(&server);
    let long = |code: u8, length: u64| [&[code][..], &length.to_le_bytes()].concat();
    let value = [&[1][..], &text(b"/key"), &((8u64 << 20) + 1).to_le_bytes()].concat();
    for message in [
        long(3, (8 << 10) + 1),
        long(1, u64::MAX),
        long(6, 128 * 1024 + 1),
        long(10, u64::MAX),
        value,
        vec![19],
        vec![255],
        GREETING.to_vec(),
    ] {
        // The connection stays open at this end, and nothing else is sent.
        let mut raw = Raw::greeted(server.address());
        raw.send(&message);
        raw.is_closed();
    }
    bystander.is_well();
}

#[test]
fn whoever_does_not_greet_is_not_served() {
    let server = TcpServer::start().unwrap();
    let bystander = Bystander::new(&server);
    let wrong_number = [0, 0xce, 0xf7, 0x85, 0x3d];
    for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[13, 1, 2, 3, 4], &wrong_number, &[1], &[22, 3, 1, 2, 0]] {
        let mut raw = Raw::connect(server.address());
        raw.send(first);
        raw.is_closed();
    }
    bystander.is_well();
}

#[test]
fn a_message_in_single_bytes_is_a_message() {
    let server = TcpServer::start().unwrap();
    let mut raw = Raw::connect(server.address());
    raw.0.set_nodelay(true).unwrap();
    for byte in [GREETING, &crate::raw::set("/slowly", b"but surely"), b"\x0dping"].concat() {
        raw.send(&[byte]);
    }
    assert_eq!(raw.read(4), b"ping");
    assert_eq!(store(&server).get("slowly", crate::raw::soon()).unwrap(), b"but surely");
}

#[test]
fn answers_come_in_order_also_when_the_client_does_not_wait_for_them() {
    let server = TcpServer::start().unwrap();
    let mut raw = Raw::greeted(server.address());
    let asks: Vec<u8> = (0..5000u32)
        .flat_map(|n| [&[13][..], &n.to_le_bytes(), &[4], &text(b"/n"), &1u64.to_le_bytes()].concat())
        .collect();
    let mut writer = raw.0.try_clone().unwrap();
    std::thread::scope(|s| {
        s.spawn(move || std::io::Write::write_all(&mut writer, &asks).unwrap());
        for n in 0..5000u32 {
            assert_eq!(raw.read(4), n.to_le_bytes());
            assert_eq!(raw.read(8), u64::from(n + 1).to_le_bytes());
        }
    });
}

#[test]
fn who_asks_for_something_while_it_waits_is_let_go() {
    let server = TcpServer::start().unwrap();
    let mut raw = Raw::greeted(server.address());
    raw.send(&[crate::raw::wait("/never"), vec![7]].concat());
    raw.is_closed();
    // Giving up is something else.
    let mut raw = Raw::greeted(server.address());
    raw.send(&[crate::raw::wait("/never"), vec![12]].concat());
    assert_eq!(raw.read(1), [1]);
    assert!(raw.is_served());
}
