//! What the examples share: a program's ranks as threads of this process, as processes that it starts, or this process as
//! one rank of several; and the command line of those that have one.

mod cli;

use std::env;
use std::io::Read;
use std::num::NonZero;
use std::process::{Child, Command, Stdio};

use comm_core::hub::Nonce;
use comm_core::launch::LaunchEnv;
use comm_core::team::MAX_RANKS;

pub use cli::{Devices, parse, refuse};

/// What a rank comes to; any error ends the program with exit status 1.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Runs `rank(rank, size)` for each of `size` ranks, a number that the arguments `--size N` replace; with the arguments
/// `--rank R --size N`, for rank R alone. Without arguments, for the rank that a launcher says this process is, if one does.
pub fn run(size: usize, rank: fn(usize, usize) -> Outcome) -> Outcome {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => match LaunchEnv::detect()? {
            Some(env) => rank(env.rank, env.world_size),
            None => threads(size, rank).map(drop),
        },
        ["--size", n] => threads(n.parse::<NonZero<usize>>()?.get(), rank).map(drop),
        ["--rank", r, "--size", n] => rank(r.parse()?, n.parse()?),
        _ => Err("expected no arguments, or: --size N, or: --rank R --size N".into()),
    }
}

/// What `rank(rank, size)` comes to for each of `size` ranks, which are threads of this process.
pub fn threads<T: Send>(size: usize, rank: impl Fn(usize, usize) -> Outcome<T> + Sync) -> Outcome<Vec<T>> {
    if size > MAX_RANKS {
        return Err(format!("{size} ranks: a team has at most {MAX_RANKS}").into());
    }
    let rank = &rank;
    std::thread::scope(|s| {
        let ranks: Vec<_> = (0..size).map(|r| s.spawn(move || rank(r, size))).collect();
        ranks.into_iter().map(|r| r.join().unwrap_or_else(|_| Err("a rank panicked".into()))).collect()
    })
}

/// What each of `size` ranks prints, which are processes: this program with the same arguments and `--rank R`. What they
/// say on stderr goes to this program's. They are in an instance of their own, so that they meet nobody else.
pub fn processes(size: usize) -> Outcome<Vec<String>> {
    let (program, instance) = (env::current_exe()?, Nonce::draw()?.to_string());
    let mut ranks = Processes(Vec::new());
    for rank in 0..size {
        let mut command = Command::new(&program);
        command.args(env::args_os().skip(1)).args(["--rank", &rank.to_string()]);
        command.env("COMM_INSTANCE_ID", &instance).stdin(Stdio::null()).stdout(Stdio::piped());
        ranks.0.push(command.spawn()?);
    }
    let mut printed = vec![String::new(); size];
    for (rank, (child, text)) in ranks.0.iter_mut().zip(&mut printed).enumerate() {
        child.stdout.take().ok_or("a rank has no stdout")?.read_to_string(text)?;
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("the process of rank {rank} has ended with {status}").into());
        }
    }
    Ok(printed)
}

/// Ranks that are not left running when this program gives up.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Errors are those of processes that have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
