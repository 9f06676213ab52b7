//! What waiting costs, and what a team shows of those who wait.

mod arena;
pub mod executor;
mod idle;
mod snapshot;
mod tasks;
mod wakers;

use comm_testkit::{Case, Program};

pub const PROGRAMS: &[Program] = &[
    Program { name: "waiting.idle", run: idle::waits },
    Program { name: "waiting.tasks", run: tasks::many },
];

pub fn cases() -> Vec<Case> {
    [arena::cases(), idle::cases(), snapshot::cases(), tasks::cases(), wakers::cases()].concat()
}
