//! What strangers can do to a team: at its desk, as its host, and in its control block.

use std::time::{Duration, Instant};

use super::messages::{Answer, Request};
use super::{Team, control};
use crate::error::Error;
use crate::hub::Nonce;
use crate::hub::hello::{self, Purpose};
use crate::hub::names::Address;
use crate::hub::socket::{self, Listener, Socket};
use crate::hub::tests::{AMPLE, all_is_well, borrow, greet, hub, mutations, reply, unsealed};
use crate::wire;

mod desk;
mod host;
mod scribble;

fn address(team: &str) -> Address {
    hub().namespace().address("team", team).unwrap()
}

/// A connection to a desk that somebody has opened, or will in a moment.
fn visit(team: &str) -> Socket {
    let until = Instant::now() + AMPLE;
    loop {
        match socket::connect(&address(team)) {
            Ok(socket) => return socket,
            Err(error) => assert!(Instant::now() < until, "nobody opens the desk of {team}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn join(team: &str, rank: u32, size: u32) -> Vec<u8> {
    let hub = "nobody".to_string();
    wire::encode(&Request::Join { team: team.to_string(), rank, size, caller: 1, hub, patience_ms: 1000 })
        .unwrap()
}

/// What a desk says.
fn answer(socket: &Socket) -> Option<Answer> {
    let packet = reply(socket)?;
    let (nonce, body) = hello::check(&packet.bytes, Purpose::Answer, hub().boot()).unwrap();
    assert_eq!(nonce, hub().nonce());
    Some(wire::decode(body).unwrap())
}

/// What a desk says to a packet.
fn ask(team: &str, packet: &[u8]) -> Option<Answer> {
    let socket = visit(team);
    socket.send(packet, &[]).unwrap();
    answer(&socket)
}

#[track_caller]
fn bad_peer<T: std::fmt::Debug>(outcome: Result<T, Error>, said: &str) {
    match outcome {
        Err(Error::BadPeer { what }) => assert!(what.contains(said), "{what:?} does not say {said:?}"),
        other => panic!("not refused with {said:?}: {other:?}"),
    }
}
