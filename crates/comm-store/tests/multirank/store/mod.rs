//! Tensors by key: one suite over both kinds of store, and what only one of them can show.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::device::Stream;
use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error};
use comm_store::store::{self, Fetched, Kind, TensorStore};
use comm_testkit::{Case, Layout, Program, RankCtx, RankResult, check, done};

use crate::support::{Any, GaveUp, Script, gave_up_after, team};

mod eight;
mod guards;
mod handshake;
mod hostile;
mod keys;
mod lifetime;
mod limits;
mod opening;
mod over_resets;
mod reset;
mod size;
mod streams;
mod stress;
mod tasks;
mod tensors;

const SUITE: &str = "store";

/// What runs in launches of its own.
pub fn programs() -> Vec<Program> {
    [size::PROGRAMS, limits::PROGRAMS, hostile::PROGRAMS, stress::PROGRAMS, eight::PROGRAMS].concat()
}

/// What is the same for every kind of store.
const CONFORMANCE: &[&[(&str, Run)]] = &[
    handshake::CASES,
    guards::CASES,
    keys::CASES,
    reset::CASES,
    tasks::CASES,
    opening::CASES,
    tensors::CASES,
    lifetime::CASES,
    over_resets::CASES,
];

fn conformance() -> impl Iterator<Item = (&'static str, Run)> {
    CONFORMANCE.iter().copied().flatten().copied()
}

pub fn cases() -> Vec<Case> {
    let conformance = conformance().flat_map(|(name, run)| both(name, run));
    let abroad = streams::ABROAD.iter().flat_map(|&(name, run)| both(name, run));
    [
        conformance.chain(abroad).collect(),
        streams::cases(),
        size::cases(),
        limits::cases(),
        hostile::cases(),
        stress::cases(),
        eight::cases(),
    ]
    .concat()
}

type Run = fn(&RankCtx, Kind) -> RankResult;

/// A case for each kind: kind `process` where all ranks are threads.
fn both(name: &str, run: Run) -> [Case; 2] {
    [Kind::Process, Kind::Host].map(|kind| of(kind, name, run))
}

fn of(kind: Kind, name: &str, run: Run) -> Case {
    let case = Case::ranks(SUITE, name, move |ctx| run(ctx, kind));
    match kind {
        Kind::Process => case.backend("process").layouts(&[Layout::Threads]),
        _ => case.backend("host"),
    }
}

/// Checks that a wait gives up when its time is over, and not before.
fn in_vain<T: Debug>(wait: impl FnOnce(Deadline) -> Result<T, Error>) -> Any<GaveUp> {
    const BRIEF: Duration = Duration::from_millis(20);
    let began = Instant::now();
    let outcome = wait(BRIEF.into());
    check!(began.elapsed() >= BRIEF, "{outcome:?} after {:?}", began.elapsed());
    gave_up_after(Duration::ZERO, outcome)
}

/// What a case runs with: a team of its own, a store on it, and a script.
pub struct Scene {
    pub store: Arc<dyn TensorStore>,
    pub script: Script,
    pub cpu: Stream,
    pub by: Deadline,
    pub team: Team,
}

impl Scene {
    pub fn new(ctx: &RankCtx, kind: Kind) -> Any<Scene> {
        let script = Script::new(ctx)?;
        let team = team(ctx, "store")?;
        let store = store::open_kind(&team, kind, ctx.deadline())?;
        Ok(Scene { store, script, cpu: Stream::cpu(), by: ctx.deadline(), team })
    }

    pub fn publish(&self, key: &str, tensor: &Tensor, readers: usize) -> Result<(), Error> {
        self.store.publish(key, tensor, &self.cpu, readers, None)
    }

    pub fn fetch(&self, key: &str) -> Result<Fetched, Error> {
        self.store.fetch(key, &self.cpu, self.by)
    }

    /// Fetches, reads and finishes.
    pub fn read(&self, key: &str) -> Any<Vec<f32>> {
        let read = self.fetch(key)?;
        let values = read.to_vec()?;
        read.finish()?;
        Ok(values)
    }

    pub fn wait_consumed(&self, key: &str) -> Result<(), Error> {
        self.store.wait_consumed(key, self.by)
    }

    /// Waits for the readers of a key in vain.
    pub fn not_consumed(&self, key: &str) -> Any<GaveUp> {
        in_vain(|by| self.store.wait_consumed(key, by))
    }

    /// Waits for a key in vain.
    pub fn not_there(&self, key: &str) -> Any<GaveUp> {
        in_vain(|by| self.store.fetch(key, &self.cpu, by))
    }

    /// A tensor in the arena of this process.
    pub fn in_arena(&self, values: &[f32]) -> Any<Tensor> {
        Ok(tensor(values)?.contiguous_in(self.team.hub().tensors())?)
    }

    /// All ranks come here before any goes on.
    pub fn all(&self) -> Result<(), Error> {
        self.team.barrier(self.by)
    }

    /// The end of the case: nobody leaves before all are through.
    pub fn end(&self) -> RankResult {
        self.all()?;
        done()
    }
}

/// A tensor on the heap.
pub fn tensor(values: &[f32]) -> Any<Tensor> {
    Ok(Tensor::from_slice(&[values.len()], values)?)
}

/// Values that name their origin.
pub fn values(rank: usize, round: usize) -> Vec<f32> {
    (0..5).map(|i| (100 * round + 10 * rank + i) as f32).collect()
}

/// Whether a rank waits for something that is called so, as all ranks see it.
pub fn waits(team: &Team, rank: usize, what: &str) -> bool {
    team.snapshot().ranks[rank].wait.as_ref().is_some_and(|wait| wait.what.contains(what))
}
