//! What is wrong on one rank is an error on all of them, and everybody goes on.

use std::fmt::Debug;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor};
use comm_group::placement::{DeviceMesh, Distributed, MeshRank, Placement, plan};
use comm_group::{ReduceOp, ThreadGroupManager};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::{SOON, case};
use crate::support::Any;
use Placement::{Partial, Replicate, Shard};

pub fn cases() -> Vec<Case> {
    vec![
        case("redistribute/-/i32/wrong-shape", |ctx| with_mesh(ctx, wrong_shape)),
        case("redistribute/-/i32/other-arguments", |ctx| with_mesh(ctx, other_arguments)),
        case("redistribute/-/i32/wrong-where-local", |ctx| with_mesh(ctx, wrong_where_local)),
        case("redistribute/-/f32/unsupported", |ctx| with_mesh(ctx, unsupported)),
        case("redistribute/-/f32/premul-of-one", premul_of_one),
        case("distribute/-/i32/bad-root", |ctx| with_mesh(ctx, bad_root)),
        case("distribute/-/i32/cost", |ctx| with_mesh(ctx, cost)),
        case("redistribute/-/i32/over-before", over_before),
    ]
}

/// A mesh of two dimensions where there can be one, so that not everybody is in one line.
fn mesh_of(world: usize) -> Result<DeviceMesh, Error> {
    let grid = if world == 4 { vec![2, 2] } else { vec![world] };
    DeviceMesh::new(&grid, (0..world).collect())
}

fn with_mesh(ctx: &RankCtx, body: fn(&RankCtx, &MeshRank) -> RankResult) -> RankResult {
    let groups = ThreadGroupManager::with_prefix(ctx.name("g"));
    let mesh = mesh_of(ctx.world())?;
    body(ctx, &MeshRank::new(&mesh, ctx.rank(), &groups)?)
}

/// `first` on the first mesh dimension, the rest whole.
fn on_first(rank: &MeshRank, first: Placement) -> Vec<Placement> {
    let mut all = vec![Replicate; rank.mesh().ndim()];
    all[0] = first;
    all
}

/// Rows `[id, id]`, as many as the rule says, of `n`.
fn rows(rank: &MeshRank, n: usize) -> Any<Distributed> {
    let placements = on_first(rank, Shard(0));
    let sizes = comm_group::shard_sizes(n, rank.mesh().shape()[0]);
    let (mine, id) = (sizes[rank.coordinate()[0]], rank.coordinate()[0] as i32);
    Ok(Distributed::new(Tensor::from_slice(&[mine, 2], &vec![id; 2 * mine])?, &[n, 2], &placements))
}

/// The next operation works.
fn goes_on(rank: &MeshRank) -> RankResult {
    let whole = rank.redistribute(&rows(rank, 5)?, &on_first(rank, Replicate), SOON)?;
    check_eq!(whole.local().shape(), [5, 2]);
    check!(whole.local().to_vec::<i32>()?.is_sorted());
    done()
}

