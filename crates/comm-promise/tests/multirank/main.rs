//! Promises over threads, processes and both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod conformance;
mod host;
mod support;

fn main() -> std::process::ExitCode {
    let cases = [conformance::cases(), host::cases()].concat();
    comm_testkit::main(&cases, &host::programs())
}
