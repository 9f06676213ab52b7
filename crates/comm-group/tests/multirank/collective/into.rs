//! Results in the caller's memory. That they get there, in any strides, is checked in `conformance`; here is what can be wrong.

use std::ptr::NonNull;

use comm_core::Error;
use comm_core::device::Device;
use comm_core::tensor::{DType, Foreign, Layout, Tensor, TensorBuf};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::oracle::reduce::reduce;
use comm_testkit::values::is_poison;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::call::{Call, Operator, SUM, dense, poisoned};
use crate::support::{
    Any, bytes_of, contribution, exists, group, operator_name, operators, same_bytes, tensor,
};

pub fn cases() -> Vec<Case> {
    let mut all = vec![
        case("into/-/f32/another-shape", another_shape),
        case("into/-/f32/another-dtype", another_dtype),
        case("into/-/f32/another-device", another_device),
        case("into/-/f32/overlap", overlap),
        case("into/-/f32/again-and-again", again),
        case("all_reduce_in_place/sum/f32/another-device", in_place_elsewhere),
    ];
    for (op, oracle) in operators() {
        let name = format!("all_reduce_batch/{}/any/sizes", operator_name(op));
        all.push(case(name, move |ctx| batch(ctx, (op, oracle))));
    }
    all
}

/// One call of each kind for `[6, 5]` of f32, and the shape of a rank's result.
fn calls(world: usize) -> Vec<Call> {
    vec![
        Call::AllReduce(SUM),
        Call::Reduce(SUM, world - 1),
        Call::ReduceScatter(SUM, 0, None),
        Call::AllGather(1),
        Call::AllGatherEqual,
        Call::Gather(0, 0),
        Call::Broadcast(world - 1),
        Call::Scatter(1, 0, None),
        Call::AllToAll(0, 1, None),
        Call::AllToAll(1, 1, None),
        Call::Rows((0..world).map(|_| (0..world).map(|to| if to == 0 { 6 } else { 0 }).collect()).collect()),
    ]
}

const SHAPE: [usize; 2] = [6, 5];

/// This rank's input, and what each rank must get.
fn setup(
    ctx: &RankCtx,
    group: &ThreadGroup,
    call: &Call,
    large: bool,
) -> Any<(Tensor, Vec<Option<crate::call::Bytes>>)> {
    let shape = if large { [6, 30] } else { SHAPE };
    let bytes = |r| contribution(&ctx.common_rng(), r, DType::F32, shape[0] * shape[1]);
    let inputs: Vec<_> = (0..ctx.world()).map(|r| dense(&shape, &bytes(r), 4)).collect();
    let mine = tensor(group, crate::support::Place::Heap, &shape, DType::F32, &bytes(ctx.rank()))?;
    let expected = call.expected(&inputs, DType::F32)?;
    Ok((mine, expected.into_iter().map(|mut all| all.pop()).collect()))
}

fn works(ctx: &RankCtx, group: &ThreadGroup) -> RankResult {
    let sum = group.all_reduce(&Tensor::from_slice(&[1], &[1i32])?, ReduceOp::Sum, ctx.deadline())?;
    check_eq!(sum.to_vec::<i32>()?, [ctx.world() as i32]);
    done()
}

/// One rank's buffer has another shape: all hear so, nothing is written, and the next operation works.
fn another_shape(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for (call, large) in calls(ctx.world()).iter().flat_map(|call| [(call, false), (call, true)]) {
        for odd in 0..ctx.world() {
            let (mine, expected) = setup(ctx, &group, call, large)?;
            // A rank that gets nothing may bring what it likes.
            let Some(theirs) = &expected[odd] else { continue };
            let own = &expected[ctx.rank()];
            let mut shape = own.as_ref().map_or(vec![2], |e| e.shape.clone());
            if ctx.rank() == odd {
                shape.push(1);
            }
            let mut out = poisoned(&shape, DType::F32)?;
            let brought = call.takes_input(ctx.rank()).then_some(&mine);
            let before = bytes_of(&mine)?;
            match call.call_into(&group, brought, &mut out, None, ctx.deadline()) {
                Err(Error::Mismatch { rank, field: "output", others, at, .. }) => {
                    check_eq!((rank, others), (odd, format!("f32 {:?}", theirs.shape)), "{call:?}");
                    check!(at.op.contains(call.name()), "{at}");
                }
                other => return Err(format!("{call:?}: {other:?}").into()),
            }
            check!(is_poison(out.bytes()?), "{call:?}: nothing moves before all agree");
            same_bytes("the input", &bytes_of(&mine)?, &before)?;
            works(ctx, &group)?;
        }
    }
    done()
}

