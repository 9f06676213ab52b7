//! Windows: memory that ranks reach in each other, and the signals that say when.

use std::time::Duration;

use comm_testkit::{Case, Program, RankCtx, RankResult};

mod adding;
mod alloc;
mod arrival;
mod costs;
mod eight;
mod expose;
mod generations;
mod hostile;
mod lifetime;
mod model;
mod ordering;
mod pitfalls;
mod stress;
mod waiting;

const SUITE: &str = "window";

/// What also runs among eight ranks: `--world` need not ask for them.
pub const PROGRAMS: &[Program] = eight::PROGRAMS;

pub fn cases() -> Vec<Case> {
    [
        alloc::cases(),
        lifetime::cases(),
        expose::cases(),
        arrival::cases(),
        pitfalls::cases(),
        costs::cases(),
        ordering::cases(),
        adding::cases(),
        stress::cases(),
        generations::cases(),
        model::cases(),
        waiting::cases(),
        hostile::cases(),
        eight::cases(),
    ]
    .concat()
}

fn case(name: &str, run: fn(&RankCtx) -> RankResult) -> Case {
    Case::ranks(SUITE, name, run)
}

/// A case whose long version takes its time.
fn long(name: &str, run: fn(&RankCtx) -> RankResult) -> Case {
    case(name, run).limit(Duration::from_secs(300))
}
