//! Windows over threads, processes and both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod window;

fn main() -> std::process::ExitCode {
    comm_testkit::main(&window::cases(), &[])
}
