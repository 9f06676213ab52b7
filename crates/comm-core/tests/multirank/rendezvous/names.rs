//! Names: one team at a time, and what happens when ranks disagree about it.

use std::time::Instant;

use comm_testkit::{LauncherCtx, Layout, Running};

use super::*;

pub const PROGRAMS: &[Program] = &[Program { name: "rendezvous/hold", run: hold }];

pub fn cases() -> Vec<Case> {
    vec![
        Case::ranks("rendezvous", "mismatch/-/-/size", other_size),
        Case::ranks("rendezvous", "mismatch/-/-/size-and-one-is-late", late_for_other_size)
            .worlds(|w| w >= 3),
        Case::ranks("rendezvous", "mismatch/-/-/rank", rank_twice),
        Case::ranks("rendezvous", "mismatch/-/-/rank-and-one-is-late", late_for_rank_twice)
            .worlds(|w| w >= 3),
        Case::ranks("rendezvous", "name-in-use/-/-/while-ranks-leave-one-by-one", in_use),
        Case::ranks("rendezvous", "name-in-use/-/-/who-left-waits-for-the-others", waits_for_others),
        Case::launcher("rendezvous", "name-in-use/-/-/while-processes-die-one-by-one", processes_die)
            .layouts(&[Layout::Processes, Layout::Mixed]),
    ]
}

/// What a rank that disagrees, or is late, is told.
fn mismatch(outcome: Result<Team, Error>) -> Result<(usize, &'static str, String), String> {
    match outcome {
        Err(Error::Mismatch { rank, field, theirs, others, .. }) => {
            Ok((rank, field, format!("{rank} {field} {theirs} {others}")))
        }
        Err(other) => Err(format!("not a mismatch: {other}")),
        Ok(_) => Err("a team came together".to_string()),
    }
}

/// All join as `say` tells them, the late ones after the others have been told; all are told the same, and the name
/// works at once.
fn disagree(
    ctx: &RankCtx,
    field: &str,
    odd: usize,
    late: Option<usize>,
    say: impl Fn(usize) -> (usize, usize),
) -> RankResult {
    let (name, steps) = (ctx.name("d"), steps(ctx)?);
    let (as_rank, of) = say(ctx.rank());
    for round in 0..5 {
        steps.barrier(ctx.deadline())?;
        let mut told = None;
        if late != Some(ctx.rank()) {
            told = Some(mismatch(Team::join(&name, as_rank, of, ctx.deadline()))?);
        }
        steps.barrier(ctx.deadline())?;
        if late == Some(ctx.rank()) {
            told = Some(mismatch(Team::join(&name, as_rank, of, ctx.deadline()))?);
        }
        let Some((rank, seen, text)) = told else { return Err("nobody was told".into()) };
        check_eq!(seen, field, "round {round}");
        check_eq!(rank, odd, "round {round}");
        let mut board = [0; 64];
        let n = text.len().min(64);
        board[..n].copy_from_slice(&text.as_bytes()[..n]);
        // Processes are named in the text on a rank that comes twice, so it is not asked for its end.
        let said = steps.exchange(&board, ctx.deadline())?;
        check!(said.iter().all(|other| *other == board), "round {round}: all are told the same");
        let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
        team.barrier(ctx.deadline())?;
    }
    done()
}

fn other_size(ctx: &RankCtx) -> RankResult {
    let last = ctx.world() - 1;
    let say = |rank| (rank, if rank == last { ctx.world() + 1 } else { ctx.world() });
    disagree(ctx, "size", last, None, say)
}

fn late_for_other_size(ctx: &RankCtx) -> RankResult {
    let last = ctx.world() - 1;
    let say = |rank| (rank, if rank == last { ctx.world() + 1 } else { ctx.world() });
    disagree(ctx, "size", last, Some(0), say)
}

fn rank_twice(ctx: &RankCtx) -> RankResult {
    let last = ctx.world() - 1;
    let say = |rank| (if rank == last { 0 } else { rank }, ctx.world());
    disagree(ctx, "rank", 0, None, say)
}

fn late_for_rank_twice(ctx: &RankCtx) -> RankResult {
    let last = ctx.world() - 1;
    let say = |rank| (if rank == last { 0 } else { rank }, ctx.world());
    disagree(ctx, "rank", 0, Some(1), say)
}

