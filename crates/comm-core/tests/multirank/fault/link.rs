//! A link that is lost between processes that live.

use comm_core::Error;
use comm_core::team::Team;
use comm_testkit::{Case, Layout, RankCtx, RankResult, check, done, eventually, probe};

pub fn cases() -> Vec<Case> {
    vec![Case::ranks("fault", "link/hung-up", hung_up).layouts(&[Layout::Processes])]
}

/// Nobody is lost: the team is aborted, everybody hears why, and all can meet again.
fn hung_up(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("before"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let before = probe::fds()?;
    team.barrier(ctx.deadline())?;
    if ctx.rank() == 1 {
        check!(probe::hang_up()? > 0, "it has links");
    }
    // Cells are reached without links, so the next barriers may still come about.
    let error = loop {
        if let Err(error) = team.barrier(ctx.deadline()) {
            break error;
        }
    };
    match error {
        Error::Aborted { reason, .. } => {
            check!(reason.contains("the link to the process of rank"), "{reason}");
        }
        other => return Err(format!("a link is lost, and nobody: {other}").into()),
    }
    // Its own end of what is lost is closed when a process has noticed.
    eventually("the end of the link is noticed", || probe::fds().is_ok_and(|now| now < before))?;
    drop(team);
    let team = Team::join(&ctx.name("after"), ctx.rank(), ctx.world(), ctx.deadline())?;
    team.barrier(ctx.deadline())?;
    done()
}
