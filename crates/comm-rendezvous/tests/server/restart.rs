//! Servers that end, come back, or belong to another run.

use std::time::{Duration, Instant};

use comm_rendezvous::{Error, Rendezvous, ServerOptions, TcpOptions, TcpServer, TcpStore};

use crate::raw::{AMPLE, soon, store};

/// Starts one where another one was.
fn again(server: TcpServer, run: &str) -> TcpServer {
    let port = server.address().port();
    drop(server);
    ServerOptions::new().port(port).run(run).start().unwrap()
}

#[test]
fn a_server_that_has_been_restarted_is_another_one() {
    let server = ServerOptions::new().run("run").start().unwrap();
    let store = store(&server);
    store.set("k", b"v", soon()).unwrap();
    let server = again(server, "run");
    for _ in 0..3 {
        let error = store.get("k", soon()).unwrap_err();
        assert!(matches!(error, Error::Restarted { .. }), "{error}");
    }
    let error = store.set("k", b"v", soon()).unwrap_err();
    assert!(error.to_string().contains("has been restarted: it was server "), "{error}");
    assert!(!crate::raw::store(&server).check(&["k"], soon()).unwrap());
}

/// A forked child has connections of its own, which it uses again, and does not speak on those of its parent.
#[test]
fn a_forked_child_keeps_few_connections() {
    let server = TcpServer::start().unwrap();
    let store = store(&server);
    store.set("k", b"v", soon()).unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let child = comm_testkit::forked::in_child(|_| {
        store.get("k", soon()).unwrap();
        let before = descriptors();
        for _ in 0..20 {
            assert_eq!(store.get("k", soon()).unwrap(), b"v");
        }
        let after = descriptors();
        // A wait that is given up: on a connection of the parent's it would go on, since that stays open.
        store.wait(&["never"], Duration::from_millis(10).into()).unwrap_err();
        i32::from(after > before)
    });
    assert_eq!(child.unwrap().exit, Some(0));
    assert_eq!(store.get("k", soon()).unwrap(), b"v");
}

#[test]
fn a_wait_ends_with_its_server() {
    let server = TcpServer::start().unwrap();
    let store = store(&server);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| store.get("never", soon()));
        let other = crate::raw::store(&server);
        other.set("x", b"", soon()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        drop(server);
        let error = waiting.join().unwrap().unwrap_err();
        // It may have come too late to wait, and finds nobody.
        assert!(matches!(error, Error::Lost { .. } | Error::Timeout { .. }), "{error}");
    });
}

#[test]
fn another_run_is_told_apart() {
    let server = ServerOptions::new().run("job 1").start().unwrap();
    let to = server.address().to_string();
    TcpOptions::new().run("job 1").connect(&to, AMPLE).unwrap();
    TcpOptions::new().connect(&to, AMPLE).unwrap();
    let error = TcpOptions::new().run("job 2").connect(&to, AMPLE).unwrap_err();
    assert!(
        matches!(&error, Error::OtherRun { theirs, ours, .. } if theirs == "job 1" && ours == "job 2"),
        "{error}"
    );
    let old = TcpOptions::new().run("job 1").connect(&to, AMPLE).unwrap();
    let _new = again(server, "job 2");
    let error = old.set("k", b"v", soon()).unwrap_err();
    assert!(matches!(error, Error::OtherRun { .. }), "{error}");
}

#[test]
fn a_server_may_come_later_than_its_clients() {
    let port = TcpServer::start().unwrap().address().port();
    let to = format!("127.0.0.1:{port}");
    std::thread::scope(|s| {
        let early = s.spawn(|| TcpStore::connect(&to, AMPLE));
        std::thread::sleep(Duration::from_millis(100));
        let server = ServerOptions::new().port(port).start().unwrap();
        let store = early.join().unwrap().unwrap();
        store.set("k", b"v", soon()).unwrap();
        drop(server);
    });
}

#[test]
fn no_server_is_a_time_out() {
    let address = TcpServer::start().unwrap().address();
    let time = Duration::from_millis(300);
    let tries = |_| {
        let started = Instant::now();
        let error = TcpStore::connect(address.to_string(), time).unwrap_err();
        assert!(matches!(&error, Error::Timeout { why, .. } if why.contains("no server there")), "{error}");
        assert!(started.elapsed() >= time);
        started.elapsed()
    };
    // By no more than this, in one of some attempts at least, since the machine may be busy.
    let late = time + Duration::from_millis(200);
    assert!((0..10).map(tries).any(|took| took <= late));
    let error = TcpStore::connect("no such name.invalid:1", time).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}
