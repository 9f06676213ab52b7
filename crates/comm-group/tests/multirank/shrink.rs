//! Survivors go on in a smaller group.

use std::time::{Duration, Instant};

use comm_core::Error;
use comm_core::tensor::Tensor;
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::fault::{Action, Fault};
use comm_testkit::{
    Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, Running, check, check_eq, done, probe,
};
use serde_json::{Value, json};

use crate::support::{Any, group};

const SUITE: &str = "shrink";
const SOON: Duration = Duration::from_secs(20);
const SPREAD: &[Layout] = &[Layout::Processes, Layout::Mixed];

pub const PROGRAMS: &[Program] = &[Program { name: "shrinking", run: shrinking }];

pub fn cases() -> Vec<Case> {
    let of_four = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        Case::launcher(SUITE, name, run)
            .worlds(|world| world == 4)
            .layouts(&[Layout::Processes])
            .limit(Duration::from_secs(90))
    };
    vec![
        Case::ranks(SUITE, "shrink/-/-/healthy", healthy),
        Case::ranks(SUITE, "shrink/-/-/left", left),
        Case::launcher(SUITE, "shrink/-/-/panicked", panicked).worlds(|world| world >= 3),
        of_four("shrink/-/-/one-killed", one_killed).layouts(SPREAD),
        of_four("shrink/-/-/two-killed", two_killed),
        of_four("shrink/-/-/one-after-the-other", one_after_the_other),
        of_four("shrink/-/-/killed-while-they-shrink", killed_meanwhile),
        of_four("shrink/-/-/absent", absent),
        of_four("shrink/-/-/stopped", stopped),
    ]
}

/// The group with all of its work checked: large enough that inputs are exposed, and small ones.
fn works(group: &ThreadGroup) -> RankResult {
    for len in [1, 3000] {
        let mine = Tensor::from_slice(&[len], &vec![1i64 << (8 * group.rank()); len])?;
        let sum = group.all_reduce(&mine, ReduceOp::Sum, SOON)?;
        let expected: i64 = (0..group.size()).map(|rank| 1 << (8 * rank)).sum();
        check!(sum.as_slice::<i64>()?.iter().all(|&x| x == expected), "a wrong sum");
    }
    done()
}

fn healthy(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let again = group.shrink(ctx.deadline())?;
    check_eq!((again.rank(), again.size()), (ctx.rank(), ctx.world()));
    works(&again)?;
    let third = again.shrink(ctx.deadline())?;
    works(&third)?;
    works(&group)?;
    check!(matches!(group.shrink(ctx.deadline()), Err(Error::InvalidArgument { .. })));
    works(&again)
}

fn left(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    if ctx.rank() == 0 {
        return done();
    }
    let error = group.barrier(ctx.deadline()).err();
    check!(matches!(error, Some(Error::PeerLeft { rank: 0, .. })), "{error:?}");
    let rest = group.shrink(ctx.deadline())?;
    check_eq!((rest.rank(), rest.size()), (ctx.rank() - 1, ctx.world() - 1));
    check_eq!(rest.team().origin(), (1..ctx.world()).collect::<Vec<_>>());
    works(&rest)
}

/// Works in a group until that is over, and shrinks, `times` times. Then it works on until the gate `end` opens.
/// Arguments: `times`, `shrink_ms` (for one of the calls), `absent` (a rank that shrinks when the gate `late` opens).
fn shrinking(ctx: &RankCtx) -> RankResult {
    let args = ctx.args();
    let times = args["times"].as_u64().unwrap_or(1);
    let limit = Duration::from_millis(args["shrink_ms"].as_u64().unwrap_or(20_000));
    let mut members: Vec<usize> = (0..ctx.world()).collect();
    let mut group = group(ctx, "g")?;
    for time in 1..=times {
        ctx.note(format!("running {time}"));
        let error = loop {
            if let Err(error) = works(&group) {
                break error;
            }
        };
        ctx.note_value(format!("error {time}"), error.to_string());
        if args["absent"].as_u64() == Some(ctx.rank() as u64) {
            ctx.await_go("late")?;
        }
        let started = Instant::now();
        group = match group.shrink(limit) {
            Ok(smaller) => smaller,
            Err(Error::Excluded { rank, members, .. }) => {
                let value = json!({"rank": rank, "members": members, "text": error.to_string()});
                ctx.note_value("excluded", value);
                return done();
            }
            Err(error) => return Err(error.into()),
        };
        members = group.team().origin().iter().map(|&rank| members[rank]).collect();
        check_eq!(members[group.rank()], ctx.rank());
        check!(members.is_sorted());
        let ms = started.elapsed().as_millis() as u64;
        ctx.note_value(format!("shrunk {time}"), json!({"members": members, "ms": ms}));
    }
    (0..20).try_for_each(|_| works(&group).map(drop))?;
    ctx.note("works");
    ctx.await_go("end")?;
    done()
}

