//! torch's `TCPStore` with our server and our client with torch's servers, every operation; process groups of Python ranks by our
//! server; and an id of the real NCCL from process to process by every kind that goes between processes. Run by
//! `cargo xtask test --lane peers`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test says what went wrong by panicking, and what it has seen on stdout"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use comm_core::Deadline;
use comm_nccl_sys::Nccl;
use comm_rendezvous::{Error, FileStore, Rendezvous, TcpOptions, TcpServer, TcpStore};

fn soon() -> Deadline {
    Duration::from_secs(60).into()
}

/// What the lane has prepared.
fn prepared(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo xtask test --lane peers"))
}

/// A Python program, which is ended with the test.
struct Python(Child);

impl Python {
    fn start(program: &str, args: &[&str], env: &[(&str, &str)]) -> Python {
        let mut command = Command::new(prepared("COMM_PEERS_PYTHON"));
        command.args(["-c", program]).args(args).envs(env.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Python(command.spawn().unwrap())
    }

    fn lines(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().unwrap())
    }

    /// Waits for the end, which has to be a good one, and gives what it has printed.
    fn printed(mut self) -> String {
        let text = std::io::read_to_string(self.lines()).unwrap();
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}: {text}");
        text
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SERVER: &str = r#"
import sys
import torch.distributed as dist
import torch
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=sys.argv[1] == "libuv")
print(torch.__version__, store.port, flush=True)
sys.stdin.read()
"#;

#[test]
#[ignore = "needs torch"]
fn our_client_and_torchs_servers() {
    for backend in ["libuv", "legacy"] {
        let mut python = Python::start(SERVER, &[backend], &[]);
        let mut line = String::new();
        python.lines().read_line(&mut line).unwrap();
        let (version, port) = line.trim().split_once(' ').unwrap();
        println!("torch {version}, its {backend} server");
        let to = format!("127.0.0.1:{port}");
        let (one, two) = (TcpStore::connect(&to, soon()).unwrap(), TcpStore::connect(&to, soon()).unwrap());

        one.set("k", b"v", soon()).unwrap();
        assert_eq!(two.get("k", soon()).unwrap(), b"v");
        one.set("empty", b"", soon()).unwrap();
        assert_eq!(two.get("empty", soon()).unwrap(), b"");
        let large: Vec<u8> = (0..8 << 20).map(|n: u32| (n % 251) as u8).collect();
        one.set("large", &large, soon()).unwrap();
        assert!(two.get("large", soon()).unwrap() == large);
        assert_eq!((one.add("n", 5, soon()).unwrap(), two.add("n", -7, soon()).unwrap()), (5, -2));
        assert_eq!(one.compare_set("c", b"x", b"y", soon()).unwrap(), b"x");
        assert_eq!(one.compare_set("c", b"", b"1", soon()).unwrap(), b"1");
        assert_eq!(two.compare_set("c", b"", b"2", soon()).unwrap(), b"1");
        assert_eq!(two.compare_set("c", b"1", b"2", soon()).unwrap(), b"2");
        assert!(one.check(&["k", "n", "c"], soon()).unwrap() && !one.check(&["k", "none"], soon()).unwrap());
        assert!(two.delete("c", soon()).unwrap() && !two.delete("c", soon()).unwrap());
        std::thread::scope(|s| {
            let waiter = s.spawn(|| one.wait(&["late", "k", "later"], soon()));
            two.set("late", b"", soon()).unwrap();
            two.set("later", b"", soon()).unwrap();
            waiter.join().unwrap().unwrap();
        });
        let error = one.get("never", Duration::from_millis(200).into()).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        let error = one.add("k", 1, soon()).unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert_eq!(one.add("n", 0, soon()).unwrap(), -2, "it connects anew");
        one.append("k", b"23", soon()).unwrap();
        assert_eq!(two.get("k", soon()).unwrap(), b"v23");
        one.multi_set(&[("m1", b"A"), ("m2", b"")], soon()).unwrap();
        assert_eq!(two.multi_get(&["m1", "m2"], soon()).unwrap(), [&b"A"[..], b""]);
        assert!(one.num_keys(soon()).unwrap() > 5);
        TcpOptions::new().announce().run("any").connect(&to, soon()).unwrap();
        if backend == "legacy" {
            // It has no queues, and does not list its keys.
            continue;
        }
        one.queue_push("q", b"1", soon()).unwrap();
        one.queue_push("q", b"2", soon()).unwrap();
        assert_eq!(two.queue_len("q", soon()).unwrap(), 2);
        assert_eq!(two.queue_pop("q", soon()).unwrap(), b"1");
        assert_eq!(two.queue_try_pop("q", soon()).unwrap(), Some(b"2".to_vec()));
        assert_eq!(two.queue_try_pop("q", soon()).unwrap(), None);
        let mut listed = one.list_keys(soon()).unwrap();
        listed.sort();
        // The workers' counter is not under a slash.
        assert_eq!(listed, ["empty", "init/", "k", "large", "late", "later", "m1", "m2", "n"]);
        assert_eq!(one.num_keys(soon()).unwrap(), 9);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| one.barrier("bar", 2, soon()));
            two.barrier("bar", 2, soon()).unwrap();
            waiter.join().unwrap().unwrap();
        });
    }
}

