//! Tensors that go from devices to devices by name: handed out, moved to another mesh, copied back, and put together.
//!
//! As threads: `cargo run --example flows`, with `-- --size N` for N of them, an even number. As processes, one per rank, with
//! the same COMM_INSTANCE_ID: `COMM_INSTANCE_ID=try cargo run --example flows -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::Deadline;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_examples::Outcome;
use comm_group::placement::{DeviceMesh, Placement::Shard, TensorSpec, flow::Participant};
use comm_store::store;

const ROWS: usize = 5;

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Deadline::from(Duration::from_secs(60));
    let team = Team::join("flows", rank, size, deadline)?;
    let store = store::open(&team, deadline)?;
    // Rank r is device r. The first half is one mesh; the second half is another, from the last device on.
    let half = size / 2;
    let left = DeviceMesh::new(&[half], (0..half).collect())?;
    let right = DeviceMesh::new(&[half], (size - half..size).rev().collect())?;
    let me = Participant::new(&*store, rank);
    let rows = TensorSpec::new(&[ROWS, 2], DType::I64, &left, &[Shard(0)])?;

    // Scatter: device 0 has a matrix, and each device of the left mesh gets some rows. Everybody makes the same call.
    let numbers: Vec<i64> = (0..2 * ROWS as i64).collect();
    let matrix = Tensor::from_slice(&[ROWS, 2], &numbers)?;
    let mine = me.scatter("step", 0, &rows, (rank == 0).then_some(&matrix), deadline)?;
    if let Some(mine) = &mine {
        println!("rank {rank} has got {:?}", mine.to_vec::<i64>()?);
    }

    // To the other mesh, rank by rank. Nothing is copied between threads, nor between processes what lies in shared memory.
    let moved = me.convert_mesh("step", &rows, &right, mine.as_ref(), deadline)?;
    let squares = match moved {
        Some(moved) => {
            println!("rank {rank} goes on with {:?}", moved.to_vec::<i64>()?);
            let squares: Vec<i64> = moved.to_vec::<i64>()?.iter().map(|x| x * x).collect();
            Some(Tensor::from_slice(moved.shape(), &squares)?)
        }
        None => None,
    };

    // Back, into tensors that are there. A device of neither mesh, as there is in the middle of an odd number, is not asked.
    let mut buffer = TensorBuf::zeros(&mine.map_or(vec![0, 2], |mine| mine.shape().to_vec()), DType::I64)?;
    if left.contains(me.id()) || right.contains(me.id()) {
        me.copy("step", &rows.on(&right)?, &left, squares.as_ref(), Some((&mut buffer).into()), deadline)?;
    }

    // Gather: the last device, which is not in the left mesh, gets the whole.
    if let Some(whole) = me.gather("step", &rows, Some(&buffer.freeze()), size - 1, deadline)? {
        println!("rank {rank} has gathered {:?}", whole.to_vec::<i64>()?);
    }
    // All names may be used again.
    Ok(store.reset(deadline)?)
}

fn main() -> Outcome {
    comm_examples::run(4, rank)
}
