//! Finding the library, opening it once, and what it has.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::capability::Capability;
use crate::error::{Error, Result};
use crate::sys::{Functions, ncclResult_t};
use crate::version::Version;
use crate::whole::whole;

/// The variable that names the library. If it is set, nothing else is tried.
pub const VARIABLE: &str = "COMM_NCCL_LIB";

/// What the dynamic linker is asked for if the variable is not set.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version that is taken: its functions and structures are what later ones have added to.
const OLDEST: Version = Version::new(2, 18, 0);

/// The library that was opened: its version, what it can do, and its functions.
///
/// It stays open until the process ends, since NCCL leaves threads behind that run in it.
pub struct Nccl {
    _library: ManuallyDrop<Library>,
    path: String,
    version: Version,
    functions: Functions,
}

impl Nccl {
    /// The library of this process, which the first call opens: what [`COMM_NCCL_LIB`](VARIABLE) names, else `libnccl.so.2`,
    /// else `libnccl.so`. What the first call came to is what every call gets.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with what was tried, in order, and what each said: there is none, it is not NCCL, or it is
    /// older than 2.18. A variable that is set but empty, or to something that does not do, is an error, too: nothing else
    /// is taken in silence.
    pub fn get() -> Result<&'static Nccl> {
        static NCCL: OnceLock<Result<Nccl>> = OnceLock::new();
        NCCL.get_or_init(|| find(std::env::var_os(VARIABLE), &NAMES)).as_ref().map_err(Error::clone)
    }

    /// What it was opened as.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The version that it says it is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The functions as they are, for what has no method.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Whether it is new enough for this, and has all the functions of it.
    pub fn has(&self, capability: Capability) -> bool {
        self.require(capability).is_ok()
    }

    /// The same, with the reason if not.
    ///
    /// # Errors
    /// [`Error::Unavailable`] that says whether the version is too old or which function is missing.
    pub fn require(&self, capability: Capability) -> Result<()> {
        if self.version < capability.since() {
            return Err(self.too_old(&format!("NCCL's {capability}"), capability.since()));
        }
        match capability.functions().iter().find(|name| !self.functions.has(name)) {
            Some(name) => Err(self.missing(name)),
            None => Ok(()),
        }
    }

    /// What a call of a function gets that is not there.
    pub(crate) fn missing(&self, function: &'static str) -> Error {
        match Capability::of(function) {
            Some(capability) if self.version < capability.since() => {
                self.too_old(function, capability.since())
            }
            _ => self.unavailable(function, format!("it is not in this library, NCCL {}", self.version)),
        }
    }

    fn too_old(&self, what: &str, since: Version) -> Error {
        self.unavailable(what, format!("it came with NCCL {since}, and this is {}", self.version))
    }

    fn unavailable(&self, what: &str, why: String) -> Error {
        Error::Unavailable { what: what.to_owned(), tried: self.path.clone(), why }
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nccl({} of {})", self.version, self.path)
    }
}

/// Opens what the variable names, else the first of these names that does.
pub(crate) fn find(variable: Option<OsString>, names: &[&str]) -> Result<Nccl> {
    let unavailable =
        |tried: String, why: &str| Error::Unavailable { what: "NCCL".to_owned(), tried, why: why.to_owned() };
    if let Some(path) = variable {
        let tried = |said: &str| {
            let path = path.display();
            format!(
                "{VARIABLE}={path}: {said}; then {}: not tried, since {VARIABLE} is set",
                names.join(", ")
            )
        };
        if path.is_empty() {
            return Err(unavailable(
                tried("it is empty"),
                "unset the variable to have the usual names tried",
            ));
        }
        return open(&path).map_err(|said| unavailable(tried(&said), "what the variable names does not do"));
    }
    let mut tried = vec![format!("{VARIABLE}: not set")];
    for name in names {
        match open(name.as_ref()) {
            Ok(nccl) => return Ok(nccl),
            Err(said) => tried.push(format!("{name}: {said}")),
        }
    }
    let why = format!("none of these does; install it, or name it in {VARIABLE}");
    Err(unavailable(tried.join("; "), &why))
}

/// Opens one, or says in one line why it does not do.
fn open(path: &OsStr) -> Result<Nccl, String> {
    if path.as_encoded_bytes().contains(&b'/') {
        // One that the linker has to look for was put there by who installs libraries.
        whole(path.as_ref())?;
    }
    // All that it needs is bound now: what cannot be is an error here, and not a process that dies in a later call.
    // SAFETY: this runs the library's initialisers. That they may run is what whoever installs a libnccl on this machine, or
    // names a file in the variable, says.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = ManuallyDrop::new(library.map_err(|e| said(&e))?);
    // SAFETY: every NCCL has had this function with this type, and the library is never closed.
    let first = unsafe { Functions::of(&library, |name| name == "ncclGetVersion") };
    let get_version = first.ncclGetVersion.ok_or("it has no ncclGetVersion, so it is not NCCL")?;
    let mut code = 0;
    // SAFETY: the function writes one int to where it is told, which is alive.
    let status = unsafe { get_version(&mut code) };
    let version = match u32::try_from(code) {
        Ok(code) if status == ncclResult_t::ncclSuccess => Version::from_code(code),
        _ => return Err(format!("ncclGetVersion gives status {} and version {code}", status.0)),
    };
    if version < OLDEST {
        return Err(format!("it is NCCL {version}, and the oldest that is taken is {OLDEST}"));
    }
    let wanted = |name: &str| Capability::of(name).is_none_or(|capability| capability.since() <= version);
    // SAFETY: it says that it is an NCCL new enough to have what is looked up, under whose names there are only these types in
    // all versions since; and it is never closed.
    let functions = unsafe { Functions::of(&library, wanted) };
    Ok(Nccl { _library: library, path: path.to_string_lossy().into_owned(), version, functions })
}

/// What the dynamic linker said, without the words of the library that asked it.
fn said(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
