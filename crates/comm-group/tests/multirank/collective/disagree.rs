//! Each thing that ranks agree about, for each operation: one rank says otherwise, all hear the same, and go on.

use std::ptr::NonNull;

use comm_core::device::Device;
use comm_core::tensor::{DType, Foreign, Layout, Tensor, TensorBuf};
use comm_core::{Error, Result};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::oracle::reduce::Reduction;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::call::{Call, Operator, SUM, Sizes};
use crate::support::{Any, group};

pub fn cases() -> Vec<Case> {
    let of = |(name, pairs): (&str, Pairs)| {
        case(format!("disagree/-/-/{name}"), move |ctx| disagree(ctx, pairs)).worlds(|w| w >= 3)
    };
    let fields: [(&str, Pairs); 11] = [
        ("op", ops),
        ("root", roots),
        ("operator", operators),
        ("factor", factors),
        ("dim", dims),
        ("other-dim", other_dims),
        ("dtype", dtypes),
        ("device", devices),
        ("shape", shapes),
        ("sizes", sizes),
        ("arguments", arguments),
    ];
    let mut all: Vec<Case> = fields.into_iter().map(of).collect();
    all.push(case("disagree/-/-/what-does-not-count", what_does_not_count));
    all.push(case("disagree/-/-/verdict-of-all", verdict_of_all).worlds(|w| w > 1));
    all
}

/// What a rank does: an operation with a tensor, somewhere.
#[derive(Debug, Clone)]
struct Doing {
    call: Call,
    dtype: DType,
    shape: Vec<usize>,
    elsewhere: bool,
    /// A root brings nothing.
    empty_handed: bool,
}

fn doing(call: Call) -> Doing {
    Doing { call, dtype: DType::F32, shape: vec![6, 6], elsewhere: false, empty_handed: false }
}

impl Doing {
    fn with(&self, change: impl FnOnce(&mut Doing)) -> Doing {
        let mut other = self.clone();
        change(&mut other);
        other
    }

    fn run(&self, group: &ThreadGroup, ctx: &RankCtx) -> Any<Result<Vec<Tensor>>> {
        let mine = match self.elsewhere {
            true => on_sim(&self.shape)?,
            false => TensorBuf::zeros(&self.shape, self.dtype)?.freeze(),
        };
        let brings = self.call.takes_input(group.rank()) && !self.empty_handed;
        Ok(self.call.returned(group, brings.then_some(&mine), ctx.deadline()))
    }
}

/// Elements that only a simulated device may touch.
fn on_sim(shape: &[usize]) -> Any<Tensor> {
    let mut owner = vec![0u32; shape.iter().product()];
    let (start, bytes) = (NonNull::new(owner.as_mut_ptr()).ok_or("an address")?.cast(), 4 * owner.len());
    // SAFETY: the deleter owns the vector, so its bytes stay until it runs, and nobody writes them.
    let memory = unsafe { Foreign::read_only(start, bytes, Device::Sim(2), move || drop(owner)) };
    Ok(Tensor::from_foreign(memory, DType::F32, Layout::contiguous(shape)?)?)
}

/// What one rank does and what the others do, and how they must hear of it.
struct Pair {
    odd: Doing,
    common: Doing,
    field: &'static str,
    theirs: String,
    others: String,
}

/// Those about one thing, for so many ranks.
type Pairs = fn(usize) -> Vec<Pair>;

fn pair(
    field: &'static str,
    odd: Doing,
    common: &Doing,
    theirs: impl ToString,
    others: impl ToString,
) -> Pair {
    let (theirs, others) = (theirs.to_string(), others.to_string());
    Pair { odd, common: common.clone(), field, theirs, others }
}

fn rows(n: usize) -> Call {
    Call::Rows((0..n).map(|_| (0..n).map(|to| if to == 0 { 6 } else { 0 }).collect()).collect())
}

