//! What the benchmarks of the hand-over between two processes have in common: the other process.

use std::error::Error;
use std::process::{Child, Command, ExitCode};
use std::{env, process};

/// Anything that can go wrong.
pub type Any<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ROLE: &str = "COMM_BENCH_ROLE";
const JOB: &str = "COMM_INSTANCE_ID";

/// What this process is.
pub enum Role {
    /// The one that measures.
    Measures,
    /// The one at the other end, with the name of what it is to do.
    Peer(String),
}

/// Runs `body` in both processes. Both must know from the start that they belong together, so the one that was started by
/// hand starts itself anew with a name for the two.
pub fn run(body: impl FnOnce(Role) -> Any<()>) -> ExitCode {
    let outcome = match (env::var(ROLE), env::var(JOB)) {
        (Ok(role), _) => body(Role::Peer(role)),
        (_, Ok(_)) => body(Role::Measures),
        _ => again(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn again() -> Any<()> {
    let job = format!("bench-{}", process::id());
    let status = Command::new(env::current_exe()?).args(env::args_os().skip(1)).env(JOB, job).status()?;
    if status.success() { Ok(()) } else { Err(format!("{status}").into()) }
}

/// The process at the other end: killed when dropped, if it has not come to its end.
pub struct Peer(Child);

impl Peer {
    /// Starts it.
    pub fn start(role: &str) -> Any<Peer> {
        Ok(Peer(Command::new(env::current_exe()?).env(ROLE, role).spawn()?))
    }

    /// Waits until it has come to its end, in good order.
    pub fn join(mut self) -> Any<()> {
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the other process: {status}").into()) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