/// One rank's buffer has another dtype: its own argument, as far as it knows what it brings.
fn another_dtype(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    for call in calls(n) {
        for odd in 0..n {
            let (mine, expected) = setup(ctx, &group, &call, false)?;
            if expected[odd].is_none() {
                continue; // It may bring what it likes.
            }
            let shape = expected[ctx.rank()].as_ref().map_or(vec![2], |e| e.shape.clone());
            let dtype = if ctx.rank() == odd { DType::I32 } else { DType::F32 };
            let mut out = poisoned(&shape, dtype)?;
            let brought = call.takes_input(ctx.rank()).then_some(&mine);
            let error = call.call_into(&group, brought, &mut out, None, ctx.deadline()).err();
            match error {
                Some(Error::InvalidArgument { why, .. }) if ctx.rank() == odd && brought.is_some() => {
                    check!(why.contains("f32") && why.contains("i32"), "{why}");
                }
                Some(Error::Mismatch { rank, field: "arguments", .. })
                    if ctx.rank() != odd && call.takes_input(odd) =>
                {
                    check!(rank == odd || n == 2, "{call:?}: rank {rank}, not {odd}");
                }
                // Only the root knows the dtype.
                Some(Error::Mismatch { rank, field: "output", .. }) if !call.takes_input(odd) => {
                    check_eq!(rank, odd, "{call:?}");
                }
                other => return Err(format!("{call:?}, rank {odd}: {other:?}").into()),
            }
            check!(is_poison(out.bytes()?), "{call:?}");
            works(ctx, &group)?;
        }
    }
    done()
}

/// A buffer that only a simulated device may touch.
fn on_sim(shape: &[usize]) -> Any<TensorBuf> {
    let bytes = 4 * shape.iter().product::<usize>();
    let mut owner = vec![0u32; bytes / 4];
    let start = NonNull::new(owner.as_mut_ptr()).ok_or("a vector has an address")?.cast();
    // SAFETY: the deleter owns the vector, so its bytes stay until it runs, and nobody else uses them.
    let memory = unsafe { Foreign::exclusive(start, bytes, Device::Sim(1), move || drop(owner)) };
    Ok(TensorBuf::from_foreign(memory, shape, DType::F32)?)
}

fn is_told(ctx: &RankCtx, odd: usize, error: Option<Error>) -> RankResult {
    match error {
        Some(Error::DeviceMismatch { .. }) if ctx.rank() == odd => {}
        Some(Error::Mismatch { rank, field: "arguments", .. }) if ctx.rank() != odd => {
            check!(rank == odd || ctx.world() == 2, "rank {rank}, not {odd}");
        }
        other => return Err(format!("rank {odd}: {other:?}").into()),
    }
    done()
}

/// A result cannot go to a device, in strides or not: the team is none the worse.
fn another_device(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for (i, call) in calls(ctx.world()).iter().enumerate() {
        let odd = i % ctx.world();
        let (mine, expected) = setup(ctx, &group, call, i % 2 == 0)?;
        if expected[odd].is_none() {
            continue; // It may bring what it likes.
        }
        let shape = expected[ctx.rank()].as_ref().map_or(vec![2], |e| e.shape.clone());
        let mut out = if ctx.rank() == odd { on_sim(&shape)? } else { TensorBuf::zeros(&shape, DType::F32)? };
        let layout = Layout::contiguous(&shape)?;
        let strided = if shape.len() == 2 && shape[0] == shape[1] { layout.transpose(0, 1)? } else { layout };
        let brought = call.takes_input(ctx.rank()).then_some(&mine);
        is_told(ctx, odd, call.call_into(&group, brought, &mut out, Some(strided), ctx.deadline()).err())
            .map_err(|e| format!("{call:?}: {e}"))?;
        works(ctx, &group)?;
    }
    done()
}

