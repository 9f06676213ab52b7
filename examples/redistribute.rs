//! A matrix on a mesh of two rows of devices: distributed, placed otherwise by the cheapest steps, reduced, and collected.
//!
//! As threads: `cargo run --example redistribute`, with `-- --size N` for N of them, an even number. As processes, one per
//! rank, with the same COMM_INSTANCE_ID: `COMM_INSTANCE_ID=try cargo run --example redistribute -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use Placement::{Partial, Replicate, Shard};
use comm_core::tensor::Tensor;
use comm_examples::Outcome;
use comm_group::placement::{Distributed, MeshRank, Placement, plan};
use comm_group::{DeviceMesh, ReduceOp, ThreadGroupManager};

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let mesh = DeviceMesh::new(&[2, size / 2], (0..size).collect())?;
    let groups = ThreadGroupManager::with_prefix("redistribute");
    let me = MeshRank::new(&mesh, rank, &groups)?;

    // Device 0 has a matrix. It comes to lie in blocks: its rows over mesh dimension 0, its columns over mesh dimension 1.
    let numbers: Vec<i64> = (0..24).collect();
    let matrix = Tensor::from_slice(&[4, 6], &numbers)?;
    let blocks = me.distribute((rank == 0).then_some(&matrix), 0, &[Shard(0), Shard(1)], deadline)?;
    println!("rank {rank} at {:?}: {:?}", me.coordinate(), blocks.local().to_vec::<i64>()?);

    // In columns over both dimensions, the first one first. All ranks make the same plan.
    let columns = [Shard(1), Shard(1)];
    let plan = plan(blocks.shape(), blocks.dtype(), &mesh, blocks.placements(), &columns)?;
    if rank == 0 {
        println!("{plan}");
    }
    let (local, costs) = me.carry_out(&plan, blocks.local(), deadline)?;
    assert_eq!(costs, plan.costs(me.coordinate())?, "as foretold");
    println!("rank {rank} has columns {:?}", local.to_vec::<i64>()?);

    // The sums of rows need all columns: what each rank adds up of its own are contributions.
    let sums: Vec<i64> =
        (0..4).map(|i| Ok(local.select(0, i)?.to_vec::<i64>()?.iter().sum())).collect::<Outcome<_>>()?;
    let sums = Distributed::new(
        Tensor::from_slice(&[4], &sums)?,
        &[4],
        &[Partial(ReduceOp::Sum), Partial(ReduceOp::Sum)],
    );
    let everywhere = me.redistribute(&sums, &[Replicate, Shard(0)], deadline)?;
    if let Some(whole) = me.collect(&everywhere, size - 1, deadline)? {
        println!("rank {rank} has collected {:?}", whole.as_slice::<i64>()?);
    }
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(4, rank)
}
