//! Agreement: ranks that are about to do different things all hear so, and go on.

use std::ptr::NonNull;

use comm_core::device::Device;
use comm_core::team::BOARD_BYTES;
use comm_core::tensor::{DType, Foreign, Layout, Tensor, TensorBuf};
use comm_core::{Error, Result};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::support::{Any, group};

pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = odd_pairs()
        .into_iter()
        .map(|(name, field, odd, common)| {
            case(format!("mismatch/-/-/{name}"), move |ctx| mismatch(ctx, field, odd, common))
                .worlds(|w| w > 1)
        })
        .collect();
    all.push(case("mismatch/-/-/operator", operator).worlds(|w| w > 1));
    all.push(case("mismatch/-/-/other-device", other_device).worlds(|w| w > 1));
    all.push(case("mismatch/-/-/storm", storm).worlds(|w| w > 1));
    all
}

/// What a rank does in a round, as far as ranks must agree about it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Barrier,
    Reduce(DType, &'static [usize]),
    Gather(DType, &'static [usize], usize),
}

use Act::{Barrier, Gather, Reduce};

impl Act {
    fn run(self, group: &ThreadGroup, ctx: &RankCtx) -> Result<()> {
        let zeros = |shape, dtype| TensorBuf::zeros(shape, dtype).map(TensorBuf::freeze);
        match self {
            Barrier => group.barrier(ctx.deadline()),
            Reduce(dtype, shape) => {
                group.all_reduce(&zeros(shape, dtype)?, ReduceOp::Sum, ctx.deadline()).map(drop)
            }
            Gather(dtype, shape, dim) => {
                group.all_gather(&zeros(shape, dtype)?, dim, ctx.deadline()).map(drop)
            }
        }
    }

    /// The fields in the order in which they are compared, each as a rank puts it.
    fn fields(self) -> Vec<(&'static str, String)> {
        let text = |shape: &[usize]| format!("{shape:?}");
        match self {
            Barrier => vec![("op", "barrier".into())],
            Reduce(dtype, shape) => {
                vec![("op", "all_reduce".into()), ("dtype", dtype.to_string()), ("shape", text(shape))]
            }
            Gather(dtype, shape, dim) => vec![
                ("op", "all_gather".into()),
                ("dtype", dtype.to_string()),
                ("dim", dim.to_string()),
                ("shape", text(shape)),
            ],
        }
    }

    /// What of a field must be equal: the size along the dimension need not.
    fn compared(self, field: &str, text: &str) -> String {
        match self {
            Gather(_, shape, dim) if field == "shape" => {
                let others: Vec<_> = shape.iter().enumerate().filter(|(d, _)| *d != dim).collect();
                format!("{} {others:?}", shape.len())
            }
            _ => text.to_string(),
        }
    }
}

/// What all ranks must say, by a rule written down a second time: the first field that differs, the odd rank, and
/// both values.
fn verdict(acts: &[Act]) -> Option<(usize, &'static str, String, String)> {
    for (i, (field, _)) in acts[0].fields().into_iter().enumerate() {
        let texts: Vec<String> = acts.iter().map(|a| a.fields()[i].1.clone()).collect();
        let compared: Vec<String> = acts.iter().zip(&texts).map(|(a, t)| a.compared(field, t)).collect();
        let count = |c: &String| compared.iter().filter(|x| *x == c).count();
        let common = (0..acts.len()).find(|&r| 2 * count(&compared[r]) > acts.len()).unwrap_or(0);
        if let Some(odd) = (0..acts.len()).find(|&r| compared[r] != compared[common]) {
            return Some((odd, field, texts[odd].clone(), texts[common].clone()));
        }
    }
    None
}

fn seen(error: Error) -> Any<(usize, &'static str, String, String)> {
    match error {
        Error::Mismatch { rank, field, theirs, others, at } => {
            check_place(&at.team, &at.op)?;
            Ok((rank, field, theirs, others))
        }
        other => Err(format!("expected a mismatch, got {other}").into()),
    }
}

fn check_place(team: &str, op: &str) -> RankResult {
    check!(team.contains("g") && op.contains('#'), "the error says where: {team}, {op}");
    done()
}

/// Name, field, what the odd rank does, what the others do.
fn odd_pairs() -> Vec<(&'static str, &'static str, Act, Act)> {
    use DType::{F32, F64, I32, U8};
    vec![
        ("op/barrier", "op", Barrier, Reduce(F32, &[3])),
        ("op/gather", "op", Gather(F32, &[3], 0), Reduce(F32, &[3])),
        ("dtype/reduce", "dtype", Reduce(F64, &[3]), Reduce(F32, &[3])),
        ("dtype/same-size", "dtype", Reduce(I32, &[3]), Reduce(F32, &[3])),
        ("dtype/unsupported", "dtype", Reduce(DType::Bool, &[3]), Reduce(F32, &[3])),
        ("dtype/gather", "dtype", Gather(U8, &[3], 0), Gather(DType::Bool, &[3], 0)),
        ("shape/reduce", "shape", Reduce(F32, &[4]), Reduce(F32, &[3])),
        ("shape/same-numel", "shape", Reduce(F32, &[2, 3]), Reduce(F32, &[3, 2])),
        ("shape/empty", "shape", Reduce(F32, &[0]), Reduce(F32, &[3])),
        ("shape/gather", "shape", Gather(F32, &[3, 4], 0), Gather(F32, &[3, 5], 0)),
        ("ndim/reduce", "shape", Reduce(F32, &[3, 1]), Reduce(F32, &[3])),
        ("ndim/scalar", "shape", Reduce(F32, &[]), Reduce(F32, &[1])),
        ("ndim/gather", "shape", Gather(F32, &[3, 1], 0), Gather(F32, &[3], 0)),
        ("dim/gather", "dim", Gather(F32, &[3, 3], 1), Gather(F32, &[3, 3], 0)),
        ("dim/no-such", "dim", Gather(F32, &[3, 3], 7), Gather(F32, &[3, 3], 0)),
    ]
}

fn mismatch(ctx: &RankCtx, field: &'static str, odd: Act, common: Act) -> RankResult {
    let group = group(ctx, "g")?;
    for who in 0..ctx.world() {
        let acts: Vec<Act> = (0..ctx.world()).map(|r| if r == who { odd } else { common }).collect();
        let expected = verdict(&acts).ok_or("they differ")?;
        check_eq!(expected.1, field);
        check!(ctx.world() == 2 || expected.0 == who, "a majority is right");
        let error = acts[ctx.rank()].run(&group, ctx).err().ok_or("all agree")?;
        check_eq!(seen(error)?, expected, "odd rank {who}");
        works(ctx, &group)?;
    }
    done()
}

/// One rank combines otherwise, or by another factor.
fn operator(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mine = Tensor::from_slice(&[1], &[1f32])?;
    let half = ReduceOp::premul_sum(0.5);
    for (field, common, odd) in [
        ("operator", ReduceOp::Sum, ReduceOp::Max),
        ("operator", ReduceOp::Sum, half),
        // The odd rank's does not exist for the dtype: that they differ is said first, on every rank.
        ("operator", ReduceOp::Sum, ReduceOp::And),
        ("factor", half, ReduceOp::premul_sum(-0.5)),
        ("factor", ReduceOp::premul_sum(0.0), ReduceOp::premul_sum(-0.0)),
    ] {
        for who in 0..ctx.world() {
            let op = if ctx.rank() == who { odd } else { common };
            let error = group.all_reduce(&mine, op, ctx.deadline()).err().ok_or("they agree")?;
            let (rank, seen_field, theirs, others) = seen(error)?;
            check_eq!(seen_field, field, "{odd}, {common}");
            check!(ctx.world() == 2 || rank == who, "a majority is right");
            check!(theirs != others, "{theirs}");
            works(ctx, &group)?;
        }
    }
    done()
}

/// The next operation works, and is right.
fn works(ctx: &RankCtx, group: &ThreadGroup) -> RankResult {
    let mine = Tensor::from_slice(&[2], &[ctx.rank() as i64, 1])?;
    let sum = group.all_reduce(&mine, ReduceOp::Sum, ctx.deadline())?.to_vec::<i64>()?;
    let n = ctx.world() as i64;
    check_eq!(sum, [n * (n - 1) / 2, n]);
    done()
}

/// Four bytes that only a simulated device may touch.
fn on_sim(ordinal: u32) -> Any<Tensor> {
    let owner = Box::new([0u8; 4]);
    let start = NonNull::from(Box::leak(owner)).cast::<u8>();
    let give_back = {
        let start = start.as_ptr() as usize;
        // SAFETY: the address comes from the leaked box above, and this is the only place that takes it back.
        move || drop(unsafe { Box::from_raw(start as *mut [u8; 4]) })
    };
    // SAFETY: the box is given back by the deleter alone, and nobody writes it.
    let memory = unsafe { Foreign::read_only(start, 4, Device::Sim(ordinal), give_back) };
    Ok(Tensor::from_foreign(memory, DType::F32, Layout::contiguous(&[1])?)?)
}

fn other_device(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let host = Tensor::from_slice(&[1], &[1f32])?;
    for who in 0..ctx.world() {
        let input = if who == ctx.rank() { on_sim(3)? } else { host.clone() };
        let error = group.all_reduce(&input, ReduceOp::Sum, ctx.deadline()).err().ok_or("they agree")?;
        let (rank, field, theirs, others) = seen(error)?;
        check_eq!(field, "device");
        check!(ctx.world() == 2 || (rank, &theirs[..], &others[..]) == (who, "another device", "cpu"));
        works(ctx, &group)?;
    }
    for gather in [false, true] {
        let input = on_sim(ctx.rank() as u32)?;
        let error = if gather {
            group.all_gather(&input, 0, ctx.deadline()).err()
        } else {
            group.all_reduce(&input, ReduceOp::Sum, ctx.deadline()).err()
        };
        check!(matches!(&error, Some(Error::DeviceMismatch { .. })), "{error:?}");
        works(ctx, &group)?;
    }
    done()
}

/// Every rank does as it likes for 200 rounds; all come to the same verdict each time, and it is the right one.
fn storm(ctx: &RankCtx) -> RankResult {
    use DType::{Bool, F32, I32};
    const ACTS: [Act; 8] = [
        Barrier,
        Reduce(F32, &[3]),
        Reduce(F32, &[3]),
        Reduce(I32, &[3]),
        Reduce(Bool, &[3]),
        Gather(F32, &[3, 3], 0),
        Gather(F32, &[2, 3], 0),
        Gather(F32, &[3, 3], 1),
    ];
    let group = group(ctx, "g")?;
    let rng = ctx.common_rng();
    let (mut agreed, mut odd) = (0, 0);
    for round in 0..200u64 {
        let mut rng = rng.fork(round);
        // Often all but some do the same, else nobody would ever agree.
        let most = ACTS[rng.below(8) as usize];
        let stray = |rng: &mut SplitMix64| if rng.below(4) == 0 { ACTS[rng.below(8) as usize] } else { most };
        let acts: Vec<Act> = (0..ctx.world()).map(|_| stray(&mut rng)).collect();
        let outcome = acts[ctx.rank()].run(&group, ctx);
        match (verdict(&acts), outcome) {
            (Some(expected), Err(error)) => {
                check_eq!(seen(error)?, expected, "round {round}: {acts:?}");
                odd += 1;
            }
            (None, Ok(())) if !matches!(acts[0], Reduce(Bool, _)) => agreed += 1,
            (None, Err(Error::Unsupported { .. })) if matches!(acts[0], Reduce(Bool, _)) => {}
            (expected, outcome) => {
                return Err(format!("round {round}, {acts:?}: {outcome:?}, expected {expected:?}").into());
            }
        }
        if round % 20 == 0 {
            // What the ranks have counted is the same, too.
            let mut board = [0; BOARD_BYTES];
            board[..2].copy_from_slice(&[agreed as u8, odd as u8]);
            let said = group.team().exchange(&board, ctx.deadline())?;
            check!(said.iter().all(|b| *b == board), "round {round}: {said:?}");
        }
    }
    check!(agreed > 20 && odd > 20, "{agreed} agreed, {odd} did not");
    works(ctx, &group)
}
