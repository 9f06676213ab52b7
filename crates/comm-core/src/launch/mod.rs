//! What the launcher that started this process says: which rank it is, of how many, and who belongs together.
//!
//! | launcher | read if it is set | rank and size | on this host |
//! |---|---|---|---|
//! | a plain shell | `COMM_RANK` or `COMM_WORLD_SIZE` | these | `COMM_LOCAL_RANK`, `COMM_LOCAL_WORLD_SIZE` |
//! | torchrun | `RANK` and `WORLD_SIZE`, or `TORCHELASTIC_RUN_ID` | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK` | that, `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `OMPI_COMM_WORLD_LOCAL_SIZE` |
//! | MPICH, and others that speak PMI | `PMI_RANK` | that, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
//! | PMIx | `PMIX_RANK` | that, the size of Slurm's step | Slurm's |
//! | Slurm | `SLURM_STEP_ID` and `SLURM_PROCID` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` |
//!
//! The first of these counts: launchers are started by launchers, and the inner one knows. What one of them says has to be
//! sound, and what it says twice has to be the same; else it is an error that names the variables.
//!
//! The address is `COMM_MASTER_ADDR` and `COMM_MASTER_PORT`, else `MASTER_ADDR` and `MASTER_PORT`, whoever set them.

mod job;
mod sets;
#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use self::job::Job;
use self::sets::{SETS, Said};
use crate::config;
use crate::error::{Error, Result};

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// Somebody who set `COMM_RANK` and `COMM_WORLD_SIZE`.
    Comm,
    /// torchrun, or somebody who sets the same variables.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec`, or another that speaks PMI.
    Pmi,
    /// Another that speaks PMIx.
    Pmix,
    /// Slurm's `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Comm => "COMM_RANK",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "PMI",
            Launcher::Pmix => "PMIx",
            Launcher::Slurm => "Slurm",
        })
    }
}

/// What a launcher says to this process. See the [module](self) for the variables.
///
/// ```
/// use comm_core::launch::LaunchEnv;
///
/// match LaunchEnv::detect()? {
///     Some(env) => println!("rank {} of {}, by {}", env.rank, env.world_size, env.launcher),
///     None => println!("nobody says that this is a rank"),
/// }
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchEnv {
    /// Who says it.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// Its number among the ranks of this host.
    pub local_rank: Option<usize>,
    /// How many ranks this host has.
    pub local_world_size: Option<usize>,
    /// Host at which ranks meet.
    pub master_addr: Option<String>,
    /// Port at which ranks meet.
    pub master_port: Option<u16>,
    /// What the ranks of one job have in common, and no other job has.
    pub job: Option<String>,
    /// Whether the launcher serves a store at that address, so that no rank has to.
    pub serves_store: bool,
}

impl LaunchEnv {
    /// Reads the variables of this process; `None` if no launcher says anything.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a variable cannot be read, or what is said contradicts itself.
    pub fn detect() -> Result<Option<LaunchEnv>> {
        LaunchEnv::of(&Vars(&|name| std::env::var_os(name)))
    }

    fn of(vars: &Vars<'_>) -> Result<Option<LaunchEnv>> {
        let Some(set) = SETS.iter().find(|set| set.speaks(vars)) else { return Ok(None) };
        let Said { rank, world_size, local_rank, local_world_size } = set.said(vars)?;
        let master_addr = vars.first(&[config::MASTER_ADDR.name, "MASTER_ADDR"])?;
        let master_port = match vars.first(&[config::MASTER_PORT.name, "MASTER_PORT"])? {
            None => None,
            Some((name, text)) => match text.parse() {
                Ok(port @ 1..) => Some(port),
                _ => return Err(unusable(name, &text, "it is no port from 1 to 65535")),
            },
        };
        Ok(Some(LaunchEnv {
            launcher: set.launcher,
            rank,
            world_size,
            local_rank,
            local_world_size,
            serves_store: vars.get("TORCHELASTIC_USE_AGENT_STORE")?.as_deref() == Some("True")
                && vars.get(config::MASTER_ADDR.name)?.is_none()
                && vars.get(config::MASTER_PORT.name)?.is_none(),
            master_addr: master_addr.map(|(_, text)| text),
            master_port,
            job: Job::of(vars)?.map(|job| job.id),
        }))
    }

    /// The same, for whoever needs a rank.
    pub(crate) fn required() -> Result<LaunchEnv> {
        LaunchEnv::detect()?.ok_or_else(|| Error::Unavailable {
            what: "this process's rank".to_owned(),
            tried: SETS.iter().map(|set| set.rank[0]).collect::<Vec<_>>().join(", "),
            why: "no launcher says it: set COMM_RANK and COMM_WORLD_SIZE, or use one (RANK counts with WORLD_SIZE, SLURM_PROCID \
                  with SLURM_STEP_ID)"
                .to_owned(),
        })
    }
}

/// Where variables are looked up.
pub(crate) struct Vars<'a>(pub &'a dyn Fn(&str) -> Option<std::ffi::OsString>);

impl Vars<'_> {
    /// A variable's text. One that is set but empty is an error.
    fn get(&self, name: &'static str) -> Result<Option<String>> {
        match (self.0)(name) {
            None => Ok(None),
            Some(text) if text.is_empty() => Err(unusable(name, "", "it is set but empty")),
            Some(text) => match text.into_string() {
                Ok(text) => Ok(Some(text)),
                Err(raw) => Err(unusable(name, &raw.to_string_lossy(), "it is not valid UTF-8")),
            },
        }
    }

    /// The first that is set, with its name.
    fn first(&self, names: &[&'static str]) -> Result<Option<(&'static str, String)>> {
        for name in names {
            if let Some(text) = self.get(name)? {
                return Ok(Some((name, text)));
            }
        }
        Ok(None)
    }

    fn is_set(&self, name: &str) -> bool {
        (self.0)(name).is_some()
    }
}

fn contradiction(why: String) -> Error {
    Error::InvalidArgument { op: "LaunchEnv::detect", why }
}

fn unusable(name: &str, text: &str, why: &str) -> Error {
    contradiction(format!("{name}={text:?} cannot be used: {why}"))
}
