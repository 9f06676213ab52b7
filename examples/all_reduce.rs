//! Every rank contributes a tensor, and every rank gets the sum.
use std::{error::Error, time::Duration};

use comm_core::{launch::LaunchEnv, team::Team, tensor::Tensor};
use comm_group::{ReduceOp, ThreadGroup};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let team = Team::join("all-reduce", rank, size, deadline)?;
    let group = ThreadGroup::new(team, deadline)?;
    let mine = Tensor::from_slice(&[3], &[1.0f32, rank as f32, 0.5])?;
    let sum = group.all_reduce(&mine, ReduceOp::Sum, deadline)?;
    println!("rank {rank} of {size}: {:?}", sum.as_slice::<f32>()?);
    Ok(())
}

fn main() -> Outcome {
    if let Some(env) = LaunchEnv::detect()? {
        // One rank of several processes that torchrun, mpirun, srun or a shell has started.
        return rank(env.rank, env.world_size);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // Without arguments, four threads of this process.
        [] => std::thread::scope(|s| {
            let ranks: Vec<_> = (0..4).map(|r| s.spawn(move || rank(r, 4))).collect();
            ranks.into_iter().try_for_each(|r| r.join().unwrap_or(Err("a rank panicked".into())))
        }),
        // One rank of several processes.
        ["--rank", r, "--size", n] => rank(r.parse()?, n.parse()?),
        _ => Err("expected no arguments, or: --rank R --size N".into()),
    }
}
