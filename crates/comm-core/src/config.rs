//! Every default of the library, in one table, each with its environment variable.
//!
//! The table is what `docs/configuration.md` is made from. A variable that is set but empty, or that cannot
//! be read, is an error that names it; nothing falls back in silence. [`check`] reads them all, and the hub
//! of a process calls it when it is made.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;

/// A variable is set to something that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value:?} cannot be used: {why}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The environment variable.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// What it should be.
    pub why: &'static str,
}

impl From<ConfigError> for Error {
    fn from(e: ConfigError) -> Self {
        Error::InvalidArgument { op: "configuration", why: e.to_string() }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Environment variable.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// Scope of names when processes are to meet.
#[doc(alias = "GlobalCommInstanceId")]
pub const INSTANCE_ID: Setting = Setting {
    name: "COMM_INSTANCE_ID",
    default: "the launcher's job id (TORCHELASTIC_RUN_ID with MASTER_PORT, PMIX_NAMESPACE, the process of MPICH's launcher, SLURM_JOB_ID with SLURM_STEP_ID), else this process alone",
    meaning: "Scope of all names. Processes meet only if they have the same one; without one, only threads of one process meet.",
};
/// Folder of the sockets, where abstract names do not reach.
pub const RUNTIME_DIR: Setting = Setting {
    name: "COMM_RUNTIME_DIR",
    default: "not set: names are abstract Unix sockets",
    meaning: "A directory of mode 0700 that holds the sockets instead, for containers with network namespaces of their own.",
};
/// Default deadline.
pub const TIMEOUT_MS: Setting = Setting {
    name: "COMM_TIMEOUT_MS",
    default: "600000",
    meaning: "Deadline, in milliseconds from its start, of every wait that is not given one. At least 1.",
};
/// Limit of the arena.
pub const ARENA_MAX_BYTES: Setting = Setting {
    name: "COMM_ARENA_MAX_BYTES",
    default: "half of MemAvailable at first use",
    meaning: "Most bytes of shared memory that the arenas of one process may hold at once.",
};
/// Folder for what ranks have to say about a failure.
#[doc(alias = "TORCH_FR_DUMP_TEMP_FILE")]
pub const DUMP_DIR: Setting = Setting {
    name: "COMM_DUMP_DIR",
    default: "not set: nothing is written",
    meaning: "A directory, made if it is missing, into which each rank of a group writes its last operations when one fails and the team is over or a rank has left: a file of Chrome trace events for each team and rank.",
};

/// This process's rank.
pub const RANK: Setting = Setting {
    name: "COMM_RANK",
    default: "the launcher's (see `comm_core::launch`)",
    meaning: "Rank of this process, for `LaunchEnv::detect` and `Team::from_env`. With `COMM_WORLD_SIZE` it comes before what any launcher says.",
};
/// How many ranks there are.
pub const WORLD_SIZE: Setting =
    Setting { name: "COMM_WORLD_SIZE", default: "the launcher's", meaning: "How many ranks there are." };
/// This process's number on its host.
pub const LOCAL_RANK: Setting = Setting {
    name: "COMM_LOCAL_RANK",
    default: "the launcher's",
    meaning: "Number of this process among those of its host.",
};
/// How many ranks this host has.
pub const LOCAL_WORLD_SIZE: Setting = Setting {
    name: "COMM_LOCAL_WORLD_SIZE",
    default: "the launcher's",
    meaning: "How many ranks this host has.",
};
/// Where ranks meet.
pub const MASTER_ADDR: Setting = Setting {
    name: "COMM_MASTER_ADDR",
    default: "`MASTER_ADDR`",
    meaning: "Host of the store at which ranks meet.",
};
/// Where ranks meet there.
pub const MASTER_PORT: Setting =
    Setting { name: "COMM_MASTER_PORT", default: "`MASTER_PORT`", meaning: "Port of that store." };
/// The library of NCCL. comm-nccl-sys reads it, which has no other crate below it.
pub const NCCL_LIB: Setting = Setting {
    name: "COMM_NCCL_LIB",
    default: "`libnccl.so.2`, else `libnccl.so`, as the dynamic linker finds them",
    meaning: "Library of NCCL that comm-nccl-sys opens. If it is set, no other is tried.",
};

/// All settings, in the order of the documentation.
pub const TABLE: &[Setting] = &[
    INSTANCE_ID,
    RUNTIME_DIR,
    TIMEOUT_MS,
    ARENA_MAX_BYTES,
    DUMP_DIR,
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    NCCL_LIB,
];

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Reads every variable once and says which one cannot be used.
///
/// # Errors
/// [`ConfigError`] for the first variable that is set but empty or unreadable.
///
/// ```
/// // The error names the variable, its value, and what would do.
/// if let Err(error) = comm_core::config::check() {
///     eprintln!("{error}");
/// }
/// ```
pub fn check() -> Result<(), ConfigError> {
    read_timeout()?;
    arena_max_bytes()?;
    runtime_dir()?;
    dump_dir()?;
    text(INSTANCE_ID)?;
    Ok(())
}

/// The default time to a deadline, from `COMM_TIMEOUT_MS`. An unusable value is reported by [`check`], so here it
/// means the default.
///
/// ```
/// if std::env::var_os("COMM_TIMEOUT_MS").is_none() {
///     assert_eq!(comm_core::config::timeout().as_secs(), 600);
/// }
/// ```
#[doc(alias = "GetCommTimeoutSecond")]
pub fn timeout() -> Duration {
    read_timeout().unwrap_or(DEFAULT_TIMEOUT)
}

fn read_timeout() -> Result<Duration, ConfigError> {
    match number(TIMEOUT_MS)? {
        None => Ok(DEFAULT_TIMEOUT),
        Some(ms) => Ok(Duration::from_millis(ms)),
    }
}

/// The limit of the arenas in bytes; `None` when the variable is not set.
///
/// # Errors
/// [`ConfigError`] if the variable is set to something else than a positive whole number.
pub fn arena_max_bytes() -> Result<Option<u64>, ConfigError> {
    number(ARENA_MAX_BYTES)
}

/// The folder of the sockets; `None` for abstract names.
///
/// # Errors
/// [`ConfigError`] if the variable is set but empty.
pub fn runtime_dir() -> Result<Option<PathBuf>, ConfigError> {
    Ok(text(RUNTIME_DIR)?.map(PathBuf::from))
}

/// The folder for what ranks have to say about a failure; `None` if they say nothing.
///
/// # Errors
/// [`ConfigError`] if the variable is set but empty.
pub fn dump_dir() -> Result<Option<PathBuf>, ConfigError> {
    Ok(text(DUMP_DIR)?.map(PathBuf::from))
}

/// A variable as text; `None` when it is not set.
pub(crate) fn text(setting: Setting) -> Result<Option<String>, ConfigError> {
    match std::env::var(setting.name) {
        Ok(value) if value.is_empty() => Err(ConfigError {
            name: setting.name,
            value,
            why: "it is set but empty; unset it to get the default",
        }),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(raw)) => Err(ConfigError {
            name: setting.name,
            value: raw.to_string_lossy().into_owned(),
            why: "it is not valid UTF-8",
        }),
    }
}

fn number(setting: Setting) -> Result<Option<u64>, ConfigError> {
    let Some(value) = text(setting)? else { return Ok(None) };
    match value.parse::<u64>() {
        Ok(n) if n > 0 => Ok(Some(n)),
        _ => Err(ConfigError { name: setting.name, value, why: "it must be a whole number of at least 1" }),
    }
}
