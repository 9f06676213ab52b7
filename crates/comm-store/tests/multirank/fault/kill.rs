//! SIGKILL of a process at every point of the operations of windows and stores, and while the others wait in every way there
//! is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comm_store::POINTS;
use comm_testkit::fault::Fault;
use comm_testkit::report::{Notice, in_time, is_lost};
use comm_testkit::witness::Witness;
use comm_testkit::{
    Case, LauncherCtx, Layout, Outcome, Program, RankReport, RankResult, Running, Signal, check, check_eq,
    done, probe,
};
use serde_json::json;

use super::{SOON, SUITE, dice, store, window};
use crate::support::Any;

const SPREAD: &[Layout] = &[Layout::Processes, Layout::Mixed];

/// What is killed.
#[derive(Debug, Clone, Copy)]
struct Subject {
    backend: &'static str,
    /// Its points begin so, and are all passed in each round of this program.
    prefix: &'static str,
    rounds: Program,
    /// The kinds of wait in which a rank can be, by this program.
    kinds: &'static [&'static str],
    waits: Program,
}

const SUBJECTS: [Subject; 2] = [
    Subject {
        backend: window::BACKEND,
        prefix: "window.",
        rounds: window::LOOP,
        kinds: &window::KINDS,
        waits: window::WAITS,
    },
    Subject {
        backend: store::BACKEND,
        prefix: "store.",
        rounds: store::LOOP,
        kinds: &store::KINDS,
        waits: store::WAITS,
    },
];

impl Subject {
    fn points(&self) -> impl Iterator<Item = &'static str> + use<> {
        let prefix = self.prefix;
        POINTS.iter().copied().filter(move |point| point.starts_with(prefix))
    }

    fn cases(self) -> Vec<Case> {
        let listed =
            Case::launcher(SUITE, "kill/-/-/points-listed", move |ctx| every_point_is_visited(ctx, self));
        let debris = Case::launcher(SUITE, "kill/-/-/all", move |ctx| all_at_once(ctx, self));
        let mut all =
            vec![listed.layouts(&[Layout::Processes]), debris.layouts(SPREAD).limit(Duration::from_secs(60))];
        for point in self.points() {
            let case =
                Case::launcher(SUITE, format!("kill/-/-/{point}"), move |ctx| kill_at(ctx, self, point));
            all.push(case.layouts(SPREAD).limit(Duration::from_secs(120)));
        }
        for &kind in self.kinds {
            let case =
                Case::launcher(SUITE, format!("kill/-/-/in-{kind}"), move |ctx| kill_in(ctx, self, kind));
            all.push(case.layouts(SPREAD).limit(Duration::from_secs(60)));
        }
        all.into_iter().map(|case| case.worlds(|world| world == 4).backend(self.backend)).collect()
    }
}

pub fn cases() -> Vec<Case> {
    SUBJECTS.into_iter().flat_map(Subject::cases).collect()
}

/// The list is what a run really passes: every point of its subject, in every round.
fn every_point_is_visited(ctx: &LauncherCtx, subject: Subject) -> RankResult {
    const ROUNDS: u64 = 20;
    let visited = |rounds: u64| -> Any<BTreeMap<String, u64>> {
        let running =
            ctx.launch(subject.rounds.name).arg(json!({"rounds": rounds})).record().limit(SOON).spawn()?;
        for report in running.wait(SOON) {
            check_outcome(&report, &Outcome::Ok(json!(null)))?;
        }
        let hits = running.hits().into_iter().filter(|(_, _, rank, _)| *rank == Some(1));
        Ok(hits.map(|(point, _, _, n)| (point, n)).collect())
    };
    let (none, some) = (visited(0)?, visited(ROUNDS)?);
    let grown = |&point: &&str| {
        some.get(point).copied().unwrap_or(0) >= none.get(point).copied().unwrap_or(0) + ROUNDS
    };
    let grown: BTreeSet<&str> = subject.points().filter(grown).collect();
    check_eq!(grown, subject.points().collect::<BTreeSet<_>>());
    let nobodys = |point: &&&str| !SUBJECTS.iter().any(|subject| point.starts_with(subject.prefix));
    check_eq!(POINTS.iter().find(nobodys), None);
    done()
}

