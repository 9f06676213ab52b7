//! Names of hubs and teams: Unix socket addresses that the kernel frees with their last holder.
//!
//! Binding is the lock: of those who want a name one gets it. Abstract addresses vanish with the processes that
//! hold them; with `COMM_RUNTIME_DIR` they are files in that folder, and a dead one is swept under the folder's lock.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use sha2::{Digest, Sha256};

use super::fds::HubFd;
use super::socket::{self, Listener};
use crate::config;
use crate::error::{Error, Result};
use crate::wait::Deadline;

/// Room for an address: what `sockaddr_un` holds, less its terminator.
const ADDRESS_ROOM: usize = 107;

/// Longest name of a socket file: its kind and 32 digits.
const FILE_ROOM: usize = "/team-".len() + 32;

/// How long the sweep waits for the folder's lock. It can be left to the next start.
const SWEEP: Duration = Duration::from_secs(1);

/// Where names live.
#[derive(Debug, Clone)]
pub(crate) struct Namespace {
    instance: String,
    folder: Option<PathBuf>,
}

/// A name as a socket address.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    socket: SocketAddrUnix,
    text: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.text)
    }
}

impl Address {
    pub(crate) fn socket(&self) -> &SocketAddrUnix {
        &self.socket
    }
}

impl Namespace {
    /// The namespace of `instance`, as the configuration says.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `COMM_RUNTIME_DIR` is not a folder of this user with mode 0700.
    pub(crate) fn new(instance: &str) -> Result<Namespace> {
        let folder = config::runtime_dir()?;
        if let Some(folder) = &folder {
            check_folder(folder)?;
        }
        let space = Namespace { instance: instance.to_string(), folder };
        space.sweep()?;
        Ok(space)
    }

    /// The address of a name of some kind (`hub`, `team`). Long names are hashed; joins carry the full name too.
    pub(crate) fn address(&self, kind: &str, name: &str) -> Result<Address> {
        let uid = rustix::process::geteuid().as_raw();
        // A slash in the instance must not make it look like another one with another name.
        let instance = self.instance.replace('%', "%25").replace('/', "%2f");
        let full = format!("comm/{uid}/{instance}/{kind}/{name}");
        let digest = || {
            let hash = Sha256::digest(full.as_bytes());
            hash.iter().take(16).map(|b| format!("{b:02x}")).collect::<String>()
        };
        let (socket, text) = match &self.folder {
            None => {
                let abstract_name = if full.len() < ADDRESS_ROOM {
                    full.clone()
                } else {
                    format!("comm/{uid}/#{}", digest())
                };
                (SocketAddrUnix::new_abstract_name(abstract_name.as_bytes()), format!("@{abstract_name}"))
            }
            Some(folder) => {
                let path = folder.join(format!("{kind}-{}", digest()));
                (SocketAddrUnix::new(&path), path.display().to_string())
            }
        };
        let socket = socket.map_err(|e| Error::io(format!("making the socket address {text}"), e))?;
        Ok(Address { socket, text })
    }

    /// Binds and listens; `None` if a live process holds the name.
    pub(crate) fn claim(&self, address: &Address, deadline: Deadline) -> Result<Option<Listener>> {
        let _lock = self.lock(deadline)?;
        if let Some(folder) = &self.folder {
            remove_if_dead(&folder.join(file_name(&address.text)));
        }
        match socket::listen(address) {
            Ok(listener) => Ok(Some(listener)),
            Err(Errno::ADDRINUSE) => {
                let file = self.folder.as_ref().map(|folder| folder.join(file_name(&address.text)));
                if file.as_deref().is_some_and(|file| is_socket(file) == Some(false)) {
                    return Err(Error::bad_peer(format!("{address} is not a socket, so another program's")));
                }
                Ok(None)
            }
            Err(e) => Err(Error::io(format!("binding the socket {address}"), e)),
        }
    }

    /// Removes the socket files that nobody listens on any more.
    fn sweep(&self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let _lock = match self.lock(SWEEP.into()) {
            Ok(lock) => lock,
            Err(error) => {
                tracing::warn!(%error, "dead sockets are left where they are");
                return Ok(());
            }
        };
        let entries =
            std::fs::read_dir(folder).map_err(|e| Error::io(format!("reading {}", folder.display()), e))?;
        for entry in entries.flatten() {
            remove_if_dead(&entry.path());
        }
        Ok(())
    }

    /// The folder's lock. Whoever holds it may be stopped, so it is not waited for without end.
    fn lock(&self, deadline: Deadline) -> Result<Option<Lock>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let what = || format!("locking {}", folder.display());
        let fd = fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::io(what(), e))?;
        loop {
            match fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Lock(fd.into()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !deadline.has_passed() => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(Error::io(what(), e)),
            }
        }
    }
}

/// The folder's lock, held until it is dropped: also if a child has been forked meanwhile that still holds it open.
struct Lock(HubFd);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::flock(&self.0, FlockOperation::Unlock);
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `None` if there is no such file.
fn is_socket(path: &Path) -> Option<bool> {
    let found = fs::lstat(path).ok()?;
    Some(fs::FileType::from_raw_mode(found.st_mode) == fs::FileType::Socket)
}

/// Removes a socket file whose listener is gone. Called with the folder's lock, so nobody is between bind and listen.
fn remove_if_dead(path: &Path) {
    if is_socket(path) != Some(true) {
        return;
    }
    let Ok(address) = SocketAddrUnix::new(path) else { return };
    if matches!(socket::connect_raw(&address), Err(Errno::CONNREFUSED)) {
        let _ = fs::unlink(path);
    }
}

fn check_folder(folder: &Path) -> Result<()> {
    let refuse = |why: String| Error::invalid("COMM_RUNTIME_DIR", format!("{}: {why}", folder.display()));
    if !folder.is_absolute() {
        return Err(refuse(
            "it must be an absolute path: processes in different folders would not meet".into(),
        ));
    }
    let most = ADDRESS_ROOM - FILE_ROOM;
    let len = folder.as_os_str().len();
    if len > most {
        return Err(refuse(format!("the path has {len} bytes, and a socket in it has room for {most}")));
    }
    let found = fs::lstat(folder).map_err(|e| refuse(e.to_string()))?;
    if fs::FileType::from_raw_mode(found.st_mode) != fs::FileType::Directory {
        return Err(refuse("it is not a directory".into()));
    }
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refuse(format!("it belongs to uid {}, not to this user", found.st_uid)));
    }
    if found.st_mode & 0o777 != 0o700 {
        return Err(refuse(format!("its mode is {:o}, it must be 700", found.st_mode & 0o777)));
    }
    Ok(())
}
