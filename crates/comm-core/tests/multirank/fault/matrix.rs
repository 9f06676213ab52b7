//! A process is killed at each named point, and at random ones.

use std::time::Duration;

use comm_core::POINTS;
use comm_core::error::LostHow;
use comm_testkit::fault::Fault;
use comm_testkit::witness::Witness;
use comm_testkit::{
    Case, LaunchError, LauncherCtx, Layout, RankReport, RankResult, Running, check, check_eq, done,
};

use super::kill::{SOON, all_told_lost, processes};
use super::member::Orders;
use super::notices::Notices;
use super::verdict::Told;

const LAYOUTS: &[Layout] = &[Layout::Processes, Layout::Mixed];

/// Short: those who wait for a rank that died before the team existed wait that long.
const JOIN: Duration = Duration::from_millis(1500);

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        Case::launcher("fault", name, run).layouts(LAYOUTS).limit(Duration::from_secs(300))
    };
    vec![
        case("kill/each-point", each).worlds(|world| world == 4),
        case("kill/100-points", random).worlds(|world| world == 4),
    ]
}

/// What the others must be told when a process is killed at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Must {
    /// That its ranks have died, at once.
    Lose,
    /// That they are missing, when the time to join is over; or, where the team came to exist, that they have died.
    Miss,
}

/// The points that the program passes. Those of a team that shrinks are visited where groups do.
pub fn points() -> Vec<&'static str> {
    POINTS.iter().copied().filter(|point| !point.starts_with("shrink.")).collect()
}

/// Every point has its line here: a new one does not pass unnoticed.
fn must(point: &str) -> Option<Must> {
    Some(match point {
        // Nobody knows yet who the victim is.
        "join.begin" | "join.bound" | "join.connected" => Must::Miss,
        // Its request may have been read, and the team complete without it.
        "join.asked" => Must::Miss,
        // It is the host: some may have been welcomed by it, and others not.
        "host.complete" | "host.welcoming" => Must::Miss,
        "join.welcomed" | "link.connect" | "join.linked" | "join.met" => Must::Lose,
        "barrier.begun" | "barrier.met" | "exchange.begun" | "exchange.met" | "leave" => Must::Lose,
        _ => return None,
    })
}