/// Each rank at its first hit and at a later one; without `--full` one of these, drawn.
fn kill_at(ctx: &LauncherCtx, subject: Subject, point: &'static str) -> RankResult {
    let mut rng = dice(ctx, point);
    let later = 5 + rng.below(20);
    let mut all: Vec<(usize, u64)> = (0..ctx.world()).flat_map(|rank| [(rank, 1), (rank, later)]).collect();
    if !ctx.full() {
        let chosen = *rng.choose(&all).ok_or("there are ranks")?;
        all = vec![chosen, (rng.below(ctx.world() as u64) as usize, later + 1)];
    }
    for (victim, hit) in all {
        let told = kill_one(ctx, subject, point, victim, hit)
            .map_err(|e| format!("rank {victim} killed at {point}, hit {hit}: {e}"))?;
        ctx.progress(&format!("rank {victim} killed at {point}, hit {hit}: {told}"));
    }
    done()
}

/// The victim is held at the point, so that the moment of its death is known.
fn kill_one(ctx: &LauncherCtx, subject: Subject, point: &str, victim: usize, hit: u64) -> Any<String> {
    let fault = Fault::at(point).rank(victim).hit(hit).hold("never");
    let running = ctx.launch(subject.rounds.name).fault(fault).limit(SOON).spawn()?;
    running.wait_held(victim, "never", SOON)?;
    strike(&running, victim)
}

/// While all others wait in this way, for the victim or not.
fn kill_in(ctx: &LauncherCtx, subject: Subject, kind: &'static str) -> RankResult {
    for victim in [0, ctx.world() - 1] {
        let orders = json!({"kind": kind, "victim": victim});
        let running = ctx.launch(subject.waits.name).arg(orders).limit(SOON).spawn()?;
        for rank in 0..ctx.world() {
            running.wait_note(rank, "ready", SOON)?;
        }
        // Those who have not come to their wait yet find the team over when they begin it, which is as good.
        std::thread::sleep(Duration::from_millis(20));
        let told = strike(&running, victim).map_err(|e| format!("rank {victim} killed: {e}"))?;
        ctx.progress(&format!("rank {victim} killed: {told}"));
    }
    done()
}

/// Kills the process of a rank. Every survivor names the lost ranks in time, lets go of its memory, and ends well.
fn strike(running: &Running, victim: usize) -> Any<String> {
    let process = running.process_of(victim).ok_or("the launch runs it")?;
    let lost = running.ranks_of(process).to_vec();
    let witness = Witness::start();
    let killed = running.kill(process)?;
    let ranks = (0..running.processes()).flat_map(|p| running.ranks_of(p).to_vec());
    let (mut slowest, mut calls) = (Notice::default(), BTreeSet::new());
    for rank in ranks.filter(|r| !lost.contains(r)) {
        let note = running.wait_note(rank, "error", SOON)?;
        is_lost(&note, &lost, "Died").map_err(|e| format!("rank {rank}: {e}"))?;
        slowest =
            slowest.max(in_time(&note, killed, &witness.gaps()).map_err(|e| format!("rank {rank}: {e}"))?);
        calls.insert(note.value["call"].as_str().unwrap_or_default().to_string());
    }
    running.go("end")?;
    for report in running.wait(SOON) {
        let is_dead = lost.contains(&report.rank);
        check_outcome(&report, &if is_dead { Outcome::Killed(9) } else { Outcome::Ok(json!(null)) })?;
    }
    let calls: Vec<String> = calls.into_iter().collect();
    Ok(format!("noticed in {} after {slowest}", calls.join(", ")))
}

fn check_outcome(report: &RankReport, expected: &Outcome) -> RankResult {
    check_eq!(&report.outcome, expected, "rank {}", report.rank);
    done()
}

/// All are killed in the middle of everything: no process, name or socket is left.
fn all_at_once(ctx: &LauncherCtx, subject: Subject) -> RankResult {
    let names = probe::dev_shm();
    let mut rng = dice(ctx, "all");
    for _ in 0..5 {
        let running = ctx.launch(subject.rounds.name).limit(SOON).spawn()?;
        for rank in 0..ctx.world() {
            running.wait_note(rank, "running", SOON)?;
        }
        std::thread::sleep(Duration::from_micros(rng.below(5000)));
        running.signal_all(Signal::Kill);
        for report in running.wait(SOON) {
            check_outcome(&report, &Outcome::Killed(9))?;
        }
        check!(probe::processes_of_launch(running.id()).is_empty(), "a process is left");
        let sockets = probe::sockets_named(running.instance())?;
        check!(sockets.is_empty(), "sockets are left: {sockets:?}");
        let new: Vec<_> = probe::dev_shm().into_iter().filter(|name| !names.contains(name)).collect();
        check!(new.is_empty(), "left in /dev/shm: {new:?}");
    }
    done()
}
