//! A rank panics, abandons an operation, or drops its team while it unwinds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use comm_core::Error;
use comm_core::error::LostHow;
use comm_core::team::{BOARD_BYTES, Team};
use comm_testkit::fault::{Action, Fault};
use comm_testkit::{Case, LauncherCtx, Outcome, RankCtx, RankResult, check, check_eq, done};

use super::kill::SOON;
use super::member::Orders;
use super::verdict::Told;

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher("fault", "panic/at-points", at_points),
        Case::ranks("fault", "panic/team-dropped-unwinding", unwinding),
        Case::ranks("fault", "drop/inside", inside),
        Case::ranks("fault", "drop/inside-after-others-wait", inside_late),
    ]
}

/// In every operation, and where the library itself holds things.
fn at_points(ctx: &LauncherCtx) -> RankResult {
    let points = ["join.met", "barrier.begun", "barrier.met", "exchange.begun", "exchange.met"];
    for (i, point) in points.into_iter().enumerate() {
        for (action, hit) in [(Action::Panic, 1), (Action::Unwind, 3)] {
            if point == "join.met" && hit != 1 {
                continue;
            }
            let victim = i % ctx.world();
            let fault = Fault::at(point).rank(victim).hit(hit).does(action);
            let running = ctx.launch("fault.member").arg(Orders::default().json()).fault(fault).spawn()?;
            for report in running.wait(SOON) {
                if report.rank == victim {
                    check!(matches!(&report.outcome, Outcome::Panicked(_)), "{}", report.outcome);
                    continue;
                }
                let told = Told::by(&report)?;
                check!(told.is_lost(&[victim], LostHow::Panicked), "{point}: {} {}", told.call, told.text);
            }
        }
    }
    done()
}

/// What a rank that was not the victim gets from now on.
fn expect_lost(team: &Team, ctx: &RankCtx, victim: usize, expected: LostHow) -> RankResult {
    for call in 0..3 {
        let outcome = match call {
            0 => team.barrier(ctx.deadline()),
            1 => team.exchange(&[0; BOARD_BYTES], ctx.deadline()).map(drop),
            _ => team.begin("something", ctx.deadline()).map(|op| op.finish()),
        };
        match outcome {
            Err(Error::PeerLost { rank, ranks, how, .. }) => {
                check_eq!((rank, ranks, how), (victim, vec![victim], expected));
            }
            other => return Err(format!("call {call}: {other:?}").into()),
        }
    }
    done()
}

fn unwinding(ctx: &RankCtx) -> RankResult {
    for victim in 0..ctx.world() {
        let name = ctx.name(&format!("u{victim}"));
        let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
        team.barrier(ctx.deadline())?;
        if ctx.rank() != victim {
            expect_lost(&team, ctx, victim, LostHow::Panicked)?;
            continue;
        }
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _team = team;
            resume_unwind(Box::new("on purpose"));
        }));
        check!(unwound.is_err());
    }
    done()
}

fn inside(ctx: &RankCtx) -> RankResult {
    for victim in 0..ctx.world() {
        let name = ctx.name(&format!("d{victim}"));
        let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
        if ctx.rank() == victim {
            drop(team.begin("something", ctx.deadline())?);
        }
        // The victim itself has given up the team as well.
        expect_lost(&team, ctx, victim, LostHow::DroppedInside)?;
    }
    done()
}

/// The others are asleep in the operation that is abandoned.
fn inside_late(ctx: &RankCtx) -> RankResult {
    for victim in 0..ctx.world() {
        let name = ctx.name(&format!("l{victim}"));
        let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
        if ctx.rank() == victim {
            let op = team.begin("barrier", ctx.deadline())?;
            let asleep = |rank: usize| team.snapshot().ranks[rank].wait.is_some();
            while !(0..ctx.world()).all(|rank| rank == victim || asleep(rank)) {
                std::thread::yield_now();
            }
            drop(op);
        }
        expect_lost(&team, ctx, victim, LostHow::DroppedInside)?;
    }
    done()
}
