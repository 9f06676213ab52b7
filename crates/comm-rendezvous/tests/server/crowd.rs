//! A thousand clients, and ten thousand keys.

use comm_rendezvous::{Rendezvous, TcpServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::raw::{Bystander, Raw, get, soon, store, text, wait};

const CLIENTS: usize = 1000;

/// A test has both ends of each connection, and the usual limit of descriptors is 1024.
fn allow_descriptors(needed: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|now| now < needed) {
        let more = Rlimit { current: Some(needed), maximum: limit.maximum };
        setrlimit(Resource::Nofile, more).unwrap();
    }
}

#[test]
fn a_thousand_clients_at_once() {
    allow_descriptors(2 * CLIENTS as u64 + 200);
    let server = TcpServer::start().unwrap();
    let bystander = Bystander::new(&server);
    let mut clients: Vec<Raw> = (0..CLIENTS).map(|_| Raw::greeted(server.address())).collect();
    // All count themselves, and wait for the same key.
    for client in &mut clients {
        client.send(&[&[4][..], &text(b"/count"), &1u64.to_le_bytes(), &wait("/go")].concat());
    }
    let mut counts: Vec<u64> =
        clients.iter_mut().map(|client| u64::from_le_bytes(client.read(8).try_into().unwrap())).collect();
    counts.sort_unstable();
    assert!((1..).zip(&counts).all(|(n, &count)| n == count));
    bystander.is_well();
    store(&server).set("go", b"on", soon()).unwrap();
    for client in &mut clients {
        assert_eq!(client.read(1), [0]);
        client.send(&get("/go"));
    }
    assert!(clients.iter_mut().all(|client| client.read(10) == text(b"on")));
    // Half of them go without a word, the others are served.
    clients.truncate(CLIENTS / 2);
    assert!(clients.iter_mut().all(Raw::is_served));
    bystander.is_well();
}

#[test]
fn ten_thousand_keys() {
    const KEYS: usize = 10_000;
    let server = TcpServer::start().unwrap();
    let store = store(&server);
    let keys: Vec<String> = (0..KEYS).map(|n| format!("key {n}")).collect();
    let values: Vec<Vec<u8>> = (0..KEYS).map(|n| n.to_string().into_bytes()).collect();
    for chunk in (0..KEYS).collect::<Vec<_>>().chunks(1000) {
        let pairs: Vec<_> = chunk.iter().map(|&n| (keys[n].as_str(), values[n].as_slice())).collect();
        store.multi_set(&pairs, soon()).unwrap();
    }
    let all: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(store.multi_get(&all, soon()).unwrap(), values);
    assert_eq!(store.num_keys(soon()).unwrap(), KEYS);
    let mut listed = store.list_keys(soon()).unwrap();
    let mut expected = keys.clone();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for key in &keys[..100] {
        assert!(store.delete(key, soon()).unwrap());
    }
    assert_eq!(store.num_keys(soon()).unwrap(), KEYS - 100);
}

/// The same group, made and given up a thousand times, leaves nothing behind.
#[test]
fn a_thousand_times_the_same_names() {
    let server = TcpServer::start().unwrap();
    let (one, two) = (store(&server), store(&server));
    for round in 0..1000 {
        // Whoever comes first brings the id; in which order they come is another one each time.
        let (first, second) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let id = format!("id of round {round}");
        assert_eq!(first.compare_set("group/id", b"", id.as_bytes(), soon()).unwrap(), id.as_bytes());
        assert_eq!(second.get("group/id", soon()).unwrap(), id.as_bytes());
        assert_eq!(first.add("group/came", 1, soon()).unwrap(), 1);
        assert_eq!(second.add("group/came", 1, soon()).unwrap(), 2);
        assert!(second.delete("group/id", soon()).unwrap() && first.delete("group/came", soon()).unwrap());
    }
    assert_eq!(one.num_keys(soon()).unwrap(), 0);
}
