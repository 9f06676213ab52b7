//! The program of the fault cases: collectives without end, each checked, and a careful look at memory afterwards.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::values::{is_poison, poison, touched};
use comm_testkit::{Program, RankCtx, RankResult, check, done};
use serde_json::json;

use super::report;
use crate::support::{Any, group};

pub const LOOP: Program = Program { name: "group-loop", run };

pub const BYTES: usize = 1 << 20;

/// Arguments: `rounds` (default: until an error), `op_ms` (deadline of an operation, default 20 s).
fn run(ctx: &RankCtx) -> RankResult {
    let op = Duration::from_millis(ctx.args()["op_ms"].as_u64().unwrap_or(20_000));
    let rounds = ctx.args()["rounds"].as_u64().unwrap_or(u64::MAX);
    let group = match group(ctx, "g") {
        Ok(group) => group,
        Err(error) => {
            report::tell(ctx, &error, Duration::ZERO);
            return done();
        }
    };
    // Dropped before the group when this thread unwinds.
    let _falling = Falling(ctx);
    ctx.note("running");
    let mut last = None;
    for round in 0..rounds {
        let busy = report::busy();
        match step(ctx, &group, round, op)? {
            Ok(kept) => last = Some(kept),
            Err((error, kept)) => {
                report::tell(ctx, &error, busy);
                return aftermath(ctx, &group, &error, [Some(kept), last]);
            }
        }
    }
    done()
}

/// Says when a panic has got here.
struct Falling<'a>(&'a RankCtx);

impl Drop for Falling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.note("falling");
        }
    }
}

/// Tensors of one operation, and a private copy of what is in them.
struct Kept {
    tensors: Vec<(Tensor, Vec<u8>)>,
}

impl Kept {
    fn add(&mut self, tensor: Tensor) -> Any<()> {
        let bytes = tensor.bytes()?.to_vec();
        self.tensors.push((tensor, bytes));
        Ok(())
    }

    fn check(&self) -> RankResult {
        for (tensor, bytes) in &self.tensors {
            check!(tensor.bytes()? == bytes, "somebody wrote into {tensor:?}");
        }
        done()
    }
}

fn value(rank: usize, round: u64, i: usize) -> i64 {
    rank as i64 * 1_000_000_000 + round as i64 * 100_000 + i as i64 % 1000
}

/// One operation of either kind, its result checked.
#[allow(clippy::result_large_err, reason = "a test")]
fn step(ctx: &RankCtx, group: &ThreadGroup, round: u64, op: Duration) -> Any<Result<Kept, (Error, Kept)>> {
    let n = BYTES / 8;
    // In the arena, so that peers read this very memory.
    let mut buf = TensorBuf::zeros_in(group.team().hub().tensors(), &[n], DType::I64)?;
    for (i, x) in buf.as_mut_slice::<i64>()?.iter_mut().enumerate() {
        *x = value(ctx.rank(), round, i);
    }
    let input = buf.freeze();
    let mut kept = Kept { tensors: Vec::new() };
    kept.add(input.clone())?;
    let gathers = !round.is_multiple_of(2);
    let outcome =
        if gathers { group.all_gather(&input, 0, op) } else { group.all_reduce(&input, ReduceOp::Sum, op) };
    let result = match outcome {
        Ok(result) => result,
        Err(error) => return Ok(Err((error, kept))),
    };
    for (i, &seen) in result.as_slice::<i64>()?.iter().enumerate() {
        let expected = if gathers {
            value(i / n, round, i % n)
        } else {
            (0..ctx.world()).map(|r| value(r, round, i)).sum()
        };
        check!(seen == expected, "round {round}: element {i} is {seen}, expected {expected}");
    }
    kept.add(result)?;
    Ok(Ok(kept))
}

/// After a failure: the memory that was exposed is used for something else, and nobody writes there or into anything
/// else of this rank, whatever a rank that is still in the operation does.
fn aftermath(ctx: &RankCtx, group: &ThreadGroup, error: &Error, kept: [Option<Kept>; 2]) -> RankResult {
    let [failed, last] = kept;
    let exposed = failed.as_ref().and_then(|kept| kept.tensors[0].0.block());
    ctx.note_value("exposed", json!(exposed.map(|(segment, offset, _)| (segment, offset))));
    drop(failed);
    let arena = group.team().hub().tensors();
    let mut recycled = Vec::new();
    for _ in 0..12 {
        let block = arena.alloc(BYTES as u64)?;
        block.copy_in(0, &poison(BYTES))?;
        recycled.push(block);
    }
    let heap = poison(BYTES);
    let places: Vec<_> = recycled.iter().map(|b| (b.segment().id(), b.offset())).collect();
    ctx.note_value("recycled", json!(places));
    ctx.await_go("look")?;
    let mut bytes = vec![0; BYTES];
    for block in &recycled {
        block.copy_out(0, &mut bytes)?;
        check!(is_poison(&bytes), "somebody wrote at {:?}", touched(&bytes).first());
    }
    check!(is_poison(&heap));
    if let Some(last) = last {
        last.check()?;
    }
    // What ended the team is what every later call says.
    let again = group.barrier(ctx.deadline()).err();
    let same = again.as_ref().is_some_and(|a| std::mem::discriminant(a) == std::mem::discriminant(error));
    check!(same || matches!(error, Error::OutOfMemory { .. }), "first {error}, then {again:?}");
    done()
}
