//! `cargo xtask test-multirank`: starts every crate's multi-rank tests and merges their rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cargo::{Package, Workspace, cargo, ended, run_lines, run_to_stderr};
use crate::cli::MultirankArgs;
use crate::conformance;
use crate::fail::{Fail, one_line};
use crate::out::{People, note};
use crate::report::{Counts, can_write, check_writable, read_rows, write_rows};

/// The name that these test targets have in every crate.
pub const TARGET: &str = "multirank";

/// What all targets together gave.
#[derive(Debug, Default)]
pub struct Merged {
    /// Rows as the targets wrote them.
    pub rows: Vec<Value>,
    /// Their statuses, counted.
    pub counts: Counts,
}

/// Runs the targets with the flags of the command line.
///
/// # Errors
/// [`Fail::Check`] if a case failed or hung, [`Fail::Usage`] if the filter matches nothing anywhere.
pub fn run(args: &MultirankArgs) -> Result<(), Fail> {
    if args.list {
        return list(args);
    }
    check_writable(&args.json)?;
    if let Some(file) = &args.conformance {
        can_write("--conformance", file)?;
    }
    let people = args.json.people();
    let merged = run_all(args, &Workspace::read()?, people)?;
    write_rows(&args.json, &merged.rows)?;
    if let Some(file) = &args.conformance {
        let mut flags = flags(args);
        flags.extend(["--conformance".to_owned(), file.display().to_string()]);
        let page = conformance::page(&merged.rows, &flags.join(" "))?;
        std::fs::write(file, page)
            .map_err(|e| Fail::usage(format!("--conformance {}: {e}", file.display())))?;
    }
    people.line(&merged.counts.to_string());
    merged.counts.verdict()
}

/// Builds and runs all targets, and prints the summary of the suites.
///
/// # Errors
/// [`Fail::Check`] if they do not build, [`Fail::Usage`] if nothing in them was asked for.
pub fn run_all(args: &MultirankArgs, workspace: &Workspace, people: People) -> Result<Merged, Fail> {
    let packages = workspace.packages_with_test(TARGET);
    if packages.is_empty() {
        return Err(Fail::usage(format!("no crate of the workspace has a test target called {TARGET}")));
    }
    let programs = build(&packages)?;
    let folder = tempfile::tempdir().map_err(|e| Fail::usage(format!("a temporary folder: {e}")))?;
    let flags = flags(args);
    let mut merged = Merged::default();
    for (package, program) in &programs {
        if args.chooses() && listed(program, &flags).is_some_and(|cases| cases.is_empty()) {
            continue;
        }
        note(&format!("test-multirank: {package}"));
        let file = folder.path().join(format!("{package}.json"));
        run_one(package, program, &flags, &file, args.chooses(), &mut merged)?;
    }
    if merged.rows.is_empty() {
        return Err(no_case(&packages, &flags));
    }
    people.line(&summary(&merged.rows));
    for row in merged.rows.iter().map(Outcome::of).filter(Outcome::is_bad) {
        people.line(&format!(
            "{} {}/{} {}: {}",
            row.status,
            row.suite,
            row.case,
            row.setting(),
            one_line(row.reason.as_str().unwrap_or("no reason given"))
        ));
    }
    Ok(merged)
}

/// Prints the cases that the flags choose, a line each.
fn list(args: &MultirankArgs) -> Result<(), Fail> {
    let workspace = Workspace::read()?;
    let packages = workspace.packages_with_test(TARGET);
    let flags = flags(args);
    let mut cases = 0;
    for (package, program) in &build(&packages)? {
        let listed = listed(program, &flags).ok_or_else(|| {
            Fail::check(format!("the multi-rank tests of {package} cannot say what they have"))
        })?;
        cases += listed.len();
        listed.iter().for_each(|case| People::Stdout.line(case));
    }
    if cases == 0 { Err(no_case(&packages, &flags)) } else { Ok(()) }
}

