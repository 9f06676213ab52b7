//! The client.

mod connection;
mod extra;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use comm_core::{Deadline, point};

use self::connection::{Connection, Failure};
use super::identity::Identity;
use super::limits::LONGEST_REQUEST;
use super::request::{Op, Writer};
use super::secret::{SharedKey, random};
use crate::error::{Error, Keys, Result};
use crate::rendezvous::{Rendezvous, fitting, fitting_values};

/// How a client connects.
///
/// ```
/// use std::time::Duration;
/// use comm_rendezvous::{Rendezvous, ServerOptions, SharedKey, TcpOptions};
///
/// let key = SharedKey::new(*b"a secret of the job")?;
/// let server = ServerOptions::new().run("job 17").key(key.clone()).start()?;
/// let deadline = Duration::from_secs(10).into();
/// let store = TcpOptions::new().run("job 17").key(key).connect(server.address().to_string(), deadline)?;
/// assert_eq!(store.add("count", 2, deadline)?, 2);
/// # Ok::<(), comm_rendezvous::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct TcpOptions {
    run: Option<String>,
    key: Option<SharedKey>,
    announce: bool,
}

impl TcpOptions {
    /// To any server, also torch's.
    pub fn new() -> TcpOptions {
        TcpOptions::default()
    }

    /// The run that the server has to serve. One of torch's does not say, and is taken.
    pub fn run(mut self, run: impl Into<String>) -> TcpOptions {
        self.run = Some(run.into());
        self
    }

    /// The key that both ends have. torch's servers have none.
    pub fn key(mut self, key: SharedKey) -> TcpOptions {
        self.key = Some(key);
        self
    }

    /// Counts this client among the workers for which a Python rank waits that has made the server, as torch's clients do.
    #[doc(alias = "wait_for_workers")]
    pub fn announce(mut self) -> TcpOptions {
        self.announce = true;
        self
    }

    /// Connects to `host:port`, as soon as there is a server.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a port; [`Error::Timeout`] if there is no server until the deadline, or it does not answer;
    /// [`Error::BadPeer`] if it is no such server, or the keys differ; [`Error::Lost`] if it ends the connection, as one does that
    /// wants a key and gets none; [`Error::OtherRun`].
    pub fn connect(self, address: impl Into<String>, deadline: impl Into<Deadline>) -> Result<TcpStore> {
        let (announce, address) = (self.announce, address.into());
        if address.rsplit_once(':').is_none_or(|(_, port)| !matches!(port.parse::<u16>(), Ok(1..))) {
            return Err(Error::Invalid {
                what: format!(
                    "{address:?} is no address: it has to be host:port, with a port from 1 to 65535"
                ),
            });
        }
        let store = TcpStore { address, options: self, server: Mutex::default(), idle: Mutex::default() };
        let deadline = deadline.into();
        // Also without a request: whether there is a server is what the caller wants to know.
        store.call("connect", deadline, Writer::new(), |_| Ok(()))?;
        if announce {
            let ask = Writer::new().op(Op::Add).text(b"init/").number(1);
            store.call("announce", deadline, ask, |connection| connection.number(deadline).map(drop))?;
        }
        Ok(store)
    }
}

/// A client of a [`TcpServer`](super::TcpServer), or of torch's `TCPStore`.
///
/// Threads do not wait for each other: each operation has a connection to itself, and connections are used again. A
/// connection that is lost is an error of the operation that was under way, and the next one connects anew. If that finds
/// another server than the first, it is [`Error::Restarted`], and so is every operation after that.
#[doc(alias = "TCPStore")]
pub struct TcpStore {
    address: String,
    options: TcpOptions,
    /// Who the server said it is, the first time.
    server: Mutex<Option<Option<Identity>>>,
    idle: Mutex<Idle>,
}

/// Connections that nobody uses now.
#[derive(Default)]
struct Idle {
    connections: Vec<Connection>,
    /// Whose they are: a forked child has them, too, and must not speak on them.
    pid: u32,
}

