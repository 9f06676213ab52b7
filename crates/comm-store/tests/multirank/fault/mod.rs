//! What becomes of windows and stores when a rank dies or stops.

use std::time::Duration;

use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, LauncherCtx, Program};

mod forked;
mod handover;
mod kill;
mod program;
mod reads;
mod reset;
mod stop;
mod store;
mod window;

const SUITE: &str = "fault";

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(20);

pub fn programs() -> Vec<Program> {
    let own = [
        window::LOOP,
        window::WAITS,
        stop::PROGRAM,
        store::LOOP,
        store::WAITS,
        handover::PROGRAM,
        forked::PROGRAM,
    ];
    [&own[..], reset::PROGRAMS, reads::PROGRAMS].concat()
}

/// Random numbers of a case: others for each point and layout.
fn dice(ctx: &LauncherCtx, point: &str) -> SplitMix64 {
    let number = point.bytes().fold(ctx.layout() as u64, |n, b| n.wrapping_mul(31) + u64::from(b));
    ctx.rng().fork(number)
}

pub fn cases() -> Vec<Case> {
    [kill::cases(), stop::cases(), handover::cases(), forked::cases(), reset::cases(), reads::cases()]
        .concat()
}
