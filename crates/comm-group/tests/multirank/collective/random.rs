//! Every operation in every way over whatever comes: shapes, sizes, views and places that differ from rank to rank, all
//! roots and dimensions. And inputs that a letter just carries, or just does not.

use std::time::Duration;

use comm_core::team::Team;
use comm_core::tensor::DType;
use comm_core::{Deadline, Error};
use comm_group::ThreadGroup;
use comm_testkit::values::{SplitMix64, Strided};
use comm_testkit::{Case, RankCtx, RankResult, check, done};

use super::case;
use crate::call::{Bytes, Call, Operator, SUM, check_ways, dense};
use crate::support::{EVERYWHERE, Place, contribution, exists, group, operators, random_view, strided};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for which in KINDS {
        let border = move |ctx: &RankCtx| around_the_letter(ctx, which);
        all.push(case(format!("{which}/-/i16/around-the-letter"), border));
    }
    let random = case("every/any/any/random", random).also_worlds(&[1, 5, 8]);
    all.push(random.limit(Duration::from_secs(300)));
    all.push(case("broadcast/-/-/alone-and-wrong", alone));
    all
}

const KINDS: [&str; 11] = [
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "all_gather_equal",
    "all_gather_into_vec",
    "gather",
    "broadcast",
    "scatter",
    "all_to_all",
    "all_to_all_rows",
];

/// What a case needs to know about its group.
struct Here<'a> {
    group: &'a ThreadGroup,
    at: Deadline,
}

impl Here<'_> {
    fn world(&self) -> usize {
        self.group.size()
    }

    /// The inputs of all ranks, each a view of some random storage in some place; the call in every way.
    fn check(
        &self,
        call: &Call,
        rng: &SplitMix64,
        dtype: DType,
        views: &[Strided],
        place: Place,
    ) -> RankResult {
        let storages: Vec<Vec<u8>> =
            views.iter().enumerate().map(|(r, v)| contribution(rng, r, dtype, v.storage)).collect();
        let size = dtype.size();
        let inputs: Vec<Bytes> =
            views.iter().zip(&storages).map(|(v, s)| dense(&v.shape, &v.row_major(s, size), size)).collect();
        let rank = self.group.rank();
        let mine = strided(self.group, place, &views[rank], dtype, &storages[rank])?;
        check_ways(self.group, call, &mine, &inputs, self.at)
            .map_err(|e| format!("{dtype}, {place:?}, {}: {e}", views[rank].name).into())
    }
}

fn here<'a>(ctx: &RankCtx, group: &'a ThreadGroup) -> Here<'a> {
    Here { group, at: ctx.deadline() }
}

fn plain(shape: &[usize]) -> Strided {
    let mut strides = vec![1isize; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1) as isize;
    }
    Strided { name: "dense", shape: shape.to_vec(), strides, offset: 0, storage: shape.iter().product() }
}

/// All calls of a kind for tensors of one shape on so many ranks: all roots, all dimensions, sizes by the rule and drawn.
fn calls(which: &str, shape: &[usize], world: usize, rng: &mut SplitMix64) -> Vec<Call> {
    let (dims, roots) = (0..shape.len(), 0..world);
    let cut = |rng: &mut SplitMix64, n: usize| [None, Some(deal(rng, n, world))];
    let mut all = Vec::new();
    match which {
        "all_reduce" => all.push(Call::AllReduce(SUM)),
        "reduce" => all.extend(roots.map(|root| Call::Reduce(SUM, root))),
        "reduce_scatter" => {
            for dim in dims {
                all.extend(cut(rng, shape[dim]).map(|sizes| Call::ReduceScatter(SUM, dim, sizes)));
            }
        }
        "all_gather" => all.extend(dims.map(Call::AllGather)),
        "all_gather_equal" => all.extend((!shape.is_empty()).then_some(Call::AllGatherEqual)),
        "all_gather_into_vec" => all.push(Call::AllGatherVec),
        "gather" => {
            all.extend(dims.flat_map(|dim| roots.clone().map(move |root| Call::Gather(dim, root))));
        }
        "broadcast" => all.extend(roots.map(Call::Broadcast)),
        "scatter" => {
            for (dim, root) in dims.flat_map(|dim| roots.clone().map(move |root| (dim, root))) {
                all.extend(cut(rng, shape[dim]).map(|sizes| Call::Scatter(dim, root, sizes)));
            }
        }
        "all_to_all" => {
            for (from, to) in dims.clone().flat_map(|from| dims.clone().map(move |to| (from, to))) {
                let whole = shape[to] * if from == to { world } else { 1 };
                all.extend(cut(rng, whole).map(|sizes| Call::AllToAll(from, to, sizes)));
            }
        }
        "all_to_all_rows" => {
            if let Some(&n) = shape.first() {
                all.push(Call::Rows((0..world).map(|_| deal(rng, n, world)).collect()));
            }
        }
        other => unreachable!("{other}"),
    }
    all
}

/// So many, dealt out at random; often some get none.
fn deal(rng: &mut SplitMix64, n: usize, parts: usize) -> Vec<usize> {
    let mut sizes = vec![0; parts];
    let (few, all) = (1 + rng.below(parts as u64), parts as u64);
    for _ in 0..n {
        let part = if rng.below(4) == 0 { rng.below(all) } else { rng.below(few) };
        sizes[part as usize] += 1;
    }
    sizes
}

