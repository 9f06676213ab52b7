//! What a server takes, and what becomes of who asks for more.

use std::time::Duration;

use comm_rendezvous::{Error, Limits, Rendezvous, ServerOptions, TcpServer, TcpStore};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::raw::{Bystander, Raw, soon, store};

fn server(change: impl FnOnce(&mut Limits)) -> TcpServer {
    let mut limits = Limits::default();
    change(&mut limits);
    ServerOptions::new().limits(limits).start().unwrap()
}

#[test]
fn it_listens_on_loopback() {
    assert!(TcpServer::start().unwrap().address().ip().is_loopback());
    let told = ServerOptions::new().ip(std::net::Ipv4Addr::UNSPECIFIED).start().unwrap();
    assert!(told.address().ip().is_unspecified());
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], told.address().port()));
    assert!(Raw::greeted(local).is_served());
}

#[test]
fn a_port_that_is_taken_is_an_error_that_names_it() {
    let server = TcpServer::start().unwrap();
    let error = ServerOptions::new().port(server.address().port()).start().unwrap_err();
    assert!(error.to_string().contains(&server.address().to_string()), "{error}");
}

#[test]
fn who_stores_too_much_is_told_by_the_end_of_the_connection() {
    let server = server(|limits| (limits.store, limits.entries) = (1000, 10));
    let bystander = Bystander::new(&server);
    let store = store(&server);
    let error = store.set("large", &[0; 1000], soon()).unwrap_err();
    assert!(matches!(&error, Error::Lost { op, .. } if op.contains("set \"large\"")), "{error}");
    bystander.is_well();
    // The next operation connects anew.
    store.set("small", &[0; 100], soon()).unwrap();
    let many = (0..20).map(|n| store.set(&format!("{n}"), b"", soon())).find_map(Result::err).unwrap();
    assert!(matches!(many, Error::Lost { .. }), "{many}");
    assert_eq!(store.num_keys(soon()).unwrap(), 10);
    bystander.is_well();
}

#[test]
fn clients_are_limited_and_the_silent_ones_go_first() {
    let server = server(|limits| (limits.clients, limits.greeting) = (4, Duration::from_secs(3600)));
    let mut first = Raw::greeted(server.address());
    assert!(first.is_served());
    let mut silent: Vec<Raw> = (0..3).map(|_| Raw::connect(server.address())).collect();
    // Each that comes takes the place of the one that has been silent for longest.
    let mut others = Vec::new();
    for raw in &mut silent {
        others.push(Raw::greeted(server.address()));
        assert!(others.iter_mut().all(Raw::is_served));
        raw.is_closed();
    }
    // Nobody is silent now.
    let mut one_too_many = Raw::greeted(server.address());
    one_too_many.is_closed();
    assert!(first.is_served() && others.iter_mut().all(Raw::is_served));
    drop(others.pop());
    comm_testkit::eventually("there is room again", || Raw::greeted(server.address()).is_served()).unwrap();
}

/// Run by itself in a process that may have few descriptors, by the same test in one that may have more.
#[test]
fn who_is_silent_keeps_no_descriptor_that_others_need() {
    const VARIABLE: &str = "COMM_TEST_FEW_DESCRIPTORS";
    if let Ok(port) = std::env::var(VARIABLE) {
        let limit = Rlimit { current: Some(64), maximum: getrlimit(Resource::Nofile).maximum };
        setrlimit(Resource::Nofile, limit).unwrap();
        let mut limits = Limits::default();
        limits.greeting = Duration::from_secs(3600);
        let options = ServerOptions::new().port(port.parse().unwrap()).limits(limits);
        let _server = options.start().unwrap();
        // Until the other process has gone on.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let address = TcpServer::start().unwrap().address();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "limits::who_is_silent_keeps_no_descriptor_that_others_need"]);
    child.env(VARIABLE, address.port().to_string());
    child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut child = child.spawn().unwrap();
    let connect = || TcpStore::connect(address.to_string(), Duration::from_secs(20));
    let first = connect().unwrap();
    let silent: Vec<Raw> = (0..200).map(|_| Raw::connect(address)).collect();
    let served = connect().and_then(|store| store.set("k", b"v", soon()));
    let seen = first.get("k", Duration::from_secs(20).into());
    drop(silent);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    served.unwrap();
    assert_eq!(seen.unwrap(), b"v");
}

#[test]
fn keys_that_nobody_asks_for_end_with_their_lease() {
    let server = server(|limits| limits.lease = Some(Duration::from_millis(400)));
    let store = store(&server);
    store.set("kept", b"1", soon()).unwrap();
    store.set("left", b"1", soon()).unwrap();
    store.queue_push("queue", b"1", soon()).unwrap();
    comm_testkit::eventually("the lease ends", || {
        assert_eq!(store.get("kept", soon()).unwrap(), b"1");
        !store.check(&["left"], soon()).unwrap() && store.queue_len("queue", soon()).unwrap() == 0
    })
    .unwrap();
    assert_eq!(store.get("kept", soon()).unwrap(), b"1");
}

#[test]
fn dropping_it_ends_it() {
    let server = TcpServer::start().unwrap();
    let address = server.address();
    let mut raw = Raw::greeted(address);
    assert!(raw.is_served());
    drop(server);
    raw.is_closed();
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn limits_that_limit_nothing_are_no_overflow() {
    let server = server(|limits| (limits.value, limits.request) = (usize::MAX, usize::MAX));
    let bystander = Bystander::new(&server);
    let mut raw = Raw::greeted(server.address());
    let set = [&[1][..], &2u64.to_le_bytes(), b"/k", &u64::MAX.to_le_bytes()].concat();
    raw.send(&set);
    bystander.is_well();
}

/// Keys that are few enough and short enough, and too much together: said before anything is sent.
#[test]
fn a_request_that_is_too_large_is_not_sent() {
    let server = TcpServer::start().unwrap();
    let store = store(&server);
    let keys: Vec<String> = (0..comm_rendezvous::MAX_KEYS).map(|n| format!("{n:0>1000}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for refused in [store.check(&keys, soon()).map(drop), store.wait(&keys, soon())] {
        assert!(matches!(&refused, Err(Error::TooLarge { limit, .. }) if *limit == 64 << 20), "{refused:?}");
    }
    // As large as it can be, counted as the server counts.
    let values: Vec<Vec<u8>> = (0..8).map(|_| vec![7; comm_rendezvous::MAX_VALUE - 100]).collect();
    let pairs: Vec<(&str, &[u8])> =
        ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter().zip(values.iter().map(Vec::as_slice)).collect();
    store.multi_set(&pairs, soon()).unwrap();
}