fn mismatch<T: Debug>(outcome: Result<T, Error>) -> Any<(usize, &'static str, String, String)> {
    match outcome {
        Err(Error::Mismatch { rank, field, theirs, others, at }) => {
            if at.team.is_empty() || at.op.is_empty() {
                return Err(format!("it does not say where: {at:?}").into());
            }
            Ok((rank, field, theirs, others))
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn wrong_shape(ctx: &RankCtx, rank: &MeshRank) -> RankResult {
    goes_on(rank)?;
    let odd = ctx.world() - 1;
    let mut part = rows(rank, 5)?;
    if ctx.rank() == odd {
        let more = Tensor::from_slice(&[7, 2], &[9i32; 14])?;
        part = Distributed::new(more, part.shape(), part.placements());
    }
    let to = on_first(rank, Replicate);
    let outcomes = [rank.redistribute(&part, &to, SOON).map(drop), rank.collect(&part, 0, SOON).map(drop)];
    for outcome in outcomes {
        if ctx.rank() == odd {
            check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
            check!(outcome.is_err_and(|e| e.to_string().contains("not [7, 2]")));
        } else {
            check_eq!(mismatch(outcome)?, (odd, "arguments", "invalid".to_string(), "valid".to_string()));
        }
    }
    goes_on(rank)?;
    goes_on(rank)
}

/// Nobody who is right needs another, and a rank that is wrong cannot know that: all hear of it, and are at the same place afterwards.
fn wrong_where_local(ctx: &RankCtx, rank: &MeshRank) -> RankResult {
    let odd = ctx.world() - 1;
    let is_odd = ctx.rank() == odd;
    let (whole, shard) = (on_first(rank, Replicate), on_first(rank, Shard(0)));
    let part = rank.redistribute(&rows(rank, 5)?, &whole, SOON)?;
    let more = Distributed::new(Tensor::from_slice(&[7, 2], &[9i32; 14])?, &[5, 2], &whole);
    let none = on_first(rank, Shard(5));
    let outcomes = [
        // A dimension that is not there, a local tensor that cannot be, and another root where everybody has everything.
        rank.redistribute(&part, if is_odd { &none } else { &shard }, SOON).map(drop),
        rank.redistribute(if is_odd { &more } else { &part }, &shard, SOON).map(drop),
        rank.redistribute(if is_odd { &more } else { &part }, &whole, SOON).map(drop),
        rank.collect(&part, if is_odd { 99 } else { 0 }, SOON).map(drop),
        rank.collect(if is_odd { &more } else { &part }, 0, SOON).map(drop),
    ];
    for outcome in outcomes {
        if is_odd {
            check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
        } else {
            check_eq!(mismatch(outcome)?, (odd, "arguments", "invalid".to_string(), "valid".to_string()));
        }
    }
    // Some do what is local, and one does not.
    let to = on_first(rank, if is_odd { Partial(ReduceOp::Sum) } else { Shard(0) });
    check_eq!(mismatch(rank.redistribute(&part, &to, SOON))?.1, "placements");
    let mine = rank.redistribute(&part, &shard, SOON)?;
    check_eq!(mine.local().to_vec::<i32>()?, rows(rank, 5)?.local().to_vec::<i32>()?);
    // Who has a plan knows that it is local, and needs nobody to carry it out.
    if is_odd {
        let plan = plan(&[5, 2], DType::I32, rank.mesh(), &whole, &shard)?;
        let (local, _) = rank.carry_out(&plan, part.local(), SOON)?;
        check!(local.bytes_equal(mine.local())?);
        let outcome = rank.carry_out(&plan, more.local(), SOON);
        check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    }
    goes_on(rank)
}

fn other_arguments(ctx: &RankCtx, rank: &MeshRank) -> RankResult {
    let odd = ctx.world() - 1;
    let is_odd = ctx.rank() == odd;
    let part = rows(rank, 6)?;
    let to = on_first(rank, if is_odd { Shard(1) } else { Replicate });
    let (who, field, theirs, others) = mismatch(rank.redistribute(&part, &to, SOON))?;
    check_eq!((who, field), (odd, "placements"));
    check!(theirs.contains("-> [S(1)") && others.contains("-> [R"), "{theirs} and {others}");
    goes_on(rank)?;

    // Another whole of which this rank has the same shard would be no mismatch of a collective.
    let n = if is_odd { 2 * ctx.world() - 1 } else { 2 * ctx.world() };
    let part = rows(rank, n)?;
    let (who, field, ..) = mismatch(rank.redistribute(&part, &on_first(rank, Replicate), SOON))?;
    check_eq!((who, field), (odd, "shape"));
    let root = usize::from(is_odd);
    check_eq!(mismatch(rank.collect(&rows(rank, 6)?, root, SOON))?.1, "root");
    let outcome = if is_odd {
        rank.collect(&rows(rank, 6)?, 0, SOON).map(drop)
    } else {
        rank.redistribute(&rows(rank, 6)?, &on_first(rank, Replicate), SOON).map(drop)
    };
    check_eq!(mismatch(outcome)?.1, "op");
    // Placements that are too few.
    let part = rows(rank, 6)?;
    let few = Distributed::new(part.local().clone(), part.shape(), &[]);
    let outcome = rank.collect(if is_odd { &few } else { &part }, 0, SOON);
    if is_odd {
        check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    } else {
        check_eq!(mismatch(outcome)?.1, "arguments");
    }
    // Wrong before there is a plan.
    let to = if is_odd { on_first(rank, Shard(2)) } else { on_first(rank, Replicate) };
    let outcome = rank.redistribute(&rows(rank, 6)?, &to, SOON);
    if is_odd {
        check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    } else {
        check_eq!(mismatch(outcome)?.1, "arguments");
    }
    goes_on(rank)
}

fn unsupported(ctx: &RankCtx, rank: &MeshRank) -> RankResult {
    let premul = Partial(ReduceOp::premul_sum(0.5));
    let whole = Tensor::from_slice(&[2], &[1f32, 2.0])?;
    let part = Distributed::new(whole.clone(), &[2], &on_first(rank, Replicate));
    let outcome = rank.redistribute(&part, &on_first(rank, premul.clone()), SOON);
    check!(matches!(outcome, Err(Error::Unsupported { .. })), "{outcome:?}");
    let root = (ctx.rank() == 1).then_some(&whole);
    let outcome = rank.distribute(root, 1, &on_first(rank, premul.clone()), SOON);
    check!(matches!(outcome, Err(Error::Unsupported { .. })), "{outcome:?}");
    // Contributions that are there already can be reduced.
    let part = Distributed::new(whole.clone(), &[2], &on_first(rank, premul));
    let sum = rank.redistribute(&part, &on_first(rank, Replicate), SOON)?;
    let ranks = rank.mesh().shape()[0] as f32;
    check_eq!(sum.local().to_vec::<f32>()?, [0.5 * ranks, ranks]);
    let and = Distributed::new(whole, &[2], &on_first(rank, Partial(ReduceOp::And)));
    for outcome in [
        rank.redistribute(&and, &on_first(rank, Replicate), SOON).map(drop),
        rank.collect(&and, 0, SOON).map(drop),
    ] {
        check!(matches!(outcome, Err(Error::Unsupported { .. })), "{outcome:?}");
    }
    goes_on(rank)
}

/// A line of one rank reduces what a collective of that line reduces.
fn premul_of_one(ctx: &RankCtx) -> RankResult {
    let groups = ThreadGroupManager::with_prefix(ctx.name("g"));
    let mesh = DeviceMesh::new(&[ctx.world(), 1], (0..ctx.world()).collect())?;
    let rank = MeshRank::new(&mesh, ctx.rank(), &groups)?;
    let op = ReduceOp::premul_sum(0.5);
    // In a letter, and in place.
    for n in [2, 1000] {
        let mine = Tensor::from_slice(&[n], &vec![8f32; n])?;
        let half = vec![4f32; n];
        check_eq!(rank.axis(1, SOON)?.all_reduce(&mine, op, SOON)?.to_vec::<f32>()?, half);
        let (from, whole) = ([Replicate, Partial(op)], [Replicate, Replicate]);
        let part = Distributed::new(mine.clone(), &[n], &from);
        check_eq!(rank.redistribute(&part, &whole, SOON)?.local().to_vec::<f32>()?, half);
        let back = rank.collect(&part, 0, SOON)?;
        check_eq!(back.map(|t| t.to_vec::<f32>()).transpose()?, (ctx.rank() == 0).then_some(half));
        let plan = plan(&[n], DType::F32, &mesh, &from, &whole)?;
        let (_, costs) = rank.carry_out(&plan, &mine, SOON)?;
        check_eq!(costs, plan.costs(rank.coordinate())?);
        let outcome = rank.distribute((ctx.rank() == 0).then_some(&mine), 0, &from, SOON);
        check!(matches!(outcome, Err(Error::Unsupported { .. })), "{outcome:?}");
    }
    done()
}

fn bad_root(ctx: &RankCtx, rank: &MeshRank) -> RankResult {
    let whole = Tensor::from_slice(&[4], &[1i32, 2, 3, 4])?;
    let to = on_first(rank, Shard(0));
    // Not in the mesh.
    let outcome = rank.distribute(Some(&whole), 99, &to, SOON);
    check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    // Without a tensor, which the others learn.
    let outcome = rank.distribute(None, 1, &to, SOON);
    if ctx.rank() == 1 {
        check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    } else {
        check_eq!(mismatch(outcome)?, (1, "arguments", "invalid".to_string(), "valid".to_string()));
    }
    // Placements that do not fit what only the root knows.
    let outcome = rank.distribute(Some(&whole), 0, &on_first(rank, Shard(1)), SOON);
    check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    // What others bring counts for nothing.
    let other = rows(rank, 3)?;
    let part = rank.distribute(Some(if ctx.rank() == 0 { &whole } else { other.local() }), 0, &to, SOON)?;
    check_eq!(part.shape(), [4]);
    let back = rank.collect(&part, 1, SOON)?;
    check_eq!(
        back.map(|back| back.to_vec::<i32>()).transpose()?,
        (ctx.rank() == 1).then(|| vec![1, 2, 3, 4])
    );
    let outcome = rank.collect(&part, 99, SOON);
    check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    goes_on(rank)
}

/// Nobody copies more than he keeps: what is cut is cut before it is copied. (Of shards of shards, who passes them on has more.)
fn cost(ctx: &RankCtx, rank: &MeshRank) -> RankResult {
    let whole = Tensor::from_slice(&[480, 12], &[7i32; 480 * 12])?;
    let dims = rank.mesh().ndim();
    let axes = (0..dims).map(|dim| rank.axis(dim, SOON)).collect::<Result<Vec<_>, Error>>()?;
    let bytes = || axes.iter().map(|group| group.costs().bytes).sum::<u64>();
    for shards in [[Replicate, Shard(0)], [Shard(1), Replicate], [Replicate, Replicate]] {
        for root in 0..ctx.world() {
            let before = bytes();
            let to = &shards[2 - dims..];
            let part = rank.distribute((rank.id() == root).then_some(&whole), root, to, SOON)?;
            let (seen, kept) = (bytes() - before, part.local().nbytes() as u64);
            // What the ranks tell each other goes through the same group if there is one dimension.
            let told = if dims == 1 { 512 * ctx.world() as u64 } else { 0 };
            check!(seen <= kept + told, "{to:?} from {root}: {seen} bytes for {kept}");
            check!(rank.id() == root || seen >= kept, "{to:?} from {root}: {seen} bytes for {kept}");
        }
    }
    done()
}

/// A group that ends between two operations is not made anew behind a rank's back: the members of a new one might be gone.
fn over_before(ctx: &RankCtx) -> RankResult {
    let [groups, others] = ["g", "others"].map(|name| ThreadGroupManager::with_prefix(ctx.name(name)));
    let (mesh, me, all) = (mesh_of(ctx.world())?, ctx.rank(), (0..ctx.world()).collect::<Vec<_>>());
    let rank = MeshRank::new(&mesh, me, &groups)?;
    let everybody = groups.group(all.clone(), me, SOON)?;
    goes_on(&rank)?;
    // All are through with it before it ends.
    others.group(all, me, SOON)?.barrier(SOON)?;
    if me == 1 {
        everybody.abort_handle().abort("no more");
    }
    check!(everybody.barrier(SOON).is_err() && everybody.is_over());
    let whole = on_first(&rank, Replicate);
    for outcome in [
        rank.redistribute(&rows(&rank, 5)?, &whole, SOON).map(drop),
        rank.collect(&rows(&rank, 5)?, 0, SOON).map(drop),
    ] {
        check!(matches!(outcome, Err(Error::Aborted { by: 1, .. })), "{outcome:?}");
    }
    goes_on(&MeshRank::new(&mesh, me, &groups)?)
}
