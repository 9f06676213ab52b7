//! Calling cargo, and what the workspace is made of.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use serde::Deserialize;

use crate::fail::Fail;

/// The workspace's root folder.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The folder for everything that is built or downloaded.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => root().join(dir),
        _ => root().join("target"),
    }
}

/// A cargo command in the workspace's root.
pub fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// Sets a variable of flags (`RUSTFLAGS`, `RUSTDOCFLAGS`) to what it is already, and `flags`.
pub fn with_flags(command: &mut Command, variable: &str, flags: &str) {
    let had = std::env::var(variable).unwrap_or_default();
    command.env(variable, format!("{had} {flags}").trim());
}

/// How a command ended, in words.
pub fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit status {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => format!("it ended with {status}"),
    }
}

/// Runs a command whose output is all progress: its stdout goes to our stderr.
///
/// # Errors
/// [`Fail::Usage`] if it cannot be started.
pub fn run_to_stderr(command: &mut Command) -> Result<ExitStatus, Fail> {
    let stderr =
        std::io::stderr().as_fd().try_clone_to_owned().map_err(|e| Fail::usage(format!("stderr: {e}")))?;
    command.stdout(Stdio::from(stderr)).status().map_err(|e| cannot_start(command, &e))
}

/// Runs a command and gives each line of its stdout to `line`.
///
/// # Errors
/// [`Fail::Usage`] if it cannot be started.
pub fn run_lines(command: &mut Command, mut line: impl FnMut(&str)) -> Result<ExitStatus, Fail> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| cannot_start(command, &e))?;
    if let Some(stdout) = child.stdout.take() {
        let mut reader = BufReader::new(stdout);
        let mut bytes = Vec::new();
        // Test output need not be UTF-8, and a broken line must not stop us from draining the pipe.
        while matches!(reader.read_until(b'\n', &mut bytes), Ok(n) if n > 0) {
            line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
            bytes.clear();
        }
    }
    child.wait().map_err(|e| cannot_start(command, &e))
}

fn cannot_start(command: &Command, error: &std::io::Error) -> Fail {
    Fail::usage(format!("cannot run {}: {error}", command.get_program().display()))
}

/// What `cargo metadata` says about the workspace.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    /// The members.
    pub packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its id, as cargo's messages repeat it.
    pub id: String,
    /// What it builds.
    pub targets: Vec<Target>,
}

/// Something that a package builds.
#[derive(Debug, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// `lib`, `bin`, `test`, `example`, `custom-build`, ...
    pub kind: Vec<String>,
}

impl Workspace {
    /// Asks cargo.
    ///
    /// # Errors
    /// [`Fail::Usage`] with what cargo said.
    pub fn read() -> Result<Workspace, Fail> {
        let mut command = cargo(["metadata", "--no-deps", "--format-version", "1"]);
        let output = command.output().map_err(|e| cannot_start(&command, &e))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Fail::usage(format!("cargo metadata failed: {}", said.trim())));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| Fail::usage(format!("cargo metadata: {e}")))
    }

    /// Names of all integration test targets, each once, sorted.
    pub fn test_targets(&self) -> Vec<&str> {
        let all = self.packages.iter().flat_map(|p| &p.targets);
        let mut names: Vec<&str> =
            all.filter(|t| t.kind.iter().any(|k| k == "test")).map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The packages that have an integration test target of this name, sorted by name.
    pub fn packages_with_test(&self, name: &str) -> Vec<&Package> {
        let has =
            |p: &&Package| p.targets.iter().any(|t| t.name == name && t.kind.iter().any(|k| k == "test"));
        let mut packages: Vec<&Package> = self.packages.iter().filter(has).collect();
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        packages
    }

    /// Whether there is a member of this name.
    pub fn has(&self, package: &str) -> bool {
        self.packages.iter().any(|p| p.name == package)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_by_kind() -> serde_json::Result<()> {
        let workspace: Workspace = serde_json::from_value(serde_json::json!({ "packages": [
            { "name": "b", "id": "b 1", "targets": [{ "name": "multirank", "kind": ["test"] }, { "name": "b", "kind": ["lib"] }] },
            { "name": "a", "id": "a 1", "targets": [{ "name": "multirank", "kind": ["test"] }, { "name": "cli", "kind": ["test"] }] },
            { "name": "c", "id": "c 1", "targets": [{ "name": "multirank", "kind": ["bin"] }] },
        ]}))?;
        assert_eq!(workspace.test_targets(), ["cli", "multirank"]);
        let names: Vec<_> =
            workspace.packages_with_test("multirank").iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(workspace.has("c") && !workspace.has("d"));
        Ok(())
    }

    #[test]
    fn endings_in_words() -> Result<(), Fail> {
        let ended_with = |script: &str| {
            let mut lines = Vec::new();
            let status = run_lines(Command::new("sh").args(["-c", script]), |l| lines.push(l.to_owned()))?;
            Ok::<_, Fail>((ended(status), lines))
        };
        let (how, lines) = ended_with("echo one; printf '\\377two'; exit 3")?;
        assert_eq!(how, "it ended with exit status 3");
        assert_eq!(lines, ["one", "\u{fffd}two"]);
        assert_eq!(ended_with("kill -9 $$")?.0, "it was ended by signal 9");
        assert!(matches!(run_lines(&mut Command::new("no-such-program-here"), |_| ()), Err(Fail::Usage(_))));
        Ok(())
    }
}
