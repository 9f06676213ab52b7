//! What the programs of the fault cases have in common: a step that is repeated until an error, which is told at once.

use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_testkit::report;
use comm_testkit::{RankCtx, RankResult, check, done};

use crate::support::{Any, eventually, team};

/// How long a survivor waits at most.
pub const OP: Duration = Duration::from_secs(15);

/// The call that a rank is in, and how busy it was until then.
pub struct Call {
    name: &'static str,
    before: Duration,
}

impl Call {
    pub fn is(&mut self, name: &'static str) {
        *self = Call { name, before: report::busy() };
    }
}

/// Something that needs all ranks.
type Again = fn(&Team) -> Option<Error>;

/// Steps with the number of the round, as many as the argument `rounds` says (default: until an error). `again` is what is
/// tried after an error.
pub fn rounds(ctx: &RankCtx, step: impl Fn(&Team, u64, &mut Call) -> Any<()>, again: Again) -> RankResult {
    let rounds = ctx.args()["rounds"].as_u64().unwrap_or(u64::MAX);
    let team = match team(ctx, "t") {
        Ok(team) => team,
        Err(error) => {
            report::tell(ctx, "join", &error, Duration::ZERO);
            return done();
        }
    };
    ctx.note("running");
    for round in 1..=rounds {
        let mut call = Call { name: "", before: report::busy() };
        if let Err(error) = step(&team, round, &mut call) {
            let Some(error) = error.downcast_ref::<Error>() else { return Err(error) };
            report::tell(ctx, call.name, error, call.before);
            return afterwards(ctx, team, error, again);
        }
    }
    done()
}

/// After a failure the team says the same again, and the memory can be let go.
fn afterwards(ctx: &RankCtx, team: Team, error: &Error, again: Again) -> RankResult {
    let again = again(&team);
    let same = again.as_ref().is_some_and(|a| std::mem::discriminant(a) == std::mem::discriminant(error));
    check!(same, "first {error}, then {again:?}");
    ctx.await_go("end")?;
    nothing_is_left(team)
}

/// Leaves, and waits until all memory of this process has been given back: a part that was told of in a window that came to
/// nothing is kept until who might still reach it has left.
pub fn nothing_is_left(team: Team) -> RankResult {
    let hub = team.hub().clone();
    drop(team);
    let blocks = || (hub.windows().stats().blocks, hub.tensors().stats().blocks);
    eventually("all memory was given back", || blocks() == (0, 0))
        .map_err(|e| format!("{e}: {:?}", blocks()))?;
    done()
}
