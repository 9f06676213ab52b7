//! One client, from the side of the server: what has come from it, what goes to it, and how far it has said who it is.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::tcp::limits::Limits;
use crate::tcp::parser::{Input, Parser, Refused};
use crate::tcp::request::{Request, VALIDATE};
use crate::tcp::secret::{HELLO, SharedKey, Words, random};

/// Who has so many bytes to fetch is not read from until it has.
const BACKLOG: usize = 256 << 10;

/// How much is read of one client in a turn: whoever floods the server must not keep the others waiting.
const TURN: usize = 64 << 10;

/// Bytes that a connection may hold without being asked why.
const USUAL: usize = 64 << 10;

/// Whether what has come is the beginning of what is expected, or begins with that.
fn begins(come: &[u8], expected: &[u8]) -> bool {
    let known = come.len().min(expected.len());
    come[..known] == expected[..known]
}

/// How far a client has come.
#[derive(Debug)]
enum Phase {
    /// It has to say hello, since the server has a key.
    Hello,
    /// It has to show that it has the key; these are its random bytes and the server's.
    Proof(Words, Words),
    /// It has to say the magic number.
    Magic,
    /// It is served.
    Open,
}

/// One client.
#[derive(Debug)]
pub(super) struct Connection {
    pub stream: TcpStream,
    pub peer: SocketAddr,
    phase: Phase,
    input: Input,
    parser: Parser,
    /// What goes to it, and how much of that has gone.
    output: Vec<u8>,
    gone: usize,
    /// When it is closed, if nothing comes until then.
    expires: Option<Instant>,
    /// Whether it has closed its end.
    ended: bool,
    /// What has been counted for it of what all connections hold.
    pub counted: usize,
}

impl Connection {
    pub fn new(stream: TcpStream, peer: SocketAddr, keyed: bool, limits: &Limits) -> Connection {
        Connection {
            stream,
            peer,
            phase: if keyed { Phase::Hello } else { Phase::Magic },
            input: Input::default(),
            parser: Parser::default(),
            output: Vec::new(),
            gone: 0,
            expires: Instant::now().checked_add(limits.greeting),
            ended: false,
            counted: 0,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// When it is closed, if nothing comes until then.
    pub fn expires(&self) -> Option<Instant> {
        self.expires
    }

    /// Whether it is to be read from, and whether there is something for it.
    pub fn wants(&self) -> (bool, bool) {
        (self.unsent() < BACKLOG && !self.ended, self.unsent() > 0)
    }

    /// Bytes beyond the usual that are kept for it. Of an answer those count, too, that have gone and still take memory.
    pub fn held(&self) -> usize {
        (self.input.len() + self.parser.held() + self.output.capacity()).saturating_sub(USUAL)
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.gone
    }

    /// Whether nothing more will come of it.
    pub fn is_over(&self) -> bool {
        self.ended
    }

    /// Reads what has come, as much as one turn allows; `false` if that was nothing.
    pub fn read(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        match self.stream.read(&mut scratch[..TURN]) {
            Ok(0) => self.ended = true,
            Ok(n) => self.input.push(&scratch[..n]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// The next request, if it may be carried out now.
    pub fn next(&mut self, key: Option<&SharedKey>, limits: &Limits) -> Result<Option<Request>, Refused> {
        while !self.is_open() {
            if !self.greet(key)? {
                return Ok(None);
            }
        }
        if self.unsent() >= BACKLOG {
            return Ok(None);
        }
        let request = self.parser.next(&mut self.input, limits)?;
        self.input.shrink();
        Ok(request)
    }

    /// Takes one step of the greeting, if all of it is there. Nothing that belongs to a later step is looked at.
    fn greet(&mut self, key: Option<&SharedKey>) -> Result<bool, Refused> {
        match (&self.phase, key) {
            (Phase::Hello, Some(_)) => {
                if !begins(self.input.peek(), HELLO) {
                    return Err(Refused::new("it does not begin with the proof of the key"));
                }
                let Some(hello) = self.input.take(HELLO.len() + size_of::<Words>()) else { return Ok(false) };
                let Some(&client) = hello.last_chunk() else { return Ok(false) };
                let server = random().map_err(|e| Refused::new(e.to_string()))?;
                self.send(&server);
                self.phase = Phase::Proof(client, server);
            }
            (Phase::Proof(client, server), Some(key)) => {
                let Some(proof) = self.input.take(size_of::<Words>()) else { return Ok(false) };
                if !key.is_client_proof(client, server, proof) {
                    return Err(Refused::new("it does not have the key"));
                }
                let proof = key.server_proof(client, server);
                self.send(&proof);
                self.phase = Phase::Magic;
            }
            (Phase::Magic, _) => {
                if !begins(self.input.peek(), &VALIDATE) {
                    return Err(Refused::new("it does not say the magic number first"));
                }
                if self.input.take(VALIDATE.len()).is_none() {
                    return Ok(false);
                }
                self.phase = Phase::Open;
            }
            (Phase::Open, _) => {}
            (Phase::Hello | Phase::Proof(..), None) => return Err(Refused::new("there is no key")),
        }
        Ok(true)
    }

    /// Puts something in line for it.
    pub fn send(&mut self, bytes: &[u8]) {
        if self.unsent() == 0 {
            self.output.clear();
            self.gone = 0;
        }
        self.output.extend_from_slice(bytes);
    }

    /// Writes what is in line, as far as it goes.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.unsent() > 0 {
            match self.stream.write(&self.output[self.gone..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.gone += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.give_back();
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if self.output.capacity() > USUAL {
            self.output = Vec::new();
            self.gone = 0;
        }
        Ok(())
    }

    /// Gives back the memory of what has gone, once that is the larger part: whoever leaves the last bytes of a large answer would
    /// have all of it kept.
    fn give_back(&mut self) {
        if self.gone > USUAL && self.gone >= self.unsent() {
            self.output = self.output[self.gone..].to_vec();
            self.gone = 0;
        }
    }

    /// Writes what is in line; whether that has let requests through which had to wait.
    pub fn unblock(&mut self) -> io::Result<bool> {
        let blocked = self.unsent() >= BACKLOG;
        self.flush()?;
        Ok(blocked && self.unsent() < BACKLOG)
    }

    /// Says until when something must happen: something did just now. Who says who it is gets no more time for that by saying
    /// it slowly.
    pub fn settle(&mut self, stall: Duration) {
        if self.is_open() {
            let busy = self.parser.is_inside() || self.input.len() > 0 || self.unsent() > 0;
            self.expires = if busy { Instant::now().checked_add(stall) } else { None };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Who leaves the end of a large answer has no more kept than twice that.
    #[test]
    fn memory_of_what_has_gone_is_given_back() {
        const SIZE: usize = 32 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, peer) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut connection = Connection::new(near, peer, false, &Limits::default());
        connection.send(&vec![7; SIZE]);
        connection.flush().unwrap();
        assert!(connection.held() > SIZE / 2 && connection.unsent() > SIZE / 4);
        let mut part = vec![0; 64 << 10];
        while connection.unsent() > SIZE / 8 {
            assert!(far.read(&mut part).unwrap() > 0);
            connection.flush().unwrap();
            assert!(connection.held() + USUAL >= connection.output.capacity());
        }
        assert!(connection.held() < SIZE / 3, "{}", connection.held());
    }
}
