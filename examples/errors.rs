//! What errors look like, and what becomes of the team.
//!
//! As threads: `cargo run --example errors`. As processes, one per rank, with the same COMM_INSTANCE_ID:
//! `COMM_INSTANCE_ID=try cargo run --example errors -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::{Error, team::Team, tensor::Tensor};
use comm_examples::Outcome;
use comm_group::{ReduceOp, ThreadGroup};

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let group = ThreadGroup::new(Team::join("errors", rank, size, deadline)?, deadline)?;

    // The last rank brings another shape: all get the same verdict before a byte moves, and the team goes on.
    let mine = Tensor::from_slice(&[2, 3], &[1.0f32; 6])?;
    let mine = if rank == size - 1 { mine.transpose(0, 1)? } else { mine };
    if let Err(error) = group.all_reduce(&mine, ReduceOp::Sum, deadline) {
        println!("rank {rank}: {error}");
    }
    group.barrier(deadline)?;

    // A rank that never comes: the join says who is missing.
    if rank == 0
        && let Err(error) = Team::join("alone", 0, 2, Duration::from_millis(200))
    {
        println!("rank {rank}: {error}");
    }
    group.barrier(deadline)?;

    // An abort wakes every rank, whatever it waits for. The handle works from any thread.
    if rank == 0 {
        group.team().abort_handle().abort("the loss is not a number");
    }
    if let Err(Error::Aborted { by, reason, .. }) = group.barrier(deadline) {
        println!("rank {rank}: aborted by rank {by}: {reason}");
    }
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