fn in_place_elsewhere(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for odd in 0..ctx.world() {
        let mut buf = if ctx.rank() == odd { on_sim(&[3])? } else { TensorBuf::zeros(&[3], DType::F32)? };
        // Its copy cannot be made, so there is nothing that it could agree about.
        match group.all_reduce_in_place(&mut buf, ReduceOp::Sum, ctx.deadline()).err() {
            Some(Error::Mismatch { rank, field: "arguments", .. }) if ctx.rank() != odd => {
                check!(rank == odd || ctx.world() == 2, "rank {rank}, not {odd}");
            }
            Some(error) if ctx.rank() == odd => {
                check!(!matches!(error, Error::Mismatch { .. } | Error::Timeout { .. }), "{error}");
            }
            other => return Err(format!("rank {odd}: {other:?}").into()),
        }
        works(ctx, &group)?;
    }
    done()
}

/// Elements that would be written twice are refused before there is an operation.
fn overlap(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mine = Tensor::from_slice(&[2, 2], &[1f32; 4])?;
    let mut buf = TensorBuf::zeros(&[8], DType::F32)?;
    let before = group.team().operations();
    for strides in [[0, 1], [1, 1], [0, 0], [2, -2]] {
        let offset = if strides[1] < 0 { 2 } else { 0 };
        let layout = Layout::new(&[2, 2], &strides, offset)?;
        check!(buf.view_mut(layout).is_err(), "{strides:?}");
    }
    check_eq!(group.team().operations(), before);
    // What only touches is none.
    let layout = Layout::new(&[2, 2], &[4, 2], 1)?;
    group.all_reduce_into(&mine, ReduceOp::Sum, buf.view_mut(layout)?, ctx.deadline())?;
    let n = ctx.world() as f32;
    check_eq!(buf.as_slice::<f32>()?, [0.0, n, 0.0, n, 0.0, n, 0.0, n]);
    done()
}

/// One buffer for many rounds, as in training: each round's result is that round's.
fn again(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    for len in [3, 3000] {
        let mut out = TensorBuf::zeros_in(group.team().hub().tensors(), &[n * len], DType::F32)?;
        for round in 0..20 {
            let value = |rank: usize, i: usize| (1000 * round + 100 * rank + i % 100) as f32;
            let values: Vec<f32> = (0..len).map(|i| value(ctx.rank(), i)).collect();
            group.all_gather_into(&Tensor::from_slice(&[len], &values)?, 0, &mut out, ctx.deadline())?;
            let seen = out.as_slice::<f32>()?;
            check!(seen.iter().enumerate().all(|(i, &x)| x == value(i / len, i % len)), "round {round}");
        }
    }
    done()
}

/// Tensors of several sizes, none among them, and no tensors.
fn batch(ctx: &RankCtx, (op, oracle): Operator) -> RankResult {
    let group = group(ctx, "g")?;
    let mut batch = Vec::new();
    let dtype = DType::ALL.iter().copied().find(|&dtype| exists(oracle, dtype)).ok_or("it has one")?;
    let lens = [1, 0, 300, 5, 3000];
    let part = |r: usize, n: usize| contribution(&ctx.common_rng().fork(n as u64), r, dtype, n);
    for n in lens {
        let place = crate::support::EVERYWHERE[n % 4];
        batch.push(tensor(&group, place, &[n], dtype, &part(ctx.rank(), n))?);
    }
    let all = group.all_reduce_batch(&batch, op, ctx.deadline())?;
    check_eq!(all.len(), lens.len());
    for (seen, n) in all.iter().zip(lens) {
        let parts: Vec<_> = (0..ctx.world()).map(|r| part(r, n)).collect();
        same_bytes("a batch", seen.bytes()?, &reduce(oracle, dtype, &parts).ok_or("the oracle has it")?)?;
    }
    check!(group.all_reduce_batch(&[], op, ctx.deadline())?.is_empty());
    done()
}
