//! A rank that waits uses next to no CPU.

use std::time::{Duration, Instant};

use comm_core::shm::Block;
use comm_core::team::{CellRef, Team};
use comm_core::wait::Cell as Word;
use comm_testkit::{Case, LauncherCtx, Layout, RankCtx, RankResult, block_on, check, done, probe};

const SOON: Duration = Duration::from_secs(20);
const MEASURED: Duration = Duration::from_secs(3);
/// What other programs do to the caches is measured too, so the best of a few spells counts.
const SPELLS: usize = 3;
/// CPU time per second that a rank waits.
const MOST: Duration = Duration::from_millis(1);

pub fn cases() -> Vec<Case> {
    let case = |what: &'static str| {
        Case::launcher("rendezvous", format!("wait/{what}/idle"), move |ctx| idle(ctx, what))
            .worlds(|world| world == 4)
            .layouts(&[Layout::Processes, Layout::Threads])
    };
    vec![case("barrier"), case("task")]
}

struct Lone(Block);

impl CellRef for Lone {
    fn cell(&self) -> &Word {
        self.0.typed(0).unwrap()
    }
}

/// All but the last rank wait for the last.
pub fn waits(ctx: &RankCtx) -> RankResult {
    let team = Team::join("idle", ctx.rank(), ctx.world(), SOON)?;
    team.barrier(SOON)?;
    ctx.note("waits");
    if ctx.rank() + 1 == ctx.world() {
        ctx.await_go("on")?;
        team.abort("that was it");
        return done();
    }
    let outcome = if ctx.args() == "task" {
        let cell = Lone(team.hub().windows().alloc_zeroed(64)?);
        block_on(team.wait_task("the last", cell, Some(ctx.world() - 1), 1, |v| v == 1, SOON)).map(drop)
    } else {
        team.barrier(SOON)
    };
    check!(matches!(outcome, Err(comm_core::Error::Aborted { .. })), "{outcome:?}");
    done()
}

fn idle(ctx: &LauncherCtx, what: &str) -> RankResult {
    let running = ctx.launch("waiting.idle").arg(what).spawn()?;
    for rank in 0..ctx.world() {
        running.wait_note(rank, "waits", SOON)?;
    }
    std::thread::sleep(Duration::from_millis(300));
    let used = || -> std::io::Result<Vec<Duration>> {
        running.pids().iter().map(|&pid| probe::cpu_time(Some(pid))).collect()
    };
    for spell in 1..=SPELLS {
        let (before, began) = (used()?, Instant::now());
        std::thread::sleep(MEASURED);
        let (after, seconds) = (used()?, began.elapsed().as_secs_f64());
        let (mut lines, mut fine) = (Vec::new(), true);
        for (process, (before, after)) in before.iter().zip(&after).enumerate() {
            let waiting = running.ranks_of(process).iter().filter(|&&rank| rank + 1 < ctx.world()).count();
            let per_second = (*after - *before).div_f64(seconds);
            lines.push(format!("{per_second:.0?} for {waiting}"));
            fine &= per_second < MOST * waiting.max(1) as u32;
        }
        let text = format!("CPU time per second ({what}), and waiting ranks: {}", lines.join(", "));
        ctx.progress(&text);
        if fine {
            break;
        }
        check!(spell < SPELLS, "{text}");
    }
    running.go("on")?;
    for report in running.wait(SOON) {
        check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
    }
    done()
}
