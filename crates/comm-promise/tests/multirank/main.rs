//! Promises over threads, processes and both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod conformance;
mod fault;
mod host;
mod support;

fn main() -> std::process::ExitCode {
    let cases = [conformance::cases(), host::cases(), fault::cases()].concat();
    let programs = [conformance::PROGRAMS, &host::programs(), &fault::programs()].concat();
    comm_testkit::main(&cases, &programs)
}
