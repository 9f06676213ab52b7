//! Every pair of lists of placements, on every small mesh and for every small shape: what random chains may miss.

use std::time::{Duration, Instant};

use comm_core::tensor::DType;
use comm_group::ReduceOp;
use comm_group::placement::{DeviceMesh, Distributed, MeshRank, Placement};
use comm_testkit::oracle::indices;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult};
use serde_json::json;

use super::model::{has_room_for_cuts, id_of};
use super::property::{Truth, collect, redistribute};
use super::values::Value;
use super::{BACKEND, Cache, SUITE};
use crate::support::{Any, all_ok};

pub const PAIRS: Program = Program { name: "placement-pairs", run: pairs };

const GRIDS: [&[usize]; 12] =
    [&[1], &[2], &[3], &[4], &[6], &[1, 2], &[2, 1], &[1, 3], &[3, 1], &[2, 2], &[2, 3], &[3, 2]];

/// Far more than a mesh takes.
const LIMIT: Duration = Duration::from_secs(3600);

/// How often there is a word about how far it has come.
const WORD: Duration = Duration::from_secs(10);

pub fn cases() -> Vec<Case> {
    let of = |grid: &&'static [usize]| {
        let (grid, sizes) = (*grid, grid.iter().map(usize::to_string).collect::<Vec<_>>().join("x"));
        Case::launcher(SUITE, format!("redistribute/sum/i32/every-pair-on-{sizes}"), move |ctx| on(ctx, grid))
            .worlds(|world| world == 4)
            .layouts(&[Layout::Threads])
            .limit(LIMIT)
            .backend(BACKEND)
            .only_full()
    };
    GRIDS.iter().map(of).collect()
}

/// All of one dimension up to 13 elements; of two dimensions nothing, one, and what does and does not divide.
fn shapes() -> Vec<Vec<usize>> {
    const SIZES: [usize; 7] = [0, 1, 2, 3, 5, 7, 13];
    let two = indices(&[SIZES.len(); 2]).into_iter().map(|at| vec![SIZES[at[0]], SIZES[at[1]]]);
    (0..=13).map(|n| vec![n]).chain(two).collect()
}

/// All lists of the whole, shards of each dimension, sums, and sub-splits: with every cut where there is one mesh dimension, with
/// one that also pieces of pieces can have where there are two.
fn lists(shape: &[usize], mesh: &DeviceMesh) -> Vec<Vec<Placement>> {
    let mut choices = vec![Placement::Replicate, Placement::Partial(ReduceOp::Sum)];
    for (dim, &n) in shape.iter().enumerate() {
        choices.push(Placement::Shard(dim));
        let cuts = if mesh.ndim() == 1 { 1..n } else { (n / 4).max(1)..(n / 4).max(1) + 1 };
        choices.extend(cuts.map(|cut| Placement::SubSplit { dim, cut }));
    }
    let all = indices(&vec![choices.len(); mesh.ndim()]);
    let all = all.iter().map(|at| at.iter().map(|&i| choices[i].clone()).collect::<Vec<_>>());
    all.filter(|list| has_room_for_cuts(shape, mesh.shape(), list)).collect()
}

fn on(ctx: &LauncherCtx, grid: &[usize]) -> RankResult {
    let began = Instant::now();
    let world = grid.iter().product();
    let running =
        ctx.launch_on("placement-pairs", world, Layout::Threads).arg(json!(grid)).limit(LIMIT).spawn()?;
    let mut said = began;
    for shape in shapes() {
        // Whoever fails ends before its last note, and then there is no next one to wait for.
        let Ok(note) = running.wait_note(0, &format!("{shape:?}"), LIMIT) else { break };
        if said.elapsed() >= WORD {
            said = Instant::now();
            ctx.progress(&format!(
                "{grid:?}: {} pairs up to {shape:?} in {:.0?}",
                note.value,
                began.elapsed()
            ));
        }
    }
    let reports = running.wait(LIMIT);
    all_ok(&reports)?;
    let Some(Outcome::Ok(count)) = reports.into_iter().next().map(|report| report.outcome) else {
        return Err("nobody has counted".into());
    };
    ctx.progress(&format!("{grid:?}: {count} pairs in {:.0?}", began.elapsed()));
    Ok(count)
}

/// On the mesh of its argument.
fn pairs(ctx: &RankCtx) -> RankResult {
    let grid: Vec<usize> = serde_json::from_value(ctx.args().clone())?;
    let mesh = DeviceMesh::new(&grid, (0..ctx.world()).map(id_of).collect())?;
    let groups = Cache::new(ctx, "pairs");
    let rank = MeshRank::new(&mesh, id_of(ctx.rank()), &groups)?;
    let mut count = 0;
    for shape in shapes() {
        count += of_shape(ctx, &rank, &shape).map_err(|e| format!("{shape:?} on {grid:?}: {e}"))?;
        if ctx.rank() == 0 {
            ctx.note_value(format!("{shape:?}"), count);
        }
    }
    Ok(json!(count))
}

fn of_shape(ctx: &RankCtx, rank: &MeshRank, shape: &[usize]) -> Any<usize> {
    let numel: usize = shape.iter().product();
    let values = (1..=numel as i64).map(Value::Number).collect();
    let truth = Truth { shape: shape.to_vec(), dtype: DType::I32, values };
    let grid = rank.mesh().shape();
    let lists = lists(shape, rank.mesh());
    let parts = lists.iter().map(|list| {
        let local = truth.local(&ctx.common_rng(), grid, list, rank.coordinate())?;
        Ok(Distributed::new(local, shape, list))
    });
    let parts: Vec<Distributed> = parts.collect::<Any<_>>()?;
    let mut count = 0;
    for (from, part) in lists.iter().zip(&parts) {
        for to in &lists {
            let what = || format!("{from:?} -> {to:?}");
            let outcome = redistribute(rank, part, to).map_err(|e| format!("{}: {e}", what()))?;
            truth.check(&what(), rank, &outcome)?;
            // By one rank after the other.
            let root = rank.mesh().ids()[count % ctx.world()];
            collect(rank, &truth, &outcome, root).map_err(|e| format!("{}: {e}", what()))?;
            count += 1;
        }
    }
    Ok(count)
}
