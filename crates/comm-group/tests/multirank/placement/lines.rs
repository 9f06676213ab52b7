//! A rank is killed while the others wait for it to come to the group of a line.

use std::time::Duration;

use comm_core::tensor::Tensor;
use comm_group::ThreadGroupManager;
use comm_group::placement::Placement::{Replicate, Shard};
use comm_group::placement::{DeviceMesh, Distributed, MeshRank};
use comm_testkit::fault::Fault;
use comm_testkit::report::{self, in_time};
use comm_testkit::witness::Witness;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use super::{BACKEND, SOON, SUITE};

pub const LINES: Program = Program { name: "placement-lines", run };

/// What the others would wait if nobody told them.
const OP: Duration = Duration::from_secs(15);

pub fn cases() -> Vec<Case> {
    let kill = |victim: usize| {
        Case::launcher(SUITE, format!("redistribute/-/i32/killed-before-a-line/{victim}"), move |ctx| {
            killed(ctx, victim)
        })
        .worlds(|world| world == 4)
        .layouts(&[Layout::Processes, Layout::Mixed])
        .backend(BACKEND)
        .limit(Duration::from_secs(60))
    };
    vec![kill(0), kill(3)]
}

/// Both mesh dimensions are gathered, so each rank is in two lines.
fn run(ctx: &RankCtx) -> RankResult {
    let mesh = DeviceMesh::new(&[2, 2], (0..4).collect())?;
    let manager = ThreadGroupManager::with_prefix(ctx.name("lines"));
    let rank = MeshRank::new(&mesh, ctx.rank(), &manager)?;
    let local = Tensor::from_slice(&[1, 1], &[ctx.rank() as i32])?;
    let part = Distributed::new(local, &[2, 2], &[Shard(0), Shard(1)]);
    let before = report::busy();
    match rank.redistribute(&part, &[Replicate, Replicate], OP) {
        Ok(_) => return Err("all came".into()),
        Err(error) => report::tell(ctx, "step", &error, before),
    }
    ctx.await_go("end")?;
    done()
}

/// The first group that a rank joins is that of the mesh, which all agree in; the next one is that of a line.
fn killed(ctx: &LauncherCtx, victim: usize) -> RankResult {
    let fault = Fault::at("join.begin").rank(victim).hit(2).hold("never");
    let running = ctx.launch(LINES.name).fault(fault).limit(SOON).spawn()?;
    running.wait_held(victim, "never", SOON)?;
    let process = running.process_of(victim).ok_or("the launch runs it")?;
    let lost = running.ranks_of(process).to_vec();
    let witness = Witness::start();
    let killed = running.kill(process)?;
    for rank in (0..ctx.world()).filter(|rank| !lost.contains(rank)) {
        let note = running.wait_note(rank, "error", SOON)?;
        // Who is in no line with the victim may hear of it from those who are. Ranks are those of the mesh, or of a line.
        let is_told = note.value["how"] == "Died" || note.value["kind"] == "aborted";
        check!(is_told, "rank {rank}: {}", note.value);
        in_time(&note, killed, &witness.gaps()).map_err(|e| format!("rank {rank}: {e}"))?;
    }
    running.go("end")?;
    for report in running.wait(SOON) {
        let expected =
            if lost.contains(&report.rank) { Outcome::Killed(9) } else { Outcome::Ok(json!(null)) };
        check_eq!(&report.outcome, &expected, "rank {}", report.rank);
    }
    done()
}
