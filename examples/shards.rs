//! Shards of unequal size put together, and a whole tensor cut into shards, plainly and with a sub-split.
//!
//! As threads: `cargo run --example shards`. As processes, one per rank, with the same COMM_INSTANCE_ID:
//! `COMM_INSTANCE_ID=try cargo run --example shards -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::{team::Team, tensor::Tensor};
use comm_examples::Outcome;
use comm_group::{ThreadGroup, shard_sizes};

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let group = ThreadGroup::new(Team::join("shards", rank, size, deadline)?, deadline)?;

    // Rank r holds r rows of two columns: rank 0 none at all.
    let rows = Tensor::from_slice(&[rank, 2], &vec![rank as i32; 2 * rank])?;
    let whole = group.all_gather(&rows, 0, deadline)?;
    println!("rank {rank}: {:?} -> {:?} {:?}", rows.shape(), whole.shape(), whole.as_slice::<i32>()?);

    // Ten tokens that every rank has: the first ranks get one more.
    let tokens = Tensor::from_slice(&[10], &(0..10).collect::<Vec<i64>>())?;
    let shard = group.replicate_to_shard(&tokens, 0, None)?;
    println!("rank {rank}: shard {:?} of sizes {:?}", shard.to_vec::<i64>()?, shard_sizes(10, size));
    let back = group.all_gather(&shard, 0, deadline)?;
    assert!(back.bytes_equal(&tokens)?);

    // Cut behind index 4, a rank gets its part of the front and its part of the back.
    let balanced = group.replicate_to_shard(&tokens, 0, Some(4))?;
    println!("rank {rank}: sub-split {:?}", balanced.as_slice::<i64>()?);
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