fn name_in_use(outcome: Result<Team, Error>) -> Result<(), String> {
    match outcome {
        Err(Error::NameInUse { .. }) => Ok(()),
        Err(other) => Err(format!("the name is in use, not: {other}")),
        Ok(_) => Err("a second team came together".to_string()),
    }
}

/// Whoever hosted the join leaves at some time: the name is held until the last one has.
fn in_use(ctx: &RankCtx) -> RankResult {
    let short = Duration::from_millis(60);
    let (name, steps) = (ctx.name("u"), steps(ctx)?);
    let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
    name_in_use(Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline()))?;
    team.barrier(ctx.deadline())?;
    let mut team = Some(team);
    for leaves in 0..ctx.world() {
        steps.barrier(ctx.deadline())?;
        if ctx.rank() == leaves {
            team = None;
        }
        steps.barrier(ctx.deadline())?;
        if leaves + 1 == ctx.world() {
            break;
        }
        let started = Instant::now();
        if team.is_some() {
            // Who is in it is told at once.
            name_in_use(Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline()))?;
            name_in_use(Team::join(&name, ctx.world() + 3, ctx.world() + 4, ctx.deadline()))?;
        } else {
            // Who has left waits for the others to leave.
            name_in_use(Team::join(&name, ctx.rank(), ctx.world(), short))?;
            check!(started.elapsed() >= short);
        }
    }
    let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
    team.barrier(ctx.deadline())?;
    done()
}

fn waits_for_others(ctx: &RankCtx) -> RankResult {
    let pause = Duration::from_millis(150);
    let (name, steps) = (ctx.name("w"), steps(ctx)?);
    let mut team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
    for early in 0..ctx.world() {
        steps.barrier(ctx.deadline())?;
        let started = Instant::now();
        if ctx.rank() != early {
            std::thread::sleep(pause);
        }
        drop(team);
        team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
        check!(started.elapsed() >= pause);
        check_eq!(team.operations(), 1);
        team.barrier(ctx.deadline())?;
    }
    done()
}

/// Holds the team `t`, asks for it again whenever it is told to, and lets it go at the end.
fn hold(ctx: &RankCtx) -> RankResult {
    let team = Team::join("t", ctx.rank(), ctx.world(), ctx.deadline())?;
    ctx.note("held");
    while let Some(line) = ctx.line(AMPLE) {
        if line == "let go" {
            drop(team);
            return done();
        }
        // Of a team that is over the name may soon be free, so it is waited for.
        name_in_use(Team::join("t", ctx.rank(), ctx.world(), Duration::from_millis(60)))?;
        ctx.note(line);
    }
    Err("no line came".into())
}

/// Whichever process hosted the join, it dies at some time: the name is held by those that live. When all have let go
/// or died it is free at once.
fn processes_die(ctx: &LauncherCtx) -> RankResult {
    let start = || -> Result<Running, Box<dyn std::error::Error + Send + Sync>> {
        let running = ctx.launch("rendezvous/hold").limit(AMPLE).instance(fresh()).spawn()?;
        (0..ctx.world()).try_for_each(|rank| running.wait_note(rank, "held", AMPLE).map(drop))?;
        Ok(running)
    };
    let next = |running: &Running| -> RankResult {
        let reports = ctx.launch("rendezvous/meet").limit(AMPLE).instance(running.instance()).run(AMPLE)?;
        check!(reports.iter().all(|r| r.outcome.is_ok()), "{reports:?}");
        done()
    };
    let running = start()?;
    let processes = running.processes();
    for dead in 0..processes {
        running.kill(dead)?;
        running.wait_exit(dead, AMPLE)?;
        for process in dead + 1..processes {
            for &rank in running.ranks_of(process) {
                let line = format!("{dead} is dead");
                running.send(rank, line.clone())?;
                running.wait_note(rank, &line, AMPLE)?;
            }
        }
    }
    next(&running)?;

    // The last one alive lets go instead.
    let running = start()?;
    for dead in 0..processes - 1 {
        running.kill(dead)?;
        running.wait_exit(dead, AMPLE)?;
    }
    running.ranks_of(processes - 1).iter().try_for_each(|&rank| running.send(rank, "let go"))?;
    running.wait_exit(processes - 1, AMPLE)?;
    next(&running)
}

/// An instance that no other launch has.
pub(super) fn fresh() -> String {
    format!("rendezvous-{}-{}", std::process::id(), comm_testkit::now_ns())
}
