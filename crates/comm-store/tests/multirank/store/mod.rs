//! Tensors by key: one suite over both kinds of store.

use std::sync::Arc;

use comm_core::device::Stream;
use comm_core::team::Team;
use comm_store::store::{self, Kind, TensorStore};
use comm_testkit::{Case, Layout, Program, RankCtx, RankResult};

use crate::support::{Any, team};

mod handshake;

const SUITE: &str = "store";

pub const PROGRAMS: &[Program] = &[];

pub fn cases() -> Vec<Case> {
    [handshake::cases()].concat()
}

/// What a case runs with: a team of its own and a store on it.
pub struct Scene {
    pub store: Arc<dyn TensorStore>,
    pub team: Team,
    pub cpu: Stream,
}

pub fn scene(ctx: &RankCtx, kind: Kind) -> Any<Scene> {
    let team = team(ctx, "store")?;
    let store = store::open_kind(&team, kind, ctx.deadline())?;
    Ok(Scene { store, team, cpu: Stream::cpu() })
}

/// A case for each kind: kind `process` where all ranks are threads.
fn both(name: &str, run: fn(&RankCtx, Kind) -> RankResult) -> [Case; 2] {
    [Kind::Process, Kind::Host].map(|kind| {
        let case = Case::ranks(SUITE, name, move |ctx| run(ctx, kind)).backend(match kind {
            Kind::Process => "process",
            _ => "host",
        });
        if kind == Kind::Process { case.layouts(&[Layout::Threads]) } else { case }
    })
}