const CLIENT: &str = r#"
import sys, threading
from datetime import timedelta
import torch.distributed as dist

def connect(**more):
    return dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=30), **more)

def fails(what, *call):
    try:
        call[0](*call[1:])
    except Exception as error:
        assert what in str(error), error
        return
    raise AssertionError(f"no {what}")

def arrived(store):
    # What is not answered may be overtaken by what another connection asks; this is answered, behind it.
    store.num_keys()

one, two = connect(wait_for_workers=False), connect(wait_for_workers=False)
one.set("k", "v")
assert two.get("k") == b"v"
one.set("empty", "")
assert two.get("empty") == b""
large = bytes(n % 251 for n in range(1 << 20)) * 8
one.set("large", large[:8 << 20])
assert two.get("large") == large[:8 << 20]
assert (one.add("n", 5), two.add("n", -7)) == (5, -2)
assert one.compare_set("c", "x", "y") == b"x"
assert one.compare_set("c", "", "1") == b"1"
assert two.compare_set("c", "", "2") == b"1"
assert two.compare_set("c", "1", "2") == b"2"
assert one.check(["k", "n", "c"]) and not one.check(["k", "none"])
assert two.delete_key("c") and not two.delete_key("c")
waiter = threading.Thread(target=lambda: one.wait(["late", "k", "later"], timedelta(seconds=30)))
waiter.start()
two.set("late", "")
two.set("later", "")
waiter.join()
fails("wait timeout", one.wait, ["never"], timedelta(milliseconds=200))
assert one.get("k") == b"v", "it goes on after giving up"
one.append("k", "23")
arrived(one)
assert two.get("k") == b"v23"
one.multi_set(["m1", "m2"], ["A", ""])
arrived(one)
assert two.multi_get(["m1", "m2"]) == [b"A", b""]
one.queue_push("q", "1")
one.queue_push("q", "2")
arrived(one)
assert two.queue_len("q") == 2
assert two.queue_pop("q") == b"1"
assert two.queue_pop("q", False) == b"2"
fails("queue is empty", two.queue_pop, "q", False)
assert one.num_keys() == 8, one.num_keys()
assert sorted(one.list_keys()) == ["empty", "k", "large", "late", "later", "m1", "m2", "n"], one.list_keys()
one.barrier("alone", 1, timedelta(seconds=30))
fails("barrier timeout", one.barrier, "two", 2, timedelta(milliseconds=200))
one.barrier("two", 2, timedelta(seconds=30))
prefixed = dist.PrefixStore("group", one)
prefixed.set("k", "in the group")
assert two.get("group/k") == b"in the group"
three = connect(world_size=1, wait_for_workers=True)
clone = three.clone()
clone.set("of a clone", "1")
assert three.get("of a clone") == b"1"
print("all of it")
"#;

