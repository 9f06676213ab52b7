//! The bits of a sum depend on the inputs alone. They are those of the serial answer whoever comes first and however the
//! ranks are spread; the inputs are the same in every layout, and so are the bits.

use std::time::Duration;

use comm_core::tensor::DType;
use comm_group::ReduceOp;
use comm_testkit::oracle::reduce::{Reduction, reduce};
use comm_testkit::{Case, RankCtx, RankResult, done};

use super::case;
use crate::support::{PLACES, contribution, group, same_bytes, tensor};

pub fn cases() -> Vec<Case> {
    [DType::F32, DType::BF16]
        .into_iter()
        .map(|dtype| case(format!("bits/sum/{dtype}/shuffled"), move |ctx| shuffled(ctx, dtype)))
        .collect()
}

fn shuffled(ctx: &RankCtx, dtype: DType) -> RankResult {
    let group = group(ctx, "g")?;
    let mut when = ctx.rng();
    for n in [1usize, 8, 4096, 100_003] {
        let rng = ctx.common_rng().fork(n as u64);
        // The oracle is slow: what is longer repeats the same elements, in blocks that begin elsewhere.
        let period = n.min(4096);
        let parts: Vec<_> = (0..ctx.world()).map(|r| contribution(&rng, r, dtype, period)).collect();
        let sum = reduce(Reduction::Sum, dtype, &parts).ok_or("the oracle has it")?;
        let repeat =
            |part: &[u8]| -> Vec<u8> { part.iter().copied().cycle().take(n * dtype.size()).collect() };
        let expected = repeat(&sum);
        for (round, place) in PLACES.iter().cycle().take(6).enumerate() {
            let input = tensor(&group, *place, &[n], dtype, &repeat(&parts[ctx.rank()]))?;
            // Somebody is first and somebody last, another one each time.
            std::thread::sleep(Duration::from_micros(when.below(4) * 150));
            let seen = group.all_reduce(&input, ReduceOp::Sum, ctx.deadline())?;
            same_bytes(&format!("{n} elements, round {round}"), seen.bytes()?, &expected)?;
            // Reduced to one rank, or to a part for each, it is the same.
            let root = round % ctx.world();
            if let Some(seen) = group.reduce(&input, ReduceOp::Sum, root, ctx.deadline())? {
                same_bytes(&format!("{n} elements on rank {root}"), seen.bytes()?, &expected)?;
            }
            let part = group.reduce_scatter(&input, ReduceOp::Sum, 0, ctx.deadline())?;
            let range = comm_testkit::oracle::shard_range(n, ctx.world(), ctx.rank());
            let bytes = range.start * dtype.size()..range.end * dtype.size();
            same_bytes(&format!("a part of {n} elements"), part.bytes()?, &expected[bytes])?;
        }
    }
    done()
}