/// All of these are the group now, and know it; says how long the slowest took.
fn go_on(running: &Running, time: usize, members: &[usize]) -> Any<u64> {
    let mut slowest = 0;
    for &rank in members {
        let note = running.wait_note(rank, &format!("shrunk {time}"), SOON)?;
        check_list(&note.value["members"], members, rank)?;
        slowest = slowest.max(note.value["ms"].as_u64().unwrap_or(u64::MAX));
    }
    Ok(slowest)
}

fn check_list(seen: &Value, expected: &[usize], rank: usize) -> RankResult {
    check_eq!(seen, &json!(expected), "rank {rank}");
    done()
}

/// Survivors end well, the dead as they died, and nothing is left.
fn ends(running: Running, lost: &[usize]) -> RankResult {
    running.go("end")?;
    let reports = running.wait(SOON);
    for report in &reports {
        let expected =
            if lost.contains(&report.rank) { Outcome::Killed(9) } else { Outcome::Ok(json!(null)) };
        check_eq!(report.outcome, expected, "rank {}: {}", report.rank, running.logs());
    }
    let (id, instance) = (running.id().to_string(), running.instance().to_string());
    drop(running);
    check!(probe::processes_of_launch(&id).is_empty(), "a process is left");
    let sockets = probe::sockets_named(&instance)?;
    check!(sockets.is_empty(), "sockets are left: {sockets:?}");
    done()
}

/// Kills the processes of these ranks once all work; gives the ranks that died.
fn kill(running: &Running, world: &[usize], time: usize, victims: &[usize]) -> Any<Vec<usize>> {
    for &rank in world {
        running.wait_note(rank, &format!("running {time}"), SOON)?;
    }
    std::thread::sleep(Duration::from_millis(5));
    let mut lost = Vec::new();
    for &victim in victims {
        let process = running.process_of(victim).ok_or("the launch runs it")?;
        lost.extend_from_slice(running.ranks_of(process));
        running.kill(process)?;
    }
    Ok(lost)
}

fn without(all: &[usize], lost: &[usize]) -> Vec<usize> {
    all.iter().copied().filter(|rank| !lost.contains(rank)).collect()
}

fn one_killed(ctx: &LauncherCtx) -> RankResult {
    let all: Vec<usize> = (0..ctx.world()).collect();
    for victim in [0, 2] {
        let running = ctx.launch("shrinking").limit(SOON).spawn()?;
        let lost = kill(&running, &all, 1, &[victim])?;
        let slowest = go_on(&running, 1, &without(&all, &lost))?;
        ctx.progress(&format!("rank {victim} killed: {} go on after {slowest} ms", all.len() - lost.len()));
        ends(running, &lost)?;
    }
    done()
}

fn two_killed(ctx: &LauncherCtx) -> RankResult {
    let all: Vec<usize> = (0..ctx.world()).collect();
    for victims in [[1, 2], [3, 0]] {
        let running = ctx.launch("shrinking").limit(SOON).spawn()?;
        let lost = kill(&running, &all, 1, &victims)?;
        let rest = without(&all, &lost);
        // The second may die after the others have shrunk without the first: then that is in the smaller group.
        let seen = rest
            .iter()
            .map(|&rank| running.wait_note(rank, "shrunk 1", SOON))
            .collect::<Result<Vec<_>, _>>()?;
        if seen.iter().all(|note| note.value["members"] == json!(rest)) {
            ends(running, &lost)?;
        } else {
            ctx.progress("the second death came late");
        }
    }
    done()
}

fn one_after_the_other(ctx: &LauncherCtx) -> RankResult {
    let mut members: Vec<usize> = (0..ctx.world()).collect();
    let running = ctx.launch("shrinking").arg(json!({"times": 2})).limit(SOON).spawn()?;
    let mut lost = Vec::new();
    for (time, victim) in [(1, 1), (2, 3)] {
        lost.extend(kill(&running, &members, time, &[victim])?);
        members.retain(|rank| !lost.contains(rank));
        let slowest = go_on(&running, time, &members)?;
        ctx.progress(&format!("rank {victim} killed: {members:?} go on after {slowest} ms"));
    }
    ends(running, &lost)
}

