//! Many small tensors in shared memory cost memory and nothing else.

use comm_core::shm::{Access, Arena, Budget};
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_testkit::{Case, Layout, RankCtx, RankResult, check, check_eq, done, probe};

pub fn cases() -> Vec<Case> {
    vec![
        Case::ranks("rendezvous", "arena/-/f32/100000-tensors", many)
            .worlds(|world| world == 2)
            .layouts(&[Layout::Processes]),
    ]
}

const TENSORS: usize = 100_000;
const ELEMENTS: usize = 250;
/// A growing arena adds a segment now and then: one descriptor and one mapping for thousands of tensors.
const FEW: usize = 16;

fn many(_: &RankCtx) -> RankResult {
    // An arena that has learned nothing yet: one that other cases have used keeps more for recycling.
    let arena = &Arena::new(Access::ReadOnly, Budget::from_config()?, |_| {});
    drop(TensorBuf::zeros_in(arena, &[ELEMENTS], DType::F32)?);
    let before = (probe::fds()?, probe::mappings()?, probe::memory(None)?.shared, arena.stats());
    let mut tensors: Vec<Tensor> = Vec::with_capacity(TENSORS);
    for i in 0..TENSORS {
        let mut buf = TensorBuf::zeros_in(arena, &[ELEMENTS], DType::F32)?;
        buf.as_mut_slice::<f32>()?.fill(i as f32);
        tensors.push(buf.freeze());
    }
    let during = (probe::fds()?, probe::mappings()?, probe::memory(None)?.shared, arena.stats());
    check_eq!(during.3.blocks, before.3.blocks + TENSORS as u64);
    check!(during.0 <= before.0 + FEW, "{} descriptors, {} before", during.0, before.0);
    check!(during.1 <= before.1 + FEW, "{} mappings, {} before", during.1, before.1);
    let bytes = (TENSORS * ELEMENTS * 4) as u64;
    check!(during.2 >= before.2 + bytes, "{} bytes of {bytes} are shared memory", during.2 - before.2);
    for (i, tensor) in tensors.iter().enumerate() {
        check_eq!(tensor.as_slice::<f32>()?[ELEMENTS - 1], i as f32);
    }
    drop(tensors);
    let after = (probe::memory(None)?.shared, arena.stats());
    check_eq!(after.1.blocks, before.3.blocks);
    check!(after.0 <= before.2 + bytes / 3, "{} bytes are still resident", after.0);
    println!(
        "descriptors {} -> {}, mappings {} -> {}, shared {} -> {} -> {} MiB",
        before.0,
        during.0,
        before.1,
        during.1,
        before.2 >> 20,
        during.2 >> 20,
        after.0 >> 20
    );
    arena.trim();
    let trimmed = probe::memory(None)?.shared;
    check!(trimmed <= before.2 + (1 << 20), "{trimmed} bytes are resident after a trim, {} before", before.2);
    done()
}
