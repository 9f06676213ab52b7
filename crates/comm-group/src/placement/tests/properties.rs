//! Random meshes, shapes and placements.

use comm_core::Error;
use comm_core::tensor::DType;

use super::simulator::{World, coordinates, dim_of, indices};
use super::{OPS, lists, mesh};
use crate::placement::{Placement, StepOp, extent, local_shape, plan, validate};
use Placement::{Partial, Replicate, Shard, SubSplit, Uneven};

/// Random numbers that are the same in every run (splitmix64).
struct Dice(u64);

impl Dice {
    /// Below `n`.
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % n as u64) as usize
    }

    fn mesh(&mut self) -> Vec<usize> {
        loop {
            let grid: Vec<usize> = (0..1 + self.roll(3)).map(|_| 1 + self.roll(4)).collect();
            if grid.iter().product::<usize>() <= 8 {
                return grid;
            }
        }
    }

    fn shape(&mut self) -> Vec<usize> {
        (0..self.roll(4)).map(|_| self.roll(14)).collect()
    }

    /// Placements that are possible; about a third of the shards are not by the rule.
    fn placements(&mut self, shape: &[usize], grid: &[usize]) -> Vec<Placement> {
        let mut placements = Vec::new();
        for &ranks in grid {
            let dim = if shape.is_empty() { 0 } else { self.roll(shape.len()) };
            let placement = match self.roll(8) {
                0 | 1 => Replicate,
                2 => Partial(OPS[self.roll(OPS.len())]),
                _ if shape.is_empty() => Replicate,
                kind => {
                    let outer = &grid[..placements.len()];
                    let lens = coordinates(outer)
                        .into_iter()
                        .map(|at| indices(shape, outer, &placements, &at)[dim].len());
                    let lens: Vec<usize> = lens.collect();
                    let least = lens.iter().copied().min().unwrap_or(0);
                    match kind {
                        3 if least > 1 => SubSplit { dim, cut: 1 + self.roll(least - 1) },
                        4 if lens.iter().all(|&n| n == least) => {
                            let mut sizes = vec![0; ranks];
                            (0..least).for_each(|_| sizes[self.roll(ranks)] += 1);
                            Uneven { dim, sizes }
                        }
                        _ => Shard(dim),
                    }
                }
            };
            placements.push(placement);
        }
        placements
    }
}

fn is_cut(placement: &Placement) -> bool {
    matches!(placement, SubSplit { .. })
}

/// The usual order: first all that is not from shards to the whole, the first mesh dimension first; then the rest, the last one first.
/// Its cost, if it is legal and there are no sub-splits and uneven shards, which it does not know.
fn usual_order(shape: &[usize], grid: &[usize], from: &[Placement], to: &[Placement]) -> Option<u64> {
    let mesh = mesh(grid);
    let is_join = |&d: &usize| dim_of(&from[d]).is_some() && to[d] == Replicate;
    let changes = |d: &usize| from[*d] != to[*d];
    let mut order: Vec<usize> = (0..grid.len()).filter(|d| changes(d) && !is_join(d)).collect();
    order.extend((0..grid.len()).rev().filter(|d| changes(d) && is_join(d)));
    let mut here = from.to_vec();
    let mut cost = 0;
    for d in order {
        let mut stops = vec![to[d].clone()];
        if matches!(to[d], Partial(_)) && from[d] != Replicate {
            stops.insert(0, Replicate);
        }
        for next in stops {
            let op = crate::placement::step::operation(shape, &mesh, &here, d, &next)?;
            let mut after = here.clone();
            after[d] = next;
            validate(shape, &mesh, &after).ok()?;
            let around = [&here[..], &after[..]];
            let moved = |at: Vec<usize>| crate::placement::traffic::of_rank(shape, &mesh, around, d, op, &at);
            cost += mesh.coordinates().map(moved).max().unwrap_or(0);
            here = after;
        }
    }
    Some(cost)
}

#[test]
fn random_plans_are_legal_right_and_no_dearer_than_the_usual_order() {
    let mut dice = Dice(1);
    let (mut refused, mut usual, mut cheaper, mut roundabout) = (0, 0, 0, 0);
    for round in 0..3000 {
        let (grid, shape) = (dice.mesh(), dice.shape());
        let (from, to) = (dice.placements(&shape, &grid), dice.placements(&shape, &grid));
        let mesh = mesh(&grid);
        let what = format!("round {round}: {from:?} -> {to:?} of {shape:?} on {grid:?}");

        let is_refused = |d: usize| {
            let (a, b) = (&from[d], &to[d]);
            grid[d] > 1 && a != b && dim_of(a).is_some() && dim_of(b).is_some() && (is_cut(a) || is_cut(b))
        };
        let plan = match plan(&shape, DType::I16, &mesh, &from, &to) {
            Ok(plan) => plan,
            Err(Error::Unsupported { .. }) if (0..grid.len()).any(is_refused) => {
                refused += 1;
                continue;
            }
            Err(other) => panic!("{what}: {other}"),
        };
        assert!(!(0..grid.len()).any(is_refused), "{what}: {plan}");

        let mut world = World::new(&shape, &grid, &from);
        world.run(&plan, 2).unwrap_or_else(|why| panic!("{what}\n{plan}\n{why}"));
        assert_eq!(world.placements, to, "{what}");
        assert_eq!(super::super::plan(&shape, DType::I16, &mesh, &from, &to).unwrap(), plan, "{what}");
        if let Some(cost) = usual_order(&shape, &grid, &from, &to) {
            usual += 1;
            assert!(plan.busiest_bytes() <= 2 * cost, "{what}: {cost} elements, and\n{plan}");
            cheaper += usize::from(plan.busiest_bytes() < 2 * cost);
        } else {
            roundabout += 1;
        }
    }
    assert!(
        refused > 100 && usual > 1000 && cheaper > 10 && roundabout > 100,
        "{refused} {usual} {cheaper} {roundabout}"
    );
}

