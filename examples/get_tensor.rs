//! A client asks for a tensor that lies on a mesh in parts, goes on, and reads it later: what DTorch calls get_tensor_async.
//!
//! As threads: `cargo run --example get_tensor`, with `-- --size N` for N of them. As processes, one per rank, with the same
//! COMM_INSTANCE_ID: `COMM_INSTANCE_ID=try cargo run --example get_tensor -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use Placement::{Partial, Shard};
use comm_core::{Deadline, Kind, team::Team, tensor::Tensor};
use comm_examples::Outcome;
use comm_group::placement::{Distributed, MeshRank, Placement};
use comm_group::{DeviceMesh, ReduceOp, ThreadGroup, ThreadGroupManager};
use comm_promise::{Promise, Ticket};
use serde::{Deserialize, Serialize};

/// An operator, as it is sent to all devices. It has one input and gives nothing back but the promise that it keeps.
#[derive(Serialize, Deserialize)]
struct GetTensor {
    input: String,
    promise: Ticket<Tensor>,
}

/// What each device does with it: the input comes together on device 0, which fulfils the promise.
fn compute(op: &GetTensor, me: &MeshRank, input: &Distributed, deadline: Deadline) -> Outcome {
    if let Some(whole) = me.collect(input, 0, deadline)? {
        Promise::attach(&op.promise, deadline)?.set(whole)?;
    }
    Ok(())
}

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Deadline::from(Duration::from_secs(60));
    let queue = ThreadGroup::new(Team::join("get-tensor", rank, size, deadline)?, deadline)?;
    let groups = ThreadGroupManager::with_prefix("get-tensor");
    let mesh = DeviceMesh::new(&[size], (0..size).collect())?;
    let me = MeshRank::new(&mesh, rank, &groups)?;

    // On each device: a row of a matrix, and its own contribution to a sum.
    let row = Tensor::from_slice(&[1, 3], &[10 * rank as i64, 10 * rank as i64 + 1, 10 * rank as i64 + 2])?;
    let inputs = [
        ("rows", Distributed::new(row.clone(), &[size, 3], &[Shard(0)])),
        ("sum", Distributed::new(row.reshape(&[3])?, &[3], &[Partial(ReduceOp::Sum)])),
    ];

    // The client, here the last rank, asks for both, and has their futures before anybody has done anything.
    let client = size - 1;
    let mut futures = Vec::new();
    for (name, input) in &inputs {
        let mut operator = None;
        if rank == client {
            let promise = Promise::<Tensor>::new(Kind::Host)?;
            futures.push((*name, promise.future()?));
            let op = GetTensor { input: (*name).to_owned(), promise: promise.into_ticket()? };
            let bytes = serde_json::to_vec(&op)?;
            operator = Some(Tensor::from_slice(&[bytes.len()], &bytes)?);
        }
        let bytes = queue.broadcast(operator.as_ref(), client, deadline)?;
        let op: GetTensor = serde_json::from_slice(&bytes.to_vec::<u8>()?)?;
        assert_eq!(op.input, *name);
        compute(&op, &me, input, deadline)?;
    }
    for (name, future) in futures.into_iter().rev() {
        println!("rank {rank}: {name} {:?}", future.get(deadline)?.to_vec::<i64>()?);
    }
    queue.barrier(deadline)?;
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
