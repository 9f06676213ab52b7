//! The program of the fault cases: collectives without end, each checked, and a careful look at memory afterwards.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::ThreadGroup;
use comm_testkit::oracle::{shard_range, shard_sizes};
use comm_testkit::report;
use comm_testkit::values::{is_poison, poison, touched};
use comm_testkit::{Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use crate::call::{Call, SUM, poisoned};
use crate::support::{Any, group};

pub const LOOP: Program = Program { name: "group-loop", run };

pub const BYTES: usize = 1 << 20;

/// Arguments: `rounds` (default: until an error), `op_ms` (deadline of an operation, default 20 s), `first` (the operation of
/// the first round, default 0), `into` (results go into buffers of the caller), `odd` (a rank, and the round in which it does
/// something else).
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
    let odd: Option<(usize, u64)> = serde_json::from_value(ctx.args()["odd"].clone())?;
    for round in first..first.saturating_add(rounds) {
        let busy = report::busy();
        if let Some((odd, _)) = odd.filter(|odd| odd.1 == round) {
            odd_one(ctx, &group, round, odd, op)?;
            continue;
        }
        match step(ctx, &group, round, op)? {
            Ok(kept) => last = Some(kept),
            Err(failed) => {
                report::tell(ctx, "step", &failed.error, busy);
                return aftermath(ctx, &group, failed, last);
            }
        }
    }
    ctx.note("over");
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
#[derive(Default)]
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

/// The operation of a round, as a call. Roots take turns.
fn call_of(round: u64, world: usize) -> Call {
    let root = (round / OPS.len() as u64) as usize % world;
    match op_of(round) {
        "all_reduce" => Call::AllReduce(SUM),
        "reduce" => Call::Reduce(SUM, root),
        "reduce_scatter" => Call::ReduceScatter(SUM, 0, None),
        "all_gather" => Call::AllGather(0),
        "all_gather_equal" => Call::AllGatherEqual,
        "all_gather_into_vec" => Call::AllGatherVec,
        "gather" => Call::Gather(0, root),
        "broadcast" => Call::Broadcast(root),
        "scatter" => Call::Scatter(0, root, None),
        "all_to_all" => Call::AllToAll(0, 1, None),
        "all_to_all_rows" => Call::Rows(vec![shard_sizes(ROWS, world); world]),
        _ => Call::Barrier,
    }
}

pub fn op_of(round: u64) -> &'static str {
    OPS[round as usize % OPS.len()]
}

/// A result as it must be: its shape, and each of its elements.
struct Expected<'a> {
    shape: [usize; 2],
    element: Box<dyn Fn(usize) -> i64 + 'a>,
}

/// What this rank must get in a round.
fn expected<'a>(ctx: &'a RankCtx, round: u64, call: &Call) -> Vec<Expected<'a>> {
    let (n, world, rank) = (ROWS * COLUMNS, ctx.world(), ctx.rank());
    // The rows, or columns, that are this rank's.
    let mine = |size: usize| shard_range(size, world, rank);
    let (rows, first) = (mine(ROWS).len(), mine(ROWS).start * COLUMNS);
    let sum = move |i: usize| (0..world).map(|r| value(r, round, i)).sum::<i64>();
    let whole = move |i: usize| value(i / n, round, i % n);
    let one = |shape: [usize; 2], element: Box<dyn Fn(usize) -> i64 + 'a>| vec![Expected { shape, element }];
    match *call {
        Call::AllReduce(_) => one([ROWS, COLUMNS], Box::new(sum)),
        Call::Reduce(_, root) if rank == root => one([ROWS, COLUMNS], Box::new(sum)),
        Call::ReduceScatter(..) => one([rows, COLUMNS], Box::new(move |i| sum(first + i))),
        Call::AllGather(_) | Call::AllGatherEqual => one([world * ROWS, COLUMNS], Box::new(whole)),
        Call::Gather(_, root) if rank == root => one([world * ROWS, COLUMNS], Box::new(whole)),
        Call::AllGatherVec => {
            let of = |r| one([ROWS, COLUMNS], Box::new(move |i| value(r, round, i)));
            (0..world).flat_map(of).collect()
        }
        Call::Broadcast(root) => one([ROWS, COLUMNS], Box::new(move |i| value(root, round, i))),
        Call::Scatter(_, root, _) => one([rows, COLUMNS], Box::new(move |i| value(root, round, first + i))),
        Call::AllToAll(..) => {
            let columns = mine(COLUMNS);
            let at = move |i: usize| {
                let (row, column) = (i / columns.len(), columns.start + i % columns.len());
                value(row / ROWS, round, row % ROWS * COLUMNS + column)
            };
            one([world * ROWS, mine(COLUMNS).len()], Box::new(at))
        }
        Call::Rows(_) => {
            let per_rank = rows * COLUMNS;
            let at = move |i: usize| value(i / per_rank, round, first + i % per_rank);
            one([world * rows, COLUMNS], Box::new(at))
        }
        _ => vec![],
    }
}

