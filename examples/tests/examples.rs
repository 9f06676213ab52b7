//! Runs every example as a user does, as threads of one process and as processes, and looks at what it prints.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The folder of the examples' programs, which cargo builds once for all tests.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
        let output = Command::new(cargo)
            .args(["build", "--quiet", "--workspace", "--examples"])
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo can be started");
        assert!(output.status.success(), "the examples do not build");
        let messages = String::from_utf8_lossy(&output.stdout);
        let mut programs = messages.lines().filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            Some(PathBuf::from(message["executable"].as_str()?))
        });
        programs
            .next()
            .and_then(|program| Some(program.parent()?.to_owned()))
            .expect("cargo says where they are")
    })
}

fn example(name: &str, instance: &str) -> Command {
    let mut command = Command::new(folder().join(name));
    command.env("COMM_INSTANCE_ID", format!("examples-{}-{instance}", std::process::id()));
    command
}

fn sorted_lines(outputs: &[Output]) -> Vec<String> {
    let mut lines = Vec::new();
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        lines.extend(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned));
    }
    lines.sort();
    lines
}

fn as_threads(name: &str) -> Result<Vec<String>, std::io::Error> {
    Ok(sorted_lines(&[example(name, "threads").output()?]))
}

fn as_processes(name: &str, size: usize) -> Result<Vec<String>, std::io::Error> {
    let start = |rank: usize| {
        let mut command = example(name, &format!("{size}-processes"));
        command.args(["--rank", &rank.to_string(), "--size", &size.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let ranks = (0..size).map(start).collect::<Result<Vec<_>, _>>()?;
    let ends = ranks.into_iter().map(|rank| rank.wait_with_output()).collect::<Result<Vec<_>, _>>()?;
    Ok(sorted_lines(&ends))
}

/// Lines that differ between runs in times and the like are compared up to where the expected one ends.
fn check(lines: &[String], expected: &[&str]) {
    let same = |(line, expected): (&String, &&str)| line.starts_with(*expected);
    assert!(lines.len() == expected.len() && lines.iter().zip(expected).all(same), "{lines:#?}");
}

#[test]
fn all_reduce() -> Outcome {
    let sum = "[4.0, 6.0, 2.0]";
    let lines: Vec<String> = (0..4).map(|rank| format!("rank {rank} of 4: {sum}")).collect();
    assert_eq!(as_threads("all_reduce")?, lines);
    assert_eq!(as_processes("all_reduce", 4)?, lines);
    assert_eq!(as_processes("all_reduce", 1)?, ["rank 0 of 1: [1.0, 0.0, 0.5]"]);
    Ok(())
}

#[test]
fn team() -> Outcome {
    let lines = |near| {
        let mut lines = vec![
            "rank 0: rank 2 has left".to_owned(),
            "rank 0: rank 2 is lost: its thread panicked".to_owned(),
            "rank 1: rank 2 has left".to_owned(),
            "rank 1: rank 2 is lost: its thread panicked".to_owned(),
        ];
        lines.extend((0..3).map(|r| format!("rank {r} of 3 has joined; its process holds {near} of them")));
        lines.sort();
        lines
    };
    assert_eq!(as_threads("team")?, lines(3));
    assert_eq!(as_processes("team", 3)?, lines(1));
    Ok(())
}

#[test]
fn shards() -> Outcome {
    let expected = [
        "rank 0: [0, 2] -> [3, 2] [1, 1, 2, 2, 2, 2]",
        "rank 0: shard [0, 1, 2, 3] of sizes [4, 3, 3]",
        "rank 0: sub-split [0, 1, 5, 6]",
        "rank 1: [1, 2] -> [3, 2] [1, 1, 2, 2, 2, 2]",
        "rank 1: shard [4, 5, 6] of sizes [4, 3, 3]",
        "rank 1: sub-split [2, 3, 7, 8]",
        "rank 2: [2, 2] -> [3, 2] [1, 1, 2, 2, 2, 2]",
        "rank 2: shard [7, 8, 9] of sizes [4, 3, 3]",
        "rank 2: sub-split [4, 9]",
    ];
    assert_eq!(as_threads("shards")?, expected);
    assert_eq!(as_processes("shards", 3)?, expected);
    Ok(())
}

#[test]
fn errors() -> Outcome {
    let expected = [
        "rank 0: aborted by rank 0: the loss is not a number",
        "rank 0: mismatch in shape: rank 2 says [3, 2], the others [2, 3] [team \"errors\", rank 0, all_reduce #3, after ",
        "rank 0: timeout: joining 2 ranks in the instance \"examples-",
        "rank 1: aborted by rank 0: the loss is not a number",
        "rank 1: mismatch in shape: rank 2 says [3, 2], the others [2, 3] [team \"errors\", rank 1, all_reduce #3, after ",
        "rank 2: aborted by rank 0: the loss is not a number",
        "rank 2: mismatch in shape: rank 2 says [3, 2], the others [2, 3] [team \"errors\", rank 2, all_reduce #3, after ",
    ];
    for lines in [as_threads("errors")?, as_processes("errors", 3)?] {
        check(&lines, &expected);
        assert!(lines[2].contains("missing: rank 1 (unknown)"), "{}", lines[2]);
    }
    Ok(())
}

#[test]
fn wrong_arguments_are_refused() -> Outcome {
    for name in ["all_reduce", "team", "shards", "errors"] {
        for args in [&["--rank", "0"][..], &["--rank", "3", "--size", "2"], &["help"]] {
            assert_eq!(example(name, "wrong").args(args).output()?.status.code(), Some(1), "{name} {args:?}");
        }
    }
    Ok(())
}

#[test]
fn the_program_in_the_readme_is_the_example() -> Outcome {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("../README.md"))?;
    let program = std::fs::read_to_string(root.join("all_reduce.rs"))?;
    let block = format!("```rust\n{program}```\n");
    assert!(readme.contains(&block), "README.md must hold examples/all_reduce.rs as it is");
    Ok(())
}
