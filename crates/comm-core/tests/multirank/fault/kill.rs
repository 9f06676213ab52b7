//! A process is killed while the others wait, talk, or do something else.

use std::time::Duration;

use comm_core::error::LostHow;
use comm_testkit::witness::Witness;
use comm_testkit::{
    Case, LauncherCtx, Layout, Outcome, RankReport, RankResult, Running, check, check_eq, done, now_ns,
};

use super::member::{Ops, Orders, Role};
use super::notices::Notices;
use super::verdict::Told;

pub const SOON: Duration = Duration::from_secs(30);
const LAYOUTS: &[Layout] = &[Layout::Processes, Layout::Mixed];

pub fn cases() -> Vec<Case> {
    let kill = |name: &str, ops| {
        Case::launcher("fault", format!("kill/{name}"), move |ctx| others(ctx, ops))
            .layouts(LAYOUTS)
            .limit(Duration::from_secs(60))
    };
    vec![
        kill("in-barrier", Ops::Barrier),
        kill("in-exchange", Ops::Exchange),
        kill("between", Ops::Between),
        Case::launcher("fault", "kill/100-moments", moments)
            .worlds(|world| world == 4)
            .layouts(LAYOUTS)
            .limit(Duration::from_secs(300)),
    ]
}

/// Each process once, while the others do this.
fn others(ctx: &LauncherCtx, ops: Ops) -> RankResult {
    let mut notices = Notices::default();
    for victim in 0..processes(ctx) {
        let orders = Orders { ops, role: Some((victim, Role::Idle)), ..Orders::default() };
        let running = ctx.launch("fault.member").arg(orders.json()).spawn()?;
        await_in(&running, victim)?;
        std::thread::sleep(Duration::from_millis(20));
        let witness = Witness::start();
        let killed = running.kill(victim)?;
        lost_in_time(&running, victim, killed, &witness, &mut notices)?;
    }
    ctx.progress(&format!("kill {ops:?}: {}", notices.summary()));
    done()
}

/// At a random moment, all ranks being at work.
fn moments(ctx: &LauncherCtx) -> RankResult {
    let mut rng = ctx.rng();
    let mut notices = Notices::default();
    for _ in 0..if ctx.full() { 400 } else { 50 } {
        let victim = rng.below(processes(ctx) as u64) as usize;
        let running = ctx.launch("fault.member").arg(Orders::default().json()).spawn()?;
        for rank in 0..ctx.world() {
            running.wait_note(rank, "in", SOON)?;
        }
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
        let witness = Witness::start();
        let killed = running.kill(victim)?;
        lost_in_time(&running, victim, killed, &witness, &mut notices)?;
    }
    ctx.progress(&format!("kill at random moments: {}", notices.summary()));
    done()
}

/// How many processes the launches of a case have.
pub fn processes(ctx: &LauncherCtx) -> usize {
    ctx.layout().placement(ctx.world()).len()
}

/// Waits until all have joined, and the victim has done what its role asks of it.
pub fn await_in(running: &Running, victim: usize) -> RankResult {
    for process in 0..running.processes() {
        for &rank in running.ranks_of(process) {
            running.wait_note(rank, if process == victim { "ready" } else { "in" }, SOON)?;
        }
    }
    done()
}

/// All others are told, in time, that the ranks of the victim have died, and nothing else.
pub fn lost_in_time(
    running: &Running,
    victim: usize,
    died: u64,
    witness: &Witness,
    notices: &mut Notices,
) -> RankResult {
    let reports = running.wait(SOON);
    all_told_lost(&reports, running.ranks_of(victim), died, witness, notices)
}

pub fn all_told_lost(
    reports: &[RankReport],
    lost: &[usize],
    died: u64,
    witness: &Witness,
    notices: &mut Notices,
) -> RankResult {
    let witnesses = witness.gaps();
    for report in reports.iter().filter(|r| !lost.contains(&r.rank)) {
        let told = Told::by(report)?;
        check!(told.is_lost(lost, LostHow::Died), "rank {} was told: {}", report.rank, told.text);
        check!(told.at_ns >= died, "rank {} knew {} ns too early", report.rank, died - told.at_ns);
        let gaps = [witnesses.as_slice(), told.gaps.as_slice()].concat();
        notices.note(&format!("rank {} in {}", report.rank, told.call), died, told.at_ns, &gaps)?;
    }
    for report in reports.iter().filter(|r| lost.contains(&r.rank)) {
        check_eq!(report.outcome, Outcome::Killed(libc::SIGKILL), "rank {}", report.rank);
    }
    check!(died <= now_ns());
    done()
}
