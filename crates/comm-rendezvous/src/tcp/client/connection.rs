//! A connection to a server, on which each step has a deadline.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use comm_core::{Deadline, point};

use crate::pause::Pause;
use crate::rendezvous::MAX_VALUE;
use crate::tcp::identity::{self, Identity};
use crate::tcp::request::{Op, VALIDATE, Writer};
use crate::tcp::secret::{HELLO, SharedKey, random};

/// The longest that a step waits before the deadline is looked at anew, since that moves while this process is stopped.
const SLICE: Duration = Duration::from_millis(500);

/// How long one attempt to connect may take, while there is time for another.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The first and the longest pause before another attempt.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Why something with a connection failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The deadline has passed, in this step.
    Late(String),
    /// The connection is gone.
    Lost(String),
    /// The other end is not what it should be.
    Bad(String),
}

/// A connection that has been greeted.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Who the server says it is; `None` if it is not ours.
    pub identity: Option<Identity>,
}

impl Connection {
    /// Connects, and tries again until the deadline while nobody listens: the server may come later than its clients.
    pub fn open(address: &str, key: Option<&SharedKey>, deadline: Deadline) -> Result<Connection, Failure> {
        let mut pause = Pause::new(PAUSE.0, PAUSE.1);
        loop {
            let why = match attempt(address, deadline) {
                Ok(stream) => {
                    point!("tcp.connected");
                    return Connection::greet(stream, key, deadline);
                }
                Err(e) => e,
            };
            if deadline.has_passed() {
                return Err(Failure::Late(format!("no server there: {why}")));
            }
            pause.make(deadline);
        }
    }

    fn greet(stream: TcpStream, key: Option<&SharedKey>, deadline: Deadline) -> Result<Connection, Failure> {
        let mut connection = Connection { stream, identity: None };
        if let Err(e) = connection.stream.set_nodelay(true) {
            return Err(Failure::Lost(e.to_string()));
        }
        let drew = |e: crate::Error| Failure::Bad(e.to_string());
        if let Some(key) = key {
            let refused = |failure| match failure {
                Failure::Lost(_) => Failure::Bad("the server has no key, or another one".to_owned()),
                other => other,
            };
            let mine = random().map_err(drew)?;
            connection.write(&[&HELLO[..], &mine].concat(), deadline).map_err(refused)?;
            let theirs = connection.read(deadline).map_err(refused)?;
            connection.write(&key.client_proof(&mine, &theirs), deadline).map_err(refused)?;
            let proof: [u8; 32] = connection.read(deadline).map_err(refused)?;
            if !key.is_server_proof(&mine, &theirs, &proof) {
                return Err(Failure::Bad("the server does not prove that it has the key".to_owned()));
            }
        }
        let nonce = u32::from_le_bytes(random().map_err(drew)?);
        let ask = Writer::new().op(Op::Ping).word(nonce);
        let ask = ask.op(Op::Check).texts([identity::KEY].into_iter());
        connection.write(&[&VALIDATE[..], &ask.bytes()].concat(), deadline)?;
        let echo = connection.read::<4>(deadline).map_err(|failure| match failure {
            Failure::Lost(why) => Failure::Lost(format!("{why} before it has greeted; it may want a key")),
            other => other,
        })?;
        if u32::from_le_bytes(echo) != nonce {
            return Err(Failure::Bad("no such server: it does not echo what it is sent".to_owned()));
        }
        // One of torch's servers takes it amiss to be asked for a value that is not there.
        if connection.read(deadline)? == [0] {
            connection.write(&Writer::new().op(Op::Get).text(identity::KEY).bytes(), deadline)?;
            connection.identity = Identity::decode(&connection.text(deadline)?);
        }
        Ok(connection)
    }

    /// Whether it can still be used: nothing has come unasked, and it is not closed.
    pub fn is_quiet(&self) -> bool {
        let quiet = self.stream.set_nonblocking(true).is_ok()
            && matches!(self.stream.peek(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock);
        quiet && self.stream.set_nonblocking(false).is_ok()
    }

    pub fn write(&mut self, mut bytes: &[u8], deadline: Deadline) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let slice = slice(deadline).ok_or_else(|| late("the server does not read"))?;
            let timed = self.stream.set_write_timeout(Some(slice));
            match timed.and_then(|()| self.stream.write(bytes)) {
                Ok(0) => return Err(Failure::Lost("it takes nothing any more".to_owned())),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if is_passing(&e) => {}
                Err(e) => return Err(Failure::Lost(e.to_string())),
            }
        }
        Ok(())
    }

    /// Reads so many bytes.
    pub fn read<const N: usize>(&mut self, deadline: Deadline) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, deadline)?;
        Ok(bytes)
    }

    pub fn number(&mut self, deadline: Deadline) -> Result<i64, Failure> {
        Ok(i64::from_le_bytes(self.read(deadline)?))
    }

    /// Reads how many of something there are.
    pub fn count(&mut self, of: &str, deadline: Deadline) -> Result<usize, Failure> {
        let number = self.number(deadline)?;
        usize::try_from(number).map_err(|_| Failure::Bad(format!("it says that there are {number} {of}")))
    }

    /// Reads a length and as many bytes.
    pub fn text(&mut self, deadline: Deadline) -> Result<Vec<u8>, Failure> {
        let length = u64::from_le_bytes(self.read(deadline)?);
        let fits = usize::try_from(length).ok().filter(|&length| length <= MAX_VALUE);
        let length = fits.ok_or_else(|| Failure::Bad(format!("it answers with a text of {length} bytes")))?;
        let mut text = Vec::new();
        // What has been announced is not believed before it comes.
        while text.len() < length {
            let start = text.len();
            text.resize(length.min(start + (64 << 10)), 0);
            self.fill(&mut text[start..], deadline)?;
        }
        Ok(text)
    }

    fn fill(&mut self, mut bytes: &mut [u8], deadline: Deadline) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let slice = slice(deadline).ok_or_else(|| late("the server does not answer"))?;
            let timed = self.stream.set_read_timeout(Some(slice));
            match timed.and_then(|()| self.stream.read(bytes)) {
                Ok(0) => return Err(Failure::Lost("the server has closed it".to_owned())),
                Ok(n) => bytes = &mut bytes[n..],
                Err(e) if is_passing(&e) => {}
                Err(e) => return Err(Failure::Lost(e.to_string())),
            }
        }
        Ok(())
    }
}

/// One attempt, at each address that the name stands for.
fn attempt(address: &str, deadline: Deadline) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name stands for no address");
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    for address in addresses {
        let time = deadline.remaining().clamp(Duration::from_millis(1), ATTEMPT);
        match TcpStream::connect_timeout(&address, time) {
            Ok(stream) if stream.local_addr()? == address => {
                // To a free port of this machine, a connection may meet itself.
                last = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// How long a step may wait; `None` if there is no time left.
fn slice(deadline: Deadline) -> Option<Duration> {
    let left = deadline.remaining();
    if left.is_zero() { None } else { Some(left.clamp(Duration::from_millis(1), SLICE)) }
}

fn late(what: &str) -> Failure {
    Failure::Late(what.to_owned())
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
