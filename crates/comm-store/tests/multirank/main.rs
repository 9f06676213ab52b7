//! Windows and stores over threads, processes and both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod fault;
mod store;
mod support;
mod window;

fn main() -> std::process::ExitCode {
    let cases = [fault::cases(), window::cases(), store::cases()].concat();
    let programs = [&fault::programs(), window::PROGRAMS, &store::programs()].concat();
    comm_testkit::main(&cases, &programs)
}
