//! Random meshes, shapes, dtypes and placements: what is scattered is where it belongs, and comes back bit for bit.

use std::time::Duration;

use comm_core::tensor::{DType, Tensor};
use comm_group::placement::{DeviceMesh, Distributed, MeshRank, Placement, TensorSpec};
use comm_group::{ReduceOp, ThreadGroupManager};
use comm_testkit::values::{SplitMix64, random_elements};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::{Scene, both, mesh_of, spec};
use crate::placement::SOON;
use crate::placement::model::{held, id_of, random_mesh, random_placements, tensor};
use crate::placement::property::{Truth, spaced, text};
use crate::placement::values::operators;
use crate::support::Any;
use Placement::{Partial, Replicate, Shard, SubSplit, Uneven};

/// Tensors for each world and layout, and in the long version.
const ROUNDS: u64 = 1000;
const FULL_ROUNDS: u64 = 20_000;

pub fn cases() -> Vec<Case> {
    [
        both("scatter/any/any/random", random)
            .into_iter()
            .map(|case| case.limit(Duration::from_secs(120)))
            .collect(),
        both("scatter/any/i32/placements", placements),
        both("gather/any/any/contributions", contributions),
        both("gather/sum/any/same-bits-as-collect", same_bits),
    ]
    .concat()
}

fn random(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let rng = ctx.common_rng();
    for round in 0..if ctx.full() { FULL_ROUNDS } else { ROUNDS } {
        one(ctx, scene, round, rng.fork(round)).map_err(|e| format!("round {round}: {e}"))?;
        scene.clear(ctx, round as usize)?;
    }
    done()
}

fn one(ctx: &RankCtx, scene: &Scene, round: u64, mut rng: SplitMix64) -> RankResult {
    let mesh = random_mesh(&mut rng, ctx.world())?;
    let dtype = *rng.choose(DType::ALL).ok_or("there are dtypes")?;
    let ops = if rng.below(3) > 0 { operators(dtype) } else { vec![] };
    let truth = Truth::random(&mut rng, dtype, !ops.is_empty());
    let placements = random_placements(&mut rng, &truth.shape, mesh.shape(), &ops);
    let target = TensorSpec::new(&truth.shape, dtype, &mesh, &placements)?;
    // Anybody, in the mesh or not.
    let [producer, consumer] = [(); 2].map(|()| rng.below(ctx.world() as u64) as usize);
    let (is_spaced, is_shared) = (rng.below(2) == 0, rng.below(2) == 0);
    let what = format!("{dtype} {:?} {} on {mesh} from rank {producer}", truth.shape, text(&placements));

    let whole = spaced(&truth.whole()?, is_spaced)?;
    let whole = if is_shared { whole.contiguous_in(scene.team.hub().tensors())? } else { whole };
    let before = scene.store.stats();
    let (name, me) = (format!("r{round}"), scene.me());
    let brought = (ctx.rank() == producer).then_some(&whole);
    let part =
        me.scatter(&name, id_of(producer), &target, brought, SOON).map_err(|e| format!("{what}: {e}"))?;
    check_eq!(scene.store.stats().bytes_copied, before.bytes_copied, "{what}");
    check_eq!(part.is_some(), mesh.rank_of(me.id()).is_ok(), "{what}");
    if let Some(part) = &part {
        truth.check_local(&what, (mesh.shape(), &mesh.coordinate_of(me.id())?), &placements, part)?;
    }
    let what = format!("{what} to rank {consumer}");
    let back = me
        .gather(&name, &target, part.as_ref(), id_of(consumer), SOON)
        .map_err(|e| format!("{what}: {e}"))?;
    check_eq!(back.is_some(), ctx.rank() == consumer, "{what}");
    back.map_or(done(), |back| truth.check_whole(&what, &back))
}

