//! What killed writers, other runs and other users leave in the place of a file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by panicking")]

use std::path::PathBuf;
use std::time::Duration;

use comm_core::Deadline;
use comm_core::shm::{Access, Segment};
use comm_rendezvous::{Error, FileStore, MAX_KEY, MAX_VALUE, Rendezvous, ServerOptions};
use comm_testkit::forked::in_child;

fn soon() -> Deadline {
    Duration::from_secs(60).into()
}

/// A folder, and the one file in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn open(&self, run: &str, size: usize) -> FileStore {
        FileStore::open(self.0.path().join("store"), run, size).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn file(&self) -> PathBuf {
        let mut files = self.files();
        assert_eq!(files.len(), 1);
        files.remove(0)
    }
}

/// Cut at each byte, as by a writer that is killed: what was whole before is there, and all goes on.
#[test]
fn a_record_that_is_cut_stops_nobody() {
    let folder = Folder::new();
    let store = folder.open("run", usize::MAX);
    store.set("first", b"1", soon()).unwrap();
    let sound = std::fs::read(folder.file()).unwrap();
    store.set("second", b"a value of some bytes", soon()).unwrap();
    drop(store);
    let whole = std::fs::read(folder.file()).unwrap();
    let end = whole.len();
    for cut in 0..end {
        std::fs::write(folder.file(), &whole[..cut]).unwrap();
        let (reader, writer) = (folder.open("run", usize::MAX), folder.open("run", usize::MAX));
        // Who only reads is not held up by it, nor does it see a part.
        assert_eq!(reader.check(&["first"], soon()).unwrap(), cut >= sound.len(), "cut at {cut}");
        writer.set("after", b"all", soon()).unwrap();
        assert_eq!(reader.get("after", soon()).unwrap(), b"all", "cut at {cut}");
        assert_eq!(writer.check(&["first"], soon()).unwrap(), cut >= sound.len());
        std::mem::forget((reader, writer));
    }
}

/// Damage is no cut: it is said, with the place, and nothing is thrown away.
#[test]
fn damage_is_an_error() {
    let folder = Folder::new();
    let store = folder.open("run", usize::MAX);
    store.set("first", b"1", soon()).unwrap();
    let at = std::fs::metadata(folder.file()).unwrap().len();
    store.set("second", b"2", soon()).unwrap();
    store.set("third", b"3", soon()).unwrap();
    let whole = std::fs::read(folder.file()).unwrap();
    for byte in at as usize..at as usize + 20 {
        let mut wrong = whole.clone();
        wrong[byte] ^= 0x40;
        std::fs::write(folder.file(), &wrong).unwrap();
        let late = folder.open("run", usize::MAX);
        let error = late.set("k", b"", soon()).unwrap_err();
        assert!(matches!(&error, Error::Damaged { at: seen, .. } if *seen == at), "byte {byte}: {error}");
        let error = late.get("third", Duration::from_millis(20).into()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "byte {byte}: {error}");
        assert_eq!(std::fs::read(folder.file()).unwrap(), wrong);
        std::mem::forget(late);
    }
}

#[test]
fn runs_do_not_see_each_other() {
    let folder = Folder::new();
    let old = folder.open("run 1", 2);
    old.set("id", b"of an old run", soon()).unwrap();
    // It is killed before it has left.
    std::mem::forget(old);
    let new = folder.open("run 2", 1);
    assert!(!new.check(&["id"], soon()).unwrap());
    new.set("id", b"of a new run", soon()).unwrap();
    let late = folder.open("run 1", 2);
    assert_eq!(late.get("id", soon()).unwrap(), b"of an old run");
    drop(new);
    assert_eq!(folder.files().len(), 1);
}

/// Whatever its name says: nothing of another run is read.
#[test]
fn a_file_of_another_run_is_not_read() {
    let folder = Folder::new();
    let old = folder.open("run 1", 2);
    old.set("id", b"of an old run", soon()).unwrap();
    let theirs = folder.file();
    let new = folder.open("run 2", 2);
    let ours = folder.files().into_iter().find(|file| *file != theirs).unwrap();
    std::fs::copy(&theirs, &ours).unwrap();
    for _ in 0..2 {
        for error in [
            new.get("id", soon()).unwrap_err(),
            new.check(&["id"], soon()).unwrap_err(),
            new.set("id", b"", soon()).unwrap_err(),
        ] {
            assert!(matches!(&error, Error::OtherRun { theirs, .. } if theirs == "run 1"), "{error}");
        }
    }
    assert_eq!(std::fs::read(&theirs).unwrap(), std::fs::read(&ours).unwrap());
}

