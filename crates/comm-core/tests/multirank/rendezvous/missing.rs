//! Ranks that do not come, or die on the way.

use std::time::Instant;

use comm_testkit::fault::Fault;
use comm_testkit::{Exit, LauncherCtx, Layout, Outcome, RankReport, Running};

use super::names::fresh;
use super::*;

pub fn cases() -> Vec<Case> {
    vec![
        Case::ranks("rendezvous", "missing/-/-/named-at-the-deadline", named),
        Case::launcher("rendezvous", "missing/-/-/no-instance", no_instance).layouts(&[Layout::Processes]),
        Case::launcher("fault", "join/-/-/host-dies-while-gathering", host_dies)
            .layouts(&[Layout::Processes, Layout::Mixed]),
        Case::launcher("fault", "join/-/-/rank-dies-while-gathering", joiner_dies)
            .layouts(&[Layout::Processes, Layout::Mixed]),
    ]
}

/// How much later than the deadline an error may come.
const LATE: Duration = Duration::from_millis(500);

fn named(ctx: &RankCtx) -> RankResult {
    let patience = Duration::from_millis(300);
    let steps = steps(ctx)?;
    let last = ctx.world() - 1;
    let mut absences = vec![vec![0], vec![last], (1..ctx.world()).collect()];
    if ctx.world() > 3 {
        absences.push(vec![1, 2]);
    }
    for (round, absent) in absences.into_iter().enumerate() {
        let name = ctx.name(&format!("m{round}"));
        steps.barrier(ctx.deadline())?;
        if !absent.contains(&ctx.rank()) {
            let started = Instant::now();
            let error = Team::join(&name, ctx.rank(), ctx.world(), patience).unwrap_err();
            let took = started.elapsed();
            let Error::Timeout { missing, seen, expected, .. } = &error else {
                return Err(format!("round {round}: {error}").into());
            };
            let missing: Vec<usize> = missing.iter().map(|m| m.rank).collect();
            check_eq!(missing, absent, "round {round}");
            check_eq!((*seen, *expected), ((ctx.world() - absent.len()) as i64, ctx.world() as i64));
            check!(took >= patience, "round {round}: after {took:?}");
            check!(took <= patience + LATE, "round {round}: only after {took:?}");
            check!(error.to_string().contains("COMM_INSTANCE_ID"), "{error}");
        }
        steps.barrier(ctx.deadline())?;
        // And the name is free.
        Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?.barrier(ctx.deadline())?;
    }
    done()
}

/// Without an instance processes do not meet, and the error says why.
fn no_instance(ctx: &LauncherCtx) -> RankResult {
    let mut launch = ctx.launch("rendezvous/try").arg(300).limit(AMPLE);
    for name in ["COMM_INSTANCE_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID"] {
        launch = launch.env_remove(name);
    }
    for report in launch.run(AMPLE)? {
        let Outcome::Ok(value) = &report.outcome else {
            return Err(format!("rank {}: {}", report.rank, report.outcome).into());
        };
        check_eq!(value["kind"], "timeout");
        let text = value["text"].as_str().unwrap_or_default();
        check!(text.contains("only threads of this process could have met"), "{text}");
        check!(text.contains("COMM_INSTANCE_ID"), "{text}");
    }
    done()
}

/// The ranks of the first process of this layout, and those of the others.
fn first_and_others(ctx: &LauncherCtx) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut placement = ctx.layout().placement(ctx.world());
    let first = placement.remove(0);
    (first, placement)
}

/// Waits until a thread of one of these ranks is held.
fn wait_any_held(running: &Running, ranks: &[usize], gate: &str) -> Result<(), String> {
    let until = Instant::now() + AMPLE;
    while Instant::now() < until {
        if ranks.iter().any(|&rank| running.wait_held(rank, gate, Duration::from_millis(5)).is_ok()) {
            return Ok(());
        }
    }
    Err(format!("nobody of {ranks:?} is held at {gate:?}: {}", running.logs()))
}

/// The process that hosts the join is killed at each point of its way; the others, but for one, have come to it by then.
/// They go on without it until it is started again.
fn host_dies(ctx: &LauncherCtx) -> RankResult {
    let (first, mut early) = first_and_others(ctx);
    // While one has not come, nobody is welcomed.
    let late = early.split_off(early.len() - 1);
    for point in ["join.bound", "join.connected", "join.asked"] {
        let launch = ctx.launch("rendezvous/meet").limit(AMPLE).instance(fresh());
        let host = launch.clone().placement(vec![first.clone()]);
        let host = host.fault(Fault::at(point).hold("killed")).spawn()?;
        wait_any_held(&host, &first, "killed")?;
        let mut others = Vec::new();
        if !early.is_empty() {
            others.push(launch.clone().placement(early.clone()).spawn()?);
        }
        for &rank in early.iter().flatten() {
            others[0].wait_note(rank, "joining", AMPLE)?;
        }
        // Time for their requests.
        std::thread::sleep(Duration::from_millis(30));
        host.kill(0)?;
        check_eq!(host.wait_exit(0, AMPLE)?, Exit::Signal(9));
        others.push(launch.clone().placement(late.clone()).spawn()?);
        std::thread::sleep(Duration::from_millis(30));
        others.push(launch.clone().placement(vec![first.clone()]).spawn()?);
        all_have_met(ctx, point, &others)?;
    }
    done()
}

fn all_have_met(ctx: &LauncherCtx, point: &str, launches: &[Running]) -> Result<(), String> {
    let reports: Vec<RankReport> = launches.iter().flat_map(|running| running.wait(AMPLE)).collect();
    let bad: Vec<String> = reports
        .iter()
        .filter(|report| !report.outcome.is_ok())
        .map(|report| format!("rank {}: {}", report.rank, report.outcome))
        .collect();
    match (bad.is_empty(), reports.len() == ctx.world()) {
        (true, true) => Ok(()),
        _ => Err(format!("{point}: {} ranks; {}", reports.len(), bad.join("; "))),
    }
}

/// A process that has come to a host is killed, and started again.
fn joiner_dies(ctx: &LauncherCtx) -> RankResult {
    let (first, mut late) = first_and_others(ctx);
    let hosts = late.split_off(late.len() - 1);
    for point in ["join.begin", "join.connected", "join.asked"] {
        if point == "join.asked" && late.is_empty() {
            // With its request the team would be complete.
            continue;
        }
        let launch = ctx.launch("rendezvous/meet").limit(AMPLE).instance(fresh());
        let host = launch.clone().placement(hosts.clone());
        let host = host.fault(Fault::at("join.asked").hold("asked")).spawn()?;
        wait_any_held(&host, &hosts[0], "asked")?;
        let killed = launch.clone().placement(vec![first.clone()]);
        let killed = killed.fault(Fault::at(point).hold("killed")).spawn()?;
        wait_any_held(&killed, &first, "killed")?;
        // Time for the requests of its other ranks.
        std::thread::sleep(Duration::from_millis(30));
        killed.kill(0)?;
        check_eq!(killed.wait_exit(0, AMPLE)?, Exit::Signal(9));
        host.go("asked")?;
        let mut launches = vec![host, launch.clone().placement(vec![first.clone()]).spawn()?];
        if !late.is_empty() {
            launches.push(launch.clone().placement(late.clone()).spawn()?);
        }
        all_have_met(ctx, point, &launches)?;
    }
    done()
}
