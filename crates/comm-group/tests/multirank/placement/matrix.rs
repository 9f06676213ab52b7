//! The conversions that DTorch has, one by one.

use std::slice::from_ref;
use std::time::Duration;

use comm_core::tensor::{DType, Tensor};
use comm_group::ReduceOp;
use comm_group::placement::{DeviceMesh, Distributed, MeshRank, Placement, StepOp, plan};
use comm_testkit::oracle::indices;
use comm_testkit::{Case, LauncherCtx, Program, RankCtx, RankResult, check_eq, done};

use super::model::held;
use super::{BACKEND, Cache, SOON, SUITE, case};
use crate::support::{Any, all_ok};
use Placement::{Partial, Replicate, Shard};
use StepOp::{AllGather, AllReduce, AllToAll, Mask, ReduceScatter, ReplicateToShard};

const SUM: Placement = Partial(ReduceOp::Sum);

pub const CUBE: Program = Program { name: "placement-cube", run: eight };

pub fn cases() -> Vec<Case> {
    vec![
        case("redistribute/sum/f32/matrix", matrix),
        Case::launcher(SUITE, "redistribute/sum/any/8-ranks", cube)
            .worlds(|world| world == 4)
            .limit(Duration::from_secs(120))
            .backend(BACKEND),
    ]
}

/// What the rank at a coordinate holds of the numbers 0, 1, 2, ...; of a sum, rank r of the line holds r + 1 times as much, and the
/// last one what is missing.
fn local(shape: &[usize], mesh: &DeviceMesh, placements: &[Placement], at: &[usize]) -> Any<Vec<f32>> {
    let mut values: Vec<f32> =
        held(shape, mesh.shape(), placements, at).data.iter().map(|&number| number as f32).collect();
    for (mesh_dim, placement) in placements.iter().enumerate() {
        let (ranks, index) = (mesh.shape()[mesh_dim], at[mesh_dim]);
        if *placement == SUM && ranks > 1 {
            let others = (ranks * (ranks - 1) / 2) as f32;
            let factor = if index == ranks - 1 { 1.0 - others } else { index as f32 + 1.0 };
            values.iter_mut().for_each(|x| *x *= factor);
        }
    }
    Ok(values)
}

fn convert(rank: &MeshRank, shape: &[usize], from: &[Placement], to: &[Placement]) -> Any<Vec<StepOp>> {
    let mesh = rank.mesh();
    let plan = plan(shape, DType::F32, mesh, from, to)?;
    let values = local(shape, mesh, from, rank.coordinate())?;
    let mine = Tensor::from_slice(&held(shape, mesh.shape(), from, rank.coordinate()).shape, &values)?;
    let (result, costs) = rank.carry_out(&plan, &mine, SOON)?;
    if costs != plan.costs(rank.coordinate())? {
        return Err(format!("{plan}\ncost {costs:?}").into());
    }
    if let Some(step) = plan.steps().last().filter(|step| step.op == Mask && mesh.ndim() == 1) {
        // The first rank of the line has the values, and the others nothing.
        let is_first = rank.coordinate()[step.mesh_dim] == 0;
        let is_zero = result.to_vec::<f32>()?.iter().all(|&x| x == 0.0);
        if is_zero == is_first && result.numel() > 1 {
            return Err(format!(
                "{plan}
has become {:?}",
                result.to_vec::<f32>()?
            )
            .into());
        }
    }
    let result = Distributed::new(result, shape, to);
    // What are contributions becomes values first.
    let values: Vec<Placement> = to.iter().map(|p| if *p == SUM { Replicate } else { p.clone() }).collect();
    let seen = rank.redistribute(&result, &values, SOON)?;
    let expected = local(shape, mesh, &values, rank.coordinate())?;
    if seen.local().to_vec::<f32>()? != expected {
        return Err(
            format!("{plan}\nhas become {:?}, expected {expected:?}", seen.local().to_vec::<f32>()?).into()
        );
    }
    Ok(plan.steps().iter().map(|step| step.op).collect())
}

/// All pairs on one mesh dimension, and by which operations they are done.
fn matrix(ctx: &RankCtx) -> RankResult {
    let groups = Cache::new(ctx, "g");
    let mesh = DeviceMesh::new(&[ctx.world()], (0..ctx.world()).collect())?;
    let rank = MeshRank::new(&mesh, ctx.rank(), &groups)?;
    let all = [Replicate, Shard(0), Shard(1), SUM];
    let steps: [[&[StepOp]; 4]; 4] = [
        [&[], &[ReplicateToShard], &[ReplicateToShard], &[Mask]],
        [&[AllGather], &[], &[AllToAll], &[AllGather, Mask]],
        [&[AllGather], &[AllToAll], &[], &[AllGather, Mask]],
        [&[AllReduce], &[ReduceScatter], &[ReduceScatter], &[]],
    ];
    // In letters, and in place.
    for shape in [[4, 8], [5, 9], [4 * 37, 8 * 5], [5 * 37, 9 * 5]] {
        for (from, row) in all.iter().zip(steps) {
            for (to, expected) in all.iter().zip(row) {
                let what = format!("{from} -> {to} of {shape:?}");
                let taken = convert(&rank, &shape, from_ref(from), from_ref(to))
                    .map_err(|e| format!("{what}: {e}"))?;
                check_eq!(taken, expected, "{what}");
            }
        }
    }
    done()
}

fn cube(ctx: &LauncherCtx) -> RankResult {
    all_ok(&ctx.launch_on("placement-cube", 8, ctx.layout()).run(Duration::from_secs(100))?)?;
    done()
}

/// Two and three mesh dimensions.
fn eight(ctx: &RankCtx) -> RankResult {
    let groups = Cache::new(ctx, "g");
    let me = ctx.rank();
    let on = |grid: &[usize]| DeviceMesh::new(grid, (0..8).collect());
    let (flat, cube) = (on(&[4, 2])?, on(&[2, 2, 2])?);
    let choices = [Replicate, Shard(0), Shard(1), SUM];
    let lists: Vec<Vec<Placement>> =
        indices(&[4, 4]).iter().map(|at| at.iter().map(|&i| choices[i].clone()).collect()).collect();
    let rank = MeshRank::new(&flat, me, &groups)?;
    for shape in [[4, 8], [5, 9]] {
        for from in &lists {
            for to in &lists {
                convert(&rank, &shape, from, to)
                    .map_err(|e| format!("{from:?} -> {to:?} of {shape:?}: {e}"))?;
            }
        }
    }
    let rank = MeshRank::new(&cube, me, &groups)?;
    let (nested, whole) = ([Shard(0), Shard(2), Shard(2)], [Replicate, Replicate, Replicate]);
    for shape in [[3, 2, 9], [6, 4, 41]] {
        convert(&rank, &shape, &nested, &whole)?;
        check_eq!(convert(&rank, &shape, &whole, &nested)?, [ReplicateToShard; 3]);
    }
    done()
}
