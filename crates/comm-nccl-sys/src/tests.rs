//! What is opened, and what is said when that does not do. Libraries are made up by the C compiler.

use std::ffi::OsString;
use std::process::Command;
use std::ptr::{null, null_mut, without_provenance_mut};

use crate::library::find;
use crate::{Capability, Error, Nccl, Progress, Status, sys};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// An NCCL of a version, whose functions are those that are asked for.
const SOURCE: &str = r#"
typedef int status;
static const char *last = "";
#ifndef STATUS
#define STATUS 0
#endif
#ifndef NO_VERSION
status ncclGetVersion(int *version) { *version = VERSION; return STATUS; }
#endif
const char *ncclGetLastError(void *comm) { return last; }
const char *ncclGetErrorString(status s) { return s == 4 ? "invalid argument" : "other"; }
status ncclGetUniqueId(char *id) {
    for (int i = 0; i < 128; i++) id[i] = i;
    return 0;
}
status ncclGroupStart(void) { last = "  the network is\n gone "; return 1234; }
status ncclGroupEnd(void) { return 7; }
status ncclCommAbort(void *comm) { return comm == (void *)0x1234 ? 0 : 4; }
static void **place;
status ncclCommGetAsyncError(void *comm, int *state) {
    if (comm == (void *)0x1235) *place = (void *)0x5678;
    *state = comm == (void *)0x1234 ? 7 : comm == (void *)0x1235 ? 0 : 6;
    return 0;
}
status ncclCommSplit(void *comm, int colour, int key, void **to, void *config) { place = to; return 7; }
#ifdef WITH_GROW
status ncclCommGrow(void *a, int b, const void *c, int d, void **to, void *e) { *to = (void *)0x9abc; return 0; }
status ncclCommGetUniqueId(void *comm, void *id) { return 0; }
#endif
#ifdef NEEDS_MORE
extern int a_function_that_nobody_has(void);
status ncclCommDestroy(void *comm) { return a_function_that_nobody_has(); }
#endif
"#;

/// A folder of libraries that were made up.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> std::io::Result<Folder> {
        tempfile::tempdir().map(Folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Compiles one.
    fn library(&self, name: &str, flags: &[&str]) -> std::io::Result<String> {
        let (source, made) = (self.path("source.c"), self.path(name));
        std::fs::write(&source, SOURCE)?;
        let output = Command::new("cc")
            .args(["-shared", "-fPIC"])
            .args(flags)
            .args(["-o", &made, &source])
            .output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(made)
    }

    /// Compiles one and opens it.
    fn open(&self, name: &str, flags: &[&str]) -> Result<Nccl, Box<dyn std::error::Error>> {
        Ok(find(Some(self.library(name, flags)?.into()), &[])?)
    }
}

/// The two texts of the error that there is instead of a library.
fn refused(found: Result<Nccl, Error>) -> (String, String) {
    match found {
        Err(Error::Unavailable { what, tried, why }) if what == "NCCL" => (tried, why),
        other => panic!("{other:?}"),
    }
}

/// The same, of what the variable names.
fn refused_file(path: &str) -> String {
    refused(find(Some(path.into()), &[])).0
}

#[test]
fn no_library() -> Outcome {
    let folder = Folder::new()?;
    let (one, two) = (folder.path("one.so"), folder.path("two.so"));
    let (tried, why) = refused(find(None, &[&one, &two]));
    let parts: Vec<&str> = tried.split("; ").collect();
    assert_eq!(parts[0], "COMM_NCCL_LIB: not set");
    assert!(parts[1].starts_with(&format!("{one}: {one}: cannot open shared object file")), "{tried}");
    assert!(parts[2].starts_with(&format!("{two}: {two}: cannot open shared object file")), "{tried}");
    assert_eq!(why, "none of these does; install it, or name it in COMM_NCCL_LIB");
    Ok(())
}

#[test]
fn a_variable_that_is_set_is_all_that_counts() -> Outcome {
    let folder = Folder::new()?;
    let good = folder.library("good.so", &["-DVERSION=23203"])?;
    let (tried, why) = refused(find(Some(OsString::new()), &[&good, "other"]));
    assert_eq!(
        tried,
        format!("COMM_NCCL_LIB=: it is empty; then {good}, other: not tried, since COMM_NCCL_LIB is set")
    );
    assert!(why.contains("unset"), "{why}");
    let (tried, why) = refused(find(Some(folder.path("none.so").into()), &[&good]));
    assert!(tried.starts_with("COMM_NCCL_LIB=/") && tried.contains("not tried"), "{tried}");
    assert_eq!(why, "what the variable names does not do");
    Ok(())
}

