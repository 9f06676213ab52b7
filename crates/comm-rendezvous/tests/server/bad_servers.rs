//! What a client makes of servers that say nothing, too little, or nonsense.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use comm_rendezvous::{Error, Rendezvous, TcpStore};

use crate::raw::{AMPLE, soon};

/// A server that echoes the ping and says that it is none of ours, so that a client is content; then it answers the next
/// request with these bytes, and closes, or waits for ever.
fn answering(answer: &'static [u8], closes: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                // The greeting, the ping, and the question for a key of eleven bytes.
                let mut greeting = [0; 5 + 5 + 28];
                stream.read_exact(&mut greeting).unwrap();
                let echo = [&greeting[6..10], &[1]].concat();
                stream.write_all(&echo).unwrap();
                let mut request = [0; 1];
                if stream.read_exact(&mut request).is_ok() {
                    stream.write_all(answer).unwrap();
                    if !closes {
                        let _ = stream.read_to_end(&mut Vec::new());
                    }
                }
            });
        }
    });
    address
}

fn client(address: SocketAddr) -> TcpStore {
    TcpStore::connect(address.to_string(), AMPLE).unwrap()
}

#[test]
fn an_answer_that_is_cut_is_an_error() {
    for cut in 0..8 {
        let error = client(answering(&[0; 8][..cut], true)).add("n", 1, soon()).unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
    }
    assert_eq!(client(answering(&[9, 0, 0, 0, 0, 0, 0, 0], true)).add("n", 1, soon()).unwrap(), 9);
}

#[test]
fn a_length_without_bytes_is_not_believed() {
    let started = Instant::now();
    for (length, told) in [
        (&[0xff; 8], "text of 18446744073709551615 bytes"),
        (&[0, 0, 0, 1, 0, 0, 0, 0], "text of 16777216 bytes"),
    ] {
        let error = client(answering(length, false)).compare_set("k", b"", b"", soon()).unwrap_err();
        assert!(matches!(&error, Error::BadPeer { what, .. } if what.contains(told)), "{error}");
    }
    assert!(started.elapsed() < AMPLE);
}

#[test]
fn a_list_without_end_is_not_taken() {
    let key = [&8192u64.to_le_bytes()[..], &[b'k'; 8192]].concat();
    let answer = [i64::MAX.to_le_bytes().to_vec(), key.repeat(8192)].concat();
    let error = client(answering(answer.leak(), false)).list_keys(AMPLE).unwrap_err();
    assert!(matches!(&error, Error::BadPeer { what, .. } if what.contains("bytes of keys")), "{error}");
}

/// A value that was set ends every wait for a queue of that key, which has nothing: who pops tries now and then, and not all the time.
#[test]
fn who_pops_what_was_set_does_not_spin() {
    const TIME: Duration = Duration::from_millis(300);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let tries = std::thread::spawn(move || {
        let (mut stream, mut tries) = (listener.accept().unwrap().0, 0);
        let mut greeting = [0; 5 + 5 + 28];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&[&greeting[6..10], &[1]].concat()).unwrap();
        // A wait for one key of two bytes, and the question for the first value of a queue of that key.
        let (mut wait, mut pop) = ([0; 1 + 8 + 8 + 2], [0; 1 + 8 + 2]);
        while stream.read_exact(&mut wait).is_ok() {
            assert_eq!(wait[0], 6);
            stream.write_all(&[0]).unwrap();
            if stream.read_exact(&mut pop).is_ok() {
                assert_eq!(pop[0], 15);
                stream.write_all(&[0; 8]).unwrap();
                tries += 1;
            }
        }
        tries
    });
    let error = client(address).queue_pop("q", TIME).unwrap_err();
    assert!(
        matches!(&error, Error::Timeout { waited, why, .. } if *waited >= TIME && why.contains("not pushed")),
        "{error}"
    );
    // Each pause is at least a millisecond.
    let tries = tries.join().unwrap();
    assert!((1..100).contains(&tries), "{tries} tries");
}

#[test]
fn nonsense_is_an_error() {
    let error = client(answering(&[2], false)).wait(&["k"], soon()).unwrap_err();
    assert!(matches!(&error, Error::BadPeer { what, .. } if what.contains("ends a wait with 2")), "{error}");
    let error = client(answering(&[1, 2, 3, 4], false)).set("k", b"", soon()).unwrap_err();
    assert!(matches!(&error, Error::BadPeer { what, .. } if what.contains("echo")), "{error}");
    // How many of something there are is never less than none.
    let less = || client(answering(&[0xff; 8], false));
    let refused = [
        less().queue_try_pop("k", soon()).err(),
        less().queue_len("k", soon()).err(),
        less().num_keys(soon()).err(),
        less().list_keys(soon()).err(),
    ];
    for error in refused {
        assert!(
            matches!(&error, Some(Error::BadPeer { what, .. }) if what.contains("there are -1 ")),
            "{error:?}"
        );
    }
}

#[test]
fn silence_is_a_time_out() {
    let time = Duration::from_millis(200);
    for answer in [&[][..], &[0; 7]] {
        let client = client(answering(answer, false));
        let started = Instant::now();
        let error = client.add("n", 1, time.into()).unwrap_err();
        assert!(matches!(&error, Error::Timeout { why, .. } if why.contains("does not answer")), "{error}");
        assert!(started.elapsed() >= time);
    }
    // One that takes connections and does nothing, as a process that is stopped does.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = TcpStore::connect(listener.local_addr().unwrap().to_string(), time).unwrap_err();
    assert!(matches!(&error, Error::Timeout { why, .. } if why.contains("does not answer")), "{error}");
}

/// What comes late of one operation is not the answer to the next.
#[test]
fn an_answer_that_is_late_is_nobodys() {
    let server = comm_rendezvous::TcpServer::start().unwrap();
    let store = crate::raw::store(&server);
    for n in 0..20 {
        let key = format!("{n}");
        store.wait(&[&key], Duration::from_millis(1).into()).unwrap_err();
        store.set(&key, b"", soon()).unwrap();
        assert_eq!(store.add("n", 1, soon()).unwrap(), n + 1);
    }
}

#[test]
fn who_echoes_wrongly_is_no_such_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            stream.unwrap().write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        }
    });
    let error = TcpStore::connect(address.to_string(), AMPLE).unwrap_err();
    assert!(matches!(error, Error::BadPeer { .. }), "{error}");
}

/// What cannot be an address is said at once, and not waited for.
#[test]
fn an_address_has_a_port() {
    for address in ["localhost", "localhost:", "localhost:http", "", "127.0.0.1:65536", "127.0.0.1:0"] {
        let refused = TcpStore::connect(address, soon());
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{address:?}: {refused:?}");
    }
}
