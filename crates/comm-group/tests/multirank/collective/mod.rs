//! Every operation, over every layout, against serial answers.

use comm_testkit::{Case, Program};

mod agreement;
mod all_gather;
mod all_reduce;
mod barrier;
mod bits;
mod concurrency;
mod conformance;
mod disagree;
mod huge;
mod into;
mod letters;
mod memory;
mod property;
mod random;
mod rows;
mod shard;
mod start;

const SUITE: &str = "collective";
const BACKEND: &str = "same-device";

pub const PROGRAMS: &[Program] = &[huge::HUGE];

pub fn cases() -> Vec<Case> {
    [
        all_reduce::cases(),
        all_gather::cases(),
        shard::cases(),
        barrier::cases(),
        agreement::cases(),
        concurrency::cases(),
        letters::cases(),
        property::cases(),
        memory::cases(),
        huge::cases(),
        random::cases(),
        conformance::cases(),
        rows::cases(),
        disagree::cases(),
        into::cases(),
        start::cases(),
        bits::cases(),
    ]
    .concat()
}

fn case(
    name: impl Into<String>,
    run: impl Fn(&comm_testkit::RankCtx) -> comm_testkit::RankResult + Send + Sync + 'static,
) -> Case {
    Case::ranks(SUITE, name, run).backend(BACKEND)
}
