//! Two ranks at a time: who puts tells when it is there, who is read from tells when it may be got.
//!
//! As threads: `cargo run --example put_get`, with `-- --size N` for N of them. As processes, one per rank, with the same
//! COMM_INSTANCE_ID: `COMM_INSTANCE_ID=try cargo run --example put_get -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::{team::Team, tensor::DType};
use comm_examples::Outcome;
use comm_store::window::{Await, Notify, StoreOp, Sub, Window, WindowSpec};
use comm_store::{Cmp, NotifyOp};

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let team = Team::join("put-get", rank, size, deadline)?;
    let window = Window::alloc(&team, WindowSpec::bytes(32 + 16).signals(size), deadline)?;
    let signals = window.signals(&[size])?;
    let (source, target) = (window.view(0, &[2, 4], DType::I32)?, window.view(32, &[2, 2], DType::I32)?);
    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);

    // Put: my tag to the right, then word; wait for word from the left, then read. Three times on the same window. A
    // signal counts on until the reset makes it zero: without one, the next wait would be over at once.
    let (tag, inbox) = (window.view(0, &[1], DType::I32)?, window.view(32, &[1], DType::I32)?);
    let mut tags = [0; 3];
    for read in &mut tags {
        tag.write(&[0], rank as i32 + 1)?;
        inbox.put(right, &tag, None, StoreOp::Set, Some(Notify::add(&signals, &[rank], 1)))?;
        let count = signals.wait(&[left], Cmp::Ge, 1, Some(left), deadline)?;
        assert_eq!(count, 1, "a signal of another time");
        *read = inbox.read::<i32>(&[0])?;
        window.reset(deadline)?;
    }
    println!("rank {rank}: tags {tags:?}");

    // Get: rank r holds 100r + 10i + j at [i][j]. Word to the left, which reads me; wait for word from the right, and get
    // the two middle columns of its four.
    for (i, j) in (0..2).flat_map(|i| (0..4).map(move |j| (i, j))) {
        source.write(&[i, j], (100 * rank + 10 * i + j) as i32)?;
    }
    signals.notify(left, &[rank], 1, NotifyOp::Add)?;
    let (cell, middle) = ([right], Sub { to: &[0, 0], from: &[0, 1], shape: &[2, 2] });
    source.get(right, &target, Some(middle), Some(Await::ge(&signals, &cell, 1).from(right).by(deadline)))?;
    println!("rank {rank}: got {:?}", target.remote_load(rank, &[0, 0], &[2, 2])?.as_slice::<i32>()?);
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