impl TcpStore {
    /// Connects to `host:port` without a key and for any run; see [`TcpOptions`].
    ///
    /// # Errors
    /// As [`TcpOptions::connect`].
    pub fn connect(address: impl Into<String>, deadline: impl Into<Deadline>) -> Result<TcpStore> {
        TcpOptions::new().connect(address, deadline)
    }

    /// The server, as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn place(&self) -> String {
        format!("tcp {}", self.address)
    }

    /// Sends a request, reads its answer, and makes an error of what went wrong.
    fn call<T>(
        &self,
        op: impl fmt::Display,
        deadline: Deadline,
        request: Writer,
        answer: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T> {
        let started = Instant::now();
        if request.cost() > LONGEST_REQUEST {
            // A server of ours would close the connection.
            let what = "a request (in bytes, with 24 for each key and value)";
            return Err(Error::TooLarge { what, size: request.cost(), limit: LONGEST_REQUEST });
        }
        self.try_call(deadline, &request.bytes(), answer).unwrap_or_else(|failure| {
            let (op, place) = (op.to_string(), self.place());
            Err(match failure {
                Failure::Late(why) => Error::Timeout { op, place, waited: started.elapsed(), why },
                Failure::Lost(why) => Error::Lost { op, place, why },
                Failure::Bad(what) => Error::BadPeer { place, what },
            })
        })
    }

    fn try_call<T>(
        &self,
        deadline: Deadline,
        request: &[u8],
        answer: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<Result<T>, Failure> {
        let mut connection = match self.take_idle() {
            Some(connection) => connection,
            None => {
                let connection = Connection::open(&self.address, self.options.key.as_ref(), deadline)?;
                if let Err(error) = self.recognise(&connection) {
                    return Ok(Err(error));
                }
                connection
            }
        };
        connection.write(request, deadline)?;
        point!("tcp.asked");
        let answer = answer(&mut connection)?;
        // Only after all has been read: one that is late must not be taken for the answer to something else.
        self.idle().connections.push(connection);
        Ok(Ok(answer))
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle();
        std::iter::from_fn(|| idle.connections.pop()).find(Connection::is_quiet)
    }

    /// Those of this process. A forked child closes its copies, on which its parent goes on, and has its own from then on.
    fn idle(&self) -> MutexGuard<'_, Idle> {
        let (mut idle, pid) = (lock(&self.idle), std::process::id());
        if idle.pid != pid {
            *idle = Idle { connections: Vec::new(), pid };
        }
        idle
    }

    /// Says whether this is the server of the first time, and of the right run.
    fn recognise(&self, connection: &Connection) -> Result<()> {
        if let (Some(ours), Some(identity)) = (&self.options.run, &connection.identity)
            && *ours != identity.run
        {
            let (place, theirs) = (self.place(), identity.run.clone());
            return Err(Error::OtherRun { place, theirs, ours: ours.clone() });
        }
        let mut server = lock(&self.server);
        let first = server.get_or_insert_with(|| connection.identity.clone());
        if *first != connection.identity {
            let said = |identity: &Option<Identity>| {
                identity.as_ref().map_or_else(|| "a server of another kind".to_owned(), Identity::to_string)
            };
            let (before, now) = (said(first), said(&connection.identity));
            return Err(Error::Restarted { place: self.place(), before, now });
        }
        Ok(())
    }

    /// Waits for keys as they are on the wire.
    fn await_keys(
        &self,
        op: impl fmt::Display,
        keys: &[Vec<u8>],
        in_vain: &str,
        deadline: Deadline,
    ) -> Result<()> {
        let ask = Writer::new().op(Op::Wait).texts(keys.iter().map(Vec::as_slice));
        self.call(op, deadline, ask, |connection| {
            // One that gives up is closed, which ends the wait on the other side as well.
            let [over] = connection.read(deadline).map_err(|failure| match failure {
                Failure::Late(_) => Failure::Late(in_vain.to_owned()),
                other => other,
            })?;
            if over == 0 { Ok(()) } else { Err(Failure::Bad(format!("it ends a wait with {over}"))) }
        })
    }

    /// Sends what has no answer, and something that has one, so that it is known to be done.
    fn confirmed(&self, op: impl fmt::Display, deadline: Deadline, request: Writer) -> Result<()> {
        let nonce = u32::from_le_bytes(random()?);
        self.call(op, deadline, request.op(Op::Ping).word(nonce), |connection| {
            if u32::from_le_bytes(connection.read(deadline)?) == nonce {
                Ok(())
            } else {
                Err(Failure::Bad("it does not echo what it is sent".to_owned()))
            }
        })
    }
}