/// This rank's input in a round, in the arena, so that peers read this very memory.
fn input_of(group: &ThreadGroup, round: u64) -> Any<Tensor> {
    let mut buf = TensorBuf::zeros_in(group.team().hub().tensors(), &[ROWS, COLUMNS], DType::I64)?;
    for (i, x) in buf.as_mut_slice::<i64>()?.iter_mut().enumerate() {
        *x = value(group.rank(), round, i);
    }
    Ok(buf.freeze())
}

/// An operation that failed: with what, what this rank had exposed, and the buffer that the result was to go into.
struct Failed {
    error: Error,
    exposed: Tensor,
    given: Kept,
}

/// One operation, its result checked.
#[allow(clippy::result_large_err, reason = "a test")]
fn step(ctx: &RankCtx, group: &ThreadGroup, round: u64, op: Duration) -> Any<Result<Kept, Failed>> {
    let (call, input) = (call_of(round, ctx.world()), input_of(group, round)?);
    let mut kept = Kept::default();
    kept.add(input.clone())?;
    let expected = expected(ctx, round, &call);
    let brought = call.takes_input(ctx.rank()).then_some(&input);
    let into = ctx.args()["into"].as_bool().unwrap_or_default();
    let mut given = Kept::default();
    let outcome = if into && !matches!(call, Call::Barrier | Call::AllGatherVec) {
        let mut buf = poisoned(&expected.first().map_or([1, 1], |e| e.shape), DType::I64)?;
        let outcome = call.call_into(group, brought, &mut buf, None, op.into());
        let buf = buf.freeze();
        given.add(buf.clone())?;
        outcome.map(|()| expected.iter().map(|_| buf.clone()).collect())
    } else {
        call.returned(group, brought, op.into())
    };
    let results = match outcome {
        Ok(results) => results,
        Err(error) => return Ok(Err(Failed { error, exposed: input, given })),
    };
    check_len(round, results.len(), expected.len())?;
    for (result, expected) in results.into_iter().zip(expected) {
        for (i, &seen) in result.as_slice::<i64>()?.iter().enumerate() {
            check_element(round, i, seen, (expected.element)(i))?;
        }
        kept.add(result)?;
    }
    Ok(Ok(kept))
}

fn check_len(round: u64, seen: usize, expected: usize) -> RankResult {
    check_eq!(seen, expected, "{}", op_of(round));
    done()
}

fn check_element(round: u64, i: usize, seen: i64, expected: i64) -> Any<()> {
    if seen == expected {
        return Ok(());
    }
    Err(format!("round {round}, {}: element {i} is {seen}, expected {expected}", op_of(round)).into())
}

/// An operation in which a rank does something else, namely that of the round after: all are told so, and who does what.
fn odd_one(ctx: &RankCtx, group: &ThreadGroup, round: u64, odd: usize, op: Duration) -> RankResult {
    let does = |rank: usize| call_of(round + u64::from(rank == odd), ctx.world());
    let (call, input) = (does(ctx.rank()), input_of(group, round)?);
    let brought = call.takes_input(ctx.rank()).then_some(&input);
    let (theirs, others) = (does(odd).name(), does(usize::MAX).name());
    match call.returned(group, brought, op.into()) {
        Err(Error::Mismatch { rank, field: "op", theirs: t, others: o, .. }) => {
            check_eq!((rank, &t[..], &o[..]), (odd, theirs, others));
            done()
        }
        other => Err(format!("rank {odd} does {theirs} and not {others}: {other:?}").into()),
    }
}

/// After a failure: the memory that was exposed is used for something else, and nobody writes there or into anything
/// else of this rank, whatever a rank that is still in the operation does.
fn aftermath(ctx: &RankCtx, group: &ThreadGroup, failed: Failed, last: Option<Kept>) -> RankResult {
    let Failed { error, exposed, given } = failed;
    ctx.note_value("exposed", json!(exposed.block().map(|(segment, offset, _)| (segment, offset))));
    drop(exposed);
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
    // A result, or as much of it as had come before the error.
    given.check()?;
    if let Some(last) = last {
        last.check()?;
    }
    // What ended the team is what every later call says.
    let again = group.barrier(ctx.deadline()).err();
    let same = again.as_ref().is_some_and(|a| std::mem::discriminant(a) == std::mem::discriminant(&error));
    check!(same || matches!(error, Error::OutOfMemory { .. }), "first {error}, then {again:?}");
    done()
}
