//! Which operation turns what into what, and where that is legal.

use std::slice::from_ref;

use comm_core::Error;
use comm_core::tensor::DType;

use super::simulator::{World, dim_of};
use super::{OPS, lists, mesh, plain};
use crate::ReduceOp;
use crate::placement::step::operation;
use crate::placement::{Placement, StepOp, plan};
use Placement::{Partial, Replicate, Shard, SubSplit, Uneven};
use StepOp::{AllGather, AllReduce, AllToAll, Mask, Nothing, ReduceScatter, ReplicateToShard};

fn ops(shape: &[usize], ranks: usize, from: &Placement, to: &Placement) -> Vec<StepOp> {
    let (from, to) = ([from.clone()], [to.clone()]);
    let plan = plan(shape, DType::F32, &mesh(&[ranks]), &from, &to).unwrap();
    World::new(shape, &[ranks], &from).run(&plan, 4).unwrap();
    plan.steps().iter().map(|step| step.op).collect()
}

#[test]
fn the_matrix_of_conversions() {
    let sum = Partial(ReduceOp::Sum);
    let all = [Replicate, Shard(0), Shard(1), sum];
    let expected: [[&[StepOp]; 4]; 4] = [
        [&[], &[ReplicateToShard], &[ReplicateToShard], &[Mask]],
        [&[AllGather], &[], &[AllToAll], &[AllGather, Mask]],
        [&[AllGather], &[AllToAll], &[], &[AllGather, Mask]],
        [&[AllReduce], &[ReduceScatter], &[ReduceScatter], &[]],
    ];
    for shape in [[4, 8], [5, 9]] {
        for ranks in 2..5 {
            for (from, row) in all.iter().zip(expected) {
                for (to, steps) in all.iter().zip(row) {
                    assert_eq!(ops(&shape, ranks, from, to), steps, "{from} -> {to} of {shape:?} on {ranks}");
                }
            }
        }
    }
}

/// One rank would reduce all, which takes it twice as long as when everybody reduces his part.
#[test]
fn a_few_elements_are_better_reduced_by_all() {
    let sum = Partial(ReduceOp::Sum);
    assert_eq!(ops(&[1, 3], 3, &sum, &Shard(0)), [AllReduce, ReplicateToShard]);
    assert_eq!(ops(&[1, 3], 3, &sum, &Shard(1)), [ReduceScatter]);
}

/// One contribution to such a sum is not the sum, and what is not reduced yet stands in the way.
#[test]
fn a_premultiplied_sum_of_one_rank_is_reduced() {
    let premul = Partial(ReduceOp::premul_sum(-1.0));
    for ranks in [1, 3] {
        assert_eq!(ops(&[6, 2], ranks, &premul, &Replicate), [AllReduce]);
        assert_eq!(ops(&[6, 2], ranks, &premul, &Shard(0)), [ReduceScatter]);
        let begun = plan(&[6, 2], DType::F32, &mesh(&[ranks]), &[Replicate], from_ref(&premul));
        assert!(matches!(begun, Err(Error::Unsupported { .. })), "{begun:?}");
    }
    assert_eq!(ops(&[6, 2], 1, &premul, &Partial(ReduceOp::Sum)), [AllReduce, Nothing]);
    let outer =
        |inner: &Placement| operation(&[6], &mesh(&[2, 1]), &[&Partial(ReduceOp::Max), inner], 0, &Replicate);
    assert_eq!((outer(&premul), outer(&Partial(ReduceOp::Sum))), (None, Some(AllReduce)));
}

#[test]
fn sub_splits_are_joined_and_made() {
    let cut = SubSplit { dim: 0, cut: 3 };
    let sum = Partial(ReduceOp::Sum);
    assert_eq!(ops(&[8, 2], 2, &cut, &Replicate), [AllGather]);
    assert_eq!(ops(&[8, 2], 2, &Replicate, &cut), [ReplicateToShard]);
    assert_eq!(ops(&[8, 2], 2, &sum, &cut), [ReduceScatter]);
    assert_eq!(ops(&[8, 2], 2, &cut, &sum), [AllGather, Mask]);
    assert_eq!(ops(&[8, 2], 1, &cut, &Shard(1)), [Nothing], "one rank has it all");
    for (from, to) in [(&cut, &Shard(0)), (&Shard(1), &cut), (&cut, &SubSplit { dim: 0, cut: 4 })] {
        let refused = plan(&[8, 2], DType::F32, &mesh(&[2]), from_ref(from), from_ref(to)).unwrap_err();
        let Error::Unsupported { op, why, .. } = refused else { panic!("{refused}") };
        assert_eq!(op, format!("{from} -> {to} on mesh dimension 0"));
        assert!(why.contains("plan to R first"), "{why}");
    }
}

