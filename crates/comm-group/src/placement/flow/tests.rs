//! In one process nothing is copied that need not be.

use std::time::Duration;

use comm_core::Result;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor};
use comm_store::store;

use super::Participant;
use crate::ReduceOp;
use crate::placement::{
    DeviceMesh,
    Placement::{self, Partial, Replicate, Shard, SubSplit},
    TensorSpec,
};

const SOON: Duration = Duration::from_secs(20);

/// Three threads as devices 0, 1 and 2.
fn on_three(name: &str, body: impl Fn(usize, &Participant<'_>) -> Result<()> + Sync) {
    std::thread::scope(|s| {
        for rank in 0..3 {
            let body = &body;
            s.spawn(move || {
                let team = Team::join(name, rank, 3, SOON).unwrap();
                let store = store::open(&team, SOON).unwrap();
                body(rank, &Participant::new(&*store, rank)).unwrap();
                assert_eq!(store.stats().bytes_copied, 0);
            });
        }
    });
}

fn spec(placement: Placement, ids: [usize; 2]) -> TensorSpec {
    let mesh = DeviceMesh::new(&[2], ids.to_vec()).unwrap();
    TensorSpec::new(&[4, 6], DType::I32, &mesh, &[placement]).unwrap()
}

fn numbers(from: i32) -> Tensor {
    Tensor::from_slice(&[4, 6], &(from..from + 24).collect::<Vec<_>>()).unwrap()
}

#[test]
fn what_moves_is_handed_over() {
    let locals = [numbers(0), numbers(100)];
    on_three("flow-handed-over", |rank, me| {
        let target = DeviceMesh::new(&[2], vec![1, 2])?;
        let got = me.convert_mesh("x", &spec(Replicate, [0, 1]), &target, locals.get(rank), SOON)?;
        assert_eq!(got.is_some(), rank > 0);
        assert!(got.is_none_or(|got| got.shares_storage(&locals[rank - 1])));
        Ok(())
    });
}

#[test]
fn parts_are_views_of_the_whole() {
    let whole = numbers(0);
    on_three("flow-views", |rank, me| {
        for (i, placement) in
            [Shard(0), Shard(1), Replicate, Partial(ReduceOp::Sum), SubSplit { dim: 1, cut: 1 }]
                .into_iter()
                .enumerate()
        {
            let is_view = match placement {
                Partial(_) => rank == 2,
                SubSplit { .. } => false,
                _ => true,
            };
            let brought = (rank == 0).then_some(&whole);
            let part = me.scatter(&i.to_string(), 0, &spec(placement, [2, 1]), brought, SOON)?;
            assert_eq!(part.is_some(), rank > 0);
            assert!(part.is_none_or(|part| part.shares_storage(&whole) == is_view), "{i} on {rank}");
        }
        Ok(())
    });
}

#[test]
fn of_replicas_one_is_the_whole() {
    let locals = [numbers(0), numbers(0)];
    on_three("flow-replicas", |rank, me| {
        let back = me.gather("x", &spec(Replicate, [0, 1]), locals.get(rank), 2, SOON)?;
        assert!(back.is_none_or(|back| back.shares_storage(&locals[0])));
        let rows = spec(Shard(0), [0, 1]);
        let half = locals.get(rank).map(|local| rows.cut(local, rank)).transpose()?;
        let back = me.gather("y", &rows, half.as_ref(), 2, SOON)?;
        assert!(back.is_none_or(|back| back.is_contiguous() && !back.shares_storage(&locals[0])));
        Ok(())
    });
}
