//! What the cases have in common: teams, windows, scripts, and waits that are meant to give up.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use comm_core::team::{Team, snapshots};
use comm_core::{Deadline, Error};
use comm_store::window::{Signals, WindowSpec};
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::{RankCtx, RankResult, check, done};

pub type Any<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long a wait goes on that must end in vain.
pub const SHORT: Duration = Duration::from_millis(100);

/// A team of all ranks of the launch; the name makes it another one within a case.
pub fn team(ctx: &RankCtx, name: &str) -> Result<Team, Error> {
    Team::join(&ctx.name(name), ctx.rank(), ctx.world(), ctx.deadline())
}

/// The rank before this one in a ring.
pub fn left(ctx: &RankCtx) -> usize {
    (ctx.rank() + ctx.world() - 1) % ctx.world()
}

/// The rank after this one in a ring.
pub fn right(ctx: &RankCtx) -> usize {
    (ctx.rank() + 1) % ctx.world()
}

/// All ranks but this one.
pub fn others(ctx: &RankCtx) -> impl Iterator<Item = usize> + Clone + use<> {
    let me = ctx.rank();
    (0..ctx.world()).filter(move |&rank| rank != me)
}

/// Gates that say who comes when: signals of a window and a team of their own, so that nothing under test takes part.
pub struct Script {
    window: Window,
    deadline: Deadline,
    // Leaves after the window has gone.
    _team: Team,
}

impl Script {
    const GATES: usize = 16;

    pub fn new(ctx: &RankCtx) -> Any<Script> {
        Script::named(ctx, "script")
    }

    /// One of several within a case.
    pub fn named(ctx: &RankCtx, name: &str) -> Any<Script> {
        let team = team(ctx, name)?;
        let window = Window::alloc(&team, WindowSpec::bytes(0).signals(Script::GATES), ctx.deadline())?;
        Ok(Script { window, deadline: ctx.deadline(), _team: team })
    }

    /// Opens a gate for all ranks; it stays open.
    pub fn open(&self, gate: usize) -> Any<()> {
        let gates = self.gates()?;
        (0..self.window.nranks()).try_for_each(|rank| gates.notify(rank, &[gate], 1, NotifyOp::Set))?;
        Ok(())
    }

    /// Waits until a gate is open.
    pub fn pass(&self, gate: usize) -> Any<()> {
        self.gates()?.wait(&[gate], Cmp::Ge, 1, None, self.deadline)?;
        Ok(())
    }

    fn gates(&self) -> Any<Signals<'_>> {
        Ok(self.window.signals(&[Script::GATES])?)
    }
}

/// A window under test and the script that it is tested by.
pub struct Scene {
    pub window: Window,
    pub team: Team,
    pub script: Script,
    pub by: Deadline,
}

impl Scene {
    pub fn new(ctx: &RankCtx, spec: WindowSpec) -> Any<Scene> {
        let script = Script::new(ctx)?;
        let team = team(ctx, "scene")?;
        let window = Window::alloc(&team, spec, ctx.deadline())?;
        Ok(Scene { window, team, script, by: ctx.deadline() })
    }

    /// All ranks come here before any goes on.
    pub fn all(&self) -> Any<()> {
        Ok(self.team.barrier(self.by)?)
    }

    /// The end of the case: nobody leaves before all are through.
    pub fn end(&self) -> RankResult {
        self.all()?;
        done()
    }
}

/// What a wait said that gave up.
#[derive(Debug)]
pub struct GaveUp {
    pub what: String,
    pub seen: i64,
    pub expected: i64,
    pub missing: Vec<usize>,
}

/// Checks that a wait of [`SHORT`] gave up, and not before its time.
pub fn gave_up<T: Debug>(outcome: Result<T, Error>) -> Any<GaveUp> {
    gave_up_after(SHORT, outcome)
}

/// Checks that a wait gave up, and not before its time.
pub fn gave_up_after<T: Debug>(patience: Duration, outcome: Result<T, Error>) -> Any<GaveUp> {
    match outcome {
        Err(Error::Timeout { what, waited, missing, seen, expected, .. }) => {
            check!(waited >= patience, "{what}: gave up after {waited:?}");
            let missing = missing.iter().map(|m| m.rank).collect();
            Ok(GaveUp { what, seen, expected, missing })
        }
        other => Err(format!("a wait was to give up: {other:?}").into()),
    }
}

/// Looks until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Any<()> {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        if Instant::now() > until {
            return Err(format!("it never was so that {what}").into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Whether a rank of a team is inside an operation and waits there for another.
pub fn waits_for(team: &Team, rank: usize, awaited: usize) -> bool {
    let teams = snapshots();
    let found = teams.iter().find(|t| t.name == team.name());
    found.is_some_and(|t| {
        let mine = t.ranks.iter().find(|r| r.rank == rank && r.inside);
        mine.and_then(|r| r.wait.as_ref()).is_some_and(|wait| wait.rank == Some(awaited))
    })
}
