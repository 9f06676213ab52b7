//! Collectives over threads, processes and both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod call;
mod collective;
mod fault;
mod message;
mod support;

fn main() -> std::process::ExitCode {
    let cases = [collective::cases(), message::cases(), fault::cases()].concat();
    comm_testkit::main(&cases, &[collective::PROGRAMS, fault::PROGRAMS].concat())
}
