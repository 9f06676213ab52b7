//! Collectives over threads, processes and both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::exit,
    reason = "a test says what went wrong by panicking"
)]

mod call;
mod collective;
mod exchange;
mod fault;
mod forked;
mod manager;
mod message;
mod placement;
mod receivers;
mod recorder;
mod shrink;
mod started;
mod support;

fn main() -> std::process::ExitCode {
    let cases = [
        collective::cases(),
        message::cases(),
        receivers::cases(),
        exchange::cases(),
        started::cases(),
        placement::cases(),
        fault::cases(),
        forked::cases(),
        manager::cases(),
        shrink::cases(),
        recorder::cases(),
    ];
    let programs = [
        collective::PROGRAMS,
        receivers::PROGRAMS,
        placement::PROGRAMS,
        fault::PROGRAMS,
        forked::PROGRAMS,
        manager::PROGRAMS,
        shrink::PROGRAMS,
        recorder::PROGRAMS,
    ];
    comm_testkit::main(&cases.concat(), &programs.concat())
}