/// All that bring tensors, in forms that fit `[6, 6]` on so many ranks.
fn every(n: usize) -> Vec<Doing> {
    [
        Call::AllReduce(SUM),
        Call::Reduce(SUM, 1),
        Call::ReduceScatter(SUM, 0, None),
        Call::AllGather(0),
        Call::AllGatherEqual,
        Call::AllGatherVec,
        Call::Gather(0, 1),
        Call::Broadcast(1),
        Call::Scatter(0, 1, None),
        Call::AllToAll(0, 1, None),
        rows(n),
    ]
    .map(doing)
    .to_vec()
}

/// Those whose tensors ranks compare.
fn compared(n: usize) -> Vec<Doing> {
    every(n).into_iter().filter(|d| !matches!(d.call, Call::Broadcast(_) | Call::Scatter(..))).collect()
}

fn ops(n: usize) -> Vec<Pair> {
    let mut all = every(n);
    all.push(doing(Call::Barrier));
    (0..all.len())
        .map(|i| {
            let (odd, common) = (&all[i], &all[(i + 1) % all.len()]);
            pair("op", odd.clone(), common, odd.call.name(), common.call.name())
        })
        .collect()
}

fn roots(n: usize) -> Vec<Pair> {
    let of = |a: Call, b: Call| pair("root", doing(a), &doing(b), n - 1, 0);
    vec![
        of(Call::Reduce(SUM, n - 1), Call::Reduce(SUM, 0)),
        of(Call::Broadcast(n - 1), Call::Broadcast(0)),
        of(Call::Gather(0, n - 1), Call::Gather(0, 0)),
        of(Call::Scatter(0, n - 1, None), Call::Scatter(0, 0, None)),
    ]
}

fn with_operators(field: &'static str, [odd, common]: [Operator; 2], texts: [&str; 2]) -> Vec<Pair> {
    let of = |call: &dyn Fn(Operator) -> Call| {
        pair(field, doing(call(odd)), &doing(call(common)), texts[0], texts[1])
    };
    vec![of(&Call::AllReduce), of(&|op| Call::Reduce(op, 1)), of(&|op| Call::ReduceScatter(op, 1, None))]
}

fn operators(_: usize) -> Vec<Pair> {
    with_operators("operator", [(ReduceOp::Max, Reduction::Max), SUM], ["max", "sum"])
}

fn factors(_: usize) -> Vec<Pair> {
    let of = |x: f64| (ReduceOp::premul_sum(x), Reduction::PremulSum(x));
    with_operators("factor", [of(0.25), of(0.5)], ["0.25", "0.5"])
}

fn dims(_: usize) -> Vec<Pair> {
    let of = |call: &dyn Fn(usize) -> Call| pair("dim", doing(call(1)), &doing(call(0)), 1, 0);
    let mut all = vec![
        of(&|dim| Call::ReduceScatter(SUM, dim, None)),
        of(&Call::AllGather),
        of(&|dim| Call::Gather(dim, 1)),
        of(&|dim| Call::Scatter(dim, 1, None)),
        of(&|dim| Call::AllToAll(dim, 0, None)),
    ];
    // One that is there in no tensor, and whose low half is the others'.
    let far = 1usize << 32;
    all.push(pair("dim", doing(Call::AllGather(far)), &doing(Call::AllGather(0)), u32::MAX, 0));
    all
}

fn other_dims(_: usize) -> Vec<Pair> {
    let of = |to| doing(Call::AllToAll(1, to, None));
    vec![pair("other dim", of(0), &of(1), 0, 1)]
}

fn dtypes(n: usize) -> Vec<Pair> {
    let other = |d: &Doing| d.with(|d| d.dtype = DType::I32);
    compared(n).iter().map(|d| pair("dtype", other(d), d, "i32", "f32")).collect()
}

fn devices(n: usize) -> Vec<Pair> {
    let other = |d: &Doing| d.with(|d| d.elsewhere = true);
    compared(n).iter().map(|d| pair("device", other(d), d, "another device", "cpu")).collect()
}

