//! Collectives over threads, processes and both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod collective;
mod fault;
mod placement;
mod support;

fn main() -> std::process::ExitCode {
    let cases = [collective::cases(), placement::cases(), fault::cases()].concat();
    comm_testkit::main(&cases, &[fault::PROGRAMS, placement::PROGRAMS].concat())
}