/// The process would be killed by opening it, or would wait for ever.
#[test]
fn what_is_not_all_there_is_not_opened() -> Outcome {
    let folder = Folder::new()?;
    let whole = std::fs::read(folder.library("whole.so", &["-DVERSION=23203"])?)?;
    let cut = folder.path("cut.so");
    for size in (0..12_000).step_by(100) {
        std::fs::write(&cut, &whole[..size])?;
        let tried = refused_file(&cut);
        assert!(size < 1000 || tried.contains("its end is missing"), "{size}: {tried}");
    }
    // At its end are tables for debuggers, without which it does.
    std::fs::write(&cut, &whole[..whole.len() - 64])?;
    assert!(find(Some(cut.into()), &[]).is_ok());
    let pipe = folder.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status()?.success());
    for path in [pipe, folder.path("")] {
        let tried = refused_file(&path);
        assert!(tried.contains("it is no regular file"), "{tried}");
    }
    Ok(())
}

#[test]
fn the_first_that_does_is_taken() -> Outcome {
    let folder = Folder::new()?;
    let old = folder.library("old.so", &["-DVERSION=21400"])?;
    let good = folder.library("good.so", &["-DVERSION=22000"])?;
    let better = folder.library("better.so", &["-DVERSION=22200"])?;
    let nccl = find(None, &[&old, &good, &better])?;
    assert_eq!((nccl.path(), nccl.version().to_string().as_str()), (good.as_str(), "2.20.0"));
    assert_eq!(find(Some(better.clone().into()), &[&good])?.path(), better);
    let (tried, _) = refused(find(None, &[&old]));
    assert!(tried.ends_with("old.so: it is NCCL 2.14.0, and the oldest that is taken is 2.18.0"), "{tried}");
    Ok(())
}

#[test]
fn files_that_are_not_it() -> Outcome {
    let folder = Folder::new()?;
    let other = folder.library("other.so", &["-DNO_VERSION"])?;
    let tried = refused_file(&other);
    assert!(tried.contains("other.so: it has no ncclGetVersion, so it is not NCCL; then"), "{tried}");
    let tried = refused_file(&folder.library("odd.so", &["-DVERSION=23203", "-DSTATUS=3"])?);
    assert!(tried.contains("ncclGetVersion gives status 3 and version 23203"), "{tried}");
    let tried = refused_file(&folder.library("negative.so", &["-DVERSION=-5"])?);
    assert!(tried.contains("ncclGetVersion gives status 0 and version -5"), "{tried}");
    // What it needs is looked up when it is opened, and not when it is called.
    let tried = refused_file(&folder.library("open.so", &["-DVERSION=23203", "-DNEEDS_MORE"])?);
    assert!(tried.contains("undefined symbol: a_function_that_nobody_has"), "{tried}");
    let (text, cut) = (folder.path("text.so"), folder.path("cut.so"));
    std::fs::write(&text, "no library\n".repeat(1000))?;
    assert!(refused_file(&text).contains("invalid ELF header"), "{}", refused_file(&text));
    std::fs::write(&cut, &std::fs::read(&other)?[..30])?;
    assert!(refused_file(&cut).contains("file too short"), "{}", refused_file(&cut));
    Ok(())
}

/// Run by itself in a process whose variable is set, by the same test in one whose is not.
#[test]
fn the_process_opens_it_once() -> Outcome {
    const NONE: &str = "/no/such/nccl.so";
    if std::env::var_os(crate::VARIABLE).is_some_and(|set| set == *NONE) {
        let (tried, _) = refused(Nccl::get().map(|_| panic!("it is there")));
        assert!(tried.starts_with("COMM_NCCL_LIB=/no/such/nccl.so: "), "{tried}");
        assert_eq!(Nccl::get().err(), Nccl::get().err());
        return Ok(());
    }
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--exact", "tests::the_process_opens_it_once"]).env(crate::VARIABLE, NONE);
    let output = child.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    if let Ok(nccl) = Nccl::get() {
        assert!(std::ptr::eq(nccl, Nccl::get()?));
    }
    Ok(())
}

/// Tries to grow: what the capability says, and what the call gives.
fn grow(nccl: &Nccl) -> (Result<(), Error>, Result<usize, Error>) {
    let mut comm = null_mut();
    // SAFETY: the made-up function looks at nothing but the place, which is alive.
    let called = unsafe { nccl.comm_grow(null_mut(), 4, null(), 0, &raw mut comm, null_mut()) };
    assert_eq!(nccl.has(Capability::Grow), called.is_ok());
    (nccl.require(Capability::Grow), called.map(|_| comm.addr()))
}