fn shapes(n: usize) -> Vec<Pair> {
    let mut all = Vec::new();
    for d in compared(n).iter().filter(|d| d.call != Call::AllGatherVec) {
        // Along the second dimension nobody is free.
        for shape in [vec![6, 5], vec![6, 6, 1], vec![6]] {
            let text = format!("{shape:?}");
            all.push(pair("shape", d.with(|d| d.shape = shape), d, text, "[6, 6]"));
        }
        if matches!(d.call, Call::AllReduce(_) | Call::Reduce(..) | Call::ReduceScatter(..)) {
            all.push(pair("shape", d.with(|d| d.shape = vec![5, 6]), d, "[5, 6]", "[6, 6]"));
        }
    }
    all
}

fn sizes(n: usize) -> Vec<Pair> {
    let list = |first: usize| {
        let mut sizes = vec![0; n];
        (sizes[0], sizes[1]) = (first, 6 - first);
        sizes
    };
    let mut all = Vec::new();
    let makers: [fn(Sizes) -> Call; 3] = [
        |sizes| Call::ReduceScatter(SUM, 0, sizes),
        |sizes| Call::Scatter(1, 1, sizes),
        |sizes| Call::AllToAll(0, 1, sizes),
    ];
    for call in makers {
        let of = |sizes: &Vec<usize>| doing(call(Some(sizes.clone())));
        let (odd, common) = (list(1), list(4));
        all.push(pair("sizes", of(&odd), &of(&common), format!("{odd:?}"), format!("{common:?}")));
        // The rule is not a list, even where it would say the same.
        all.push(pair("sizes", doing(call(None)), &of(&common), "[]", format!("{common:?}")));
    }
    all
}

/// What is wrong with one rank's own arguments: it hears what, the others that it is.
fn arguments(n: usize) -> Vec<Pair> {
    let of = |odd: Call, common: Call| pair("arguments", doing(odd), &doing(common), "invalid", "valid");
    let mut all = vec![
        of(Call::ReduceScatter(SUM, 0, Some(vec![])), Call::ReduceScatter(SUM, 0, None)),
        of(Call::Scatter(0, 0, Some(vec![])), Call::Scatter(0, 0, None)),
        of(Call::AllToAll(0, 1, Some(vec![])), Call::AllToAll(0, 1, None)),
        of(Call::RowsOf(vec![6], vec![]), rows(n)),
    ];
    for root in [n, usize::MAX] {
        all.push(of(Call::Reduce(SUM, root), Call::Reduce(SUM, 0)));
        all.push(of(Call::Broadcast(root), Call::Broadcast(0)));
        all.push(of(Call::Gather(1, root), Call::Gather(1, 0)));
        all.push(of(Call::Scatter(1, root, None), Call::Scatter(1, 0, None)));
    }
    all
}

fn works(ctx: &RankCtx, group: &ThreadGroup) -> RankResult {
    let mine = Tensor::from_slice(&[2], &[ctx.rank() as i64, 1])?;
    let (sum, n) = (group.all_reduce(&mine, ReduceOp::Sum, ctx.deadline())?, ctx.world() as i64);
    check_eq!(sum.to_vec::<i64>()?, [n * (n - 1) / 2, n]);
    done()
}

fn disagree(ctx: &RankCtx, pairs: Pairs) -> RankResult {
    let group = group(ctx, "g")?;
    for Pair { odd, common, field, theirs, others } in pairs(ctx.world()) {
        for who in 0..ctx.world() {
            let mine = if ctx.rank() == who { &odd } else { &common };
            let what = format!("rank {who}: {odd:?}, the others {common:?}");
            match mine.run(&group, ctx)? {
                Err(Error::InvalidArgument { .. }) if field == "arguments" && ctx.rank() == who => {}
                Err(Error::Mismatch { rank, field: seen, theirs: a, others: b, at }) => {
                    check_eq!((rank, seen, &a, &b), (who, field, &theirs, &others), "{what}");
                    check!(at.op.contains(mine.call.name()) && at.rank == ctx.rank(), "{what}: {at}");
                }
                other => return Err(format!("{what}: {other:?}").into()),
            }
            works(ctx, &group)?;
        }
    }
    done()
}