/// Every placement by itself, and some together: who has what, of contributions too, and what of it is a copy.
fn placements(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let n = ctx.world();
    let everybody: Vec<usize> = (0..n).rev().collect();
    let line = mesh_of(&[n], &everybody)?;
    let mut sizes = vec![0; n];
    (sizes[0], sizes[n - 1]) = (2, 5);
    let sum = || Partial(ReduceOp::Sum);
    let mut all: Vec<(DeviceMesh, Vec<Placement>)> = vec![
        (line.clone(), vec![Replicate]),
        (line.clone(), vec![Shard(0)]),
        (line.clone(), vec![Shard(1)]),
        (line.clone(), vec![SubSplit { dim: 0, cut: 3 }]),
        (line.clone(), vec![Uneven { dim: 0, sizes }]),
        (line.clone(), vec![sum()]),
        (line, vec![Partial(ReduceOp::Max)]),
    ];
    if n == 4 {
        let square = mesh_of(&[2, 2], &everybody)?;
        for both in [
            [Shard(0), Shard(1)],
            [Shard(0), Shard(0)],
            [sum(), Shard(0)],
            [Shard(1), sum()],
            [sum(), Partial(ReduceOp::Max)],
            [Replicate, sum()],
            [SubSplit { dim: 1, cut: 2 }, SubSplit { dim: 0, cut: 3 }],
        ] {
            all.push((square.clone(), both.to_vec()));
        }
    }
    let shape = [7, 6];
    let numbers: Vec<i32> = (0..42).collect();
    for (i, (mesh, placements)) in all.iter().enumerate() {
        let target = spec(&shape, mesh, placements)?;
        let at = mesh.coordinate_of(scene.me().id())?;
        let mut expected: Vec<i32> =
            held(&shape, mesh.shape(), placements, &at).data.iter().map(|&x| x as i32).collect();
        // In each line of contributions the first one has the value.
        for (placement, _) in placements.iter().zip(&at).filter(|&(_, &index)| index > 0) {
            match placement {
                Partial(ReduceOp::Sum) => expected.fill(0),
                Partial(_) => expected.fill(i32::MIN),
                _ => {}
            }
        }
        let has_values = placements.iter().zip(&at).all(|(p, &index)| index == 0 || p.reduction().is_none());
        for (producer, is_shared) in (0..n).flat_map(|rank| [(rank, false), (rank, true)]) {
            let what = format!("{} from rank {producer}", text(placements));
            let mut whole = Tensor::from_slice(&shape, &numbers)?;
            if is_shared {
                whole = whole.contiguous_in(scene.team.hub().tensors())?;
            }
            let brought = (ctx.rank() == producer).then_some(&whole);
            let name = format!("{i}-{producer}-{is_shared}");
            let part = scene.me().scatter(&name, id_of(producer), &target, brought, ctx.deadline())?;
            let part = part.ok_or("everybody is in the mesh")?;
            check_eq!(part.to_vec::<i32>()?, expected, "{what}");
            let is_cut = placements.iter().any(|placement| matches!(placement, SubSplit { .. }));
            if ctx.rank() == producer && has_values && !is_cut {
                check!(part.shares_storage(&whole), "{what}: its own part is a view");
            }
        }
    }
    check_eq!(scene.store.stats().bytes_copied, 0);
    done()
}

/// Contributions that are no identities are reduced in mesh order, as the model has it.
fn contributions(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let rng = ctx.common_rng();
    for round in 0..60u64 {
        let mut rng = rng.fork(round);
        let mesh = random_mesh(&mut rng, ctx.world())?;
        let dtype = *rng.choose(DType::ALL).ok_or("there are dtypes")?;
        let ops = operators(dtype);
        if ops.is_empty() {
            continue;
        }
        let truth = Truth::random(&mut rng, dtype, true);
        let placements = random_placements(&mut rng, &truth.shape, mesh.shape(), &ops);
        let source = TensorSpec::new(&truth.shape, dtype, &mesh, &placements)?;
        let consumer = rng.below(ctx.world() as u64) as usize;
        let local = local(scene, &truth, &rng.fork(1), &source)?;
        let name = format!("c{round}");
        let whole = scene.me().gather(&name, &source, local.as_ref(), id_of(consumer), ctx.deadline())?;
        check_eq!(whole.is_some(), ctx.rank() == consumer);
        let what = format!("round {round}: {source} to rank {consumer}");
        whole.map_or(done(), |whole| truth.check_whole(&what, &whole))?;
    }
    done()
}

fn local(scene: &Scene, truth: &Truth, rng: &SplitMix64, source: &TensorSpec) -> Any<Option<Tensor>> {
    let mesh = source.mesh();
    let Ok(at) = mesh.coordinate_of(scene.me().id()) else { return Ok(None) };
    truth.local(rng, mesh.shape(), source.placements(), &at).map(Some)
}

/// Sums that are rounded are rounded alike, whichever way they take.
fn same_bits(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (n, by) = (ctx.world(), ctx.deadline());
    let grid = if n == 4 { vec![2, 2] } else { vec![n] };
    let mesh = mesh_of(&grid, &(0..n).collect::<Vec<_>>())?;
    let groups = ThreadGroupManager::with_prefix(ctx.name("g"));
    // As their numbers.
    let numbered = DeviceMesh::new(&grid, (0..n).collect())?;
    let rank = MeshRank::new(&numbered, ctx.rank(), &groups)?;
    let placements = vec![Partial(ReduceOp::Sum); grid.len()];
    for (i, dtype) in [DType::F32, DType::BF16, DType::F64, DType::Complex64].into_iter().enumerate() {
        // More than one block.
        for (j, shape) in [[5, 7], [300, 41]].into_iter().enumerate() {
            let bytes = random_elements(&mut ctx.rng().fork(i as u64), dtype, shape[0] * shape[1]);
            let elements: Vec<Vec<u8>> = bytes.chunks(dtype.size()).map(<[u8]>::to_vec).collect();
            let local = spaced(&tensor(&shape, dtype, &elements)?, true)?;
            let source = TensorSpec::new(&shape, dtype, &mesh, &placements)?;
            let gathered = scene.me().gather(&format!("{i}-{j}"), &source, Some(&local), id_of(n - 1), by)?;
            let part = Distributed::new(local, &shape, &placements);
            let collected = rank.collect(&part, n - 1, by)?;
            if let (Some(a), Some(b)) = (gathered, collected) {
                check!(a.bytes_equal(&b)?, "{dtype} of shape {shape:?}");
                continue;
            }
            check!(ctx.rank() < n - 1);
        }
    }
    done()
}
