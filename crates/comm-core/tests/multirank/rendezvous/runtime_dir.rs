//! Names as socket files in a folder.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use comm_testkit::{Launch, LauncherCtx, Layout, Outcome, probe};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::configured::said;
use super::names::fresh;
use super::*;

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher("rendezvous", "runtime-dir/-/-/join", join),
        Case::launcher("rendezvous", "runtime-dir/-/-/dead-sockets", dead_sockets)
            .layouts(&[Layout::Processes, Layout::Mixed]),
        Case::launcher("rendezvous", "runtime-dir/-/-/unusable", unusable)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Threads]),
        Case::launcher("rendezvous", "runtime-dir/-/-/name-is-taken", taken)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Threads]),
        Case::launcher("rendezvous", "runtime-dir/-/-/lock-is-held", locked)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Threads]),
    ]
}

const VARIABLE: &str = "COMM_RUNTIME_DIR";

fn folder() -> std::io::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700))?;
    Ok(folder)
}

fn with(launch: Launch, folder: &Path) -> Launch {
    launch.env(VARIABLE, folder.to_string_lossy()).limit(AMPLE)
}

/// The socket files, by name; inode and time tell one from its successor.
fn sockets(folder: &Path) -> std::io::Result<BTreeMap<PathBuf, (u64, i64, i64)>> {
    let entries = std::fs::read_dir(folder)?.flatten();
    let of = |m: std::fs::Metadata| (m.ino(), m.ctime(), m.ctime_nsec());
    entries.map(|entry| Ok((entry.path(), of(entry.metadata()?)))).collect()
}

/// All start at once, again and again: none removes the socket of another.
fn join(ctx: &LauncherCtx) -> RankResult {
    let folder = folder()?;
    for round in 0..5 {
        let running = with(ctx.launch("rendezvous/meet"), folder.path()).spawn()?;
        for report in running.wait(AMPLE) {
            check!(report.outcome.is_ok(), "round {round}, rank {}: {}", report.rank, report.outcome);
        }
        let named = probe::sockets_named(running.instance())?;
        check!(named.is_empty(), "{named:?}");
    }
    check!(!sockets(folder.path())?.is_empty(), "they met there");
    done()
}

/// Who is killed leaves his sockets behind. They are swept at the next start, and in nobody's way.
fn dead_sockets(ctx: &LauncherCtx) -> RankResult {
    let folder = folder()?;
    let held = |instance: &str| with(ctx.launch("rendezvous/hold"), folder.path()).instance(instance).spawn();
    let (one, other) = (fresh(), fresh());
    let dead = held(&one)?;
    let alive = held(&other)?;
    for rank in 0..ctx.world() {
        dead.wait_note(rank, "held", AMPLE)?;
        alive.wait_note(rank, "held", AMPLE)?;
    }
    let both = sockets(folder.path())?;
    dead.signal_all(comm_testkit::Signal::Kill);
    (0..dead.processes()).try_for_each(|p| dead.wait_exit(p, AMPLE).map(drop))?;
    check_eq!(sockets(folder.path())?, both, "nobody is there to sweep");
    for report in with(ctx.launch("rendezvous/meet"), folder.path()).instance(&one).run(AMPLE)? {
        check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
    }
    let now = sockets(folder.path())?;
    // The team's socket and one of each hub, of those that live.
    let left = both.iter().filter(|(path, inode)| now.get(*path) == Some(inode)).count();
    check_eq!(left, 1 + alive.processes());
    // And they work.
    for rank in 0..ctx.world() {
        alive.send(rank, "still there")?;
        alive.wait_note(rank, "still there", AMPLE)?;
    }
    done()
}

fn refused(ctx: &LauncherCtx, folder: &Path, why: &str) -> RankResult {
    let launch = with(ctx.launch_on("rendezvous/try", 1, Layout::Threads), folder).arg(5000);
    for report in launch.run(AMPLE)? {
        let said = said(&report.outcome)?;
        check_eq!(said["kind"], "invalid-argument", "{}: {said}", folder.display());
        let text = said["text"].as_str().unwrap_or_default();
        check!(text.contains(VARIABLE) && text.contains(why), "{text:?} does not say {why:?}");
    }
    done()
}

