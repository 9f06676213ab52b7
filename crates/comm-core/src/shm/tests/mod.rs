//! Tests that need more than one module, or a process of their own.

mod arena;
mod process;
mod segment;

use std::process::{Command, Stdio};

const MARK: &str = "COMM_TEST_ISOLATED";

/// The test `name` (its path in this crate), started again in a process of its own.
fn again(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(MARK, name).stdin(Stdio::null());
    command
}

fn is_again(name: &str) -> bool {
    std::env::var(MARK).is_ok_and(|marked| marked == name)
}

/// Runs `body` in a process of its own: what it does to limits, users or descriptors is not felt by other tests.
fn isolated(name: &str, body: impl FnOnce()) {
    if is_again(name) {
        return body();
    }
    let output = again(name).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}: {text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
