//! Teams over threads, processes and both: meeting, waiting, failing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod fault;
mod rendezvous;
mod waiting;

fn main() -> std::process::ExitCode {
    let cases = [fault::cases(), rendezvous::cases(), waiting::cases()].concat();
    let programs = [fault::PROGRAMS, rendezvous::PROGRAMS, waiting::PROGRAMS].concat();
    comm_testkit::main(&cases, &programs)
}
