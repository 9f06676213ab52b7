//! Victims that make it hard to notice their death.

use std::time::Duration;

use comm_core::error::LostHow;
use comm_testkit::witness::Witness;
use comm_testkit::{Case, LauncherCtx, Layout, RankResult, Skip, check, done, now_ns};

use super::kill::{SOON, await_in, lost_in_time, processes};
use super::member::{Ops, Orders, Role};
use super::notices::Notices;
use super::verdict::Told;

const LAYOUTS: &[Layout] = &[Layout::Processes, Layout::Mixed];

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        Case::launcher("fault", name, run).layouts(LAYOUTS).worlds(|world| world == 4)
    };
    vec![
        case("kill/4-GiB-touched", heavy).layouts(&[Layout::Processes]).limit(Duration::from_secs(600)),
        case("kill/forked-child-lives", forked),
        case("kill/exec", exec),
        case("kill/another-is-stopped", stopped).layouts(&[Layout::Processes]),
    ]
}

fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The memory of the victim takes far longer to tear down than the others may take to notice.
fn heavy(ctx: &LauncherCtx) -> RankResult {
    let mut rng = ctx.rng();
    let mut notices = Notices::default();
    let mut slowest = 0;
    for _ in 0..if ctx.full() { 20 } else { 3 } {
        if available_memory().is_none_or(|bytes| bytes < 8 << 30) {
            return Err(Skip::because("less than 8 GiB of memory are available"));
        }
        let victim = rng.below(processes(ctx) as u64) as usize;
        let role = Some((victim, Role::Heavy(4096)));
        let orders = Orders { ops: Ops::Barrier, role, ..Orders::default() };
        let running = ctx.launch("fault.member").arg(orders.json()).spawn()?;
        await_in(&running, victim)?;
        let witness = Witness::start();
        let killed = running.kill(victim)?;
        running.wait_exit(victim, SOON)?;
        slowest = slowest.max(now_ns() - killed);
        lost_in_time(&running, victim, killed, &witness, &mut notices)?;
    }
    ctx.progress(&format!("4 GiB: {}; gone after up to {} ms", notices.summary(), slowest / 1_000_000));
    done()
}

/// A child of the victim holds copies of all its descriptors, so no socket of it ends.
fn forked(ctx: &LauncherCtx) -> RankResult {
    let mut notices = Notices::default();
    for victim in 0..processes(ctx) {
        let orders = Orders { role: Some((victim, Role::Forked)), ..Orders::default() };
        let running = ctx.launch("fault.member").arg(orders.json()).spawn()?;
        await_in(&running, victim)?;
        let child = running.wait_note(running.ranks_of(victim)[0], "ready", SOON)?.value;
        let witness = Witness::start();
        let killed = running.kill(victim)?;
        lost_in_time(&running, victim, killed, &witness, &mut notices)?;
        let child = u32::try_from(child.as_u64().unwrap_or(0))?;
        check!(
            !matches!(comm_testkit::probe::state_of(child), None | Some('Z')),
            "the child is not there any more"
        );
    }
    ctx.progress(&format!("with a forked child: {}", notices.summary()));
    done()
}

/// The victim becomes another program: the process goes on, the rank does not.
fn exec(ctx: &LauncherCtx) -> RankResult {
    let mut notices = Notices::default();
    for victim in 0..processes(ctx) {
        let orders = Orders { role: Some((victim, Role::Exec)), ..Orders::default() };
        let running = ctx.launch("fault.member").arg(orders.json()).spawn()?;
        await_in(&running, victim)?;
        let witness = Witness::start();
        running.go("exec")?;
        let replaced = running.wait_note(running.ranks_of(victim)[0], "exec", SOON)?.at_ns;
        for process in (0..running.processes()).filter(|&p| p != victim) {
            running.wait_exit(process, SOON)?;
        }
        check!(running.exit_of(victim).is_none(), "the new program has ended");
        running.kill(victim)?;
        lost_in_time(&running, victim, replaced, &witness, &mut notices)?;
    }
    ctx.progress(&format!("exec: {}", notices.summary()));
    done()
}

/// The kernel wakes one watcher, which passes it on; that one may be stopped.
fn stopped(ctx: &LauncherCtx) -> RankResult {
    let mut notices = Notices::default();
    let mut late = Notices::default();
    let n = processes(ctx);
    for (victim, sleeper) in (0..n).flat_map(|v| (1..n).map(move |d| (v, (v + d) % n))) {
        let orders = Orders { role: Some((victim, Role::Heavy(256))), ..Orders::default() };
        let running = ctx.launch("fault.member").arg(orders.json()).spawn()?;
        await_in(&running, victim)?;
        running.stop(sleeper)?;
        let witness = Witness::start();
        let killed = running.kill(victim)?;
        for process in (0..n).filter(|&p| p != victim && p != sleeper) {
            running.wait_exit(process, SOON)?;
        }
        let continued = running.cont(sleeper)?;
        for report in running.wait(SOON).iter().filter(|r| r.process != victim) {
            let told = Told::by(report)?;
            let who = format!("rank {} in {}", report.rank, told.call);
            check!(told.is_lost(running.ranks_of(victim), LostHow::Died), "{who}: {}", told.text);
            if report.process == sleeper {
                late.note(&who, continued, told.at_ns, &witness.gaps())?;
            } else {
                let gaps = [witness.gaps(), told.gaps].concat();
                notices.note(&who, killed, told.at_ns, &gaps)?;
            }
        }
    }
    ctx.progress(&format!(
        "with another one stopped: {}; that one, when it is continued: {}",
        notices.summary(),
        late.summary()
    ));
    done()
}