/// Which dimension the ranks may differ along.
fn free_dim(call: &Call) -> Option<usize> {
    match call {
        Call::AllGather(dim) | Call::Gather(dim, _) | Call::AllToAll(dim, ..) => Some(*dim),
        Call::Rows(_) => Some(0),
        _ => None,
    }
}

/// The call for shards that differ where they may, and those.
fn uneven(call: Call, shape: &[usize], world: usize, rng: &mut SplitMix64) -> (Call, Vec<Vec<usize>>) {
    let mut shapes = vec![shape.to_vec(); world];
    if let Some(dim) = free_dim(&call) {
        for (rank, size) in deal(rng, world * shape[dim], world).into_iter().enumerate() {
            shapes[rank][dim] = size;
        }
    }
    match call {
        Call::Rows(_) => (Call::Rows(shapes.iter().map(|s| deal(rng, s[0], world)).collect()), shapes),
        Call::AllGatherVec => {
            for (rank, shape) in shapes.iter_mut().enumerate() {
                match rank % 4 {
                    0 => shape.push(2),
                    1 => shape.clear(),
                    2 => *shape = vec![0, 5],
                    _ => {}
                }
            }
            (call, shapes)
        }
        call => (call, shapes),
    }
}

/// Some ranks' one and some ranks' other: 256 elements of two bytes are carried.
fn around_the_letter(ctx: &RankCtx, which: &str) -> RankResult {
    let group = group(ctx, "g")?;
    let (here, world) = (here(ctx, &group), ctx.world());
    let mut rng = ctx.common_rng();
    for (i, n) in [255, 256, 257].into_iter().enumerate() {
        for (j, call) in calls(which, &[n], world, &mut rng).into_iter().enumerate() {
            let (call, shapes) = uneven(call, &[n], world, &mut rng);
            let views: Vec<Strided> = shapes.iter().map(|shape| plain(shape)).collect();
            here.check(&call, &rng.fork(j as u64), DType::I16, &views, EVERYWHERE[(i + j) % 4])?;
        }
    }
    done()
}

/// Whatever comes: kinds, shapes, dtypes, views of the same shape that differ, places that differ.
fn random_rounds(ctx: &RankCtx, here: &Here<'_>, rounds: u64) -> RankResult {
    let world = here.world();
    for round in 0..rounds {
        let mut rng = ctx.common_rng().fork(round);
        let which = *rng.choose(&KINDS).ok_or("there are kinds")?;
        let reduces = which.contains("reduce");
        let dtype = *rng.choose(DType::ALL).ok_or("there are dtypes")?;
        let ops: Vec<_> = operators().into_iter().filter(|op| exists(op.1, dtype)).collect();
        let op = *rng.choose(&ops).ok_or("every dtype has an operator")?;
        let dims = rng.below(4);
        let mut shape: Vec<usize> =
            (0..dims).map(|_| if rng.below(12) == 0 { 0 } else { 1 + rng.below(6) as usize }).collect();
        if let Some(first) =
            shape.first_mut().filter(|_| rng.below(4) == 0 && !dtype.name().starts_with("f8"))
        {
            *first *= 20;
        }
        let all = calls(which, &shape, world, &mut rng);
        let Some(call) = rng.choose(&all).cloned() else { continue };
        let call = if reduces { with_operator(call, op) } else { call };
        let (call, shapes) = uneven(call, &shape, world, &mut rng);
        let views: Vec<Strided> = shapes.iter().map(|shape| random_view(&mut rng, shape)).collect();
        let mut place = rng.fork(here.group.rank() as u64);
        let place = EVERYWHERE[place.below(4) as usize];
        here.check(&call, &rng, dtype, &views, place).map_err(|e| format!("round {round}: {e}"))?;
    }
    done()
}

fn with_operator(call: Call, op: Operator) -> Call {
    match call {
        Call::AllReduce(_) => Call::AllReduce(op),
        Call::Reduce(_, root) => Call::Reduce(op, root),
        Call::ReduceScatter(_, dim, sizes) => Call::ReduceScatter(op, dim, sizes),
        other => other,
    }
}

fn random(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    // More ranks than cores take longer.
    let rounds = match (ctx.world(), ctx.full()) {
        (..5, false) => 120,
        (..5, true) => 3000,
        (_, false) => 40,
        (_, true) => 1000,
    };
    random_rounds(ctx, &here(ctx, &group), rounds)
}

/// In a team of one: a root that is not there, and a tensor that is not brought.
fn alone(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name(&format!("solo-{}", ctx.rank())), 0, 1, ctx.deadline())?;
    let group = ThreadGroup::new(team, ctx.deadline())?;
    for call in [Call::Broadcast(1), Call::Scatter(0, 0, None), Call::Broadcast(0)] {
        let error = call.returned(&group, None, ctx.deadline()).err();
        check!(matches!(error, Some(Error::InvalidArgument { .. })), "{call:?}: {error:?}");
    }
    done()
}
