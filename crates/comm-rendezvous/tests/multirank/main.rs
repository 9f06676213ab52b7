//! Ranks that are killed or stopped at a rendezvous.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by panicking")]

mod fault;

fn main() -> std::process::ExitCode {
    comm_testkit::main(&fault::cases(), fault::PROGRAMS)
}
