//! What every kind of rendezvous promises, shown for each.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by panicking")]

mod basics;
mod many;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use comm_core::Deadline;
use comm_rendezvous::{
    FileStore, MemoryStore, Prefix, Rendezvous, ServerOptions, SharedKey, TcpOptions, TcpServer, TcpStore,
};

/// A handle of a rendezvous, of a rank's own.
type Handle = Arc<dyn Rendezvous>;

/// One rendezvous, of which every rank opens a handle.
struct Place {
    open: Box<dyn Fn() -> Handle + Sync>,
}

impl Place {
    fn new(open: impl Fn() -> Handle + Sync + 'static) -> Place {
        Place { open: Box::new(open) }
    }

    fn open(&self) -> Handle {
        (self.open)()
    }
}

/// Time that is never needed.
fn soon() -> Deadline {
    Duration::from_secs(60).into()
}

fn memory() -> Place {
    let store = MemoryStore::new();
    Place::new(move || Arc::new(store.clone()))
}

fn file() -> Place {
    let folder = tempfile::tempdir().unwrap();
    // Nobody is the last of so many, so nobody removes it.
    Place::new(move || Arc::new(FileStore::open(folder.path().join("store"), "run", usize::MAX).unwrap()))
}

fn tcp() -> Place {
    let server = TcpServer::start().unwrap();
    Place::new(move || Arc::new(TcpStore::connect(server.address().to_string(), soon()).unwrap()))
}

fn tcp_with_key() -> Place {
    let key = SharedKey::new(*b"what only they know").unwrap();
    let server = ServerOptions::new().key(key.clone()).run("run").start().unwrap();
    Place::new(move || {
        let options = TcpOptions::new().key(key.clone()).run("run");
        Arc::new(options.connect(server.address().to_string(), soon()).unwrap())
    })
}

fn prefix() -> Place {
    let store = MemoryStore::new();
    Place::new(move || Arc::new(Prefix::new(store.clone(), "a group")))
}

/// Each test with each kind.
macro_rules! suite {
    ($($module:ident: $($test:ident),*;)*) => {
        suite!(@kinds [memory, file, tcp, tcp_with_key, prefix] [$($module: $($test),*;)*]);
    };
    (@kinds [$($kind:ident),*] $tests:tt) => { $(suite!(@kind $kind $tests);)* };
    (@kind $kind:ident [$($module:ident: $($test:ident),*;)*]) => {
        mod $kind {
            $($(#[test] fn $test() { crate::$module::$test(&super::$kind()); })*)*
        }
    };
}

suite! {
    basics: values, every_value_is_kept, numbers, exchanges, deletes, sizes;
    waits: get_waits, wait_for_several, seen_once_is_enough, deadlines, a_deadline_that_has_passed;
    many: adds_from_all_sides, one_wins, many_keys, a_barrier_of_adds, waiters_of_one_handle;
}
