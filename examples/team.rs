//! How ranks meet, leave, and learn that one of them is lost.
//!
//! As threads: `cargo run --example team`. As processes, one per rank, with the same COMM_INSTANCE_ID:
//! `COMM_INSTANCE_ID=try cargo run --example team -- --rank 0 --size 2`, and so on.
use std::{panic, time::Duration};

use comm_core::{Error, team::Team};
use comm_examples::Outcome;

fn rank(rank: usize, size: usize) -> Outcome {
    let deadline = Duration::from_secs(60);
    let last = size - 1;

    let team = Team::join("meet", rank, size, deadline)?;
    let near = (0..size).filter(|&peer| team.shares_process(peer)).count();
    println!("rank {rank} of {size} has joined; its process holds {near} of them");
    team.barrier(deadline)?;

    // Leaving is not dying: what was begun ends well everywhere, what comes later needs a rank that is not there.
    if rank == last {
        drop(team);
    } else if let Err(Error::PeerLeft { rank: gone, .. }) = team.barrier(deadline) {
        println!("rank {rank}: rank {gone} has left");
    }

    // A handle that is dropped while its thread panics means that the rank is lost. So does the death of its process.
    let team = Team::join("lose", rank, size, deadline)?;
    if rank == last {
        let lost = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            let _mine = team;
            panic!("on purpose");
        }));
        assert!(lost.is_err());
    } else if let Err(Error::PeerLost { rank: gone, how, .. }) = team.barrier(deadline) {
        println!("rank {rank}: rank {gone} is lost: {how}");
    }
    Ok(())
}

fn main() -> Outcome {
    comm_examples::run(3, rank)
}