/// Whether whoever comes there first is the one: it depends on who hosts the join.
fn is_hosts(point: &str) -> bool {
    point == "join.bound" || point.starts_with("host.")
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

struct Site {
    point: &'static str,
    hit: u64,
    victim: usize,
}

impl Site {
    fn spawn(&self, ctx: &LauncherCtx) -> Result<Running, LaunchError> {
        let victims = ctx.layout().placement(ctx.world());
        let fault = Fault::at(self.point).hit(self.hit);
        let rank = victims[self.victim][0];
        let fault = if is_hosts(self.point) {
            fault
        } else if self.point == "link.connect" {
            // Whichever of its threads opens the team.
            fault.process(self.victim)
        } else {
            fault.rank(rank)
        };
        let mut orders = Orders { join_ms: JOIN.as_millis() as u64, ..Orders::default() };
        if self.point == "leave" {
            orders.leaver = Some((rank, 3));
        }
        ctx.launch("fault.member").arg(orders.json()).fault(fault.hold("here")).spawn()
    }

    /// Kills the process that is held at the point; says which, and when.
    fn strike(&self, running: &Running) -> Result<(usize, u64), Failed> {
        let victim = held(running)?;
        if must(self.point) == Some(Must::Lose) {
            // So that most of the others have come to where they wait for it.
            std::thread::sleep(Duration::from_millis(10));
        }
        let killed = running.kill(victim)?;
        // Another host may come by.
        running.go("here")?;
        Ok((victim, killed))
    }
}

/// The process of which a thread is held.
fn held(running: &Running) -> Result<usize, Failed> {
    let deadline = comm_core::Deadline::from(SOON);
    while !deadline.has_passed() {
        for process in 0..running.processes() {
            let held = |&rank: &usize| running.wait_held(rank, "here", Duration::from_micros(300)).is_ok();
            if running.ranks_of(process).iter().any(held) {
                return Ok(process);
            }
        }
    }
    let ranks = (0..running.processes()).flat_map(|p| running.ranks_of(p));
    let said: Vec<_> = running.wait(Duration::ZERO).into_iter().map(|r| (r.outcome, r.detail)).collect();
    Err(format!("nobody came there: {:?}, {said:?}", ranks.collect::<Vec<_>>()).into())
}

/// Those who wait until the time to join is over are told who is missing: the dead, and whoever knows that the team is over.
fn check_missed(reports: &[RankReport], lost: &[usize], died: u64) -> Result<String, String> {
    let mut all = Vec::new();
    for report in reports.iter().filter(|r| !lost.contains(&r.rank)) {
        let came = report.note("comes").map_or(0, |note| note.at_ns);
        all.push((report.rank, came, Told::by(report)?));
    }
    let knows = |rank: &usize| all.iter().any(|(r, _, told)| r == rank && told.kind == "PeerLost");
    for (rank, came, told) in &all {
        let fine = match told.kind.as_str() {
            // Far less than a join may take: whoever is in the team already does not wait for those who are not.
            "PeerLost" => told.is_lost(lost, LostHow::Died) && told.at_ns - died < JOIN.as_nanos() as u64 / 2,
            "Timeout" => {
                told.at_ns - came >= JOIN.as_nanos() as u64
                    && lost.iter().all(|r| told.ranks.contains(r))
                    && told.ranks.iter().all(|r| lost.contains(r) || knows(r))
            }
            _ => false,
        };
        if !fine {
            let ms = (told.at_ns - came) / 1_000_000;
            return Err(format!("rank {rank} in {} was told after {ms} ms: {}", told.call, told.text));
        }
    }
    Ok(all
        .iter()
        .map(|(rank, _, t)| format!("{rank}: {} {:?}", t.kind, t.ranks))
        .collect::<Vec<_>>()
        .join(", "))
}

fn each(ctx: &LauncherCtx) -> RankResult {
    let mut sites = Vec::new();
    for (i, &point) in points().iter().enumerate() {
        check!(must(point).is_some(), "nobody has said what must come of a death at {point}");
        let hits = if point == "host.welcoming" { 1..=ctx.world() as u64 } else { 1..=1 };
        sites.extend(hits.map(|hit| Site { point, hit, victim: i % processes(ctx) }));
    }
    // Those that take as long as a join may take wait side by side.
    let (missed, lost): (Vec<Site>, Vec<Site>) =
        sites.into_iter().partition(|site| must(site.point) == Some(Must::Miss));
    for site in &lost {
        let mut notices = Notices::default();
        let running = site.spawn(ctx)?;
        let witness = Witness::start();
        let (victim, killed) = site.strike(&running)?;
        check_eq!(victim, site.victim);
        let reports = running.wait(SOON);
        all_told_lost(&reports, running.ranks_of(victim), killed, &witness, &mut notices)
            .map_err(|e| format!("{}: {e}", site.point))?;
        ctx.progress(&format!("{:<15} process {victim}: PeerLost, {}", site.point, notices.summary()));
    }
    missed_side_by_side(ctx, &missed)
}

fn missed_side_by_side(ctx: &LauncherCtx, sites: &[Site]) -> RankResult {
    let mut struck = Vec::new();
    for site in sites {
        let running = site.spawn(ctx)?;
        let (victim, died) = site.strike(&running).map_err(|e| format!("{}: {e}", site.point))?;
        struck.push((site, running, victim, died));
    }
    for (site, running, victim, died) in struck {
        let reports = running.wait(SOON);
        let kinds = check_missed(&reports, running.ranks_of(victim), died).map_err(|e| {
            format!("{} (hit {}, process {victim}): {e}\n{}", site.point, site.hit, running.logs())
        })?;
        ctx.progress(&format!("{:<15} process {victim}: {kinds}", site.point));
    }
    done()
}

/// A hundred random points and hits in each layout: those in the team in turn, those before it side by side.
fn random(ctx: &LauncherCtx) -> RankResult {
    let mut rng = ctx.rng();
    let runs = if ctx.full() { 1000 } else { 50 };
    let mut notices = Notices::default();
    let mut missed = Vec::new();
    for _ in 0..runs {
        let point = rng.choose(&points()).copied().ok_or("there are no points")?;
        let repeats = point.starts_with("barrier.") || point.starts_with("exchange.");
        let hit = if repeats { 1 + rng.below(20) } else { 1 };
        let site = Site { point, hit, victim: rng.below(processes(ctx) as u64) as usize };
        if must(point) == Some(Must::Miss) {
            missed.push(site);
            continue;
        }
        let running = site.spawn(ctx)?;
        let witness = Witness::start();
        let (victim, killed) =
            site.strike(&running).map_err(|e| format!("{}, hit {}: {e}", site.point, site.hit))?;
        let reports = running.wait(SOON);
        all_told_lost(&reports, running.ranks_of(victim), killed, &witness, &mut notices)
            .map_err(|e| format!("{}, hit {}: {e}", site.point, site.hit))?;
    }
    ctx.progress(&format!("at random points: {}; before the team {}", notices.summary(), missed.len()));
    for some in missed.chunks(8) {
        missed_side_by_side(ctx, some)?;
    }
    done()
}
