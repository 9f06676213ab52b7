//! A team of processes that are told by their environment who they are.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test says what went wrong by panicking, a rank by what it prints"
)]

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use comm_core::team::Team;

const SIZE: usize = 3;

/// Set for the processes that the test starts, which are this program.
const LAUNCHED: &str = "COMM_TEST_LAUNCHED";

/// What one of them does.
fn rank() {
    let outcome = Team::from_env("launched", Duration::from_secs(60)).and_then(|team| {
        team.barrier(Duration::from_secs(60))?;
        Ok(format!("{} of {}", team.rank(), team.size()))
    });
    match outcome {
        Ok(said) => println!("rank {said}"),
        Err(error) => println!("error: {error}"),
    }
}

/// Processes with these variables besides those of a rank, all at once; what they printed.
fn launch(test: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(LAUNCHED, "1").env_remove("COMM_INSTANCE_ID");
        command.envs(variables.iter().copied());
        command.env("COMM_RANK", rank.to_string()).env("COMM_WORLD_SIZE", SIZE.to_string());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..SIZE).map(start).collect();
    let outputs = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap());
    let said = |output: Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find(|line| line.starts_with("rank ") || line.starts_with("error: ")).unwrap().to_owned()
    };
    outputs.map(said).collect()
}

#[test]
fn they_meet_by_their_instance() {
    if std::env::var_os(LAUNCHED).is_some() {
        return rank();
    }
    let instance = format!("launched-{}", std::process::id());
    let said = launch("they_meet_by_their_instance", &[("COMM_INSTANCE_ID", &instance)]);
    assert_eq!(said, ["rank 0 of 3", "rank 1 of 3", "rank 2 of 3"]);
}

/// At once: each would wait its whole deadline for the others.
#[test]
fn without_an_instance_they_are_told_so() {
    if std::env::var_os(LAUNCHED).is_some() {
        return rank();
    }
    for said in launch("without_an_instance_they_are_told_so", &[]) {
        assert!(said.contains("COMM_INSTANCE_ID is not set") && said.contains("all 3 processes"), "{said}");
    }
}
