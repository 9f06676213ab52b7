//! A shared key: what is looked at before it is proved, and who gets in.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use comm_rendezvous::{Error, Rendezvous, ServerOptions, SharedKey, TcpOptions, TcpServer};

use crate::raw::{AMPLE, GREETING, Raw, set, soon};

fn key(bytes: &[u8; 20]) -> SharedKey {
    SharedKey::new(*bytes).unwrap()
}

fn keyed() -> TcpServer {
    ServerOptions::new().key(key(b"the key of this job.")).start().unwrap()
}

fn refused(options: TcpOptions, server: &TcpServer, why: &str) {
    let error = options.connect(server.address().to_string(), AMPLE).unwrap_err();
    assert!(matches!(&error, Error::BadPeer { what, .. } if what.contains(why)), "{error}");
}

#[test]
fn only_the_same_key_opens() {
    let server = keyed();
    let store =
        TcpOptions::new().key(key(b"the key of this job.")).connect(server.address().to_string(), AMPLE);
    store.unwrap().set("k", b"v", soon()).unwrap();
    refused(TcpOptions::new().key(key(b"the key of that job.")), &server, "no key, or another one");
    // A server that dies in this moment looks the same.
    let error = TcpOptions::new().connect(server.address().to_string(), AMPLE).unwrap_err();
    assert!(matches!(&error, Error::Lost { why, .. } if why.contains("it may want a key")), "{error}");
    let open = TcpServer::start().unwrap();
    refused(TcpOptions::new().key(key(b"the key of this job.")), &open, "no key, or another one");
}

/// What would be requests is not looked at, let alone done.
#[test]
fn nothing_is_parsed_before_the_proof() {
    let server = ServerOptions::new().key(key(b"the key of this job.")).start().unwrap();
    let store = TcpOptions::new()
        .key(key(b"the key of this job."))
        .connect(server.address().to_string(), AMPLE)
        .unwrap();
    for first in [GREETING, b"comm-kex", b"\xff", &[0; 72]] {
        let mut raw = Raw::connect(server.address());
        raw.send(first);
        raw.send(&set("/smuggled", b"in"));
        raw.is_closed();
    }
    // A hello, and requests in the place of a proof.
    let mut raw = Raw::connect(server.address());
    raw.send(b"comm-key");
    raw.send(&[7; 32]);
    raw.read(32);
    raw.send(&[GREETING, &set("/smuggled", b"in and on and on")].concat());
    raw.is_closed();
    assert_eq!(store.num_keys(AMPLE).unwrap(), 0);
}

/// Whoever has heard a proof cannot use it: the server draws other words each time.
#[test]
fn a_proof_is_good_once() {
    let server = keyed();
    let mut words = Vec::new();
    for _ in 0..3 {
        let mut raw = Raw::connect(server.address());
        raw.send(b"comm-key");
        raw.send(&[7; 32]);
        words.push(raw.read(32));
        raw.send(&[9; 32]);
        raw.is_closed();
    }
    assert!(words[0] != words[1] && words[1] != words[2] && words[0] != words[2]);
}

#[test]
fn who_stops_in_the_proof_is_let_go() {
    let mut limits = comm_rendezvous::Limits::default();
    limits.greeting = Duration::from_millis(200);
    let server = ServerOptions::new().key(key(b"the key of this job.")).limits(limits).start().unwrap();
    for cut in [0, 3, 8, 39, 40] {
        let mut raw = Raw::connect(server.address());
        raw.send(&[&b"comm-key"[..], &[7; 32]].concat()[..cut]);
        raw.is_closed();
    }
}

/// Nor does a client say anything to a server that only takes the client's proof.
#[test]
fn a_server_proves_it_as_well() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let (mut hello, mut proof, mut rest) = ([0; 40], [0; 32], Vec::new());
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&[7; 32]).unwrap();
        stream.read_exact(&mut proof).unwrap();
        // It has nothing better than what the client has said itself.
        stream.write_all(&proof).unwrap();
        stream.read_to_end(&mut rest).unwrap();
        rest
    });
    let options = TcpOptions::new().key(key(b"the key of this job."));
    let error = options.connect(address.to_string(), AMPLE).unwrap_err();
    assert!(matches!(&error, Error::BadPeer { what, .. } if what.contains("does not prove")), "{error}");
    assert_eq!(heard.join().unwrap(), b"");
}
