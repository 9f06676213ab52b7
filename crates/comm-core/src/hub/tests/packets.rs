//! Packets and the end of a connection.

use std::sync::mpsc::sync_channel;

use rustix::io::Errno;

use super::*;

/// Reads without a pause until there is something to see.
fn spin(socket: &Socket) -> Option<Packet> {
    loop {
        match socket.receive() {
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(other) => panic!("{other}"),
            Ok(packet) => return packet,
        }
    }
}

#[test]
fn the_last_packet_before_the_end_is_not_lost() {
    let (give, take) = sync_channel::<Socket>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for socket in take {
                socket.send(b"last words", &[]).unwrap();
            }
        });
        for round in 0..20_000 {
            let (theirs, ours) = Socket::pair();
            give.send(theirs).unwrap();
            let packet = spin(&ours).unwrap_or_else(|| panic!("round {round}: the end came first"));
            assert_eq!(packet.bytes, b"last words");
            assert!(spin(&ours).is_none());
        }
        drop(give);
    });
}

#[test]
fn an_empty_packet_is_not_the_end() {
    let (theirs, ours) = Socket::pair();
    theirs.send(b"", &[]).unwrap();
    assert_eq!(ours.receive().unwrap_err(), Errno::AGAIN);
    theirs.send(b"", &[]).unwrap();
    theirs.send(b"words", &[]).unwrap();
    assert_eq!(ours.receive().unwrap().unwrap().bytes, b"words");
    drop(theirs);
    assert!(ours.receive().unwrap().is_none());
}

#[test]
fn what_a_connection_broke_with_has_not_been_sent() {
    let (theirs, ours) = Socket::pair();
    let sender = Sender::new(ours, std::sync::Weak::new());
    sender.push(b"heard".to_vec(), Vec::new());
    assert!(sender.is_idle());
    drop(theirs);
    for _ in 0..2 {
        sender.push(b"not heard".to_vec(), Vec::new());
        assert!(!sender.is_idle(), "nobody was there to be sent to");
    }
}
