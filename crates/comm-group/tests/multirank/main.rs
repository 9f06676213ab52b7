//! Collectives over threads, processes and both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod collective;
mod fault;
mod manager;
mod recorder;
mod shrink;
mod support;

fn main() -> std::process::ExitCode {
    let cases =
        [collective::cases(), fault::cases(), manager::cases(), shrink::cases(), recorder::cases()].concat();
    let programs = [fault::PROGRAMS, manager::PROGRAMS, shrink::PROGRAMS, recorder::PROGRAMS].concat();
    comm_testkit::main(&cases, &programs)
}
