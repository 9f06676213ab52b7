//! A client that writes what it likes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use comm_core::Deadline;
use comm_rendezvous::{Rendezvous, TcpServer, TcpStore};

/// Time that is never needed.
pub const AMPLE: Duration = Duration::from_secs(60);

pub const GREETING: &[u8] = &[0, 0xce, 0xf7, 0x85, 0x3c];

pub fn soon() -> Deadline {
    AMPLE.into()
}

/// A connection, greeted or not.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(AMPLE)).unwrap();
        stream.set_write_timeout(Some(AMPLE)).unwrap();
        Raw(stream)
    }

    pub fn greeted(address: SocketAddr) -> Raw {
        let mut raw = Raw::connect(address);
        raw.send(GREETING);
        raw
    }

    /// Sends what a server need not take: it may have closed its end.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    pub fn read(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server is there and answers.
    pub fn is_served(&mut self) -> bool {
        let mut echo = [0; 4];
        self.0.write_all(b"\x0dping").is_ok() && self.0.read_exact(&mut echo).is_ok() && echo == *b"ping"
    }

    /// Waits until the server has closed the connection.
    pub fn is_closed(&mut self) {
        let mut rest = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
}

pub fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

pub fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [&[1][..], &text(key.as_bytes()), &text(value)].concat()
}

pub fn get(key: &str) -> Vec<u8> {
    [&[3][..], &text(key.as_bytes())].concat()
}

pub fn wait(key: &str) -> Vec<u8> {
    [&[6, 1, 0, 0, 0, 0, 0, 0, 0][..], &text(key.as_bytes())].concat()
}

pub fn store(server: &TcpServer) -> TcpStore {
    TcpStore::connect(server.address().to_string(), soon()).unwrap()
}

/// A client that has nothing to do with it, and must not notice it.
pub struct Bystander(TcpStore);

impl Bystander {
    pub fn new(server: &TcpServer) -> Bystander {
        let store = store(server);
        store.set("bystander", b"was here", soon()).unwrap();
        Bystander(store)
    }

    pub fn is_well(&self) {
        assert_eq!(self.0.get("bystander", soon()).unwrap(), b"was here");
        self.0.add("bystander's", 1, soon()).unwrap();
    }
}