impl Rendezvous for TcpStore {
    fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        fitting_values(key, &[value])?;
        let ask = Writer::new().op(Op::Set).text(&wired(key)).text(value);
        self.confirmed(format_args!("set {}", Keys(&[key])), deadline, ask)
    }

    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        fitting(&[key])?;
        let keys = [key];
        let op = format_args!("get {}", Keys(&keys)).to_string();
        loop {
            self.await_keys(&op, &[wired(key)], UNSET, deadline)?;
            let ask = Writer::new().op(Op::Get).text(&wired(key));
            let value = self.call(&op, deadline, ask, |connection| connection.text(deadline))?;
            // It may have been deleted in between, which is answered with an empty value.
            if !value.is_empty() || self.check(&keys, deadline)? {
                return Ok(value);
            }
        }
    }

    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        fitting(keys)?;
        let wired: Vec<_> = keys.iter().map(|key| wired(key)).collect();
        let in_vain = if let [_] = keys { UNSET } else { NOT_ALL };
        self.await_keys(format_args!("wait {}", Keys(keys)), &wired, in_vain, deadline)
    }

    fn check(&self, keys: &[&str], deadline: Deadline) -> Result<bool> {
        fitting(keys)?;
        let wired: Vec<_> = keys.iter().map(|key| wired(key)).collect();
        let ask = Writer::new().op(Op::Check).texts(wired.iter().map(Vec::as_slice));
        let op = format_args!("check {}", Keys(keys)).to_string();
        let [answer] = self.call(op, deadline, ask, |connection| connection.read(deadline))?;
        Ok(answer == 0)
    }

    fn add(&self, key: &str, amount: i64, deadline: Deadline) -> Result<i64> {
        fitting(&[key])?;
        let ask = Writer::new().op(Op::Add).text(&wired(key)).number(amount);
        let op = format_args!("add to {}", Keys(&[key])).to_string();
        self.call(op, deadline, ask, |connection| {
            connection.number(deadline).map_err(|failure| match failure {
                Failure::Lost(why) => Failure::Lost(format!("{why}; is there a number under that key?")),
                other => other,
            })
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
        fitting_values(key, &[expected, desired])?;
        let ask = Writer::new().op(Op::CompareSet).text(&wired(key)).text(expected).text(desired);
        let op = format_args!("compare and set {}", Keys(&[key])).to_string();
        self.call(op, deadline, ask, |connection| connection.text(deadline))
    }

    fn delete(&self, key: &str, deadline: Deadline) -> Result<bool> {
        fitting(&[key])?;
        let ask = Writer::new().op(Op::Delete).text(&wired(key));
        let op = format_args!("delete {}", Keys(&[key])).to_string();
        self.call(op, deadline, ask, |connection| Ok(connection.number(deadline)? > 0))
    }
}

impl fmt::Debug for TcpStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpStore({})", self.address)
    }
}

/// Why a wait for one key has been in vain, or for several.
const UNSET: &str = "nobody has set it";
const NOT_ALL: &str = "not all of them are set";

/// A key as it is on the wire: torch's clients put a slash before each.
fn wired(key: &str) -> Vec<u8> {
    [b"/", key.as_bytes()].concat()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics with one of these held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