fn no_case(packages: &[&Package], flags: &[String]) -> Fail {
    Fail::usage(format!(
        "no case of {} matches {}; `cargo xtask test-multirank --list` shows what there is",
        names(packages),
        flags.join(" ")
    ))
}

fn names(packages: &[&Package]) -> String {
    packages.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Builds the targets and asks cargo where it put them: (package, program), sorted by package.
fn build(packages: &[&Package]) -> Result<Vec<(String, PathBuf)>, Fail> {
    note(&format!("test-multirank: building the tests of {}", names(packages)));
    // The whole workspace, as for the other tests: a choice of packages has other features, and builds much anew.
    let mut command = cargo(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(["--test", TARGET]);
    let mut programs = Vec::new();
    let status = run_lines(&mut command, |line| programs.extend(program_of(line, packages)))?;
    if !status.success() {
        return Err(Fail::check(format!("the multi-rank tests do not build: {}", ended(status))));
    }
    programs.sort();
    Ok(programs)
}

/// The program that one of cargo's messages announces, if it is one of ours.
fn program_of(message: &str, packages: &[&Package]) -> Option<(String, PathBuf)> {
    #[derive(Deserialize)]
    struct Message {
        package_id: String,
        target: crate::cargo::Target,
        executable: Option<PathBuf>,
    }
    let message: Message = serde_json::from_str(message).ok()?;
    let package = packages.iter().find(|p| p.id == message.package_id)?;
    let ours = message.target.name == TARGET && message.target.kind.iter().any(|k| k == "test");
    Some((package.name.clone(), message.executable.filter(|_| ours)?))
}

/// The flags that every target understands, as they were given.
fn flags(args: &MultirankArgs) -> Vec<String> {
    let mut flags = Vec::new();
    let mut flag = |name: &str, value: String| flags.extend([name.to_owned(), value]);
    if !args.world.is_empty() {
        flag("--world", args.world.iter().map(u64::to_string).collect::<Vec<_>>().join(","));
    }
    flag("--layout", args.layout.join(","));
    if !args.backend.is_empty() {
        flag("--backend", args.backend.join(","));
    }
    if let Some(device) = &args.device {
        flag("--device", device.clone());
    }
    if let Some(filter) = &args.filter {
        flag("--filter", filter.clone());
    }
    if let Some(seed) = args.seed {
        flag("--seed", seed.to_string());
    }
    if args.full {
        flags.push("--full".to_owned());
    }
    flags
}

/// The cases of a target that were chosen, a line each; `None` if it cannot say. With none it says so as an error, which
/// it is only if no other target has one either.
fn listed(program: &Path, flags: &[String]) -> Option<Vec<String>> {
    let mut command = Command::new(program);
    command.args(flags).arg("--list").stdin(Stdio::null()).stderr(Stdio::null());
    let mut cases = Vec::new();
    let status = run_lines(&mut command, |line| cases.push(line.to_owned())).ok()?;
    match status.code() {
        Some(0) => Some(cases),
        Some(2) => Some(Vec::new()),
        _ => None,
    }
}

/// Runs one target and takes over its rows. What it prints is progress; its rows are the result.
fn run_one(
    package: &str,
    program: &Path,
    flags: &[String],
    file: &Path,
    chosen: bool,
    merged: &mut Merged,
) -> Result<(), Fail> {
    let mut command = Command::new(program);
    command.args(flags).arg("--json").arg(file).current_dir(crate::cargo::root());
    let status = run_to_stderr(&mut command)?;
    let rows = read_rows(file);
    // A target that has the case, but not in this layout and world, says so and ends with 2.
    if chosen && status.code() == Some(2) && rows.as_ref().map_or(true, Vec::is_empty) {
        return Ok(());
    }
    let before = merged.counts.failed;
    match rows {
        Ok(rows) => {
            for row in rows {
                merged.counts.add(Outcome::of(&row).count());
                merged.rows.push(row);
            }
            if !status.success() && merged.counts.failed == before {
                add_failure(merged, package, &format!("no case failed, and yet {}", ended(status)));
            }
        }
        Err(why) => add_failure(merged, package, &format!("{}; no rows: {why}", ended(status))),
    }
    Ok(())
}

/// A target that ended in a way that its rows do not show still has a row.
fn add_failure(merged: &mut Merged, package: &str, reason: &str) {
    merged.counts.failed += 1;
    merged.rows.push(json!({
        "suite": package, "case": TARGET, "world": null, "layout": "-", "backend": "-", "device": "-",
        "seed": null, "status": "failed", "ms": null, "reason": reason,
    }));
}

/// The parts of a row that the summary reads; a row keeps whatever else it has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Outcome {
    suite: String,
    case: String,
    world: Value,
    layout: String,
    backend: String,
    status: String,
    ms: Value,
    reason: Value,
}

impl Outcome {
    fn of(row: &Value) -> Outcome {
        Outcome::deserialize(row).unwrap_or_else(|e| Outcome {
            status: "failed".to_owned(),
            reason: Value::from(format!("a row that cannot be read ({e}): {row}")),
            ..Outcome::default()
        })
    }

    fn is_bad(&self) -> bool {
        !matches!(self.status.as_str(), "ok" | "skipped")
    }

    fn count(&self) -> Counts {
        match self.status.as_str() {
            "ok" => Counts { passed: 1, ..Counts::default() },
            "skipped" => Counts { skipped: 1, ..Counts::default() },
            _ => Counts { failed: 1, ..Counts::default() },
        }
    }

    fn setting(&self) -> String {
        format!("(world {}, {}, {})", self.world, self.layout, self.backend)
    }
}

/// One line per suite: how many cases came to which end, and how long they took.
fn summary(rows: &[Value]) -> String {
    let mut suites: BTreeMap<String, ([u64; 4], f64)> = BTreeMap::new();
    for row in rows.iter().map(Outcome::of) {
        let (ends, ms) = suites.entry(row.suite.clone()).or_default();
        ends[match row.status.as_str() {
            "ok" => 0,
            "hung" => 2,
            "skipped" => 3,
            _ => 1,
        }] += 1;
        *ms += row.ms.as_f64().unwrap_or(0.0);
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["suite", "ok", "failed", "hung", "skipped", "seconds"]);
    for (suite, (ends, ms)) in &suites {
        let [ok, failed, hung, skipped] = ends.map(|n| n.to_string());
        table.add_row([suite.clone(), ok, failed, hung, skipped, format!("{:.1}", ms / 1e3)]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Try = Result<(), Box<dyn std::error::Error>>;

    fn merge(script: &str, chosen: bool) -> Result<Merged, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("target.sh");
        // The last argument is the file that the rows go to. The shell reads the script: executing a file that
        // was just written fails now and then while another test's thread starts a process.
        std::fs::write(&file, format!("for out; do :; done\n{script}\n"))?;
        let flags = [file.display().to_string()];
        let mut merged = Merged::default();
        run_one("a", Path::new("/bin/sh"), &flags, &folder.path().join("rows.json"), chosen, &mut merged)
            .map_err(|e| format!("{e:?}"))?;
        Ok(merged)
    }

    const ROWS: &str = r#"cat > "$out" <<'END'
[{"suite":"fault","case":"kill/-/-/a","world":4,"layout":"mixed","backend":"-","device":"cpu","seed":1,"status":"ok","ms":12,"reason":""},
 {"suite":"fault","case":"kill/-/-/b","world":4,"layout":"mixed","backend":"-","device":"cpu","seed":1,"status":"skipped","ms":0,"reason":"no seccomp"}
END
echo "$ROW ]" >> "$out"
"#;

    #[test]
    fn rows_are_taken_over_and_counted() -> Try {
        let merged = merge(&format!("ROW=''; {ROWS}"), false)?;
        assert_eq!(merged.counts, Counts { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(merged.rows[0]["case"], "kill/-/-/a");
        assert_eq!(merged.rows[0]["seed"], 1);
        Ok(())
    }

    #[test]
    fn hung_and_unknown_ends_are_failures() -> Try {
        let row = r#"ROW=',{"suite":"window","case":"x","status":"hung","ms":3.5},{"suite":"window","case":"y"},{"suite":7}'; "#;
        let merged = merge(&format!("{row}{ROWS}exit 1"), false)?;
        assert_eq!(merged.counts, Counts { passed: 1, failed: 3, skipped: 1 });
        let text = summary(&merged.rows);
        assert!(text.contains("fault") && text.contains("window"), "{text}");
        Ok(())
    }

    #[test]
    fn a_target_that_dies_has_a_row() -> Try {
        let killed = merge("kill -9 $$", false)?;
        assert_eq!(killed.counts, Counts { failed: 1, ..Counts::default() });
        assert!(killed.rows[0]["reason"].as_str().is_some_and(|r| r.contains("signal 9")));
        let late = merge(&format!("ROW=''; {ROWS}exit 101"), false)?;
        assert_eq!(late.counts, Counts { passed: 1, failed: 1, skipped: 1 });
        // A target that runs nothing although everything was asked for.
        assert_eq!(merge("exit 2", false)?.counts.failed, 1);
        Ok(())
    }

    #[test]
    fn a_choice_may_match_nothing_in_one_target() -> Try {
        for script in ["exit 2", "echo '[]' > \"$out\"; exit 2"] {
            let merged = merge(script, true)?;
            assert!(merged.rows.is_empty() && merged.counts == Counts::default());
        }
        Ok(())
    }

    #[test]
    fn a_target_is_asked_what_it_has() -> Try {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("target.sh");
        std::fs::write(
            &file,
            "for last; do :; done\n[ $last = --list ] || exit 1\n[ $1 = --filter ] && exit 2\n[ $1 = --seed ] && kill -9 $$\necho a; echo b",
        )?;
        let listed = |flag: &str| {
            listed(Path::new("/bin/sh"), &[file.display().to_string(), flag.to_owned(), "x".to_owned()])
        };
        assert_eq!(listed("--filter"), Some(Vec::new()));
        assert_eq!(listed("--world"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(listed("--seed"), None);
        assert_eq!(super::listed(Path::new("/no/such/target"), &[]), None);
        Ok(())
    }

    #[test]
    fn flags_are_passed_on() {
        let args = MultirankArgs {
            world: vec![2, 5],
            layout: vec!["threads".into(), "mixed".into()],
            backend: vec!["same-device".into()],
            device: Some("sim".into()),
            filter: Some("fault/".into()),
            seed: Some(9),
            full: true,
            ..MultirankArgs::default()
        };
        assert_eq!(
            flags(&args).join(" "),
            "--world 2,5 --layout threads,mixed --backend same-device --device sim --filter fault/ --seed 9 --full"
        );
        assert_eq!(flags(&MultirankArgs::defaults()).join(" "), "--layout all");
    }

    #[test]
    fn programs_are_found_in_cargos_messages() -> Try {
        let package: Package = serde_json::from_value(json!({ "name": "a", "id": "a 1", "targets": [] }))?;
        let message = |id: &str, name: &str| {
            json!({ "reason": "compiler-artifact", "package_id": id, "target": { "name": name, "kind": ["test"] }, "executable": "/x" })
                .to_string()
        };
        assert_eq!(program_of(&message("a 1", TARGET), &[&package]), Some(("a".to_owned(), "/x".into())));
        assert_eq!(program_of(&message("a 1", "cli"), &[&package]), None);
        assert_eq!(program_of(&message("b 1", TARGET), &[&package]), None);
        assert_eq!(program_of(r#"{"reason":"build-finished","success":true}"#, &[&package]), None);
        Ok(())
    }
}
