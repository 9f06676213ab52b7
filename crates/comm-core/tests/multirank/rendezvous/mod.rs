//! How ranks meet, and what keeps them from it.

use std::time::Duration;

use comm_core::team::Team;
use comm_core::{Deadline, Error};
use comm_testkit::{Case, Program, RankCtx, RankResult, check, check_eq, done};

mod configured;
mod crowd;
mod hostile;
mod meet;
mod missing;
mod names;
mod raw;
mod runtime_dir;
mod segments;
mod starved;

/// Long enough for anything that happens at all.
const AMPLE: Duration = Duration::from_secs(25);

pub fn programs() -> Vec<Program> {
    let own = [
        Program { name: "rendezvous/meet", run: program_meet },
        Program { name: "rendezvous/try", run: program_try },
    ];
    [&own[..], names::PROGRAMS, hostile::PROGRAMS, starved::PROGRAMS].concat()
}

pub fn cases() -> Vec<Case> {
    [
        meet::cases(),
        names::cases(),
        missing::cases(),
        hostile::cases(),
        configured::cases(),
        runtime_dir::cases(),
        crowd::cases(),
        segments::cases(),
        starved::cases(),
    ]
    .concat()
}

/// Meets in the team `t` and in a barrier.
fn program_meet(ctx: &RankCtx) -> RankResult {
    ctx.note("joining");
    let team = Team::join("t", ctx.rank(), ctx.world(), ctx.deadline())?;
    team.barrier(ctx.deadline())?;
    done()
}

/// Tries to join the team `t` until as many milliseconds have passed as the argument says, and says what came of it.
fn program_try(ctx: &RankCtx) -> RankResult {
    let patience = ctx.args().as_u64().map_or(Deadline::default(), |ms| Duration::from_millis(ms).into());
    let started = std::time::Instant::now();
    let outcome = Team::join("t", ctx.rank(), ctx.world(), patience);
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (kind, text) = match outcome {
        Ok(team) => ("ok", team.name().to_string()),
        Err(error) => (kind(&error), error.to_string()),
    };
    Ok(serde_json::json!({ "kind": kind, "text": text, "ms": ms }))
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Timeout { .. } => "timeout",
        Error::Mismatch { .. } => "mismatch",
        Error::NameInUse { .. } => "name-in-use",
        Error::BadPeer { .. } => "bad-peer",
        Error::InvalidArgument { .. } => "invalid-argument",
        Error::PeerLost { .. } => "peer-lost",
        Error::PeerLeft { .. } => "peer-left",
        Error::Aborted { .. } => "aborted",
        Error::Io { .. } => "io",
        _ => "other",
    }
}

/// A team in which the ranks of a case agree on when to do what.
fn steps(ctx: &RankCtx) -> Result<Team, Error> {
    Team::join(&ctx.name("steps"), ctx.rank(), ctx.world(), ctx.deadline())
}
