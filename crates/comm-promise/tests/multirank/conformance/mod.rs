//! What is the same for both kinds.

use comm_testkit::{Case, Program};

use crate::support::{Run, both};

mod blocking;
mod ending;
mod joining;
mod setting;
mod streams;
mod tasks;

const CASES: &[&[(&str, Run)]] =
    &[setting::CASES, ending::CASES, tasks::CASES, joining::CASES, streams::CASES, blocking::CASES];

pub fn cases() -> Vec<Case> {
    let all = CASES.iter().copied().flatten().flat_map(|&(name, run)| both(name, run));
    all.chain([tasks::in_fresh_processes()]).collect()
}

pub const PROGRAMS: &[Program] = &[tasks::FRESH];
