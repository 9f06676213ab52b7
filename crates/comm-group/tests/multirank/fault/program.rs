//! The program of the fault cases: collectives without end, each checked, and a careful look at memory afterwards.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::oracle::shard_range;
use comm_testkit::report;
use comm_testkit::values::{is_poison, poison, touched};
use comm_testkit::{Program, RankCtx, RankResult, check, done};
use serde_json::json;

use crate::support::{Any, group};

pub const LOOP: Program = Program { name: "group-loop", run };

pub const BYTES: usize = 1 << 20;

/// Arguments: `rounds` (default: until an error), `op_ms` (deadline of an operation, default 20 s), `first` (the operation of
/// the first round, default 0).
fn run(ctx: &RankCtx) -> RankResult {
    let op = Duration::from_millis(ctx.args()["op_ms"].as_u64().unwrap_or(20_000));
    let rounds = ctx.args()["rounds"].as_u64().unwrap_or(u64::MAX);
    let group = match group(ctx, "g") {
        Ok(group) => group,
        Err(error) => {
            report::tell(ctx, "group", &error, Duration::ZERO);
            return done();
        }
    };
    // Dropped before the group when this thread unwinds.
    let _falling = Falling(ctx);
    ctx.note("running");
    let mut last = None;
    let first = ctx.args()["first"].as_u64().unwrap_or(0);
    for round in first..first.saturating_add(rounds) {
        let busy = report::busy();
        match step(ctx, &group, round, op)? {
            Ok(kept) => last = Some(kept),
            Err((error, kept)) => {
                report::tell(ctx, "step", &error, busy);
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

/// The operations, in the order in which the rounds take turns. The first reduces, the second gathers.
pub const OPS: [&str; 12] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "barrier",
    "all_to_all",
    "gather",
    "broadcast",
    "reduce",
    "scatter",
    "all_to_all_rows",
    "all_gather_equal",
    "all_gather_into_vec",
];

/// The shape of every input.
const ROWS: usize = 512;
const COLUMNS: usize = BYTES / 8 / ROWS;

/// One operation, its result checked.
#[allow(clippy::result_large_err, reason = "a test")]
fn step(ctx: &RankCtx, group: &ThreadGroup, round: u64, op: Duration) -> Any<Result<Kept, (Error, Kept)>> {
    // In the arena, so that peers read this very memory.
    let mut buf = TensorBuf::zeros_in(group.team().hub().tensors(), &[ROWS, COLUMNS], DType::I64)?;
    for (i, x) in buf.as_mut_slice::<i64>()?.iter_mut().enumerate() {
        *x = value(ctx.rank(), round, i);
    }
    let input = buf.freeze();
    let mut kept = Kept { tensors: Vec::new() };
    kept.add(input.clone())?;
    match operate(ctx, group, round, &input, op) {
        Ok(results) => {
            for (result, expected) in results {
                for (i, &seen) in result.as_slice::<i64>()?.iter().enumerate() {
                    let expected = expected(i);
                    check_element(round, i, seen, expected)?;
                }
                kept.add(result)?;
            }
            Ok(Ok(kept))
        }
        Err(error) => Ok(Err((error, kept))),
    }
}

fn check_element(round: u64, i: usize, seen: i64, expected: i64) -> Any<()> {
    if seen == expected {
        return Ok(());
    }
    let op = OPS[round as usize % OPS.len()];
    Err(format!("round {round}, {op}: element {i} is {seen}, expected {expected}").into())
}

/// A result, and what its elements must be.
type Checked<'a> = (Tensor, Box<dyn Fn(usize) -> i64 + 'a>);

#[allow(clippy::result_large_err, reason = "a test")]
fn operate<'a>(
    ctx: &'a RankCtx,
    group: &ThreadGroup,
    round: u64,
    input: &Tensor,
    op: Duration,
) -> Result<Vec<Checked<'a>>, Error> {
    let (n, world, rank) = (ROWS * COLUMNS, ctx.world(), ctx.rank());
    let root = (round / OPS.len() as u64) as usize % world;
    let brought = (rank == root).then_some(input);
    // The rows, or columns, that are this rank's.
    let mine = |size: usize| shard_range(size, world, rank);
    let sum = move |i: usize| (0..world).map(|r| value(r, round, i)).sum::<i64>();
    let whole = move |i: usize| value(i / n, round, i % n);
    let checked = |result: Tensor, expected: Box<dyn Fn(usize) -> i64 + 'a>| vec![(result, expected)];
    let first = mine(ROWS).start * COLUMNS;
    Ok(match OPS[round as usize % OPS.len()] {
        "all_reduce" => checked(group.all_reduce(input, ReduceOp::Sum, op)?, Box::new(sum)),
        "reduce" => {
            let result = group.reduce(input, ReduceOp::Sum, root, op)?;
            result.into_iter().flat_map(|result| checked(result, Box::new(sum))).collect()
        }
        "reduce_scatter" => {
            let result = group.reduce_scatter(input, ReduceOp::Sum, 0, op)?;
            checked(result, Box::new(move |i| sum(first + i)))
        }
        "all_gather" => checked(group.all_gather(input, 0, op)?, Box::new(whole)),
        "all_gather_equal" => checked(group.all_gather_equal(input, op)?, Box::new(whole)),
        "all_gather_into_vec" => {
            let all = group.all_gather_into_vec(input, op)?.into_iter().enumerate();
            all.flat_map(|(r, result)| checked(result, Box::new(move |i| value(r, round, i)))).collect()
        }
        "gather" => {
            let result = group.gather(input, 0, root, op)?;
            result.into_iter().flat_map(|result| checked(result, Box::new(whole))).collect()
        }
        "broadcast" => checked(group.broadcast(brought, root, op)?, Box::new(move |i| value(root, round, i))),
        "scatter" => {
            let result = group.scatter(brought, 0, root, op)?;
            checked(result, Box::new(move |i| value(root, round, first + i)))
        }
        "all_to_all" => {
            let columns = mine(COLUMNS);
            let at = move |i: usize| {
                let (row, column) = (i / columns.len(), columns.start + i % columns.len());
                value(row / ROWS, round, row % ROWS * COLUMNS + column)
            };
            checked(group.all_to_all(input, 0, 1, op)?, Box::new(at))
        }
        "all_to_all_rows" => {
            let send: Vec<usize> = (0..world).map(|to| shard_range(ROWS, world, to).len()).collect();
            let len = mine(ROWS).len();
            let result = group.all_to_all_rows(input, &send, &vec![len; world], op)?;
            let per_rank = len * COLUMNS;
            checked(result, Box::new(move |i| value(i / per_rank, round, first + i % per_rank)))
        }
        _ => {
            group.barrier(op)?;
            vec![]
        }
    })
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