/// A tensor that a rank brings where only the root's counts is not looked at: not its device, its dtype or its size.
fn what_does_not_count(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let root = ctx.world() - 1;
    let right = Tensor::from_slice(&[8], &[1i64, 2, 3, 4, 5, 6, 7, 8])?;
    let huge = Tensor::from_slice(&[1], &[1u8])?.expand(&[1 << 62])?;
    let others = [on_sim(&[3])?, huge, Tensor::from_slice(&[2], &[true, false])?, right.clone()];
    for other in &others {
        let mine = if ctx.rank() == root { &right } else { other };
        let copy = group.broadcast(Some(mine), root, ctx.deadline())?;
        check_eq!(copy.to_vec::<i64>()?, right.to_vec::<i64>()?);
        let mut out = TensorBuf::zeros(&[8], DType::I64)?;
        group.broadcast_into(Some(mine), root, &mut out, ctx.deadline())?;
        check_eq!(out.as_slice::<i64>()?, right.as_slice::<i64>()?);
        let shard = group.scatter(Some(mine), 0, root, ctx.deadline())?.to_vec::<i64>()?;
        let range = comm_testkit::oracle::shard_range(8, ctx.world(), ctx.rank());
        check_eq!(shard, right.as_slice::<i64>()?[range]);
    }
    done()
}

/// What no rank can do, though all agree: the same on all of them, also where only the root would have a result.
fn verdict_of_all(ctx: &RankCtx) -> RankResult {
    let (group, n) = (group(ctx, "g")?, ctx.world());
    let large = |d: Doing| d.with(|d| d.shape = vec![40, 40]);
    let invalid: Vec<Doing> = [
        Call::AllGather(2),
        Call::Gather(2, n - 1),
        Call::Gather(usize::MAX, 0),
        Call::ReduceScatter(SUM, 9, None),
        Call::Scatter(2, 0, None),
        Call::AllToAll(2, 0, None),
        Call::AllToAll(0, 2, None),
        Call::AllToAll(5, 5, None),
        Call::ReduceScatter(SUM, 0, Some(vec![1; n])),
        Call::Scatter(0, 0, Some(vec![7; n])),
        Call::AllToAll(1, 0, Some(vec![usize::MAX; n])),
    ]
    .into_iter()
    .flat_map(|call| [doing(call.clone()), large(doing(call))])
    .chain([
        doing(Call::AllGatherEqual).with(|d| d.shape = vec![]),
        doing(Call::Broadcast(n - 1)).with(|d| d.empty_handed = ctx.rank() == n - 1),
    ])
    .collect();
    for doing in invalid {
        let seen = doing.run(&group, ctx)?;
        // A root that brings nothing knows what is wrong, the others that something is.
        let told = matches!(doing.call, Call::Broadcast(_)) && ctx.rank() != n - 1;
        match seen {
            Err(Error::InvalidArgument { .. }) if !told => {}
            Err(Error::Mismatch { field: "arguments", .. }) if told => {}
            other => return Err(format!("{doing:?}: {other:?}").into()),
        }
        works(ctx, &group)?;
    }
    let odd = [(ReduceOp::And, Reduction::And), (ReduceOp::BitOr, Reduction::BitOr)];
    for call in odd
        .into_iter()
        .flat_map(|op| [Call::AllReduce(op), Call::Reduce(op, n - 1), Call::ReduceScatter(op, 0, None)])
    {
        for doing in [doing(call.clone()), large(doing(call))] {
            let seen = doing.run(&group, ctx)?;
            check!(matches!(seen, Err(Error::Unsupported { .. })), "{doing:?}: {seen:?}");
            works(ctx, &group)?;
        }
    }
    for doing in every(n) {
        let seen = doing.with(|d| d.elsewhere = true).run(&group, ctx)?;
        check!(matches!(seen, Err(Error::DeviceMismatch { .. })), "{doing:?}: {seen:?}");
        works(ctx, &group)?;
    }
    done()
}
