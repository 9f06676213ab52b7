//! Ranks in Rust and in Python meet in the store that their launcher means, and rank 0 hands out an id of NCCL.
//!
//! A rank is told who it is by its launcher, or by a shell; `nccl_id.py` is the same program in Python:
//!
//! ```console
//! $ export COMM_WORLD_SIZE=2 COMM_MASTER_ADDR=localhost COMM_MASTER_PORT=29500
//! $ COMM_RANK=0 cargo run --example nccl_id &
//! $ RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 python3 examples/nccl_id.py
//! ```
use std::time::Duration;

use comm_core::{Deadline, launch::LaunchEnv};
use comm_examples::Outcome;
use comm_nccl_sys::Nccl;
use comm_rendezvous::{EnvStore, Rendezvous};

fn main() -> Outcome {
    let deadline = Deadline::from(Duration::from_secs(60));
    let env = LaunchEnv::detect()?
        .ok_or("no launcher says which rank this is; set COMM_RANK and COMM_WORLD_SIZE")?;
    let store = EnvStore::open(&env, deadline)?;
    let id = if env.rank == 0 {
        let id = Nccl::get()?.get_unique_id()?.internal.map(|byte| byte as u8).to_vec();
        store.set("nccl/id", &id, deadline)?;
        id
    } else {
        store.get("nccl/id", deadline)?
    };
    let sum = id.iter().fold(0u32, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    println!("rank {} of {}: an id of {} bytes, {sum:08x}", env.rank, env.world_size, id.len());
    // The store may be that of rank 0, who stays until all have what they came for.
    if store.add("nccl/through", 1, deadline)? == env.world_size as i64 {
        store.set("nccl/all-through", b"", deadline)?;
    }
    if env.rank == 0 {
        store.wait(&["nccl/all-through"], deadline)?;
    }
    Ok(())
}
