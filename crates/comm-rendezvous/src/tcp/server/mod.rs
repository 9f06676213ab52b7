//! The server: a thread, and the handle that stops it.

mod connection;
mod reactor;
mod state;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;

use self::reactor::Reactor;
use super::identity::Identity;
use super::limits::Limits;
use super::secret::SharedKey;
use crate::error::{Error, Result};
use crate::rendezvous::fitting_run;

/// How a server is started: where it listens, for whom, and what it takes.
///
/// ```
/// use comm_rendezvous::{ServerOptions, SharedKey};
///
/// // A port that is free, on loopback, for whoever has the key.
/// let key = SharedKey::new(*b"a secret of the job")?;
/// let server = ServerOptions::new().run("job 17").key(key).start()?;
/// assert!(server.address().ip().is_loopback());
/// # Ok::<(), comm_rendezvous::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ServerOptions {
    ip: IpAddr,
    port: u16,
    run: String,
    key: Option<SharedKey>,
    limits: Limits,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            ip: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            run: String::new(),
            key: None,
            limits: Limits::default(),
        }
    }
}

impl ServerOptions {
    /// On loopback, at a port that is free, for anybody who connects.
    pub fn new() -> ServerOptions {
        ServerOptions::default()
    }

    /// The port; torch's usual one is 29500. 0 is one that is free.
    pub fn port(mut self, port: u16) -> ServerOptions {
        self.port = port;
        self
    }

    /// The address. Whoever can connect to it can read and change everything, if there is no [`key`](ServerOptions::key).
    pub fn ip(mut self, ip: impl Into<IpAddr>) -> ServerOptions {
        self.ip = ip.into();
        self
    }

    /// The run that it serves. Clients of ours that name another one are told so.
    pub fn run(mut self, run: impl Into<String>) -> ServerOptions {
        self.run = run.into();
        self
    }

    /// Serves only those that have this key. torch's clients have none.
    pub fn key(mut self, key: SharedKey) -> ServerOptions {
        self.key = Some(key);
        self
    }

    /// What it takes.
    pub fn limits(mut self, limits: Limits) -> ServerOptions {
        self.limits = limits;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot listen there; [`Error::TooLarge`] if the run's id is longer than a key.
    pub fn start(self) -> Result<TcpServer> {
        fitting_run(&self.run)?;
        let asked = SocketAddr::new(self.ip, self.port);
        let failed = |what: &str, e: std::io::Error| Error::io(format!("{what} {asked}"), e);
        let listener = TcpListener::bind(asked).map_err(|e| failed("listening at", e))?;
        listener.set_nonblocking(true).map_err(|e| failed("listening at", e))?;
        // All ranks may come at the same moment.
        rustix::net::listen(&listener, 4096).map_err(|e| failed("listening at", e.into()))?;
        let address = listener.local_addr().map_err(|e| failed("listening at", e))?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|e| failed("serving at", e.into()))?);
        let identity = Identity::draw(self.run)?.encode();
        let reactor = Reactor::new(listener, bell.clone(), self.key, self.limits, identity)?;
        let thread = std::thread::Builder::new().name("comm-rendezvous".to_owned());
        let thread = thread.spawn(move || reactor.run()).map_err(|e| failed("serving at", e))?;
        Ok(TcpServer { address, bell, thread: Some(thread), pid: std::process::id() })
    }
}

/// A server for [`TcpStore`](super::TcpStore)s and torch's `TCPStore`s. Dropping it ends it: clients find the connection closed,
/// and what was set is gone.
#[doc(alias = "TCPStore")]
pub struct TcpServer {
    address: SocketAddr,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// Who started it: a forked child has the handle, but not the thread.
    pid: u32,
}

impl TcpServer {
    /// Starts one on loopback, at a port that is free.
    ///
    /// # Errors
    /// As [`ServerOptions::start`].
    pub fn start() -> Result<TcpServer> {
        ServerOptions::new().start()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        // A counter that is full is a bell that rings.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It waits for nobody, so it comes back; if it has panicked, it is over as well.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for TcpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpServer({})", self.address)
    }
}