#[test]
fn a_capability_is_symbol_and_version() -> Outcome {
    let folder = Folder::new()?;
    let nccl = folder.open("grown.so", &["-DVERSION=22902", "-DWITH_GROW"])?;
    assert_eq!(grow(&nccl), (Ok(()), Ok(0x9abc)));
    // New enough for revoking, which it does not have; not new enough for what came later; and new enough for values.
    let why = |capability| nccl.require(capability).unwrap_err().to_string();
    let expected = "ncclCommRevoke is not available: it is not in this library, NCCL 2.29.2 (tried /";
    assert!(why(Capability::Revoke).starts_with(expected), "{}", why(Capability::Revoke));
    let expected = "NCCL's params is not available: it came with NCCL 2.31.0, and this is 2.29.2 (tried /";
    assert!(why(Capability::Params).starts_with(expected), "{}", why(Capability::Params));
    assert!(nccl.has(Capability::Float8));

    // What is there before its time may be something else under the same name.
    let early = folder.open("early.so", &["-DVERSION=22900", "-DWITH_GROW"])?;
    assert!(early.functions().ncclCommGrow.is_none());
    let (required, called) = grow(&early);
    let since = "is not available: it came with NCCL 2.29.2, and this is 2.29.0";
    assert!(required.unwrap_err().to_string().starts_with(&format!("NCCL's grow {since}")));
    assert!(called.unwrap_err().to_string().starts_with(&format!("ncclCommGrow {since}")));

    let bare = folder.open("bare.so", &["-DVERSION=23203"])?;
    let (required, called) = grow(&bare);
    let missing = "ncclCommGrow is not available: it is not in this library, NCCL 2.32.3 (tried /";
    for text in [required.unwrap_err().to_string(), called.unwrap_err().to_string()] {
        assert!(text.starts_with(missing), "{text}");
    }
    // A function that every NCCL has had is no different.
    // SAFETY: it is not there, so nothing is called.
    let text = unsafe { bare.comm_destroy(null_mut()) }.unwrap_err().to_string();
    assert!(text.starts_with("ncclCommDestroy is not available: it is not in this library"), "{text}");
    Ok(())
}

#[test]
fn statuses_are_results() -> Outcome {
    let folder = Folder::new()?;
    let nccl = folder.open("nccl.so", &["-DVERSION=23203"])?;
    let id = nccl.get_unique_id()?;
    assert!((0..).zip(id.internal).all(|(n, byte)| byte as u8 == n));
    assert_eq!(nccl.get_error_string(sys::ncclResult_t(4)), "invalid argument");
    // An unknown status is kept, with what NCCL says of it.
    let error = nccl.group_start().unwrap_err();
    let last = "the network is\n gone".to_owned();
    assert_eq!(error, Error::Failed { function: "ncclGroupStart", status: Status::Unknown(1234), last });
    assert_eq!(error.status().map(Status::code), Some(1234));
    let alive = without_provenance_mut(0x1234);
    // SAFETY: the made-up functions do not follow their arguments.
    unsafe {
        assert_eq!(nccl.group_end()?, Progress::InProgress);
        // It is under way when the call returns, and its handle comes when it is over.
        let mut split = null_mut();
        assert_eq!(nccl.comm_split(alive, 0, 0, &raw mut split, null_mut())?, Progress::InProgress);
        assert!((&raw const split).read_volatile().is_null());
        assert_eq!(nccl.comm_get_async_error(without_provenance_mut(0x1235))?, Progress::Done);
        assert_eq!((&raw const split).read_volatile().addr(), 0x5678);
        assert_eq!(nccl.comm_abort(alive)?, Progress::Done);
        assert_eq!(nccl.comm_abort(null_mut()).unwrap_err().status(), Some(Status::InvalidArgument));
        assert_eq!(nccl.comm_get_async_error(alive)?, Progress::InProgress);
        let error = nccl.comm_get_async_error(null_mut()).unwrap_err();
        assert_eq!(error.status(), Some(Status::RemoteError));
    }
    Ok(())
}

/// Whatever a file holds, opening it is an error and not the end of the process.
#[test]
fn a_path_may_be_anything() {
    for path in ["\0", "/dev/null", "/proc/self/exe", "relative/to/nowhere.so", &"x".repeat(10_000)] {
        let tried = refused_file(path);
        assert!(tried.starts_with("COMM_NCCL_LIB="), "{tried}");
    }
}
