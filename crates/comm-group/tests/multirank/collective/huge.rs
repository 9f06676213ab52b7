//! More elements than 32 bits can count: every operation that takes a tensor, one at a time, each byte of each result compared.
//!
//! The whole of what an operation moves is beyond 2^31 elements, and beyond 2^32 where that takes no more than 9 GiB.

use std::time::{Duration, Instant};

use comm_core::tensor::{DType, Layout, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::oracle::{shard_range, shard_sizes};
use comm_testkit::{
    Case, LauncherCtx, Layout as Spread, Program, RankCtx, RankResult, Skip, check, check_eq, done,
};
use serde_json::json;

use super::{BACKEND, SUITE};
use crate::call::{Call, SUM};
use crate::support::{Any, all_ok, group, same_bytes};

pub const HUGE: Program = Program { name: "group-huge", run: huge };

const WORLD: usize = 2;
const LIMIT: Duration = Duration::from_secs(900);

/// Not divided by anything that somebody would divide by.
const ODD: usize = 4099;
const OVER_31: usize = (1 << 31) + ODD;
const OVER_32: usize = (1 << 32) + ODD;
/// Rows and columns of a matrix of more than 2^32 elements.
const SIDE: usize = (1 << 16) + 1;

/// What there is, and how many GiB all ranks together take for it at most.
const WHAT: [(&str, u64); 15] = [
    ("all_reduce", 11),
    ("reduce", 9),
    ("reduce_scatter", 7),
    ("broadcast", 7),
    ("all_gather", 7),
    ("all_gather_equal", 7),
    ("all_gather_into_vec", 7),
    ("gather", 9),
    ("scatter", 9),
    ("all_to_all", 9),
    ("all_to_all/columns", 9),
    ("all_to_all_rows", 9),
    ("send", 9),
    ("all_reduce/narrow", 9),
    ("all_gather/narrow", 9),
];

pub fn cases() -> Vec<Case> {
    let of = |(what, gib): (&'static str, u64)| {
        let name = what.split('/').next().unwrap_or_default();
        let name = format!(
            "{name}/{}/u8/huge{}",
            if name.contains("reduce") { "sum" } else { "-" },
            &what[name.len()..]
        );
        Case::launcher(SUITE, name, move |ctx| alone(ctx, what, gib))
            .worlds(|world| world == WORLD)
            .layouts(&[Spread::Threads, Spread::Processes])
            .limit(LIMIT)
            .backend(BACKEND)
            .only_full()
    };
    WHAT.map(of).to_vec()
}

fn alone(ctx: &LauncherCtx, what: &str, gib: u64) -> RankResult {
    let free = available()? >> 30;
    if free < gib + 2 {
        return Err(Skip::because(format!("it takes {gib} GiB, and there are {free}")));
    }
    let began = Instant::now();
    let launch = ctx.launch("group-huge").env("COMM_ARENA_MAX_BYTES", (gib << 30).to_string());
    let reports = launch.arg(json!(what)).limit(LIMIT).run(LIMIT)?;
    all_ok(&reports)?;
    for report in reports {
        ctx.progress(&format!("{what}, rank {}: {} in {:.0?}", report.rank, report.outcome, began.elapsed()));
    }
    done()
}

/// Bytes that can be had.
fn available() -> Any<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).ok_or("no MemAvailable")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// What rank `rank` has at `start..`: any shift by less than 2^64 shows.
fn fill(rank: usize, start: usize, out: &mut [u8]) {
    let word = |k: usize| {
        let x = (k as u64 ^ (rank as u64 + 1) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ x >> 32).to_le_bytes()
    };
    let lead = ((8 - start % 8) % 8).min(out.len());
    let (head, rest) = out.split_at_mut(lead);
    head.copy_from_slice(&word(start / 8)[start % 8..][..lead]);
    let first = (start + lead) / 8;
    for (k, chunk) in rest.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(first + k)[..chunk.len()]);
    }
}

/// A part of a result: what these ranks have from there on, summed.
struct Piece {
    ranks: &'static [usize],
    start: usize,
    len: usize,
}

const BOTH: &[usize] = &[0, 1];

/// What one rank has.
fn piece(rank: usize, start: usize, len: usize) -> Piece {
    Piece { ranks: &BOTH[rank..=rank], start, len }
}

