//! One rank is lost in the middle of the work: the others hear of it by its name, and go on in a smaller group.
//!
//! As threads: `cargo run --example survive`. As processes, one per rank, with the same COMM_INSTANCE_ID:
//! `COMM_INSTANCE_ID=try cargo run --example survive -- --rank 0 --size 3`, and so on.
use std::{panic, time::Duration};

use comm_core::{Error, team::Team, tensor::Tensor};
use comm_examples::Outcome;
use comm_group::{ReduceOp, ThreadGroup};

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let mut group = ThreadGroup::new(Team::join("survive", rank, size, deadline)?, deadline)?;
    let mine = Tensor::from_slice(&[1], &[10i32.pow(rank as u32)])?;
    for step in 0..4 {
        if step == 2 && rank == 1 {
            // As a bug would: the handle is dropped while its thread unwinds. So does the death of a process count.
            let lost = panic::catch_unwind(panic::AssertUnwindSafe(|| {
                let _mine = group;
                panic!("on purpose");
            }));
            assert!(lost.is_err());
            return Ok(());
        }
        let sum = match group.all_reduce(&mine, ReduceOp::Sum, deadline) {
            Err(Error::PeerLost { rank: gone, .. }) => {
                group = group.shrink(deadline)?;
                println!("rank {rank}: rank {gone} is lost; now rank {} of {}", group.rank(), group.size());
                group.all_reduce(&mine, ReduceOp::Sum, deadline)?
            }
            outcome => outcome?,
        };
        println!("rank {rank}: step {step}, sum {}", sum.as_slice::<i32>()?[0]);
    }
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(4, rank)
}
