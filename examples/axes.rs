//! A group for each axis of a mesh: a layer whose weights are cut over one axis, and whose batch is cut over the other.
//!
//! As threads: `cargo run --example axes`, with `-- --size N` for N of them, an even number. As processes, one per rank, with the
//! same COMM_INSTANCE_ID: `COMM_INSTANCE_ID=try cargo run --example axes -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::tensor::Tensor;
use comm_examples::Outcome;
use comm_group::placement::MeshRank;
use comm_group::{DeviceMesh, ReduceOp, ThreadGroupManager, shard_sizes};

/// Axis 0 of the mesh cuts the batch, axis 1 the weights.
const BATCH: usize = 0;
const WEIGHTS: usize = 1;

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let mesh = DeviceMesh::new(&[size / 2, 2], (0..size).collect())?;
    let groups = ThreadGroupManager::with_prefix("axes");
    let me = MeshRank::new(&mesh, rank, &groups)?;
    let (batch, weights) = (me.axis(BATCH, deadline)?, me.axis(WEIGHTS, deadline)?);
    let line = mesh.line(WEIGHTS, rank)?;
    println!("rank {rank} at {:?}: weights with {:?}, line {}", me.coordinate(), line.ids, line.index);

    // Six samples [i, 1], of which this rank has some; and one column of the weights [[1, 10], [2, 20]].
    let first: usize = shard_sizes(6, batch.size())[..batch.rank()].iter().sum();
    let samples = first..first + shard_sizes(6, batch.size())[batch.rank()];
    let column = [[1i32, 2], [10, 20]][weights.rank()];
    let outputs: Vec<i32> = samples.clone().map(|i| i as i32 * column[0] + column[1]).collect();

    // Forward: the ranks that have the other columns for the same samples put them together.
    let mine = Tensor::from_slice(&[samples.len(), 1], &outputs)?;
    let whole = weights.all_gather(&mine, 1, deadline)?;
    println!("rank {rank}: samples {samples:?} give {:?}", whole.as_slice::<i32>()?);

    // Backward: the ranks that have the same column for other samples add up its gradient.
    let gradient: i32 = samples.map(|i| i as i32).sum();
    let gradient = batch.all_reduce(&Tensor::from_slice(&[1], &[gradient])?, ReduceOp::Sum, deadline)?;
    assert_eq!(gradient.as_slice::<i32>()?, [15]);
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(4, rank)
}
