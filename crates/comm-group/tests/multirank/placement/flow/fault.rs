//! A rank is killed in the middle of a flow: the others are told who, and in which flow.

use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::placement::flow::Participant;
use comm_group::placement::{Placement::Shard, TensorSpec};
use comm_store::store;
use comm_testkit::fault::Fault;
use comm_testkit::report::{self, in_time, is_lost};
use comm_testkit::witness::Witness;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use super::mesh_of;
use crate::placement::SUITE;
use crate::placement::model::id_of;
use crate::support::Any;

pub const LOOP: Program = Program { name: "flow-loop", run };

/// How long a survivor waits at most, and the launcher for it.
const OP: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_secs(20);

/// Where a participant can be with the store.
const POINTS: [&str; 5] = ["store.publish", "store.published", "store.fetched", "store.finish", "store.wait"];

pub fn cases() -> Vec<Case> {
    let kill = |point: &'static str| {
        Case::launcher(SUITE, format!("flow/-/i64/kill-{point}"), move |ctx| kill_at(ctx, point))
            .worlds(|world| world == 4)
            .layouts(&[Layout::Processes, Layout::Mixed])
            .backend("host")
            .limit(Duration::from_secs(60))
    };
    POINTS.into_iter().map(kill).collect()
}

/// All flows over and over, until an error.
fn run(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("t"), ctx.rank(), ctx.world(), OP)?;
    let store = store::open(&team, OP)?;
    let me = Participant::new(&*store, id_of(ctx.rank()));
    for round in 0.. {
        let before = report::busy();
        if let Err(error) = step(ctx, &me, round) {
            let Some(error) = error.downcast_ref::<Error>() else { return Err(error) };
            report::tell(ctx, "step", error, before);
            break;
        }
    }
    ctx.await_go("end")?;
    done()
}

fn step(ctx: &RankCtx, me: &Participant<'_>, round: usize) -> Any<()> {
    let (n, name) = (ctx.world(), format!("r{round}"));
    let (all, next): (Vec<usize>, Vec<usize>) =
        ((0..n).collect(), (0..n).map(|rank| (rank + 1) % n).collect());
    let source = TensorSpec::new(&[2 * n], DType::I64, &mesh_of(&[n], &all)?, &[Shard(0)])?;
    let target = source.on(&mesh_of(&[n], &next)?)?;
    let root = round % n;
    let values: Vec<i64> = (0..2 * n as i64).map(|i| 1000 * round as i64 + i).collect();
    let whole = Tensor::from_slice(&[2 * n], &values)?;
    let brought = (ctx.rank() == root).then_some(&whole);
    let shard = me.scatter(&name, id_of(root), &source, brought, OP)?;
    let moved = me.convert_mesh(&name, &source, target.mesh(), shard.as_ref(), OP)?;
    let mut into = TensorBuf::zeros(&[2], DType::I64)?;
    me.copy(&name, &target, source.mesh(), moved.as_ref(), Some((&mut into).into()), OP)?;
    let back = me.gather(&name, &source, Some(&into.freeze()), id_of(root), OP)?;
    match back {
        Some(back) if back.to_vec::<i64>()? != values => Err(format!("round {round}: {back:?}").into()),
        _ => Ok(()),
    }
}

/// The victim is held at the point, so that the moment of its death is known.
fn kill_at(ctx: &LauncherCtx, point: &'static str) -> RankResult {
    let mut rng = ctx.rng();
    let (victim, hit) = (rng.below(ctx.world() as u64) as usize, 3 + rng.below(20));
    let fault = Fault::at(point).rank(victim).hit(hit).hold("never");
    let running = ctx.launch(LOOP.name).fault(fault).limit(SOON).spawn()?;
    running.wait_held(victim, "never", SOON)?;
    let process = running.process_of(victim).ok_or("the launch runs it")?;
    let lost = running.ranks_of(process).to_vec();
    let witness = Witness::start();
    let killed = running.kill(process)?;
    let ranks = (0..running.processes()).flat_map(|p| running.ranks_of(p).to_vec());
    for rank in ranks.filter(|rank| !lost.contains(rank)) {
        let note = running.wait_note(rank, "error", SOON)?;
        is_lost(&note, &lost, "Died").map_err(|e| format!("rank {rank}: {e}"))?;
        in_time(&note, killed, &witness.gaps()).map_err(|e| format!("rank {rank}: {e}"))?;
        let text = note.value["text"].as_str().unwrap_or_default().to_owned();
        let flows = ["scatter", "convert_mesh", "copy", "gather"];
        let named = flows.iter().any(|flow| text.contains(&format!("{flow} of key \"r")));
        check!(named, "rank {rank}: {text}");
    }
    running.go("end")?;
    for report in running.wait(SOON) {
        let expected =
            if lost.contains(&report.rank) { Outcome::Killed(9) } else { Outcome::Ok(json!(null)) };
        check_eq!(&report.outcome, &expected, "rank {}", report.rank);
    }
    done()
}
