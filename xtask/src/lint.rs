//! `cargo xtask lint`: text, formatting, clippy, rustdoc, and the dependencies' licences and sources.

use std::process::{Command, Stdio};
use std::time::Instant;

use comfy_table::{Table, presets::NOTHING};
use serde::Serialize;

use crate::cargo::{cargo, ended, run_to_stderr, with_flags};
use crate::cli::LintArgs;
use crate::fail::Fail;
use crate::out::note;
use crate::report::{Counts, check_writable, write_rows};

/// One check and what came of it.
#[derive(Debug, Serialize)]
struct Row {
    check: &'static str,
    status: &'static str,
    ms: u64,
    reason: String,
}

/// Runs all checks, also after one has failed.
///
/// # Errors
/// [`Fail::Check`] if one failed.
pub fn run(args: &LintArgs) -> Result<(), Fail> {
    check_writable(&args.json)?;
    let rows: Vec<Row> = checks().into_iter().map(|(name, command)| check(name, command)).collect();

    let people = args.json.people();
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["check", "status", "ms", "reason"]);
    let mut counts = Counts::default();
    for row in &rows {
        table.add_row([row.check, row.status, &row.ms.to_string(), &row.reason]);
        match row.status {
            "ok" => counts.passed += 1,
            "skipped" => counts.skipped += 1,
            _ => counts.failed += 1,
        }
    }
    people.line(&table.trim_fmt());
    people.line(&counts.to_string());
    write_rows(&args.json, &rows)?;
    counts.verdict()
}

/// The checks in their order; one that cannot run here has a reason instead of a command.
fn checks() -> Vec<(&'static str, Result<Command, String>)> {
    let mut rustdoc = cargo(["doc", "--workspace", "--no-deps"]);
    with_flags(&mut rustdoc, "RUSTDOCFLAGS", "-D warnings");
    let clippy = cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    vec![
        ("text", text()),
        ("rustfmt", Ok(cargo(["fmt", "--all", "--check"]))),
        ("clippy", Ok(clippy)),
        ("rustdoc", Ok(rustdoc)),
        ("deny", deny()),
    ]
}

/// Marks that a merge has left behind, and blanks at the ends of lines, in any file.
fn text() -> Result<Command, String> {
    // All that is tracked is what differs from the empty tree, whose name git knows.
    const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
    if is_quiet_success(Command::new("git").args(["rev-parse", "--git-dir"])) {
        let mut git = Command::new("git");
        git.args(["--no-pager", "diff", "--check", EMPTY_TREE]);
        Ok(git)
    } else {
        Err("this is no git checkout".to_owned())
    }
}

fn is_quiet_success(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn deny() -> Result<Command, String> {
    if is_quiet_success(&mut cargo(["deny", "--version"])) {
        // Without the advisories: their database cannot be fetched everywhere.
        Ok(cargo(["deny", "check", "bans", "licenses", "sources"]))
    } else {
        Err("cargo-deny is not installed (cargo install --locked cargo-deny)".to_owned())
    }
}

fn check(name: &'static str, command: Result<Command, String>) -> Row {
    let mut command = match command {
        Ok(command) => command,
        Err(reason) => return Row { check: name, status: "skipped", ms: 0, reason },
    };
    note(&format!("lint: {name}"));
    let start = Instant::now();
    let (status, reason) = match run_to_stderr(&mut command) {
        Ok(status) if status.success() => ("ok", String::new()),
        Ok(status) => ("failed", ended(status)),
        Err(fail) => ("failed", fail.line().unwrap_or_default()),
    };
    Row { check: name, status, ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Ok(command)
        };
        assert_eq!(check("a", shell("true")).status, "ok");
        let failed = check("b", shell("exit 4"));
        assert_eq!((failed.status, failed.reason.as_str()), ("failed", "it ended with exit status 4"));
        assert_eq!(check("c", Ok(Command::new("no-such-program-here"))).status, "failed");
        let skipped = check("d", Err("not here".to_owned()));
        assert_eq!((skipped.status, skipped.reason.as_str()), ("skipped", "not here"));
    }

    #[test]
    fn all_checks_are_there() {
        let names: Vec<_> = checks().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["text", "rustfmt", "clippy", "rustdoc", "deny"]);
    }
}