fn compare(what: &str, result: &Tensor, pieces: &[Piece]) -> RankResult {
    const BLOCK: usize = 1 << 20;
    let bytes = result.bytes()?;
    check_eq!(bytes.len(), pieces.iter().map(|piece| piece.len).sum::<usize>(), "{what}");
    let (mut sum, mut one, mut at) = (vec![0; BLOCK], vec![0; BLOCK], 0);
    for Piece { ranks, start, len } in pieces {
        for done in (0..*len).step_by(BLOCK) {
            let n = BLOCK.min(len - done);
            fill(ranks[0], start + done, &mut sum[..n]);
            for &rank in &ranks[1..] {
                fill(rank, start + done, &mut one[..n]);
                sum.iter_mut().zip(&one).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
            }
            if bytes[at..at + n] != sum[..n] {
                same_bytes(&format!("{what} behind {at}"), &bytes[at..at + n], &sum[..n])?;
            }
            at += n;
        }
    }
    done()
}

/// So many elements of this rank, where peers reach them.
fn mine(group: &ThreadGroup, shape: &[usize]) -> Any<Tensor> {
    let mut buf = if group.team().processes() > 1 {
        TensorBuf::zeros_in(group.team().hub().tensors(), shape, DType::U8)?
    } else {
        TensorBuf::zeros(shape, DType::U8)?
    };
    fill(group.rank(), 0, buf.bytes_mut()?);
    Ok(buf.freeze())
}

fn huge(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let what = ctx.args().as_str().unwrap_or_default();
    match what {
        "send" => message(ctx, &group)?,
        "all_reduce/narrow" => narrow_and_reduce(ctx, &group)?,
        "all_gather/narrow" => narrow_and_gather(ctx, &group)?,
        _ => whole(ctx, &group, what)?,
    };
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    Ok(json!(format!("right, at most {} in its process", peak.trim())))
}

/// An operation of all, as a call: its input, and what this rank must get.
fn whole(ctx: &RankCtx, group: &ThreadGroup, what: &str) -> RankResult {
    let rank = group.rank();
    // Of what is shared out by the rule.
    let shard = |n: usize| shard_range(n, WORLD, rank);
    let sizes = |n: usize| shard_sizes(n, WORLD);
    let summed = |start, len| vec![Piece { ranks: BOTH, start, len }];
    let (call, shape, expected): (Call, Vec<usize>, Vec<Piece>) = match what {
        "all_reduce" => (Call::AllReduce(SUM), vec![OVER_31], summed(0, OVER_31)),
        "reduce" => {
            (Call::Reduce(SUM, 1), vec![OVER_31], if rank == 1 { summed(0, OVER_31) } else { vec![] })
        }
        "reduce_scatter" => (
            Call::ReduceScatter(SUM, 0, None),
            vec![OVER_31],
            summed(shard(OVER_31).start, shard(OVER_31).len()),
        ),
        "broadcast" => (Call::Broadcast(1), vec![OVER_31], vec![piece(1, 0, OVER_31)]),
        "all_gather" | "gather" => {
            let sizes = sizes(if what == "gather" { OVER_32 } else { OVER_31 });
            let call = if what == "gather" { Call::Gather(0, 1) } else { Call::AllGather(0) };
            let all = (0..WORLD).map(|rank| piece(rank, 0, sizes[rank])).collect();
            (call, vec![sizes[rank]], if what == "gather" && rank != 1 { vec![] } else { all })
        }
        "all_gather_equal" | "all_gather_into_vec" => {
            let half = OVER_31.div_ceil(2);
            let call = if what == "all_gather_equal" { Call::AllGatherEqual } else { Call::AllGatherVec };
            (call, vec![half], (0..WORLD).map(|rank| piece(rank, 0, half)).collect())
        }
        // Columns, so that the other begins to read behind 2^32, too.
        "scatter" => {
            let columns = shard(SIDE);
            let row = |row| piece(0, row * SIDE + columns.start, columns.len());
            (Call::Scatter(1, 0, None), vec![SIDE, SIDE], (0..SIDE).map(row).collect())
        }
        // Three quarters and one become two halves.
        "all_to_all" => {
            let own = [OVER_32 - OVER_32 / 4, OVER_32 / 4];
            let half = sizes(OVER_32);
            let expected = match rank {
                0 => vec![piece(0, 0, half[0])],
                _ => vec![piece(0, half[0], own[0] - half[0]), piece(1, 0, own[1])],
            };
            (Call::AllToAll(0, 0, None), vec![own[rank]], expected)
        }
        // Rows become columns.
        "all_to_all/columns" => {
            let (rows, columns) = (sizes(SIDE), shard(SIDE));
            let row = |rank, row| piece(rank, row * SIDE + columns.start, columns.len());
            let expected = (0..WORLD).flat_map(|rank| (0..rows[rank]).map(move |r| row(rank, r))).collect();
            (Call::AllToAll(0, 1, None), vec![rows[rank], SIDE], expected)
        }
        // Rank 0 keeps its first row, and gets all of the other's but one; whatever is left goes the other way.
        "all_to_all_rows" => {
            let rows = sizes(SIDE);
            let send = vec![vec![1, rows[0] - 1], vec![rows[1] - 1, 1]];
            let of = |from: usize| {
                piece(from, if rank == 0 { 0 } else { send[from][0] * SIDE }, send[from][rank] * SIDE)
            };
            let expected = (0..WORLD).map(of).collect();
            (Call::Rows(send.clone()), vec![rows[rank], SIDE], expected)
        }
        other => return Err(format!("there is no {other}").into()),
    };
    let input = call.takes_input(rank).then(|| mine(group, &shape)).transpose()?;
    let results = call.returned(group, input.as_ref(), ctx.deadline())?;
    drop(input);
    // One with all of it, or one of each rank.
    let each = if results.len() > 1 { 1 } else { expected.len().max(1) };
    check_eq!(results.len(), expected.len().div_ceil(each));
    for (result, expected) in results.iter().zip(expected.chunks(each)) {
        compare(what, result, expected)?;
    }
    group.barrier(ctx.deadline())?;
    done()
}

