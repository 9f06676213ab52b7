//! The rendezvous that a launcher means.

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Deref;

use comm_core::Deadline;
use comm_core::launch::LaunchEnv;

use crate::error::{Error, Result};
use crate::tcp::{ServerOptions, TcpOptions, TcpServer, TcpStore};

/// A client of the store at the address that a launcher gives, and at rank 0 the server as well if nobody else serves it: what
/// `init_process_group("env://")` does in Python, so that ranks of both kinds meet.
///
/// The server listens at that address and no other, and ends when rank 0 drops this: let the others say that they are through
/// before.
#[derive(Debug)]
pub struct EnvStore {
    store: TcpStore,
    // After the client, which would find its connection closed otherwise.
    server: Option<TcpServer>,
}

impl EnvStore {
    /// Opens it for the rank that `env` says this process is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the launcher gives no address; as [`TcpOptions::connect`] and [`ServerOptions::start`].
    pub fn open(env: &LaunchEnv, deadline: impl Into<Deadline>) -> Result<EnvStore> {
        let deadline = deadline.into();
        let (Some(host), Some(port)) = (&env.master_addr, env.master_port) else {
            let what =
                "no address: set COMM_MASTER_ADDR and COMM_MASTER_PORT, or MASTER_ADDR and MASTER_PORT";
            return Err(Error::Invalid { what: format!("{} gives {what}", env.launcher) });
        };
        let serves = env.rank == 0 && !env.serves_store;
        let server = if serves { Some(serve(host, port)?) } else { None };
        let address =
            format!("{}:{port}", if host.contains(':') { format!("[{host}]") } else { host.clone() });
        // Among those that a Python rank waits for which serves.
        let store = TcpOptions::new().announce().connect(address, deadline)?;
        Ok(EnvStore { store, server })
    }

    /// The server, if it is this process's.
    pub fn server(&self) -> Option<&TcpServer> {
        self.server.as_ref()
    }
}

/// Listens at one of the addresses that a name stands for.
fn serve(host: &str, port: u16) -> Result<TcpServer> {
    let addresses = (host, port).to_socket_addrs().map_err(|e| Error::io(format!("looking up {host}"), e))?;
    // Those who connect try all of them; of a name for loopback the old address is what everybody has.
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut last =
        Error::BadPeer { place: host.to_owned(), what: "the name stands for no address".to_owned() };
    for address in addresses {
        match ServerOptions::new().ip(address.ip()).port(port).start() {
            Ok(server) => return Ok(server),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Deref for EnvStore {
    type Target = TcpStore;

    fn deref(&self) -> &TcpStore {
        &self.store
    }
}
