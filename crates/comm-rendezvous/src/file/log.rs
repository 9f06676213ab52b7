//! The log in its file: who may write, what has been read of it, and what a killed writer has left.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::record::{Kind, Parsed, Record, parse};
use crate::error::{Error, Result};
use crate::table::Table;

/// What the value of the first record says.
const FORMAT: &[u8] = b"comm rendezvous 1";

/// How much is read at once, unless a record is larger: what a file says of its size is not believed.
const PIECE: usize = 1 << 20;

/// The file, and what has been read of it.
pub(super) struct Log {
    file: File,
    path: PathBuf,
    /// All before this has been read, and is sound.
    read: u64,
    /// What that comes to.
    pub table: Table,
    /// How many have left.
    pub left: usize,
    /// The run that it has to be of.
    run: String,
    /// Whether the first record has been read, which says so.
    begun: bool,
    /// The process that opened it. To the kernel a forked child is the same as its parent, and a lock of the one is one of the
    /// other.
    pid: u32,
}

/// What reading came to.
#[derive(Debug, PartialEq, Eq)]
enum Tail {
    /// All has been read.
    None,
    /// A record begins there: a writer is at work, or was killed.
    Cut,
}

/// The right to write, given back when it is dropped. The kernel gives back that of a process that dies.
struct Lock<'a>(&'a File);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // It cannot fail for a lock that is held, and what could be done?
        let _ = flock(self.0.as_fd(), FlockOperation::Unlock);
    }
}

/// What a turn at the log came to.
pub(super) enum Turn<T> {
    Had(T),
    /// Somebody else has the lock.
    Busy,
}

impl Log {
    /// Opens the file, or makes it. Nothing is read yet.
    pub fn open(path: PathBuf, run: String) -> Result<Log> {
        let file = open(&path)?;
        let (table, pid) = (Table::default(), std::process::id());
        Ok(Log { file, path, read: 0, table, left: 0, run, begun: false, pid })
    }

    pub fn run(&self) -> &str {
        &self.run
    }

    pub fn place(&self) -> String {
        format!("file {}", self.path.display())
    }

    /// Does something with all read and nobody else writing, if nobody has the lock now. A file that is empty gets its first
    /// record before that.
    pub fn turn<T>(&mut self, act: impl FnOnce(&mut Log) -> Result<T>) -> Result<Turn<T>> {
        if self.pid != std::process::id() {
            self.file = self.opened_again()?;
            self.pid = std::process::id();
        }
        let file = self.file.try_clone().map_err(|e| self.failed("opening", e))?;
        match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(Turn::Busy),
            Err(e) => return Err(self.failed("locking", e)),
        }
        let _lock = Lock(&file);
        if file.metadata().map_err(|e| self.failed("reading", e))?.nlink() == 0 {
            if self.begun {
                // Whoever opens it now finds another one: what is done here would be seen by nobody else.
                let why = "it has been removed, as it is when all who take part have left";
                return Err(self.failed("using", io::Error::new(io::ErrorKind::NotFound, why)));
            }
            // The last of those before has removed it between our opening and locking it.
            self.file = open(&self.path)?;
            return Ok(Turn::Busy);
        }
        if self.catch_up()? == Tail::Cut {
            // Nobody is writing, so whoever was has been killed: what it left is in nobody's way.
            self.file.set_len(self.read).map_err(|e| self.failed("cutting", e))?;
        }
        if !self.begun {
            self.append(Kind::Run, self.run.clone().as_bytes(), FORMAT)?;
        }
        act(self).map(Turn::Had)
    }

    /// The same file, whatever its name is by now, with locks of its own.
    fn opened_again(&self) -> Result<File> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        OpenOptions::new().read(true).write(true).open(path).map_err(|e| self.failed("opening", e))
    }

    /// Reads what has been added, without the lock; `true` if there is something at the end that somebody should look at
    /// with it.
    pub fn look(&mut self) -> Result<bool> {
        match self.catch_up() {
            Ok(tail) => Ok(tail == Tail::Cut),
            // Who reads while another one cuts and writes may see some of both.
            Err(Error::Damaged { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Adds a record. The caller has the lock, and all has been read.
    pub fn append(&mut self, kind: Kind, key: &[u8], value: &[u8]) -> Result<()> {
        let bytes = Record { kind, key, value }.encode();
        if let Err(e) = self.file.write_all_at(&bytes, self.read) {
            // What has been written of it is cut by whoever comes next, if not now.
            let _ = self.file.set_len(self.read);
            return Err(self.failed("writing", e));
        }
        self.apply(&Record { kind, key, value });
        self.read += bytes.len() as u64;
        Ok(())
    }

    /// Removes the file's name. Who has it open keeps it.
    pub fn remove(&self) {
        // If it cannot be removed it stays, as it does when its last user is killed.
        let _ = std::fs::remove_file(&self.path);
    }

    fn catch_up(&mut self) -> Result<Tail> {
        let size = self.file.metadata().map_err(|e| self.failed("reading", e))?.len();
        let mut piece = PIECE;
        while self.read < size {
            let left = usize::try_from(size - self.read).unwrap_or(usize::MAX);
            let mut bytes = vec![0; left.min(piece)];
            let got = read_up_to(&self.file, &mut bytes, self.read).map_err(|e| self.failed("reading", e))?;
            bytes.truncate(got);
            let taken = self.take(&bytes)?;
            match bytes.len() {
                0 => break,
                _ if taken > 0 => {}
                // A record may be larger than a piece. None is larger than what its length may say, so this ends.
                n if n == piece => piece *= 2,
                _ => return Ok(Tail::Cut),
            }
        }
        Ok(Tail::None)
    }

    /// Takes in the records that bytes begin with, and says how many bytes these are.
    fn take(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut at = 0;
        loop {
            match parse(&bytes[at..]) {
                Parsed::Whole(record, size) => {
                    if !self.begun {
                        self.recognise(&record)?;
                    }
                    self.apply(&record);
                    self.read += size as u64;
                    at += size;
                }
                Parsed::Cut => return Ok(at),
                Parsed::Wrong(what) => return Err(self.damaged(what)),
            }
        }
    }

    /// Says whether the first record is that of a log, and of the right run.
    fn recognise(&self, first: &Record<'_>) -> Result<()> {
        if (first.kind, first.value) != (Kind::Run, FORMAT) {
            return Err(self.damaged("it is none of these logs, or of another version"));
        }
        if first.key != self.run.as_bytes() {
            let theirs = String::from_utf8_lossy(first.key).into_owned();
            return Err(Error::OtherRun { place: self.place(), theirs, ours: self.run.clone() });
        }
        Ok(())
    }

    fn apply(&mut self, record: &Record<'_>) {
        match record.kind {
            Kind::Run => self.begun = true,
            Kind::Set => self.table.set(record.key, record.value.to_vec()),
            Kind::Delete => drop(self.table.delete(record.key)),
            Kind::Left => self.left += 1,
        }
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Damaged { place: self.place(), at: self.read, what }
    }

    fn failed(&self, what: &str, error: impl Into<io::Error>) -> Error {
        Error::io(format!("{what} {}", self.path.display()), error)
    }
}

/// Opens a file of this user's own, which no other can read, or makes it.
fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let failed = |e| Error::io(format!("opening {}", path.display()), e);
    let file = options.open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let place = || format!("file {}", path.display());
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::BadPeer { place: place(), what: format!("it belongs to uid {}", found.uid()) });
    }
    if !found.is_file() {
        return Err(Error::BadPeer { place: place(), what: "it is no regular file".to_owned() });
    }
    Ok(file)
}

/// Reads as much as there is.
fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}
