//! Shards along one dimension become shards along another, of uneven sizes; and rows go to whom they are for.
//!
//! As threads: `cargo run --example all_to_all`. As processes, one per rank, with the same COMM_INSTANCE_ID:
//! `COMM_INSTANCE_ID=try cargo run --example all_to_all -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::{team::Team, tensor::Tensor};
use comm_examples::Outcome;
use comm_group::{ThreadGroup, shard_sizes};

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let group = ThreadGroup::new(Team::join("all-to-all", rank, size, deadline)?, deadline)?;

    // The whole has 4 rows of 5 columns, 0 to 19. This rank has some of the columns, and gets some of the rows.
    let whole = Tensor::from_slice(&[4, 5], &(0..20).collect::<Vec<i32>>())?;
    let columns = group.replicate_to_shard(&whole, 1, None)?;
    let rows = group.all_to_all(&columns, 1, 0, deadline)?;
    println!(
        "rank {rank}: columns {:?} -> rows {:?} {:?}",
        columns.shape(),
        rows.shape(),
        rows.as_slice::<i32>()?
    );

    // Each rank has a row for itself and for every rank after it, and says how many it sends to and gets from each.
    let send: Vec<usize> = (0..size).map(|to| usize::from(to >= rank)).collect();
    let receive: Vec<usize> = (0..size).map(|from| usize::from(from <= rank)).collect();
    let mine: Vec<i32> = (rank..size).map(|to| (10 * rank + to) as i32).collect();
    let mine = Tensor::from_slice(&[mine.len()], &mine)?;
    let got = group.all_to_all_rows(&mine, &send, &receive, deadline)?;
    println!("rank {rank}: rows from all {:?}", got.as_slice::<i32>()?);
    assert_eq!(rows.shape(), [shard_sizes(4, size)[rank], 5]);
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
