//! How ranks meet.

use comm_core::team::Team;
use comm_testkit::{Case, Program, RankCtx, RankResult, check, check_eq, done};

pub const PROGRAMS: &[Program] = &[];

pub fn cases() -> Vec<Case> {
    vec![
        Case::ranks("rendezvous", "join/-/-/plain", meet),
        Case::ranks("rendezvous", "exchange/-/-/100", exchange),
        Case::ranks("rendezvous", "join/-/-/same-name-50-times", again),
    ]
}

fn meet(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("t"), ctx.rank(), ctx.world(), ctx.deadline())?;
    check_eq!(team.size(), ctx.world());
    for rank in 0..ctx.world() {
        check_eq!(team.shares_process(rank), ctx.shares_process(rank));
        check_eq!(team.process_of(rank), ctx.process_of(rank));
    }
    for _ in 0..100 {
        team.barrier(ctx.deadline())?;
    }
    done()
}

fn exchange(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("t"), ctx.rank(), ctx.world(), ctx.deadline())?;
    for round in 0..100u8 {
        let said = team.exchange(&[ctx.rank() as u8 * 10 + round; 64], ctx.deadline())?;
        for (rank, bytes) in said.iter().enumerate() {
            check_eq!(bytes, &[rank as u8 * 10 + round; 64]);
        }
    }
    done()
}

fn again(ctx: &RankCtx) -> RankResult {
    for round in 0..50 {
        let team = Team::join(&ctx.name("again"), ctx.rank(), ctx.world(), ctx.deadline())?;
        check!(team.operations() == 1, "round {round}: a fresh team");
        team.barrier(ctx.deadline())?;
    }
    done()
}
