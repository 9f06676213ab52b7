//! Plans against the shortest ways through all lists of placements, found by trying everything.

use comm_core::tensor::DType;

use super::simulator::{World, coordinates, dim_of, elements, indices};
use super::{lists, mesh, plain};
use crate::placement::{Placement, StepOp, plan};

/// Elements that the busiest rank copies when the placement of one mesh dimension changes; `None` where that is not one step.
fn cost(shape: &[usize], grid: &[usize], before: &[Placement], d: usize, to: &Placement) -> Option<usize> {
    use Placement::{Partial, Replicate};
    let from = &before[d];
    let mut after = before.to_vec();
    after[d] = to.clone();
    if grid[d] == 1 {
        return Some(0);
    }
    for (inner, ranks) in before.iter().zip(grid).skip(d + 1) {
        let splits_the_same = dim_of(inner).is_some() && [dim_of(from), dim_of(to)].contains(&dim_of(inner));
        let is_other = |p: &Placement| matches!((p, inner), (Partial(a), Partial(b)) if a != b);
        if *ranks > 1 && (splits_the_same || is_other(from) || is_other(to)) {
            return None;
        }
    }
    let of_rank = |at: Vec<usize>| {
        let old = elements(shape, &indices(shape, grid, before, &at));
        let new = elements(shape, &indices(shape, grid, &after, &at));
        match (from, to) {
            (Partial(_), Replicate) => {
                let own = new.len() / grid[d] + usize::from(at[d] < new.len() % grid[d]);
                (grid[d] - 1) * own + new.len() - own
            }
            (Partial(_), _) => (grid[d] - 1) * new.len(),
            (Replicate, Partial(_)) => 0,
            _ => new.iter().filter(|element| !old.contains(element)).count(),
        }
    };
    match (from, to) {
        (Partial(_), Partial(_)) => None,
        (from, Partial(_)) if dim_of(from).is_some() => None,
        _ => coordinates(grid).into_iter().map(of_rank).max(),
    }
}

/// The cheapest ways between all pairs, as elements and steps, by Floyd and Warshall.
fn ways(shape: &[usize], grid: &[usize], states: &[Vec<Placement>]) -> Vec<Vec<Option<(usize, usize)>>> {
    let edge = |a: &Vec<Placement>, b: &Vec<Placement>| {
        let differ: Vec<usize> = (0..grid.len()).filter(|&d| a[d] != b[d]).collect();
        match differ[..] {
            [] => Some((0, 0)),
            [d] => cost(shape, grid, a, d, &b[d]).map(|cost| (cost, 1)),
            _ => None,
        }
    };
    let mut ways: Vec<Vec<_>> = states.iter().map(|a| states.iter().map(|b| edge(a, b)).collect()).collect();
    for via in 0..states.len() {
        for a in 0..states.len() {
            for b in 0..states.len() {
                let (Some(x), Some(y)) = (ways[a][via], ways[via][b]) else { continue };
                let sum = (x.0 + y.0, x.1 + y.1);
                if ways[a][b].is_none_or(|known| sum < known) {
                    ways[a][b] = Some(sum);
                }
            }
        }
    }
    ways
}

fn all_pairs(shape: &[usize], grid: &[usize], run: bool) -> usize {
    let mesh = mesh(grid);
    let states = lists(&plain(shape.len()), grid.len());
    let ways = ways(shape, grid, &states);
    let mut longest = 0;
    for (from, row) in states.iter().zip(&ways) {
        for (to, way) in states.iter().zip(row) {
            let plan = plan(shape, DType::U8, &mesh, from, to).unwrap();
            let found = (plan.busiest_bytes() as usize, plan.steps().len());
            assert_eq!(Some(found), *way, "{plan}\n on {grid:?}");
            longest = longest.max(found.1);
            if run {
                let mut world = World::new(shape, grid, from);
                world.run(&plan, 1).unwrap_or_else(|why| panic!("{plan}\n on {grid:?}: {why}"));
                assert_eq!(world.placements, *to);
            }
        }
    }
    longest
}

#[test]
fn every_plan_on_a_small_mesh_is_right_and_the_cheapest() {
    for grid in [&[1][..], &[2], &[3], &[1, 2], &[2, 1], &[2, 2], &[2, 3], &[3, 2]] {
        for shape in [&[][..], &[0], &[1], &[4], &[7], &[0, 2], &[1, 2], &[2, 3], &[5, 3], &[4, 6]] {
            all_pairs(shape, grid, true);
        }
    }
}

#[test]
fn every_plan_on_a_cube_is_the_cheapest() {
    let longest = all_pairs(&[5, 4], &[2, 2, 2], false);
    assert!(longest > 3, "some go a roundabout way, but none takes {longest} steps");
}

/// Joining the inner shards to join the outer ones, and splitting again, moves 3/4 of the tensor. To shard another dimension for
/// the time being moves 5/8.
#[test]
fn another_dimension_is_sharded_for_a_while_if_that_is_cheaper() {
    use Placement::{Replicate, Shard};
    let plan =
        plan(&[8, 8], DType::U8, &mesh(&[2, 2]), &[Shard(0), Shard(0)], &[Replicate, Shard(0)]).unwrap();
    let steps: Vec<_> = plan.steps().iter().map(|step| (step.mesh_dim, step.op, step.bytes)).collect();
    assert_eq!(steps, [(1, StepOp::AllToAll, 8), (0, StepOp::AllGather, 16), (1, StepOp::AllToAll, 16)]);
}
