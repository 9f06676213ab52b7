//! Teams over threads, processes and both: meeting, waiting, failing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::exit,
    clippy::print_stdout,
    reason = "a test says what went wrong by panicking, exits where that is the case, and is heard on stdout"
)]

mod fault;
mod rendezvous;
mod waiting;

fn main() -> std::process::ExitCode {
    let cases = [fault::cases(), rendezvous::cases(), waiting::cases()].concat();
    let programs = [fault::PROGRAMS, &rendezvous::programs(), waiting::PROGRAMS].concat();
    comm_testkit::main(&cases, &programs)
}
