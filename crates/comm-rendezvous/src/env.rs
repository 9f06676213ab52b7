//! The rendezvous that a launcher means.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Deref;

use comm_core::Deadline;
use comm_core::launch::LaunchEnv;

use crate::error::{Error, Result};
use crate::rendezvous::{Rendezvous, passed_on};
use crate::tcp::{ServerOptions, TcpOptions, TcpServer, TcpStore};

/// A client of the store at the address that a launcher gives, and at rank 0 the server as well if nobody else serves it: what
/// `init_process_group("env://")` does in Python, so that ranks of both kinds meet.
///
/// The server listens at that address and no other, and ends when rank 0 drops this: let the others say that they are through
/// before. Of a name that is the address of rank 0's host: many hosts have a line in `/etc/hosts` by which their own name stands for
/// loopback, where nobody else reaches them.
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
        let apart = env.local_world_size.is_some_and(|here| here < env.world_size);
        let server = if serves { Some(serve(host, port, apart)?) } else { None };
        let address = match &server {
            // And not what else the name stands for, where others may serve.
            Some(server) => server.address().to_string(),
            None if host.contains(':') => format!("[{host}]:{port}"),
            None => format!("{host}:{port}"),
        };
        // Among those that a Python rank waits for which serves.
        let store = TcpOptions::new().announce().connect(address, deadline)?;
        Ok(EnvStore { store, server })
    }

    /// The server, if it is this process's.
    pub fn server(&self) -> Option<&TcpServer> {
        self.server.as_ref()
    }
}

/// Listens at one of the addresses that a name stands for, if it can be at one that other hosts reach, where there are ranks `apart`.
fn serve(host: &str, port: u16, apart: bool) -> Result<TcpServer> {
    let addresses = (host, port).to_socket_addrs().map_err(|e| Error::io(format!("looking up {host}"), e))?;
    let served = listen(&in_order(addresses.collect(), apart)).unwrap_or_else(|| {
        Err(Error::BadPeer { place: host.to_owned(), what: "the name stands for no address".to_owned() })
    });
    if let Ok(server) = &served
        && apart
        && server.address().ip().is_loopback()
    {
        // They may be on this machine all the same, in containers or for a test.
        tracing::warn!(host, address = %server.address(), "ranks of other hosts do not reach the store at this address");
    }
    served
}

/// Those who connect try all of them; of a name for loopback the old address is what everybody has.
fn in_order(mut addresses: Vec<SocketAddr>, apart: bool) -> Vec<SocketAddr> {
    addresses.sort_by_key(|address| (apart && address.ip().is_loopback(), address.is_ipv6()));
    addresses
}

/// Listens at the first address that is one of this machine. If that port is taken it stays so: whoever tries the addresses one
/// after the other would come to another's server there. `None` if there is no address.
fn listen(addresses: &[SocketAddr]) -> Option<Result<TcpServer>> {
    let mut last = None;
    for address in addresses {
        match ServerOptions::new().ip(address.ip()).port(address.port()).start() {
            Err(error @ Error::Io { .. }) if !is_taken(&error) => last = Some(Err(error)),
            served => return Some(served),
        }
    }
    last
}

fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
}

impl Deref for EnvStore {
    type Target = TcpStore;

    fn deref(&self) -> &TcpStore {
        &self.store
    }
}

passed_on!([] EnvStore);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_rendezvous() {
        fn is_one<R: Rendezvous>() {}
        is_one::<EnvStore>();
        is_one::<crate::Prefix<EnvStore>>();
    }

    #[test]
    fn an_address_that_others_reach_comes_first_if_there_are_others() {
        let all = ["[::1]:1", "[2001:db8::1]:1", "127.0.1.1:1", "192.0.2.1:1"];
        let order = |apart| {
            let addresses = all.map(|address| address.parse().unwrap()).to_vec();
            in_order(addresses, apart).iter().map(SocketAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(order(false), ["127.0.1.1:1", "192.0.2.1:1", "[::1]:1", "[2001:db8::1]:1"]);
        assert_eq!(order(true), ["192.0.2.1:1", "[2001:db8::1]:1", "127.0.1.1:1", "[::1]:1"]);
    }

    #[test]
    fn the_first_address_of_this_machine_is_where_it_listens() {
        // One that is set aside for documents, and so of no machine.
        let (nowhere, here) = (([192, 0, 2, 1], 0).into(), ([127, 0, 0, 1], 0).into());
        assert!(listen(&[]).is_none() && matches!(listen(&[nowhere]), Some(Err(Error::Io { .. }))));
        let server = listen(&[nowhere, here]).unwrap().unwrap();
        assert!(server.address().ip().is_loopback());
    }

    #[test]
    fn a_port_that_is_taken_is_not_served_elsewhere() {
        let others = TcpServer::start().unwrap();
        let elsewhere = SocketAddr::new([127, 0, 0, 2].into(), others.address().port());
        let error = listen(&[others.address(), elsewhere]).unwrap().unwrap_err();
        assert!(is_taken(&error), "{error}");
        assert!(error.to_string().contains(&others.address().to_string()), "{error}");
    }
}