/// One dies, and of the survivors one more at each place on the way.
fn killed_meanwhile(ctx: &LauncherCtx) -> RankResult {
    let all: Vec<usize> = (0..ctx.world()).collect();
    // Each with its hit: the first join was that of the whole group.
    let points = [
        ("shrink.coming", 1),
        ("shrink.chosen", 1),
        ("join.asked", 2),
        ("join.welcomed", 2),
        ("shrink.joined", 1),
        ("shrink.built", 1),
    ];
    for (i, (point, hit)) in points.into_iter().enumerate() {
        let (first, second) = (i % 4, (i + 1 + i % 2) % 4);
        let fault = Fault::at(point).rank(second).hit(hit).hold("never");
        let running = ctx.launch("shrinking").fault(fault).limit(SOON).spawn()?;
        let mut lost = kill(&running, &all, 1, &[first])?;
        running.wait_held(second, "never", SOON).map_err(|e| format!("{point}: {e}"))?;
        // The others are on their way by then: they wait for it, and have to begin again.
        std::thread::sleep(Duration::from_millis(20));
        let with_second = without(&all, &lost);
        let process = running.process_of(second).ok_or("the launch runs it")?;
        running.kill(process)?;
        lost.extend_from_slice(running.ranks_of(process));
        let rest = without(&all, &lost);
        if point == "shrink.built" {
            // The others were through: it is in the group that they have got, and lost there.
            for &rank in &rest {
                let note = running.wait_note(rank, "shrunk 1", SOON)?;
                check_list(&note.value["members"], &with_second, rank)?;
            }
            continue;
        }
        let slowest = go_on(&running, 1, &rest).map_err(|e| format!("{point}: {e}"))?;
        ctx.progress(&format!("rank {second} killed at {point}: two go on after {slowest} ms"));
        ends(running, &lost).map_err(|e| format!("{point}: {e}"))?;
    }
    done()
}

fn excluded(running: &Running, rank: usize, members: &[usize]) -> RankResult {
    let note = running.wait_note(rank, "excluded", SOON)?;
    check_eq!(note.value["rank"], json!(rank));
    check_list(&note.value["members"], members, rank)
}

fn absent(ctx: &LauncherCtx) -> RankResult {
    const LIMIT: u64 = 1500;
    let all: Vec<usize> = (0..ctx.world()).collect();
    let args = json!({"absent": 2, "shrink_ms": LIMIT});
    let running = ctx.launch("shrinking").arg(args).limit(SOON).spawn()?;
    let lost = kill(&running, &all, 1, &[0])?;
    let slowest = go_on(&running, 1, &[1, 3])?;
    check!(slowest >= LIMIT / 2, "they waited for {slowest} ms only");
    ctx.progress(&format!("two go on after {slowest} ms"));
    running.go("late")?;
    excluded(&running, 2, &[1, 3])?;
    ends(running, &lost)
}

/// A process that was stopped before it could come is late when it goes on.
fn stopped(ctx: &LauncherCtx) -> RankResult {
    let all: Vec<usize> = (0..ctx.world()).collect();
    for point in [None, Some("shrink.coming"), Some("shrink.chosen")] {
        let args = json!({"shrink_ms": 2000});
        let mut launch = ctx.launch("shrinking").arg(args).limit(SOON);
        if let Some(point) = point {
            launch = launch.fault(Fault::at(point).rank(1).stop());
        }
        let running = launch.spawn()?;
        let process = running.process_of(1).ok_or("the launch runs it")?;
        if point.is_none() {
            for &rank in &all {
                running.wait_note(rank, "running 1", SOON)?;
            }
            running.stop(process)?;
        }
        let lost = kill(&running, &all, 1, &[3])?;
        running.wait_stopped(process, SOON)?;
        let slowest = go_on(&running, 1, &[0, 2]).map_err(|e| format!("{point:?}: {e}"))?;
        ctx.progress(&format!("stopped at {point:?}: two go on after {slowest} ms"));
        running.cont(process)?;
        excluded(&running, 1, &[0, 2]).map_err(|e| format!("{point:?}: {e}"))?;
        ends(running, &lost).map_err(|e| format!("{point:?}: {e}"))?;
    }
    done()
}

/// A panic of one rank, in every layout: its process goes on, and it is not waited for.
fn panicked(ctx: &LauncherCtx) -> RankResult {
    let world = ctx.world();
    let victim = ctx.rng().below(world as u64) as usize;
    for action in [Action::Panic, Action::Unwind] {
        let fault = Fault::at("group.agreed").rank(victim).hit(7).does(action);
        let running = ctx.launch("shrinking").fault(fault).limit(SOON).spawn()?;
        let rest = without(&(0..world).collect::<Vec<_>>(), &[victim]);
        let slowest = go_on(&running, 1, &rest)?;
        ctx.progress(&format!("rank {victim} panicked: {} go on after {slowest} ms", rest.len()));
        running.go("end")?;
        for report in running.wait(SOON) {
            if report.rank == victim {
                check!(matches!(report.outcome, Outcome::Panicked(_)), "{}", report.outcome);
            } else {
                check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
            }
        }
    }
    done()
}
