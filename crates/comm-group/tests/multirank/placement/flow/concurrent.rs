//! Several operators at once, on the same devices and by the same store.

use std::thread;

use comm_core::tensor::Tensor;
use comm_group::placement::Placement::Shard;
use comm_testkit::{Case, RankCtx, RankResult, check_eq, done};

use super::{Scene, both, mesh_of, spec};
use crate::placement::model::id_of;
use crate::support::Any;

const OPERATORS: usize = 3;
const ROUNDS: usize = 40;

pub fn cases() -> Vec<Case> {
    both("flow/-/i32/several-operators", several)
}

fn several(ctx: &RankCtx, scene: &Scene) -> RankResult {
    thread::scope(|s| {
        let operators: Vec<_> = (0..OPERATORS)
            .map(|k| s.spawn(move || operator(ctx, scene, k).map_err(|e| e.to_string())))
            .collect();
        operators.into_iter().try_for_each(|operator| match operator.join() {
            Ok(outcome) => outcome,
            Err(_) => Err("an operator panicked".to_owned()),
        })
    })?;
    done()
}

/// Scatters, passes the shards round, and gathers, in an order of its own.
fn operator(ctx: &RankCtx, scene: &Scene, k: usize) -> Any<()> {
    let n = ctx.world();
    let ranks: Vec<usize> = (0..n).map(|i| (i + k) % n).collect();
    let next: Vec<usize> = ranks.iter().map(|rank| (rank + 1) % n).collect();
    let source = spec(&[2 * n], &mesh_of(&[n], &ranks)?, &[Shard(0)])?;
    let target = source.on(&mesh_of(&[n], &next)?)?;
    let (me, by) = (scene.me(), ctx.deadline());
    for round in 0..ROUNDS {
        let name = format!("operator-{k}-round-{round}");
        let values: Vec<i32> = (0..2 * n).map(|i| (10_000 * k + 100 * round + i) as i32).collect();
        let whole = Tensor::from_slice(&[2 * n], &values)?;
        let root = (round + k) % n;
        let brought = (ctx.rank() == root).then_some(&whole);
        let shard = me.scatter(&name, id_of(root), &source, brought, by)?;
        let passed = me.convert_mesh(&name, &source, target.mesh(), shard.as_ref(), by)?;
        let back = me.gather(&name, &target, passed.as_ref(), id_of(root), by)?;
        check_eq!(
            back.map(|back| back.to_vec::<i32>()).transpose()?,
            (ctx.rank() == root).then_some(values),
            "{name}"
        );
    }
    Ok(())
}
