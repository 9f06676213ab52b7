//! A client asks for ten values at once, a controller passes the requests on, a worker answers them: three processes, and a
//! promise inside of each serialised request. The client awaits the answers in another order.
//!
//! `cargo run --example pipeline`. With `-- --kill` the worker is killed in the middle: what it has answered is read, and the rest
//! breaks at once.
use std::io::{BufRead, Write, stdin, stdout};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, process, thread};

use comm_core::error::BrokenHow;
use comm_core::{Deadline, Error, Kind, hub::Hub, tensor::Tensor};
use comm_examples::Outcome;
use comm_promise::{Promise, Ticket, VoidPromise};
use serde::{Deserialize, Serialize};

const REQUESTS: usize = 10;
/// So many are answered by a worker that is to be killed.
const ANSWERED: usize = 4;

/// An operator as it travels. Whoever computes it keeps its promise.
#[derive(Serialize, Deserialize)]
struct Square {
    of: i64,
    promise: Ticket<Tensor>,
}

/// What goes from process to process, a line each.
#[derive(Serialize, Deserialize)]
enum Message {
    Compute(Square),
    /// All have been sent: to be told when they have been received.
    Received(Ticket<()>),
}

fn client(kill: bool) -> Outcome {
    let deadline = Deadline::from(Duration::from_secs(60));
    let mut worker = Process::start(if kill { "--worker-that-stops" } else { "--worker" }, None)?;
    let mut controller = Process::start("--controller", worker.0.stdin.take())?;
    let mut queue = controller.0.stdin.take().ok_or("a pipe to the controller")?;

    // A future for each, before anybody has computed anything.
    let mut futures = Vec::new();
    for of in 0..REQUESTS as i64 {
        let promise = Promise::<Tensor>::new(Kind::Host)?;
        futures.push((of, promise.future()?));
        send(&mut queue, &Message::Compute(Square { of, promise: promise.into_ticket()? }))?;
    }
    let received = VoidPromise::new(Kind::Host)?;
    let all_received = received.future()?;
    send(&mut queue, &Message::Received(received.into_ticket()?))?;
    all_received.get(deadline)?;

    // Odd ones backwards, then even ones.
    let (even, mut odd): (Vec<_>, Vec<_>) = futures.into_iter().partition(|(of, _)| of % 2 == 0);
    odd.reverse();
    let mut killed = false;
    for (of, future) in odd.into_iter().chain(even) {
        if kill && !killed {
            worker.0.kill()?;
            worker.0.wait()?;
            killed = true;
        }
        match future.get(deadline) {
            Ok(square) => println!("{of} squared is {:?}", square.to_vec::<i64>()?),
            Err(Error::BrokenPromise { how: BrokenHow::Died, pid, .. }) if pid == Some(worker.0.id()) => {
                println!("{of} squared is not known: the worker died");
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

/// Passes on whatever comes. It claims nothing, so its end breaks nothing.
fn controller() -> Outcome {
    for line in stdin().lock().lines() {
        let message: Message = serde_json::from_str(&line?)?;
        send(&mut stdout(), &message)?;
    }
    Ok(())
}

fn worker(stops: bool) -> Outcome {
    let deadline = Deadline::from(Duration::from_secs(60));
    let mut claimed = Vec::new();
    for line in stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            Message::Compute(Square { of, promise }) => {
                claimed.push((of, Promise::attach(&promise, deadline)?));
            }
            Message::Received(promise) => {
                let answers = if stops { ANSWERED } else { claimed.len() };
                for (of, promise) in &claimed[..answers] {
                    promise.set(Tensor::from_slice(&[1], &[of * of])?)?;
                }
                Promise::attach(&promise, deadline)?.set(())?;
                if stops {
                    // Until it is killed.
                    loop {
                        thread::park();
                    }
                }
            }
        }
    }
    Ok(())
}

fn send(to: &mut impl Write, message: &Message) -> Outcome {
    writeln!(to, "{}", serde_json::to_string(message)?)?;
    Ok(to.flush()?)
}

/// This program in another role; not left running when the client gives up.
struct Process(Child);

impl Process {
    /// Its messages come from a pipe, and those that it sends go to another.
    fn start(role: &str, to: Option<process::ChildStdin>) -> Outcome<Process> {
        let mut command = Command::new(env::current_exe()?);
        // By this they know that they belong together.
        command.env("COMM_INSTANCE_ID", &Hub::get()?.instance().id);
        command.arg(role).stdin(Stdio::piped());
        if let Some(to) = to {
            command.stdout(to);
        }
        Ok(Process(command.spawn()?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors are those of processes that have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Outcome {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => client(false),
        ["--kill"] => client(true),
        ["--controller"] => controller(),
        ["--worker"] => worker(false),
        ["--worker-that-stops"] => worker(true),
        _ => Err("expected no arguments, or: --kill".into()),
    }
}