#[test]
fn extents_are_what_the_ranks_hold() {
    let mut dice = Dice(2);
    for _ in 0..2000 {
        let (grid, shape) = (dice.mesh(), dice.shape());
        let placements = dice.placements(&shape, &grid);
        let mesh = mesh(&grid);
        assert_eq!(mesh.coordinates().collect::<Vec<_>>(), coordinates(&grid));
        for at in coordinates(&grid) {
            let held = indices(&shape, &grid, &placements, &at);
            let extent = extent(&shape, &mesh, &placements, &at).unwrap();
            let what = format!("{placements:?} of {shape:?} on {grid:?} at {at:?}");
            for (dim, held) in held.iter().enumerate() {
                let ranges = extent.ranges(dim).unwrap();
                assert_eq!(&ranges.iter().cloned().flatten().collect::<Vec<_>>(), held, "{what}");
                assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{what}: {ranges:?}");
                assert!(ranges.iter().all(|range| !range.is_empty()), "{what}: {ranges:?}");
            }
            let shape_held: Vec<usize> = held.iter().map(Vec::len).collect();
            assert_eq!(local_shape(&shape, &mesh, &placements, &at).unwrap(), shape_held, "{what}");
        }
    }
}

/// The meshes of more dimensions that DTorch redistributes on.
#[test]
fn meshes_of_many_dimensions() {
    let sum = Partial(OPS[0]);
    let from = [Replicate, Shard(1), sum.clone(), Shard(1), Shard(0)];
    let whole = vec![Replicate; 5];
    let grid = [3, 2, 4, 3, 6];
    for (a, b) in [(&from[..], &whole[..]), (&whole, &from)] {
        let plan = plan(&[6, 123], DType::F32, &mesh(&grid), a, b).unwrap();
        World::new(&[6, 123], &grid, a).run(&plan, 4).unwrap();
    }
    let from = [Shard(0), Shard(2), Shard(2)];
    let plan = plan(&[3, 2, 9], DType::F32, &mesh(&[2, 2, 2]), &from, &whole[..3]).unwrap();
    World::new(&[3, 2, 9], &[2, 2, 2], &from).run(&plan, 4).unwrap();
}

/// With so many lists of placements that not all of them are tried, or none.
#[test]
fn large_spaces_have_plans_too() {
    let grid = [2, 1, 2, 1, 1, 2, 1, 1, 1, 1];
    let mut dice = Dice(3);
    for _ in 0..20 {
        let shape = [5, 4, 3, 2];
        let (from, to) = (dice.placements(&shape, &grid), dice.placements(&shape, &grid));
        if from.iter().chain(&to).any(is_cut) {
            continue;
        }
        for dims in [5, 6, 10] {
            let (from, to, grid) = (&from[..dims], &to[..dims], &grid[..dims]);
            let plan = plan(&shape, DType::U8, &mesh(grid), from, to).unwrap();
            let mut world = World::new(&shape, grid, from);
            world.run(&plan, 1).unwrap_or_else(|why| panic!("{plan}\n{why}"));
            assert_eq!(world.placements, to);
        }
    }
}

#[test]
fn beyond_them_all_becomes_r_for_a_while() {
    let grid = [2, 1, 1, 2, 1, 2, 1, 1];
    let (a, b) = (Shard(0), Shard(1));
    let from = [&a, &b, &b, &a, &b, &a, &b, &a].map(Placement::clone);
    let to = [&b, &a, &a, &b, &a, &b, &a, &b].map(Placement::clone);
    let plan = plan(&[9, 10], DType::U8, &mesh(&grid), &from, &to).unwrap();
    assert_eq!(plan.states()[8], [const { Replicate }; 8]);
    let mut world = World::new(&[9, 10], &grid, &from);
    world.run(&plan, 1).unwrap();
    assert_eq!(world.placements, to);
}

#[test]
fn any_chain_of_plans_keeps_the_tensor() {
    let (shape, grid) = ([5, 6], [2, 3]);
    let all = lists(&[Replicate, Shard(0), Shard(1), Partial(OPS[0])], 2);
    let mut dice = Dice(4);
    let mut world = World::new(&shape, &grid, &all[0]);
    for _ in 0..200 {
        let to = &all[dice.roll(all.len())];
        let plan = plan(&shape, DType::F64, &mesh(&grid), &world.placements, to).unwrap();
        world.run(&plan, 8).unwrap();
        assert!(plan.steps().iter().all(|step| step.op != StepOp::Nothing));
    }
}
