//! `cargo xtask test`: unit, doc, example and multi-rank tests; with `--loom` the models alone, with `--lane` a slow lane.

use std::process::Command;
use std::time::Instant;

use serde::Serialize;

use crate::bindings;
use crate::cargo::{Workspace, cargo, ended, run_lines, target_dir, with_flags};
use crate::cli::{BindingsArgs, MultirankArgs, TestArgs};
use crate::fail::Fail;
use crate::multirank;
use crate::out::{People, note};
use crate::peers::{self, Variable};
use crate::report::{Counts, check_writable, write_rows};

/// The crates whose library holds loom models, in modules called `loom_models`.
const LOOM_CRATES: &[&str] = &["comm-core", "comm-store", "comm-promise"];

/// A slow lane of `--lane`: steps that the rest of the tests leave out.
struct Lane {
    name: &'static str,
    steps: &'static [LaneStep],
}

/// A step of a lane: its name, the arguments of its `cargo test`, and what has to be there.
struct LaneStep {
    name: &'static str,
    args: &'static [&'static str],
    /// Gets it, and says in which variables the tests find it.
    prepare: fn() -> Result<Vec<Variable>, Fail>,
}

const fn lane_step(name: &'static str, args: &'static [&'static str]) -> LaneStep {
    LaneStep { name, args, prepare: || Ok(Vec::new()) }
}

/// The test target of the lane `peers`, all of whose tests are ignored elsewhere.
const PEERS: &str = "peers";

const fn peers(name: &'static str, args: &'static [&'static str]) -> LaneStep {
    LaneStep { name, args, prepare: peers::newest }
}

const LANES: &[Lane] = &[
    Lane {
        name: "interop",
        steps: &[
            lane_step(
                "interop",
                &["-p", "comm-core", "--features", "candle", "--lib", "--no-fail-fast", "interop"],
            ),
            lane_step(
                "interop, doc",
                &["-p", "comm-core", "--features", "candle", "--doc", "--no-fail-fast", "interop"],
            ),
        ],
    },
    Lane {
        name: "fuzz",
        steps: &[LaneStep {
            name: "fuzz",
            args: &["-p", "comm-rendezvous", "--lib", "fuzz", "--", "--nocapture"],
            prepare: || {
                let seconds = std::env::var_os("COMM_FUZZ_SECONDS").unwrap_or_else(|| "60".into());
                Ok(vec![("COMM_FUZZ_SECONDS", seconds.into())])
            },
        }],
    },
    Lane {
        name: "peers",
        steps: &[
            LaneStep {
                name: "NCCL 2.32.3",
                args: &[
                    "-p",
                    "comm-nccl-sys",
                    "--test",
                    PEERS,
                    "--",
                    "--ignored",
                    "--nocapture",
                    "--skip",
                    "oldest",
                ],
                prepare: || {
                    bindings::run(&BindingsArgs { check: true })?;
                    peers::newest()
                },
            },
            LaneStep {
                name: "NCCL 2.18.3",
                args: &["-p", "comm-nccl-sys", "--test", PEERS, "--", "--ignored", "--nocapture", "oldest"],
                prepare: peers::oldest,
            },
            peers("torch", &["-p", "comm-rendezvous", "--test", PEERS, "--", "--ignored", "--nocapture"]),
            peers("launchers", &["-p", "comm-examples", "--test", PEERS, "--", "--ignored", "--nocapture"]),
        ],
    },
];

/// One step and what came of it.
#[derive(Debug, Serialize)]
struct Row {
    step: String,
    passed: u64,
    failed: u64,
    skipped: u64,
    ms: u64,
}

/// Runs what was asked for.
///
/// # Errors
/// [`Fail::Check`] if a test failed, [`Fail::Usage`] for a lane that there is not.
pub fn run(args: &TestArgs) -> Result<(), Fail> {
    let lane = args.lane.as_deref().map(lane).transpose()?;
    check_writable(&args.json)?;
    let workspace = Workspace::read()?;
    let people = args.json.people();
    let show = |line: &str| people.line(line);
    let mut rows = Vec::new();
    if let Some(lane) = lane {
        for asked in lane.steps {
            let mut command = cargo(["test"]);
            command.args(asked.args).envs((asked.prepare)()?);
            rows.push(some(step(asked.name, &mut command, &show)?));
        }
    } else if args.loom {
        for krate in LOOM_CRATES.iter().filter(|k| workspace.has(k)) {
            rows.push(models(krate, &show)?);
        }
    } else {
        rows.push(step("unit and example", &mut unit_tests(&workspace), &show)?);
        rows.push(step("doc", &mut cargo(["test", "--workspace", "--no-fail-fast", "--doc"]), &show)?);
        rows.push(multirank_tests(&workspace, people)?);
    }
    let mut total = Counts::default();
    for row in &rows {
        let counts = Counts { passed: row.passed, failed: row.failed, skipped: row.skipped };
        people.line(&format!("{}: {counts} ({:.1} s)", row.step, row.ms as f64 / 1e3));
        total.add(counts);
    }
    people.line(&total.to_string());
    write_rows(&args.json, &rows)?;
    total.verdict()
}

fn lane(name: &str) -> Result<&'static Lane, Fail> {
    LANES.iter().find(|lane| lane.name == name).ok_or_else(|| {
        let known: Vec<&str> = LANES.iter().map(|lane| lane.name).collect();
        Fail::usage(format!("unknown lane {name:?} (lanes: {})", known.join(", ")))
    })
}

/// Everything but doc tests, the multi-rank targets, whose harness is not libtest, and those of lanes. The examples are programs: a
/// test of theirs builds and runs them.
fn unit_tests(workspace: &Workspace) -> Command {
    let mut command = cargo(["test", "--workspace", "--no-fail-fast", "--lib", "--bins"]);
    for target in workspace.test_targets() {
        if ![multirank::TARGET, PEERS].contains(&target) {
            command.args(["--test", target]);
        }
    }
    command
}

/// The models of one crate. They are built apart: `cfg(loom)` changes every crate below.
fn models(krate: &str, show: &dyn Fn(&str)) -> Result<Row, Fail> {
    let mut command = cargo(["test", "-p", krate, "--lib", "--release", "--no-fail-fast", "loom"]);
    with_flags(&mut command, "RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", target_dir().join("loom"));
    Ok(some(step(&format!("loom models of {krate}"), &mut command, show)?))
}

/// Turns a step in which nothing ran, though there are tests for it, into a failure.
fn some(mut row: Row) -> Row {
    if row.passed + row.failed == 0 {
        note(&format!("error: there are said to be tests ({}), and none ran", row.step));
        row.failed = 1;
    }
    row
}

/// Runs one `cargo test`, shows its lines, and sums up the closing ones.
fn step(name: &str, command: &mut Command, show: &dyn Fn(&str)) -> Result<Row, Fail> {
    note(&format!("test: {name}"));
    let start = Instant::now();
    let mut counts = Counts::default();
    let status = run_lines(command, |line| {
        show(line);
        if let Some(more) = Counts::of_libtest_line(line).or_else(|| Counts::of_own_line(line)) {
            counts.add(more);
        }
    })?;
    // A crate that does not build, or a test that takes its process with it, leaves no closing line.
    if !status.success() && counts.failed == 0 {
        note(&format!("error: cargo test ({name}): {}", ended(status)));
        counts.failed = 1;
    }
    Ok(row(name, counts, start))
}

fn multirank_tests(workspace: &Workspace, people: People) -> Result<Row, Fail> {
    let start = Instant::now();
    let mut counts = Counts::default();
    if workspace.packages_with_test(multirank::TARGET).is_empty() {
        note("test: the workspace has no multi-rank tests yet");
    } else {
        counts = multirank::run_all(&MultirankArgs::defaults(), workspace, people)?.counts;
    }
    Ok(row("multi-rank", counts, start))
}

fn row(step: &str, counts: Counts, start: Instant) -> Row {
    let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    let Counts { passed, failed, skipped } = counts;
    Row { step: step.to_owned(), passed, failed, skipped, ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn closing_lines_are_summed() -> Result<(), Fail> {
        let script = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'; echo noise; \
                      echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured'; exit 101";
        let row = step("of a failure, made up", &mut shell(script), &|_| ())?;
        assert_eq!((row.passed, row.failed, row.skipped), (5, 1, 1));
        Ok(())
    }

    #[test]
    fn a_build_that_fails_is_a_failure() -> Result<(), Fail> {
        let row = step(
            "of a failure, made up",
            &mut shell("echo 'test result: ok. 3 passed; 0 failed'; exit 101"),
            &|_| (),
        )?;
        assert_eq!((row.passed, row.failed), (3, 1));
        Ok(())
    }

    #[test]
    fn unknown_lanes_are_refused() {
        let args = TestArgs { loom: false, lane: Some("no-such".to_owned()), json: Default::default() };
        let Err(fail) = run(&args) else { panic!("it ran") };
        assert_eq!(fail.status(), 2);
        assert!(fail.line().is_some_and(|l| l.contains("no-such") && l.contains("interop, fuzz, peers")));
        assert!(lane("interop").is_ok_and(|lane| lane.steps.len() == 2));
    }

    #[test]
    fn a_step_without_its_tests_is_a_failure() {
        let empty = || row("made up", Counts::default(), Instant::now());
        assert_eq!((some(empty()).failed, some(Row { passed: 1, ..empty() }).failed), (1, 0));
    }

    #[test]
    fn multirank_targets_are_left_out_of_the_unit_tests() -> serde_json::Result<()> {
        let workspace = serde_json::from_value(serde_json::json!({ "packages": [
            { "name": "a", "id": "a", "targets": [{ "name": "multirank", "kind": ["test"] }, { "name": "cli", "kind": ["test"] }, { "name": "peers", "kind": ["test"] }] },
        ]}))?;
        let command = unit_tests(&workspace);
        let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        assert!(args.ends_with(&["--test".to_owned(), "cli".to_owned()]), "{args:?}");
        Ok(())
    }
}
