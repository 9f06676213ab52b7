//! Processes that see one file system.
//!
//! The store is a log: a file to which each change is added as a [record](record), under a lock that the kernel gives back
//! when its holder dies. Everybody reads what has been added and holds the whole in memory. What a killed writer has left of
//! a record is cut by whoever writes next, and read by nobody.
//!
//! Who waits looks every few milliseconds whether the file has grown, and sleeps in between. That works also where the file
//! system is that of another machine, of whose changes the kernel says nothing.

mod log;
mod record;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm_core::{Deadline, point};
use sha2::{Digest, Sha256};

use self::log::{Log, Turn};
use self::record::Kind;
use crate::error::{Error, Keys, Result};
use crate::memory::{not_a_number, unset};
use crate::pause::Pause;
use crate::rendezvous::{Rendezvous, fitting, fitting_run, fitting_values};

/// How long one who leaves tries to say so.
const FAREWELL: Duration = Duration::from_millis(500);

/// A rendezvous in a file.
///
/// Each **run** has a file of its own, beside the path that is given: its name ends in a digest of the run id, so what an
/// earlier run has left is in nobody's way, and two runs may have the same path. The last of those who take part to
/// [drop](Drop) the store removes the file. If one of them is killed, it stays.
///
/// Who opens it beyond the number that takes part may find it removed: an error of whatever changes it then.
///
/// The file grows by every change, and whoever opens it reads all of them: it is for what ranks need to meet, and not for what
/// they say as long as they run.
///
/// ```
/// use comm_rendezvous::{FileStore, Rendezvous};
///
/// let folder = tempfile::tempdir().unwrap();
/// let deadline = comm_core::Deadline::default();
/// let one = FileStore::open(folder.path().join("store"), "run 1", 2)?;
/// let two = FileStore::open(folder.path().join("store"), "run 1", 2)?;
/// one.set("id", b"of one", deadline)?;
/// assert_eq!(two.get("id", deadline)?, b"of one");
/// drop((one, two));
/// assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
/// # Ok::<(), comm_rendezvous::Error>(())
/// ```
pub struct FileStore {
    log: Mutex<Log>,
    size: usize,
    /// Who opened it: what a forked child inherits is not its own to leave.
    pid: u32,
}

impl FileStore {
    /// Opens the store of a run in which so many take part, each of whom opens it once.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be made, [`Error::BadPeer`] if it is another user's, or no file; [`Error::TooLarge`] if
    /// the run's id is longer than a key.
    pub fn open(path: impl AsRef<Path>, run: &str, size: usize) -> Result<FileStore> {
        fitting_run(run)?;
        let log = Log::open(file_of(path.as_ref(), run), run.to_owned())?;
        Ok(FileStore { log: Mutex::new(log), size, pid: std::process::id() })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A panic of a fault point may leave it with less read than there is, which is no harm.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log with all read that is there now.
    fn read(&self) -> Result<MutexGuard<'_, Log>> {
        let mut log = self.log();
        if log.look()? {
            // Something at its end is not whole. Whoever can have the lock finds out whether it ever will be.
            let _ = log.turn(|_| Ok(()))?;
        }
        Ok(log)
    }

    /// Does something with all read and nobody else writing.
    fn change<T>(
        &self,
        op: &dyn Fn() -> String,
        deadline: Deadline,
        mut act: impl FnMut(&mut Log) -> Result<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let mut pause = Pause::default();
        loop {
            // Not held while somebody else has the file's lock: threads that only look go on.
            let turn = self.log().turn(|log| {
                point!("file.locked");
                let done = act(log);
                point!("file.written");
                done
            })?;
            if let Turn::Had(done) = turn {
                return Ok(done);
            }
            if deadline.has_passed() {
                let why = "somebody else has the file's lock".to_owned();
                let place = self.log().place();
                return Err(Error::Timeout { op: op(), place, waited: started.elapsed(), why });
            }
            pause.make(deadline);
        }
    }

    /// Waits until `look` finds what it looks for.
    fn until<T>(
        &self,
        op: &dyn Fn() -> String,
        deadline: Deadline,
        mut look: impl FnMut(&Log) -> Result<T, String>,
    ) -> Result<T> {
        let started = Instant::now();
        let mut pause = Pause::default();
        loop {
            let found = look(&*self.read()?);
            match found {
                Ok(found) => return Ok(found),
                Err(why) if deadline.has_passed() => {
                    let place = self.log().place();
                    return Err(Error::Timeout { op: op(), place, waited: started.elapsed(), why });
                }
                Err(_) => pause.make(deadline),
            }
        }
    }
}

impl Rendezvous for FileStore {
    fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        fitting_values(key, &[value])?;
        self.change(&|| format!("set {}", Keys(&[key])), deadline, |log| {
            log.append(Kind::Set, key.as_bytes(), value)
        })
    }

    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        fitting(&[key])?;
        self.until(&|| format!("get {}", Keys(&[key])), deadline, |log| {
            log.table.get(key.as_bytes()).map(<[u8]>::to_vec).ok_or_else(|| unset(&[key]))
        })
    }

    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        fitting(keys)?;
        let mut missing = keys.to_vec();
        self.until(&|| format!("wait {}", Keys(keys)), deadline, |log| {
            missing.retain(|key| !log.table.has(key.as_bytes()));
            if missing.is_empty() { Ok(()) } else { Err(unset(&missing)) }
        })
    }

    fn check(&self, keys: &[&str], _: Deadline) -> Result<bool> {
        fitting(keys)?;
        let log = self.read()?;
        Ok(keys.iter().all(|key| log.table.has(key.as_bytes())))
    }

    fn add(&self, key: &str, amount: i64, deadline: Deadline) -> Result<i64> {
        fitting(&[key])?;
        self.change(&|| format!("add to {}", Keys(&[key])), deadline, |log| {
            let sum = log.table.sum(key.as_bytes(), amount).map_err(|_| not_a_number(&log.table, key))?;
            log.append(Kind::Set, key.as_bytes(), sum.to_string().as_bytes())?;
            Ok(sum)
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
        fitting_values(key, &[expected, desired])?;
        self.change(&|| format!("compare and set {}", Keys(&[key])), deadline, |log| {
            if log.table.is(key.as_bytes(), expected) {
                log.append(Kind::Set, key.as_bytes(), desired)?;
                return Ok(desired.to_vec());
            }
            Ok(log.table.get(key.as_bytes()).unwrap_or(expected).to_vec())
        })
    }

    fn delete(&self, key: &str, deadline: Deadline) -> Result<bool> {
        fitting(&[key])?;
        self.change(&|| format!("delete {}", Keys(&[key])), deadline, |log| {
            let there = log.table.has(key.as_bytes());
            if there {
                log.append(Kind::Delete, key.as_bytes(), b"")?;
            }
            Ok(there)
        })
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        let size = self.size;
        // Where this cannot be said the file stays, as it does when one of them is killed.
        let _ = self.change(&|| "leave".to_owned(), FAREWELL.into(), |log| {
            if log.left + 1 >= size {
                log.remove();
                return Ok(());
            }
            log.append(Kind::Left, b"", b"")
        });
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log();
        write!(f, "FileStore({}, run {:?})", log.place(), log.run())
    }
}

/// The file of a run.
fn file_of(path: &Path, run: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    for byte in &Sha256::digest(run.as_bytes())[..8] {
        name.push(format!("{byte:02x}"));
    }
    name.into()
}
