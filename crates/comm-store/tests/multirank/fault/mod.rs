//! What becomes of windows when a rank dies or stops.

use std::time::Duration;

use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, LauncherCtx, Program};

mod kill;
mod program;
mod stop;

const SUITE: &str = "fault";
const BACKEND: &str = "window";

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(20);

pub const PROGRAMS: &[Program] = &[program::LOOP, program::WAITS, stop::PROGRAM];

/// Random numbers of a case: others for each point and layout.
fn dice(ctx: &LauncherCtx, point: &str) -> SplitMix64 {
    let number = point.bytes().fold(ctx.layout() as u64, |n, b| n.wrapping_mul(31) + u64::from(b));
    ctx.rng().fork(number)
}

pub fn cases() -> Vec<Case> {
    [kill::cases(), stop::cases()].concat()
}