fn message(ctx: &RankCtx, group: &ThreadGroup) -> RankResult {
    if group.rank() == 0 {
        group.send(&mine(group, &[OVER_32])?, 1, ctx.deadline())?;
    } else {
        compare("recv", &group.recv(0, ctx.deadline())?, &[piece(0, 0, OVER_32)])?;
    }
    group.barrier(ctx.deadline())?;
    done()
}

/// A few elements.
const FEW: usize = 5000;

/// From around 2^31 to around 2^31, and nowhere else.
fn narrow_and_reduce(ctx: &RankCtx, group: &ThreadGroup) -> RankResult {
    let start = OVER_31 - FEW;
    let few = mine(group, &[OVER_31])?.narrow(0, start, FEW)?;
    let mut buf = TensorBuf::zeros(&[OVER_31], DType::U8)?;
    // Backwards, with a gap behind each.
    let layout = Layout::new(&[FEW / 2], &[-2], OVER_31 - 2)?;
    let half = few.narrow(0, FEW / 2, FEW / 2)?;
    group.all_reduce_into(&half, ReduceOp::Sum, buf.view_mut(layout)?, ctx.deadline())?;
    let sum = group.all_reduce(&few, ReduceOp::Sum, ctx.deadline())?;
    compare("a sum of what was narrowed", &sum, &[Piece { ranks: BOTH, start, len: FEW }])?;
    let (sum, bytes) = (sum.bytes()?, buf.bytes()?);
    let first = OVER_31 - FEW;
    check!(bytes[..first].iter().all(|&byte| byte == 0), "before the view");
    for (i, &byte) in bytes[first..].iter().enumerate() {
        let at = first + i;
        // Element k lies at OVER_31 - 2 - 2k.
        let k = (OVER_31 - 2 - at.min(OVER_31 - 2)) / 2;
        let is_element = at + 2 + 2 * k == OVER_31 && k < FEW / 2;
        check_eq!(byte, if is_element { sum[FEW / 2 + k] } else { 0 }, "at {at}");
    }
    done()
}

/// Some columns of the last rows of a matrix, those before 2^32 and those behind.
fn narrow_and_gather(ctx: &RankCtx, group: &ThreadGroup) -> RankResult {
    const ROWS: usize = 7;
    let columns = 100..100 + FEW;
    let matrix = mine(group, &[SIDE, SIDE])?;
    let few = matrix.narrow(0, SIDE - ROWS, ROWS)?.narrow(1, columns.start, columns.len())?;
    let all = group.all_gather(&few, 0, ctx.deadline())?;
    let row = |rank, row: usize| piece(rank, row * SIDE + columns.start, columns.len());
    let expected: Vec<Piece> =
        (0..WORLD).flat_map(|rank| (SIDE - ROWS..SIDE).map(move |r| row(rank, r))).collect();
    compare("what was narrowed", &all, &expected)
}
