//! What becomes of a group when a rank dies, panics, stops, is late, does something else, or has no memory.

use std::time::Duration;

use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, LauncherCtx, Program};

mod exit;
mod kill;
mod late;
mod matrix;
mod memory;
mod message;
mod panic;
mod program;
mod retry;
mod rolling;
mod stop;

const SUITE: &str = "fault";
const BACKEND: &str = "same-device";

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(20);

pub const PROGRAMS: &[Program] = &[
    program::LOOP,
    exit::STARTS,
    exit::CLOSES,
    rolling::MEMBER,
    memory::POOR,
    message::MESSAGE,
    retry::RETRIES,
];

/// Random numbers of a case: others for each point and layout.
fn dice(ctx: &LauncherCtx, point: &str) -> SplitMix64 {
    let number = point.bytes().fold(ctx.layout() as u64, |n, b| n.wrapping_mul(31) + u64::from(b));
    ctx.rng().fork(number)
}

pub fn cases() -> Vec<Case> {
    [
        exit::cases(),
        kill::cases(),
        rolling::cases(),
        panic::cases(),
        stop::cases(),
        memory::cases(),
        retry::cases(),
        message::cases(),
        matrix::cases(),
    ]
    .concat()
}
