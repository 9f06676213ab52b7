//! Tensors that go from mesh to mesh by a store, of both kinds.

use std::sync::Arc;
use std::time::Duration;

use comm_core::team::Team;
use comm_core::tensor::DType;
use comm_group::placement::flow::Participant;
use comm_group::placement::{DeviceMesh, Placement, TensorSpec};
use comm_store::TensorStore;
use comm_store::store::{self, Kind};
use comm_testkit::{Case, Layout, RankCtx, RankResult, done};

use super::SUITE;
use super::model::id_of;
use crate::support::Any;

mod concurrent;
mod errors;
mod fault;
mod meshes;
mod order;
mod property;
mod streams;

pub use fault::LOOP;

/// How long a wait goes on that must end in vain.
const SHORT: Duration = Duration::from_millis(100);

/// So many rounds of names, and then they are cleared.
const ROUNDS_TO_RESET: usize = 64;

pub fn cases() -> Vec<Case> {
    [
        meshes::cases(),
        property::cases(),
        order::cases(),
        concurrent::cases(),
        errors::cases(),
        streams::cases(),
        fault::cases(),
    ]
    .concat()
}

/// A case for each kind of store: kind `process` where all ranks are threads.
fn both(name: &str, run: fn(&RankCtx, &Scene) -> RankResult) -> Vec<Case> {
    let case = |kind: Kind, backend: &'static str| {
        let run = move |ctx: &RankCtx| {
            let scene = Scene::new(ctx, kind)?;
            run(ctx, &scene)?;
            scene.team.barrier(ctx.deadline())?;
            done()
        };
        Case::ranks(SUITE, name, run).backend(backend)
    };
    vec![case(Kind::Process, "process").layouts(&[Layout::Threads]), case(Kind::Host, "host")]
}

/// What a case runs with: a team of its own and a store on it. Each rank is the device `id_of` it.
struct Scene {
    store: Arc<dyn TensorStore>,
    team: Team,
}

impl Scene {
    fn new(ctx: &RankCtx, kind: Kind) -> Any<Scene> {
        let team = Team::join(&ctx.name("flow"), ctx.rank(), ctx.world(), ctx.deadline())?;
        let store = store::open_kind(&team, kind, ctx.deadline())?;
        Ok(Scene { store, team })
    }

    fn me(&self) -> Participant<'_> {
        Participant::new(&*self.store, id_of(self.team.rank()))
    }

    /// In round after round, as long as there are names.
    fn clear(&self, ctx: &RankCtx, round: usize) -> RankResult {
        if round % ROUNDS_TO_RESET == ROUNDS_TO_RESET - 1 {
            self.store.reset(ctx.deadline())?;
        }
        done()
    }
}

/// The mesh of some ranks.
fn mesh_of(grid: &[usize], ranks: &[usize]) -> Any<DeviceMesh> {
    Ok(DeviceMesh::new(grid, ranks.iter().map(|&rank| id_of(rank)).collect())?)
}

fn spec(shape: &[usize], mesh: &DeviceMesh, placements: &[Placement]) -> Any<TensorSpec> {
    Ok(TensorSpec::new(shape, DType::I32, mesh, placements)?)
}