#[test]
#[ignore = "needs torch"]
fn torchs_client_and_our_server() {
    let server = TcpServer::start().unwrap();
    let port = server.address().port().to_string();
    assert_eq!(Python::start(CLIENT, &[&port], &[]).printed(), "all of it\n");
    // What it has left is there for us.
    let store = TcpStore::connect(server.address().to_string(), soon()).unwrap();
    assert_eq!(store.get("group/k", soon()).unwrap(), b"in the group");
    assert_eq!(store.add("k", 0, soon()).map_err(|e| matches!(e, Error::Lost { .. })), Err(true));
}

const GLOO: &str = r#"
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.tensor([1.0, rank, 0.5])
dist.all_reduce(x)
group = dist.new_group(list(range(size - 1)))
if rank < size - 1:
    y = torch.tensor([rank + 1])
    dist.all_reduce(y, group=group)
    assert y.item() == sum(range(size)), y
dist.barrier()
print(rank, x.tolist(), flush=True)
dist.destroy_process_group()
"#;

#[test]
#[ignore = "needs torch"]
fn process_groups_of_python_ranks_by_our_server() {
    const SIZE: usize = 4;
    let server = TcpServer::start().unwrap();
    let port = server.address().port().to_string();
    let ranks: Vec<Python> = (0..SIZE)
        .map(|rank| {
            let env = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", SIZE.to_string()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", port.clone()),
                // So that none of them makes a server.
                ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
                ("GLOO_SOCKET_IFNAME", "lo".to_owned()),
            ];
            let env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
            Python::start(GLOO, &[], &env)
        })
        .collect();
    for (rank, python) in ranks.into_iter().enumerate() {
        assert_eq!(python.printed(), format!("{rank} [4.0, 6.0, 2.0]\n"));
    }
    assert!(
        TcpStore::connect(server.address().to_string(), soon()).unwrap().num_keys(soon()).unwrap() > SIZE
    );
}

/// Run by itself in a process that is told where to look; see below.
#[test]
#[ignore = "needs the library of NCCL"]
fn an_id_of_nccl_by_every_kind() {
    let print = |kind: &str, store: &dyn Rendezvous| {
        println!("{kind} {:?}", store.get("nccl/id", soon()).unwrap());
        store.set("nccl/got", b"", soon()).unwrap();
    };
    if let Ok(path) = std::env::var("COMM_PEERS_ID_FILE") {
        print("id", &FileStore::open(path, "ids", 2).unwrap());
        return;
    }
    if let Ok(address) = std::env::var("COMM_PEERS_ID_TCP") {
        print("id", &TcpStore::connect(address, soon()).unwrap());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let server = TcpServer::start().unwrap();
    let address = server.address().to_string();
    let stores: [(_, _, Box<dyn Rendezvous>); 2] = [
        (
            "COMM_PEERS_ID_FILE",
            path.display().to_string(),
            Box::new(FileStore::open(&path, "ids", 2).unwrap()),
        ),
        ("COMM_PEERS_ID_TCP", address.clone(), Box::new(TcpStore::connect(&address, soon()).unwrap())),
    ];
    for (variable, place, store) in stores {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "an_id_of_nccl_by_every_kind", "--ignored", "--nocapture"])
            .env(variable, place);
        let child = child.stdout(Stdio::piped()).spawn().unwrap();
        let id = Nccl::get().unwrap().get_unique_id().unwrap().internal.map(|byte| byte as u8);
        store.set("nccl/id", &id, soon()).unwrap();
        store.wait(&["nccl/got"], soon()).unwrap();
        let printed = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&printed.stdout);
        assert!(printed.contains(&format!("id {id:?}\n")), "{printed}");
    }
}
