//! Nothing is left behind by processes that are killed, and their names can be used at once.

use std::time::Duration;

use comm_core::team::Team;
use comm_core::tensor::{DType, TensorBuf};
use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Layout, RankCtx, RankResult, Signal, check, done, probe};

use super::kill::SOON;
use super::matrix;
use super::member::{Ops, Orders};
use super::verdict::Told;

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        Case::launcher("fault", name, run).limit(Duration::from_secs(120)).worlds(|world| world == 4)
    };
    vec![
        case("debris/all-killed-at-each-point", at_each_point),
        case("debris/memory", memory).layouts(&[Layout::Processes]),
    ]
}

/// Whether the folder has gained a name since.
fn new_names(before: &[String]) -> Vec<String> {
    probe::dev_shm().into_iter().filter(|name| !before.contains(name)).collect()
}

/// Kills all when one of them has come to the point, and lets others use their names.
fn at_each_point(ctx: &LauncherCtx) -> RankResult {
    let before = probe::dev_shm();
    for point in matrix::points() {
        if ctx.layout() == Layout::Threads && point == "link.connect" {
            // There is nobody to connect to.
            continue;
        }
        let mut orders = Orders::default();
        if point == "leave" {
            orders.leaver = Some((0, 2));
        }
        let launch = ctx.launch("fault.member").arg(orders.json()).fault(Fault::at(point).hold("here"));
        let running = launch.spawn()?;
        let deadline = comm_core::Deadline::from(SOON);
        let held = || {
            (0..ctx.world()).any(|rank| running.wait_held(rank, "here", Duration::from_micros(300)).is_ok())
        };
        while !held() {
            check!(!deadline.has_passed(), "nobody came to {point}");
            check!(new_names(&before).is_empty(), "{point}: {:?} in /dev/shm", new_names(&before));
        }
        let (id, instance) = (running.id().to_string(), running.instance().to_string());
        running.signal_all(Signal::Kill);
        // At once: while the others are still being torn down, perhaps.
        let again = Orders { ops: Ops::Both, leaver: Some((1, 3)), ..Orders::default() };
        let next = ctx.launch("fault.member").arg(again.json()).instance(instance.clone()).spawn()?;
        let reports = next.wait(SOON);
        for report in reports.iter().filter(|r| r.rank != 1) {
            let told = Told::by(report)?;
            check!(told.kind == "PeerLeft", "after {point}, rank {}: {}", report.rank, told.text);
        }
        check!(new_names(&before).is_empty(), "{point}: {:?} in /dev/shm", new_names(&before));
        drop(next);
        running.wait(SOON);
        check!(probe::processes_of_launch(&id).is_empty(), "{point}: a process is left");
        let sockets = probe::sockets_named(&instance)?;
        check!(sockets.is_empty(), "{point}: sockets are left: {sockets:?}");
    }
    done()
}

const HOARD: usize = 256 << 20;

/// Holds memory that others map.
pub fn hoarder(ctx: &RankCtx) -> RankResult {
    let team = Team::join("hoarders", ctx.rank(), ctx.world(), ctx.deadline())?;
    let mut hoard = TensorBuf::zeros_in(team.hub().tensors(), &[HOARD], DType::U8)?;
    hoard.bytes_mut()?.fill(1);
    team.barrier(ctx.deadline())?;
    ctx.note("full");
    ctx.await_go("never")?;
    done()
}

/// Memory in segments goes with the last process that maps them.
fn memory(ctx: &LauncherCtx) -> RankResult {
    let before = probe::machine_shared_memory()?;
    let running = ctx.launch("fault.hoarder").spawn()?;
    for rank in 0..ctx.world() {
        running.wait_note(rank, "full", SOON)?;
    }
    let held: u64 = running
        .pids()
        .iter()
        .map(|&pid| Ok(probe::memory(Some(pid))?.shared))
        .sum::<std::io::Result<u64>>()?;
    let all = (ctx.world() * HOARD) as u64;
    check!(held >= all, "they hold {} MiB", held >> 20);
    running.signal_all(Signal::Kill);
    running.wait(SOON);
    // Others on this machine come and go with their memory, so this is looked at for a while.
    let deadline = comm_core::Deadline::from(SOON);
    let mut least = u64::MAX;
    while least > before + all / 4 {
        least = least.min(probe::machine_shared_memory()?);
        let mib = |bytes: u64| bytes >> 20;
        check!(
            !deadline.has_passed(),
            "{} MiB of shared memory before, {} MiB after {} MiB were freed",
            mib(before),
            mib(least),
            mib(all)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    done()
}
