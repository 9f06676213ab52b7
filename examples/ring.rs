//! An all-reduce written by hand: chunks go round a ring of ranks, first to be added to, then to be kept.
//!
//! As threads: `cargo run --example ring`, with `-- --size N` for N of them. As processes, one per rank, with the same
//! COMM_INSTANCE_ID: `COMM_INSTANCE_ID=try cargo run --example ring -- --rank 0 --size 2`, and so on.
use std::time::Duration;

use comm_core::tensor::{Element, Tensor};
use comm_core::{Result, team::Team};
use comm_examples::Outcome;
use comm_group::{ReduceOp, ThreadGroup, shard_sizes};
use comm_store::window::{Cost, Window, WindowSpec};
use comm_store::{Cmp, NotifyOp};

const DEADLINE: Duration = Duration::from_secs(60);

/// Elements, which 2, 3 and 4 ranks do not divide evenly.
const NUMEL: usize = 7;

/// The sum of the `x` of all ranks, of one dimension, and what it has cost this rank.
fn ring<T: Element>(team: &Team, x: &Tensor, add: fn(T, T) -> T) -> Result<(Tensor, Cost)> {
    let (r, n) = (team.rank(), team.size());
    let (left, right) = ((r + n - 1) % n, (r + 1) % n);
    let steps = 2 * (n - 1);
    let window = Window::alloc(team, WindowSpec::tensor(x.shape(), T::DTYPE)?.signals(steps), DEADLINE)?;
    let (work, signals) = (window.view(0, x.shape(), T::DTYPE)?, window.signals(&[steps, 1])?);
    let sizes = shard_sizes(x.numel(), n);

    work.store(x, &[0])?;
    for step in 0..steps {
        // The chunk that my left neighbour had in its last step is mine in this one. A step has a signal of its own.
        signals.notify(right, &[step, 0], 1, NotifyOp::Set)?;
        signals.wait(&[step, 0], Cmp::Ge, 1, Some(left), DEADLINE)?;
        let chunk = (r + steps + 1 - step) % n;
        let (at, len) = ([sizes[..chunk].iter().sum()], [sizes[chunk]]);
        let theirs = work.remote_load(left, &at, &len)?;
        if step < n - 1 {
            // Reduce-scatter: sums grow on the way, and after n - 1 steps each rank has the whole sum of one chunk.
            let mine = work.remote_load(r, &at, &len)?;
            let pairs = theirs.as_slice::<T>()?.iter().zip(mine.as_slice::<T>()?);
            let sum: Vec<T> = pairs.map(|(&a, &b)| add(a, b)).collect();
            work.store(&Tensor::from_slice(&len, &sum)?, &at)?;
        } else {
            // All-gather: whole sums go round. Nobody reads what one takes the place of: it went into that sum.
            work.store(&theirs, &at)?;
        }
    }
    Ok((work.remote_load(r, &[0], x.shape())?, window.costs()))
}

/// The ring's cost card, for rank `r`: a signal each way per step, and in each half every chunk is loaded but one: first the
/// one that starts here, then the one whose sum ends here. Of `N` bytes in even chunks, that is `2(P-1)/P * N`.
fn card(r: usize, n: usize, numel: usize, element: usize) -> Cost {
    let (steps, sizes) = (2 * (n as u64 - 1), shard_sizes(numel, n));
    let loaded = 2 * numel - sizes[r] - sizes[(r + 1) % n];
    Cost { notifies: steps, waits: steps, rounds: 0, bytes: (loaded * element) as u64 }
}

fn rank(rank: usize, size: usize) -> Outcome {
    let group = ThreadGroup::new(Team::join("ring", rank, size, DEADLINE)?, DEADLINE)?;

    // Integers: rank r adds a digit of its own, 10^r, so that one that is lost or counted twice shows; the last element
    // wraps. Every bit is that of the library's all-reduce.
    let digit = 10i32.wrapping_pow(rank as u32);
    let x = Tensor::from_slice(&[NUMEL], &[1, 2, 3, 4, 5, 6, i32::MAX].map(|i| digit.wrapping_mul(i)))?;
    let (ours, cost) = ring(group.team(), &x, i32::wrapping_add)?;
    let theirs = group.all_reduce(&x, ReduceOp::Sum, DEADLINE)?;
    assert!(ours.bytes_equal(&theirs)?, "{:?}", ours.as_slice::<i32>()?);

    // Floats: the ring adds in an order of its own. In any order, the sum of P numbers is off by (P-1) * eps/2 * sum |x|
    // at most, so two orders differ by (P-1) * eps * sum |x| at most.
    let value = |r: usize, i: usize| [1.0, -1.0][r % 2] / (3 * r + i + 1) as f32;
    let x = Tensor::from_slice(&[NUMEL], &(0..NUMEL).map(|i| value(rank, i)).collect::<Vec<_>>())?;
    let (ours, _) = ring(group.team(), &x, |a: f32, b| a + b)?;
    let theirs = group.all_reduce(&x, ReduceOp::Sum, DEADLINE)?;
    for (i, (&ours, &theirs)) in ours.as_slice::<f32>()?.iter().zip(theirs.as_slice::<f32>()?).enumerate() {
        let magnitude: f64 = (0..size).map(|r| f64::from(value(r, i).abs())).sum();
        let bound = (size - 1) as f64 * f64::from(f32::EPSILON) * magnitude;
        assert!((f64::from(ours) - f64::from(theirs)).abs() <= bound, "{i}: {ours} and {theirs}");
    }

    let card = card(rank, size, NUMEL, size_of::<i32>());
    println!("rank {rank} of {size}: {cost}; the card says {card}");
    assert_eq!(cost, card);
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
