//! A pipeline: one rank makes tensors, the others work on them, and nobody is more than a few ahead.
//!
//! As threads: `cargo run --example pipeline_queue`, with `-- --size N` for N of them. As processes, one per rank, with the same
//! COMM_INSTANCE_ID: `COMM_INSTANCE_ID=try cargo run --example pipeline_queue -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::device::Stream;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Deadline, Result};
use comm_examples::Outcome;
use comm_store::TensorStore;
use comm_store::store::{self, Fetched};

/// A queue from one rank to all others: the nth tensor has the nth key.
struct Queue<'a> {
    store: &'a dyn TensorStore,
    /// The most that are on their way.
    depth: usize,
    /// Names are cleared behind so many tensors.
    round: usize,
    /// How many this rank has sent or received.
    done: usize,
}

impl Queue<'_> {
    /// Sends the next tensor, after the one that lies `depth` behind it has been worked on by all.
    fn send(&mut self, tensor: &Tensor, deadline: Deadline) -> Result<()> {
        let n = self.next(deadline)?;
        if let Some(behind) = n.checked_sub(self.depth) {
            self.store.wait_consumed(&behind.to_string(), deadline)?;
        }
        let readers = self.store.context().size() - 1;
        self.store.publish(&n.to_string(), tensor, &Stream::current(), readers, None)
    }

    /// The next tensor. As long as this rank holds it, it counts as being worked on.
    fn receive(&mut self, deadline: Deadline) -> Result<Fetched> {
        let n = self.next(deadline)?;
        self.store.fetch(&n.to_string(), &Stream::current(), deadline)
    }

    /// The number of the next one in its round. All ranks come to the end of a round, and begin the next one together.
    fn next(&mut self, deadline: Deadline) -> Result<usize> {
        let n = self.done % self.round;
        if n == 0 && self.done > 0 {
            self.store.reset(deadline)?;
        }
        self.done += 1;
        Ok(n)
    }
}

const TENSORS: usize = 20;

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Deadline::from(Duration::from_secs(60));
    let team = Team::join("pipeline-queue", rank, size, deadline)?;
    let store = store::open(&team, deadline)?;
    let mut queue = Queue { store: &*store, depth: 3, round: 8, done: 0 };
    if rank == 0 {
        for i in 0..TENSORS {
            // In shared memory, from where other processes read it in place.
            let mut made = TensorBuf::zeros_in(team.hub().tensors(), &[4], DType::I64)?;
            made.fill(i as i64)?;
            queue.send(&made.freeze(), deadline)?;
        }
        println!("rank 0: sent {}, of which {} bytes were copied", queue.done, store.stats().bytes_copied);
    } else {
        let mut sum = 0;
        for _ in 0..TENSORS {
            let tensor = queue.receive(deadline)?;
            sum += tensor.to_vec::<i64>()?.iter().sum::<i64>();
            tensor.finish()?;
        }
        println!("rank {rank}: received {}, which sum to {sum}", queue.done);
    }
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