#[test]
fn a_run_has_an_id_that_others_can_read() {
    let long = "r".repeat(MAX_KEY);
    let folder = Folder::new();
    let (one, two) = (folder.open(&long, 2), folder.open(&long, 2));
    one.set("k", b"v", soon()).unwrap();
    assert_eq!(two.get("k", soon()).unwrap(), b"v");
    let too_long = long + "r";
    let error = FileStore::open(folder.0.path().join("store"), &too_long, 2).unwrap_err();
    assert!(matches!(error, Error::TooLarge { size, .. } if size == MAX_KEY + 1), "{error}");
    let error = ServerOptions::new().run(too_long).start().unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

/// What a file says of its size is not believed: a hole of many terabytes is damage.
#[test]
fn a_size_without_bytes_is_not_believed() {
    let folder = Folder::new();
    let store = folder.open("run", 2);
    store.set("k", b"v", soon()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(folder.file()).unwrap();
    let sound = file.metadata().unwrap().len();
    file.set_len(1 << 43).unwrap();
    for error in [store.get("k", soon()).unwrap_err(), store.set("k", b"", soon()).unwrap_err()] {
        assert!(matches!(error, Error::Damaged { at, .. } if at == sound), "{error}");
    }
    file.set_len(sound).unwrap();
    store.set("k", b"after all", soon()).unwrap();
}

/// Records are read whatever their size, and however many there are.
#[test]
fn a_log_is_read_in_pieces() {
    let folder = Folder::new();
    let (one, two) = (folder.open("run", 2), folder.open("run", 2));
    let sizes = [0, 1, (1 << 20) - 40, 1 << 20, (1 << 20) + 1, 3 << 20, MAX_VALUE, 5, MAX_VALUE, 0];
    for (n, size) in sizes.into_iter().enumerate() {
        one.set(&format!("{n}"), &vec![n as u8; size], soon()).unwrap();
    }
    for (n, size) in sizes.into_iter().enumerate() {
        assert_eq!(two.get(&format!("{n}"), soon()).unwrap(), vec![n as u8; size]);
    }
}

#[test]
fn the_last_one_removes_the_file() {
    let folder = Folder::new();
    for round in 0..50 {
        let (one, two) = (folder.open("run", 3), folder.open("run", 3));
        assert_eq!(one.add("n", 1, soon()).unwrap(), 1, "round {round}");
        drop(one);
        // One that comes when others have left is one of them.
        let three = folder.open("run", 3);
        assert_eq!(three.add("n", 1, soon()).unwrap(), 2);
        drop(three);
        assert_eq!(folder.files().len(), 1);
        drop(two);
        assert_eq!(folder.files().len(), 0);
    }
}

#[test]
fn what_is_no_such_file_is_refused() {
    let folder = Folder::new();
    drop(folder.open("run", 1));
    // Nothing has been written, so nothing is there; what stands in its place afterwards is somebody else's.
    let store = folder.open("run", 2);
    store.set("k", b"", soon()).unwrap();
    let file = folder.file();
    std::mem::forget(store);
    std::fs::write(&file, b"a text that somebody has written here, long enough to be a record").unwrap();
    let error = folder.open("run", 2).set("k", b"", soon()).unwrap_err();
    assert!(matches!(error, Error::Damaged { at: 0, .. }), "{error}");
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(folder.0.path().join("elsewhere"), &file).unwrap();
    assert!(matches!(FileStore::open(folder.0.path().join("store"), "run", 2), Err(Error::Io { .. })));
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(FileStore::open(folder.0.path().join("store"), "run", 2).is_err());
    assert!(FileStore::open(folder.0.path().join("no such folder/store"), "run", 2).is_err());
}

/// A thousand participants in one file, of whom each counts itself.
#[test]
fn a_thousand_participants() {
    const MANY: usize = 1000;
    let folder = Folder::new();
    let stores: Vec<FileStore> = (0..MANY).map(|_| folder.open("run", MANY)).collect();
    for (n, store) in stores.iter().enumerate() {
        assert_eq!(store.add("count", 1, soon()).unwrap(), n as i64 + 1);
    }
    stores[0].wait(&["count"], soon()).unwrap();
    drop(stores);
    assert_eq!(folder.files().len(), 0);
}

/// To the kernel's locks a forked child is its parent, so it needs one of its own.
#[test]
fn a_forked_child_writes_beside_its_parent() {
    const EACH: i64 = 2000;
    let folder = Folder::new();
    let store = folder.open("run", 1);
    store.set("a", b"1", soon()).unwrap();
    let steps = Segment::create(8, Access::ReadWrite).unwrap();
    let until = |expected: u8| {
        let mut step = [0];
        while step[0] != expected {
            steps.copy_out(0, &mut step).unwrap();
            std::thread::yield_now();
        }
    };
    let add = || (0..EACH).try_for_each(|_| store.add("sum", 1, soon()).map(drop));
    std::thread::scope(|s| {
        // Only when the child is there: what a lock of this process held then would be held for ever in the child.
        let beside = s.spawn(|| {
            until(1);
            steps.copy_in(0, &[2]).unwrap();
            add()
        });
        let child = in_child(|_| {
            steps.copy_in(0, &[1]).unwrap();
            until(2);
            i32::from(add().is_err())
        });
        assert_eq!(child.unwrap().exit, Some(0));
        beside.join().unwrap().unwrap();
    });
    assert_eq!(store.add("sum", 0, soon()).unwrap(), 2 * EACH);
    // The child has left nothing, nor left.
    assert_eq!(folder.files().len(), 1);
    drop(store);
    assert_eq!(folder.files().len(), 0);
}

/// What ranks leave for each other may be a secret.
#[test]
fn others_do_not_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let _store = folder.open("run", 1);
    assert_eq!(std::fs::metadata(folder.file()).unwrap().permissions().mode() & 0o077, 0);
}

/// Who comes beyond the number that takes part is told when the others have removed the file, and does not write where nobody reads.
#[test]
fn who_is_left_over_is_told_that_the_file_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let stores = [(); 3].map(|()| FileStore::open(&path, "run", 2).unwrap());
    let by = Deadline::default();
    stores.iter().for_each(|store| assert!(store.add("n", 1, by).is_ok()));
    let [one, two, third] = stores;
    drop((one, two));
    let error = third.set("late", b"", by).unwrap_err();
    assert!(error.to_string().contains("has been removed"), "{error}");
    assert_eq!(third.get("n", by).unwrap(), b"3");
}