#[test]
fn uneven_shards_are_shards() {
    let uneven = |dim, sizes: &[usize]| Uneven { dim, sizes: sizes.to_vec() };
    assert_eq!(ops(&[9, 4], 3, &uneven(0, &[2, 3, 4]), &Replicate), [AllGather]);
    assert_eq!(ops(&[9, 4], 3, &Replicate, &uneven(0, &[9, 0, 0])), [ReplicateToShard]);
    assert_eq!(ops(&[9, 4], 3, &uneven(0, &[2, 3, 4]), &Shard(1)), [AllToAll]);
    assert_eq!(ops(&[9, 4], 3, &Shard(1), &uneven(0, &[0, 0, 9])), [AllToAll]);
    assert_eq!(ops(&[9, 4], 3, &Shard(0), &uneven(0, &[2, 3, 4])), [AllToAll], "along one dimension");
    assert_eq!(ops(&[9, 4], 3, &Shard(0), &uneven(0, &[3, 3, 3])), [Nothing], "another name");
    assert_eq!(ops(&[9, 4], 3, &Partial(ReduceOp::Sum), &uneven(1, &[1, 2, 1])), [ReduceScatter]);
}

/// A step by its definition, wherever the rules would have it.
fn direct(from: &Placement, to: &Placement) -> Option<StepOp> {
    match (from, to) {
        (Replicate, Partial(_)) => Some(Mask),
        (Replicate, _) => Some(ReplicateToShard),
        (Partial(_), Replicate) => Some(AllReduce),
        (Partial(_), to) => dim_of(to).map(|_| ReduceScatter),
        (_, Replicate) => Some(AllGather),
        (_, to) => dim_of(to).map(|_| AllToAll),
    }
}

/// The rules allow exactly the steps after which everybody has what he should: shown where no coincidence helps, since every piece
/// can be split further.
#[test]
fn what_is_legal_works_and_what_is_not_does_not() {
    let (mut legal, mut illegal) = (0, 0);
    for (shape, grid) in [(&[16, 8][..], &[2, 2, 2][..]), (&[36], &[3, 2, 2]), (&[18, 18], &[2, 1, 3])] {
        for before in lists(&plain(shape.len()), grid.len()) {
            for (d, to) in (0..grid.len()).flat_map(|d| plain(shape.len()).into_iter().map(move |to| (d, to)))
            {
                let Some(op) = direct(&before[d], &to).filter(|_| before[d] != to && grid[d] > 1) else {
                    continue;
                };
                let works = World::new(shape, grid, &before).step(d, &to, op);
                let judged = operation(shape, &mesh(grid), &before, d, &to);
                let what = format!("{before:?} with {to} at {d} on {grid:?}");
                match judged {
                    Some(judged) => assert_eq!((judged, works.is_ok()), (op, true), "{what}: {works:?}"),
                    // A mask under another operator may do no harm (0 is the largest of zeros). The rules do not tell that apart.
                    None => assert!(works.is_err() || op == Mask, "{what}"),
                }
                if works.is_ok() { legal += 1 } else { illegal += 1 }
            }
        }
    }
    assert!(legal > 700 && illegal > 150, "{legal} and {illegal}");
}

#[test]
fn different_operators_are_reduced_from_the_inside() {
    for &outer in OPS {
        for &inner in OPS {
            let (from, to) = ([Partial(outer), Partial(inner)], [Replicate, Partial(inner)]);
            let plan = plan(&[3], DType::I64, &mesh(&[2, 3]), &from, &to).unwrap();
            World::new(&[3], &[2, 3], &from).run(&plan, 8).unwrap();
            let first = &plan.steps()[0];
            assert_eq!(first.mesh_dim, usize::from(outer != inner), "{plan}");
            let comes_back = plan.steps().last().is_some_and(|last| last.op == Mask);
            assert_eq!(comes_back, outer != inner, "{plan}");
        }
    }
}
