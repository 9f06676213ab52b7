//! Processes that die or stop: exactly what they held breaks, and what they have set is read.

use std::time::Duration;

use comm_testkit::{Case, LauncherCtx, Layout, Program, RankResult};

use crate::support::SUITE;

mod home;
mod link;
mod moments;
mod stopped;
mod strangers;
mod unheard;
mod unsent;
mod worker;

/// For everything that must come.
const SOON: Duration = Duration::from_secs(30);

pub fn cases() -> Vec<Case> {
    [
        worker::cases(),
        home::cases(),
        link::cases(),
        stopped::cases(),
        strangers::cases(),
        unheard::cases(),
        unsent::cases(),
        moments::cases(),
    ]
    .concat()
}

pub fn programs() -> Vec<Program> {
    [
        worker::PROGRAMS,
        home::PROGRAMS,
        link::PROGRAMS,
        stopped::PROGRAMS,
        strangers::PROGRAMS,
        unheard::PROGRAMS,
        unsent::PROGRAMS,
        moments::PROGRAMS,
    ]
    .concat()
}

/// A case whose launches are processes of one rank each.
fn case(name: impl Into<String>, run: impl Fn(&LauncherCtx) -> RankResult + Send + Sync + 'static) -> Case {
    let case = Case::launcher(SUITE, name, run).backend("host").layouts(&[Layout::Processes]);
    case.worlds(|world| world == 3).limit(Duration::from_secs(120))
}
