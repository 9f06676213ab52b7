//! Random meshes, shapes, dtypes and chains of placements: everything is where it belongs, costs what was foretold, and
//! comes back bit for bit.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor};
use comm_group::placement::{DeviceMesh, Distributed, MeshRank, Placement, Plan, local_shape, plan};
use comm_testkit::values::{SplitMix64, random_elements};
use comm_testkit::{Case, LauncherCtx, Program, RankCtx, RankResult, check_eq, done};

use super::model::{
    held, id_of, is_partial, is_refused, random_mesh, random_placements, random_shape, tensor,
};
use super::values::{self, Value, contributions, operators};
use super::{BACKEND, Cache, SOON, SUITE, case};
use crate::support::{Any, all_ok, bytes_of, same_bytes};

/// Chains of placements for each world and layout, others in each: 5000 in all of 2, 3, 4, 6 and 8 ranks. And in the long
/// version.
const ROUNDS: u64 = 360;
const FULL_ROUNDS: u64 = 3000;

/// Rounds that share a mesh, since new groups take longer than what is done with them.
const MESH_ROUNDS: u64 = 5;

/// How often a tensor is redistributed in a round.
const CHAIN: usize = 4;

/// Inputs up to so many bytes travel in letters.
const CARRIED: usize = 512;

pub const LARGE: Program = Program { name: "placement-property", run: chains };

pub fn cases() -> Vec<Case> {
    vec![
        case("redistribute/any/any/random", chains).limit(Duration::from_secs(300)),
        Case::launcher(SUITE, "redistribute/any/any/random-6-and-8-ranks", large)
            .worlds(|world| world == 4)
            .limit(Duration::from_secs(600))
            .backend(BACKEND),
    ]
}

fn large(ctx: &LauncherCtx) -> RankResult {
    for world in [6, 8] {
        let launch = ctx.launch_on("placement-property", world, ctx.layout());
        all_ok(&launch.run(Duration::from_secs(280))?).map_err(|e| format!("world {world}: {e}"))?;
    }
    done()
}

fn chains(ctx: &RankCtx) -> RankResult {
    let rounds = if ctx.full() { FULL_ROUNDS } else { ROUNDS };
    let rng = ctx.common_rng().fork(100 * ctx.world() as u64 + ctx.layout() as u64);
    for first in (0..rounds).step_by(MESH_ROUNDS as usize) {
        let mesh = random_mesh(&mut rng.fork(first), ctx.world())?;
        if mesh.rank_of(id_of(ctx.rank())).is_err() {
            continue; // the others do without
        }
        let groups = Cache::new(ctx, &format!("m{first}"));
        let rank = MeshRank::new(&mesh, id_of(ctx.rank()), &groups)?;
        for round in first..first + MESH_ROUNDS {
            chain(&rank, rng.fork(round).fork(1)).map_err(|e| format!("round {round}, {mesh}: {e}"))?;
        }
    }
    done()
}

/// A tensor as all ranks can compute it.
pub struct Truth {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub values: Vec<Value>,
}

impl Truth {
    pub fn random(rng: &mut SplitMix64, dtype: DType, is_exact: bool) -> Truth {
        let shape = random_shape(rng);
        let numel = shape.iter().product();
        let values = if is_exact {
            (0..numel).map(|_| values::random(rng, dtype)).collect()
        } else {
            // Any bits; they are only moved.
            let bytes = random_elements(rng, dtype, numel);
            bytes.chunks(dtype.size()).map(|element| Value::Raw(element.to_vec())).collect()
        };
        Truth { shape, dtype, values }
    }

    pub fn whole(&self) -> Any<Tensor> {
        let elements: Vec<Vec<u8>> = self.values.iter().map(|v| values::bytes(v, self.dtype)).collect();
        Ok(tensor(&self.shape, self.dtype, &elements)?)
    }

    /// What the rank at a coordinate may hold: of contributions, some that make the values.
    pub fn local(
        &self,
        rng: &SplitMix64,
        grid: &[usize],
        placements: &[Placement],
        at: &[usize],
    ) -> Any<Tensor> {
        let held = held(&self.shape, grid, placements, at);
        let element = |&number: &usize| {
            let mut value = self.values[number].clone();
            let mut rng = rng.fork(number as u64);
            for (mesh_dim, placement) in placements.iter().enumerate() {
                if let Some(op) = placement.reduction() {
                    let all = contributions(&mut rng, op, &value, grid[mesh_dim], self.dtype);
                    value = all[at[mesh_dim]].clone();
                    // The line along the next dimension is another one in each place along this.
                    rng = rng.fork(at[mesh_dim] as u64);
                }
            }
            values::bytes(&value, self.dtype)
        };
        let elements: Vec<Vec<u8>> = held.data.iter().map(element).collect();
        Ok(tensor(&held.shape, self.dtype, &elements)?)
    }

    pub fn check(&self, what: &str, rank: &MeshRank, part: &Distributed) -> RankResult {
        check_eq!(part.shape(), self.shape, "{what}");
        self.check_local(what, (rank.mesh().shape(), rank.coordinate()), part.placements(), part.local())
    }

    /// Whether a tensor is what the rank at a coordinate holds: of contributions only the shape is told.
    pub fn check_local(
        &self,
        what: &str,
        (grid, at): (&[usize], &[usize]),
        placements: &[Placement],
        local: &Tensor,
    ) -> RankResult {
        let held = held(&self.shape, grid, placements, at);
        check_eq!((local.shape(), local.dtype()), (&held.shape[..], self.dtype), "{what}");
        if !is_partial(grid, placements) {
            same_bytes(what, &bytes_of(local)?, &self.bytes(&held.data))?;
        }
        done()
    }

