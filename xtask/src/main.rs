//! `cargo xtask`: builds, tests and shows the workspace. `cargo xtask --help` lists the commands.
//!
//! Results go to stdout, progress to stderr. Exit status 0 is fine, 1 means that a check failed, and 2 that
//! the call was wrong or an input is missing, which one line says.

mod bench;
mod bindings;
mod cargo;
mod cli;
mod conformance;
mod demo;
mod download;
mod fail;
mod lint;
mod multirank;
mod out;
mod peers;
mod ranks;
mod report;
mod test;

use std::process::ExitCode;

use cli::Command;
use fail::Fail;

fn main() -> ExitCode {
    // Ranks are started as this same program.
    if let Some(code) = comm_testkit::child_main(&[demo::RANK, bench::RANK]) {
        return code;
    }
    let outcome = match cli::parse(std::env::args_os()) {
        Ok(cli::Parsed::Command(command)) => run(command),
        Ok(cli::Parsed::Help(text)) => {
            out::text(&text);
            Ok(())
        }
        Err(fail) => Err(fail),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(fail) => {
            if let Some(line) = fail.line() {
                out::note(&format!("error: {line}"));
            }
            ExitCode::from(fail.status())
        }
    }
}

fn run(command: Command) -> Result<(), Fail> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Test(args) => test::run(&args),
        Command::TestMultirank(args) => multirank::run(&args),
        Command::Lint(args) => lint::run(&args),
        Command::Bindings(args) => bindings::run(&args),
    }
}
