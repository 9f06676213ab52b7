//! From every mesh of some of the ranks, in every order, to every other.

use comm_core::tensor::{DType, Layout, Tensor, TensorBuf};
use comm_group::placement::{DeviceMesh, Placement, TensorSpec};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::{Scene, both, mesh_of, spec};
use crate::placement::model::{held, id_of};
use crate::support::Any;
use Placement::{Replicate, Shard};

const SHAPE: [usize; 2] = [5, 3];

pub fn cases() -> Vec<Case> {
    [
        both("convert_mesh/-/i32/every-pair", |ctx, scene| every_pair(ctx, scene, convert)),
        both("copy/-/i32/every-pair", |ctx, scene| every_pair(ctx, scene, copy)),
        both("copy/-/i32/one-mesh", one_mesh),
    ]
    .concat()
}

/// All lists of `k` of the numbers below `n`, none twice.
fn lists(n: usize, k: usize) -> Vec<Vec<usize>> {
    if k == 0 {
        return vec![vec![]];
    }
    let longer = |list: Vec<usize>| {
        let rest: Vec<usize> = (0..n).filter(|i| !list.contains(i)).collect();
        rest.into_iter().map(move |i| [&list[..], &[i]].concat())
    };
    lists(n, k - 1).into_iter().flat_map(longer).collect()
}

/// One flow, as one rank takes part in it.
struct Flow {
    name: String,
    source: TensorSpec,
    target: DeviceMesh,
    /// Ranks by their ranks in the two meshes.
    ranks: [Vec<usize>; 2],
}

impl Flow {
    fn rank_in(&self, which: usize, rank: usize) -> Option<usize> {
        self.ranks[which].iter().position(|&r| r == rank)
    }

    /// What the nth rank of the source has.
    fn values(&self, n: usize) -> Any<(Vec<usize>, Vec<i32>)> {
        let (grid, placements) = (self.source.mesh().shape(), self.source.placements());
        let at = self.source.mesh().coordinate_of(id_of(self.ranks[0][n]))?;
        let held = held(&SHAPE, grid, placements, &at);
        Ok((held.shape, held.data.iter().map(|&i| (100 * n + i) as i32).collect()))
    }

    fn local(&self, ctx: &RankCtx, scene: &Scene) -> Any<Option<Tensor>> {
        let Some(n) = self.rank_in(0, ctx.rank()) else { return Ok(None) };
        let (shape, values) = self.values(n)?;
        Ok(Some(Tensor::from_slice(&shape, &values)?.contiguous_in(scene.team.hub().tensors())?))
    }
}

fn every_pair(ctx: &RankCtx, scene: &Scene, one: fn(&RankCtx, &Scene, &Flow) -> RankResult) -> RankResult {
    let me = ctx.rank();
    let (mut round, mut gives, mut gets) = (0, 0, 0);
    for k in 1..=ctx.world() {
        let (grid, placements) = match k {
            4 => (vec![2, 2], vec![Shard(0), Shard(1)]),
            2 => (vec![1, 2], vec![Replicate, Shard(0)]),
            _ => (vec![k], vec![Shard(0)]),
        };
        for from in lists(ctx.world(), k) {
            let source = spec(&SHAPE, &mesh_of(&grid, &from)?, &placements)?;
            for to in lists(ctx.world(), k) {
                let flow = Flow {
                    name: format!("pair-{round}"),
                    source: source.clone(),
                    target: mesh_of(&grid, &to)?,
                    ranks: [from.clone(), to],
                };
                one(ctx, scene, &flow)
                    .map_err(|e| format!("{:?} -> {:?}: {e}", flow.ranks[0], flow.ranks[1]))?;
                let moved = || flow.ranks[0].iter().zip(&flow.ranks[1]).filter(|(from, to)| from != to);
                gives += u64::from(moved().any(|(&from, _)| from == me));
                gets += u64::from(moved().any(|(_, &to)| to == me));
                scene.clear(ctx, round)?;
                round += 1;
            }
        }
    }
    // Only what moves goes through the store, once, and as it is.
    let stats = scene.store.stats();
    check_eq!((stats.published, stats.fetched, stats.bytes_copied), (gives, gets, 0));
    done()
}

fn convert(ctx: &RankCtx, scene: &Scene, flow: &Flow) -> RankResult {
    let local = flow.local(ctx, scene)?;
    let got =
        scene.me().convert_mesh(&flow.name, &flow.source, &flow.target, local.as_ref(), ctx.deadline())?;
    let n = flow.rank_in(1, ctx.rank());
    check_eq!(got.is_some(), n.is_some());
    let (Some(got), Some(n)) = (got, n) else { return done() };
    let (giver, (shape, values)) = (flow.ranks[0][n], flow.values(n)?);
    check_eq!((got.shape(), got.to_vec::<i32>()?), (&shape[..], values));
    check_eq!(got.is_ours(), ctx.shares_process(giver), "handed over where it can be, else mapped");
    if giver == ctx.rank() {
        check!(local.is_some_and(|local| local.as_ptr() == got.as_ptr()), "it stays where it is");
    }
    done()
}

fn copy(ctx: &RankCtx, scene: &Scene, flow: &Flow) -> RankResult {
    let local = flow.local(ctx, scene)?;
    let n = flow.rank_in(1, ctx.rank());
    let (me, deadline) = (scene.me(), ctx.deadline());
    if local.is_none() && n.is_none() {
        return done(); // a device of neither has nothing to do here
    }
    let Some(n) = n else {
        me.copy(&flow.name, &flow.source, &flow.target, local.as_ref(), None, deadline)?;
        return done();
    };
    // Every other element, from the last one on.
    let (shape, values) = flow.values(n)?;
    let numel = values.len();
    let mut buf = TensorBuf::from_slice(&[2 * numel + 1], &vec![-1i32; 2 * numel + 1])?;
    let strides: Vec<isize> =
        Layout::contiguous(&shape)?.strides().iter().map(|stride| -2 * stride).collect();
    let offset = if numel == 0 { 0 } else { 2 * numel - 1 };
    let into = buf.view_mut(Layout::new(&shape, &strides, offset)?)?;
    me.copy(&flow.name, &flow.source, &flow.target, local.as_ref(), Some(into), deadline)?;
    let (taken, left): (Vec<_>, Vec<_>) =
        buf.as_slice::<i32>()?.iter().copied().enumerate().partition(|(i, _)| i % 2 == 1);
    check_eq!(taken.into_iter().rev().map(|(_, x)| x).collect::<Vec<_>>(), values);
    check!(left.into_iter().all(|(_, x)| x == -1), "written beside it");
    done()
}

/// In place, and by nobody else's help.
fn one_mesh(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let mesh = mesh_of(&[ctx.world()], &(0..ctx.world()).collect::<Vec<_>>())?;
    let source = spec(&[3 * ctx.world()], &mesh, &[Shard(0)])?;
    let (mine, me) = ([ctx.rank() as i32; 3], scene.me());
    let mut into = TensorBuf::zeros(&[3], DType::I32)?;
    let place = into.as_ptr();
    let local = Tensor::from_slice(&[3], &mine)?;
    me.copy("x", &source, &mesh, Some(&local), Some((&mut into).into()), ctx.deadline())?;
    check_eq!((into.as_slice::<i32>()?, into.as_ptr()), (&mine[..], place));
    check_eq!(scene.store.stats(), Default::default());
    done()
}