    pub fn check_whole(&self, what: &str, whole: &Tensor) -> RankResult {
        check_eq!((whole.shape(), whole.dtype()), (&self.shape[..], self.dtype), "{what}");
        same_bytes(what, &bytes_of(whole)?, &self.bytes(&(0..self.values.len()).collect::<Vec<_>>()))
    }

    fn bytes(&self, elements: &[usize]) -> Vec<u8> {
        elements.iter().flat_map(|&n| values::bytes(&self.values[n], self.dtype)).collect()
    }
}

fn chain(rank: &MeshRank, mut rng: SplitMix64) -> RankResult {
    let dtype = *rng.choose(DType::ALL).ok_or("there are dtypes")?;
    let ops = if rng.below(3) > 0 { operators(dtype) } else { vec![] };
    let truth = Truth::random(&mut rng, dtype, !ops.is_empty());
    let grid = rank.mesh().shape();
    let next = |rng: &mut SplitMix64| random_placements(rng, &truth.shape, grid, &ops);
    let anybody = |rng: &mut SplitMix64| rng.choose(rank.mesh().ids()).copied().unwrap_or_default();

    let start = next(&mut rng);
    let mut what = format!("{dtype} {:?}: {}", truth.shape, text(&start));
    let mut part = if rng.below(2) == 0 {
        let root = anybody(&mut rng);
        what = format!("{what}, distributed by {root}");
        let whole = spaced(&truth.whole()?, rng.below(2) == 0)?;
        rank.distribute((rank.id() == root).then_some(&whole), root, &start, SOON)
            .map_err(|e| format!("{what}: {e}"))?
    } else {
        let local = truth.local(&rng.fork(77), grid, &start, rank.coordinate())?;
        Distributed::new(spaced(&local, rng.below(2) == 0)?, &truth.shape, &start)
    };
    truth.check(&what, rank, &part)?;
    for _ in 0..CHAIN {
        let to = next(&mut rng);
        what = format!("{what} -> {}", text(&to));
        part = redistribute(rank, &part, &to).map_err(|e| format!("{what}: {e}"))?;
        truth.check(&what, rank, &part)?;
        if rng.below(3) == 0 {
            collect(rank, &truth, &part, anybody(&mut rng)).map_err(|e| format!("{what}: {e}"))?;
        }
    }
    collect(rank, &truth, &part, anybody(&mut rng)).map_err(|e| format!("{what}: {e}").into())
}

pub fn text(placements: &[Placement]) -> String {
    let all: Vec<String> = placements.iter().map(Placement::to_string).collect();
    format!("[{}]", all.join(", "))
}

/// The same elements, with others between them if they are to be.
pub fn spaced(dense: &Tensor, is_spaced: bool) -> Any<Tensor> {
    let Some(last) = dense.shape().len().checked_sub(1).filter(|_| is_spaced) else {
        return Ok(dense.clone());
    };
    let wide = Tensor::concat(&[dense.clone(), dense.clone()], last)?;
    Ok(wide.narrow(last, 0, dense.shape()[last])?)
}

pub fn collect(rank: &MeshRank, truth: &Truth, part: &Distributed, root: usize) -> RankResult {
    let whole = rank.collect(part, root, SOON)?;
    check_eq!(whole.is_some(), rank.id() == root);
    whole.map_or(done(), |whole| truth.check_whole(&format!("collected by {root}"), &whole))
}

/// By R on all dimensions where there is no plan, which is an error on every rank.
pub fn redistribute(rank: &MeshRank, part: &Distributed, to: &[Placement]) -> Any<Distributed> {
    if is_refused(rank.mesh().shape(), part.placements(), to) {
        match rank.redistribute(part, to, SOON) {
            Err(Error::Unsupported { .. }) => {}
            other => return Err(format!("a sub-split becomes another shard: {other:?}").into()),
        }
        let whole = vec![Placement::Replicate; to.len()];
        let part = carry_out(rank, part, &whole)?;
        return carry_out(rank, &part, to);
    }
    carry_out(rank, part, to)
}

/// One plan, whose costs are what was foretold.
fn carry_out(rank: &MeshRank, part: &Distributed, to: &[Placement]) -> Any<Distributed> {
    let plan = plan(part.shape(), part.dtype(), rank.mesh(), part.placements(), to)?;
    let (local, costs) = rank.carry_out(&plan, part.local(), SOON).map_err(|e| format!("{plan}\n{e}"))?;
    let foretold = plan.costs(rank.coordinate())?;
    let in_place = plan.bytes_in_place(rank.coordinate())?;
    if costs != foretold {
        return Err(format!("{plan}\ncost {costs:?}, and {foretold:?} was foretold").into());
    }
    for (i, cost) in costs.iter().enumerate() {
        if is_large(rank.mesh(), rank.id(), &plan, i)? && cost.bytes != in_place[i] {
            return Err(
                format!("{plan}\nstep {i} took {cost}, and {} bytes were foretold", in_place[i]).into()
            );
        }
    }
    Ok(Distributed::new(local, part.shape(), to))
}

/// Whether the input of every rank of the line is too large for a letter.
fn is_large(mesh: &DeviceMesh, id: usize, plan: &Plan, step: usize) -> Any<bool> {
    let before = &plan.states()[step];
    for peer in mesh.line(plan.steps()[step].mesh_dim, id)?.ids {
        let shape = local_shape(plan.shape(), mesh, before, &mesh.coordinate_of(peer)?)?;
        if shape.iter().product::<usize>() * plan.dtype().size() <= CARRIED {
            return Ok(false);
        }
    }
    Ok(true)
}
