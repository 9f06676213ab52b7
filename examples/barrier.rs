//! A barrier of signals alone: by hand, or the one that is built in.
//!
//! `cargo run --example barrier -- -d 0,1` prints OK; `--help` tells the rest.
use std::{process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Result, team::Team};
use comm_examples::{Devices, Outcome};
use comm_store::window::{Signals, View, WindowSpec};
use comm_store::{Cmp, NotifyOp, Window};

const DEADLINE: Duration = Duration::from_secs(60);

/// The barrier by hand. A kernel knows its rank from the signals that it is given.
fn by_hand(y: &mut TensorBuf, signals: &Signals<'_>) -> Result<()> {
    let team = signals.window().context();
    let (me, n) = (team.rank(), team.size());
    // I have come: my row of everybody else's signals.
    for peer in (0..n).filter(|&peer| peer != me) {
        signals.notify(peer, &[me, 0], 1, NotifyOp::Add)?;
    }
    // Have they? Their rows of mine.
    for src in (0..n).filter(|&src| src != me) {
        signals.wait(&[src, 0], Cmp::Ge, 1, Some(src), DEADLINE)?;
    }
    for (i, arrived) in y.as_mut_slice::<i32>()?.iter_mut().enumerate() {
        *arrived = signals.read(&[i, 0])?;
    }
    Ok(())
}

/// The pitfall `self`: a rank notifies itself as well.
fn with_myself(y: &mut TensorBuf, signals: &Signals<'_>) -> Result<()> {
    let me = signals.window().rank();
    signals.notify(me, &[me, 0], 1, NotifyOp::Add)?;
    by_hand(y, signals)
}

/// The built-in barrier clears its signals, so they show nothing afterwards. Data shows it: the next rank's, which is
/// there only if that rank has come.
fn built_in(x: &Tensor, y: &mut TensorBuf, data: &View<'_>, signals: &Signals<'_>) -> Result<()> {
    let next = (signals.window().rank() + 1) % signals.window().nranks();
    data.store(x, &[0, 0])?;
    signals.barrier(DEADLINE)?;
    y.copy_from(&data.remote_load(next, &[0, 0], x.shape())?)?;
    Ok(())
}

/// Element `j` of rank `r`'s input.
fn x(r: usize, j: usize) -> i32 {
    (100 * r + j) as i32
}

/// The row of one rank.
fn rank(args: &Args, rank: usize, n: usize) -> Outcome<Vec<i32>> {
    let shape = [n, 1];
    let team = Team::join("barrier", rank, n, DEADLINE)?;
    let window = Window::alloc(&team, WindowSpec::tensor(&shape, DType::I32)?.signals(n), DEADLINE)?;
    let signals = window.signals(&shape)?;
    let mut y = TensorBuf::zeros(&shape, DType::I32)?;
    if args.use_builtin {
        let x = Tensor::from_slice(&shape, &(0..n).map(|j| x(rank, j)).collect::<Vec<_>>())?;
        built_in(&x, &mut y, &window.view(0, &shape, DType::I32)?, &signals)?;
    } else if args.pitfall == Some(Pitfall::Myself) {
        with_myself(&mut y, &signals)?;
    } else {
        by_hand(&mut y, &signals)?;
    }
    Ok(y.as_slice()?.to_vec())
}

/// The rows of all ranks as `[n, n, 1]`, compared with what they must be.
fn check(args: &Args, n: usize) -> Outcome {
    let rows = if args.processes {
        let numbers = |row: String| row.split_whitespace().map(str::parse).collect::<Result<Vec<i32>, _>>();
        comm_examples::processes(n)?.into_iter().map(numbers).collect::<Result<_, _>>()?
    } else {
        comm_examples::threads(n, |r, n| rank(args, r, n))?
    };
    let y = Tensor::from_slice(&[n, n, 1], &rows.concat())?;
    for (cell, &seen) in y.as_slice::<i32>()?.iter().enumerate() {
        let (r, i) = (cell / n, cell % n);
        let expected = if args.use_builtin { x((r + 1) % n, i) } else { i32::from(i != r) };
        if seen != expected {
            return Err(format!("y[{r}][{i}] is {seen}, expected {expected}").into());
        }
    }
    Ok(())
}

/// All ranks meet at a barrier that is made of signals; prints OK if they did
///
/// By hand, every rank notifies every other one and waits for every other one, and its row y[r] is what its signals
/// then hold: y[r][i] is 1 where i is another rank, and 0 at i = r. With --use-builtin, every rank stages x[r][j] =
/// 100r+j, comes to the built-in barrier and loads the next rank's row: y[r] is x[(r+1) % N].
#[derive(Parser)]
#[command(
    name = "barrier",
    after_help = "Exit status: 0 they met (stdout says OK), 1 they did not (stderr says why), 2 wrong usage."
)]
struct Args {
    /// Device ids, each once: the r-th, in the order given, is rank r; on CPUs an id has no other meaning
    #[arg(short, long, value_name = "ID,...", default_value = "0,1")]
    device: Devices,
    /// Meet at the built-in barrier, and show it by data
    #[arg(long)]
    use_builtin: bool,
    /// Ranks are processes; without it, threads of one
    #[arg(long)]
    processes: bool,
    /// Make a mistake that the check must find
    #[arg(long, value_enum, conflicts_with = "use_builtin")]
    pitfall: Option<Pitfall>,
    /// Be rank R alone and print its row; all ranks have the same COMM_INSTANCE_ID. What --processes starts
    #[arg(long, value_name = "R")]
    rank: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Pitfall {
    /// A rank notifies itself too: its own cell, which must stay 0, becomes 1
    #[value(name = "self")]
    Myself,
}

fn main() -> ExitCode {
    let args: Args = match comm_examples::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let n = args.device.len();
    let printed = match args.rank {
        Some(r) if r >= n => return comm_examples::refuse(&format!("--rank {r} of {n} devices")),
        Some(r) => rank(&args, r, n).map(|row| row.iter().map(i32::to_string).collect::<Vec<_>>().join(" ")),
        None => check(&args, n).map(|()| "OK".to_owned()),
    };
    match printed {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