fn unusable(ctx: &LauncherCtx) -> RankResult {
    let base = folder()?;
    for mode in [0o755, 0o770, 0o707, 0o500, 0o600, 0o000] {
        let folder = base.path().join(format!("{mode:o}"));
        std::fs::create_dir(&folder)?;
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode))?;
        refused(ctx, &folder, "it must be 700")?;
    }
    let file = base.path().join("file");
    std::fs::write(&file, "")?;
    refused(ctx, &file, "not a directory")?;
    let link = base.path().join("link");
    std::os::unix::fs::symlink(base.path(), &link)?;
    refused(ctx, &link, "not a directory")?;
    refused(ctx, &base.path().join("nothing"), "No such file")?;
    refused(ctx, Path::new("relative"), "absolute")?;
    let long = base.path().join("n".repeat(100));
    std::fs::create_dir(&long)?;
    std::fs::set_permissions(&long, PermissionsExt::from_mode(0o700))?;
    refused(ctx, &long, "has room for")?;
    if rustix::process::geteuid().is_root() {
        let others = base.path().join("others");
        std::fs::create_dir(&others)?;
        std::fs::set_permissions(&others, PermissionsExt::from_mode(0o700))?;
        std::os::unix::fs::chown(&others, Some(65534), None)?;
        refused(ctx, &others, "belongs to uid 65534")?;
    }
    // The longest that does fit.
    let room = 107 - "/team-".len() - 32;
    let fits = base.path().join("n".repeat(room - base.path().as_os_str().len() - 1));
    std::fs::create_dir(&fits)?;
    std::fs::set_permissions(&fits, PermissionsExt::from_mode(0o700))?;
    for report in with(ctx.launch("rendezvous/meet"), &fits).run(AMPLE)? {
        check!(report.outcome.is_ok(), "{}", report.outcome);
    }
    done()
}

/// The file of the team `t`.
fn file_of_team(folder: &Path, instance: &str) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let hash = Sha256::digest(format!("comm/{uid}/{instance}/team/t").as_bytes());
    folder.join(format!("team-{}", hash.iter().take(16).map(|b| format!("{b:02x}")).collect::<String>()))
}

/// Something else stands where the socket should.
fn taken(ctx: &LauncherCtx) -> RankResult {
    let attempt = |folder: &Path, instance: &str| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
        let launch = with(ctx.launch_on("rendezvous/try", 1, Layout::Threads), folder).arg(2000);
        let reports = launch.instance(instance).run(AMPLE)?;
        Ok(said(&reports[0].outcome)?)
    };
    // A socket that was closed: it is replaced.
    let (folder, instance) = (folder()?, fresh());
    let path = file_of_team(folder.path(), &instance);
    drop(std::os::unix::net::UnixListener::bind(&path)?);
    check_eq!(attempt(folder.path(), &instance)?["kind"], "ok");
    // A socket of another kind, which lives.
    std::fs::remove_file(&path)?;
    let listener = std::os::unix::net::UnixListener::bind(&path)?;
    let said = attempt(folder.path(), &instance)?;
    check_eq!(said["kind"], "bad-peer", "{said}");
    check!(said["text"].as_str().is_some_and(|text| text.contains("another kind")), "{said}");
    drop(listener);
    // No socket at all.
    std::fs::remove_file(&path)?;
    std::fs::write(&path, "precious")?;
    let said = attempt(folder.path(), &instance)?;
    check_eq!(said["kind"], "bad-peer", "{said}");
    check!(said["text"].as_str().is_some_and(|text| text.contains("not a socket")), "{said}");
    check_eq!(std::fs::read_to_string(&path)?, "precious");
    done()
}

/// Whoever is inside may be stopped: nobody waits for him past the deadline.
fn locked(ctx: &LauncherCtx) -> RankResult {
    let folder = folder()?;
    let lock = std::fs::File::open(folder.path())?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let launch = || with(ctx.launch_on("rendezvous/try", 1, Layout::Threads), folder.path()).arg(400);
    let started = Instant::now();
    let reports = launch().env("COMM_TIMEOUT_MS", "400").run(AMPLE)?;
    let said = said(&reports[0].outcome)?;
    check_eq!(said["kind"], "io", "{said}");
    let text = said["text"].as_str().unwrap_or_default();
    check!(text.contains("locking") && text.contains(&*folder.path().to_string_lossy()), "{text}");
    check!(started.elapsed() < Duration::from_secs(15));
    flock(&lock, FlockOperation::Unlock)?;
    check!(matches!(&launch().run(AMPLE)?[0].outcome, Outcome::Ok(value) if value["kind"] == "ok"));
    done()
}
