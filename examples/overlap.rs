//! Communication goes on while this rank computes: each layer's gradient is summed while the next one is made.
//!
//! As threads: `cargo run --example overlap`. As processes, one per rank, with the same COMM_INSTANCE_ID:
//! `COMM_INSTANCE_ID=try cargo run --example overlap -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::{team::Team, tensor::Tensor};
use comm_examples::Outcome;
use comm_group::{ReduceOp, ThreadGroup, Work};

const LAYERS: usize = 4;
const NUMEL: usize = 20_000;

/// What takes time: the gradient of a layer on this rank.
fn gradient(rank: usize, layer: usize) -> Outcome<Tensor> {
    let value = |i: usize| ((rank + 1) * (layer + 1)) as f64 + (i % 7) as f64;
    Ok(Tensor::from_slice(&[NUMEL], &(0..NUMEL).map(value).collect::<Vec<_>>())?)
}

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let group = ThreadGroup::new(Team::join("overlap", rank, size, deadline)?, deadline)?;

    // From the last layer to the first, as a backward pass goes. A sum that has been started needs nobody's attention.
    let mut started: Vec<(usize, Work<Tensor>)> = Vec::new();
    for layer in (0..LAYERS).rev() {
        let mine = gradient(rank, layer)?;
        started.push((layer, group.all_reduce_start(&mine, ReduceOp::Avg, deadline)?));
    }
    // Waited for in the order in which they are needed, which need not be that in which they were started.
    for (layer, work) in started.into_iter().rev() {
        let mean = work.wait()?.as_slice::<f64>()?[0];
        println!("rank {rank}: layer {layer} has the mean {mean}");
        assert_eq!(mean, (size + 1) as f64 / 2.0 * (layer + 1) as f64);
    }
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
