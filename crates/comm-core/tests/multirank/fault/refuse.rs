//! Where a sandbox refuses a system call, its fallback notices deaths.

use std::time::Duration;

use comm_testkit::witness::Witness;
use comm_testkit::{Case, LauncherCtx, Layout, RankResult, done};

use super::kill::{await_in, lost_in_time, processes};
use super::member::{Ops, Orders, Role};
use super::notices::Notices;

const REFUSED: &[&str] = &[
    "futex_waitv",
    "set_robust_list",
    "set_robust_list,pidfd_open",
    "futex_waitv,set_robust_list,pidfd_open",
];

pub fn cases() -> Vec<Case> {
    let case = |calls: &'static str| {
        Case::launcher("fault", format!("refused/{}", calls.replace(',', "+")), move |ctx| kill(ctx, calls))
            .layouts(&[Layout::Processes, Layout::Mixed])
            .worlds(|world| world == 4)
            .limit(Duration::from_secs(60))
    };
    REFUSED.iter().map(|calls| case(calls)).collect()
}

fn kill(ctx: &LauncherCtx, calls: &str) -> RankResult {
    let mut notices = Notices::default();
    for ops in [Ops::Barrier, Ops::Between] {
        for victim in 0..processes(ctx) {
            let orders = Orders { ops, role: Some((victim, Role::Idle)), ..Orders::default() };
            let launch = ctx.launch("fault.member").arg(orders.json()).env("COMM_REFUSE", calls);
            let running = launch.spawn()?;
            await_in(&running, victim)?;
            std::thread::sleep(Duration::from_millis(10));
            let witness = Witness::start();
            let killed = running.kill(victim)?;
            lost_in_time(&running, victim, killed, &witness, &mut notices)?;
        }
    }
    ctx.progress(&format!("without {calls}: {}", notices.summary()));
    done()
}
