//! Rows of a window that other ranks load, store and add to, with a barrier to say when.
//!
//! As threads: `cargo run --example remote`, with `-- --size N` for N of them. As processes, one per rank, with the same
//! COMM_INSTANCE_ID: `COMM_INSTANCE_ID=try cargo run --example remote -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::tensor::{DType, Tensor};
use comm_core::{Result, team::Team};
use comm_examples::Outcome;
use comm_store::window::{StoreOp, View, Window, WindowSpec};

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let team = Team::join("remote", rank, size, deadline)?;
    let window = Window::alloc(&team, WindowSpec::bytes(3 * 8).signals(size), deadline)?;
    let signals = window.signals(&[size])?;
    // Three rows of two elements, at bytes 0, 8 and 16 of every rank's part. What is stored into one is read from the same.
    let row = |at| window.view(at, &[2], DType::I32);
    let (loaded, stored, added) = (row(0)?, row(8)?, row(16)?);
    let mine = |row: &View<'_>| -> Result<_> { Ok([row.read::<i32>(&[0])?, row.read(&[1])?]) };
    let next = (rank + 1) % size;
    let x = Tensor::from_slice(&[2], &[100 * rank as i32, 100 * rank as i32 + 1])?;

    // Load: stage my row, barrier, load the next rank's. y[r] = x[(r+1) % P]
    loaded.store(&x, &[0])?;
    signals.barrier(deadline)?;
    println!("rank {rank}: loaded {:?}", loaded.remote_load(next, &[0], &[2])?.as_slice::<i32>()?);

    // Store: store into the next rank's row, barrier, read my own. y[r] = x[(r-1) % P]
    stored.remote_store(&x, next, &[0], StoreOp::Set)?;
    signals.barrier(deadline)?;
    println!("rank {rank}: stored here {:?}", mine(&stored)?);

    // Add: all ranks into the row of rank 0, at once; rank r adds a digit of its own, 10^r, so that a lost one shows.
    let digit = 10i32.wrapping_pow(rank as u32);
    added.remote_store(&Tensor::from_slice(&[2], &[digit, 2 * digit])?, 0, &[0], StoreOp::Add)?;
    signals.barrier(deadline)?;
    println!("rank {rank}: added here {:?}", mine(&added)?);
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
