//! What is the same for both kinds.

use comm_testkit::Case;

use crate::support::{Run, both};

mod ending;
mod joining;
mod setting;
mod streams;
mod tasks;

const CASES: &[&[(&str, Run)]] =
    &[setting::CASES, ending::CASES, tasks::CASES, joining::CASES, streams::CASES];

pub fn cases() -> Vec<Case> {
    CASES.iter().copied().flatten().flat_map(|&(name, run)| both(name, run)).collect()
}
