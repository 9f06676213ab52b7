//! The testkit tests itself: cases that must pass run here, and the same executable is started again with cases
//! that must fail, panic, hang, be killed and be skipped, to see that each is reported as what it is.

#![allow(
    clippy::panic,
    clippy::exit,
    clippy::print_stdout,
    reason = "how the launcher sees them is what is tested"
)]

#[path = "selftest/broken.rs"]
mod broken;
#[path = "selftest/launches.rs"]
mod launches;

use std::process::ExitCode;
use std::time::Duration;

use comm_testkit::{Case, Layout, RankCtx, check, check_eq, done};

/// Fault points of this "library".
#[allow(dead_code, reason = "read by the macro at compile time")]
pub const POINTS: &[&str] = &["self.first", "self.second"];

/// The variable that chooses the broken cases.
const BROKEN: &str = "TESTKIT_SELFTEST_BROKEN";

fn good() -> Vec<Case> {
    let mut cases = vec![
        Case::ranks("ranks", "identity", |ctx| {
            check!(ctx.rank() < ctx.world());
            let placement = ctx.layout().placement(ctx.world());
            check!(placement[ctx.process()].contains(&ctx.rank()));
            check!(ctx.shares_process(ctx.rank()));
            check_eq!(ctx.shares_process((ctx.rank() + 1) % ctx.world()), {
                let other = (ctx.rank() + 1) % ctx.world();
                placement[ctx.process()].contains(&other)
            });
            check_eq!(comm_testkit::fault::rank(), Some(ctx.rank()));
            done()
        }),
        Case::ranks("ranks", "random/numbers", |ctx| {
            check_eq!(ctx.common_rng().next_u64(), ctx.common_rng().next_u64());
            check!(ctx.rng().next_u64() != ctx.common_rng().fork(ctx.rank() as u64 + 2).next_u64());
            done()
        }),
        Case::ranks("ranks", "names/differ", |ctx| {
            check!(ctx.name("team") != "team" && ctx.name("team") == ctx.name("team"));
            check!(ctx.name("a") != ctx.name("b"));
            done()
        }),
        Case::ranks("ranks", "world/three", |ctx| {
            check_eq!(ctx.world(), 3);
            done()
        })
        .worlds(|w| w == 3),
        Case::ranks("ranks", "world/one-as-well", |_| done()).also_worlds(&[1]),
        Case::ranks("ranks", "skipped", |_| Err(comm_testkit::Skip::because("on purpose"))),
        Case::ranks("ranks", "backend", |ctx: &RankCtx| {
            check_eq!(ctx.backend(), "some");
            done()
        })
        .backend("some"),
    ];
    cases.extend(launches::cases());
    cases.push(
        Case::launcher("runner", "broken/cases", broken::are_reported)
            .worlds(|w| w == 3)
            .layouts(&[Layout::Processes])
            .limit(Duration::from_secs(60)),
    );
    cases.push(
        Case::launcher("runner", "command/line", broken::command_line)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Threads]),
    );
    cases
}

fn main() -> ExitCode {
    if std::env::var_os(BROKEN).is_some() {
        return comm_testkit::main(&broken::cases(), launches::PROGRAMS);
    }
    comm_testkit::main(&good(), launches::PROGRAMS)
}
