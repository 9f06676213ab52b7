//! Launches: every way in which a rank can end is seen as what it is.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use comm_core::point;
use comm_core::team::Team;
use comm_testkit::fault::Fault;
use comm_testkit::{
    Case, Exit, Launch, LauncherCtx, Layout, Limit, Outcome, Program, RankCtx, RankReport, RankResult,
    Signal, check, check_eq, done, now_ns, probe,
};
use serde_json::{Value, json};

use crate::POINTS;

const SOON: Duration = Duration::from_secs(20);

pub const PROGRAMS: &[Program] = &[
    Program { name: "points", run: points },
    Program { name: "ends", run: ends },
    Program { name: "sleeps", run: sleeps },
    Program { name: "talks", run: talks },
    Program { name: "shows", run: shows },
    Program { name: "forks", run: forks },
    Program { name: "launches", run: launches },
    Program { name: "meets", run: meets },
];

/// Passes the first point twice and the second once.
fn points(ctx: &RankCtx) -> RankResult {
    point!("self.first");
    point!("self.first");
    ctx.note("between");
    point!("self.second");
    Ok(json!(ctx.rank()))
}

/// Ends as its argument says, on rank 1.
fn ends(ctx: &RankCtx) -> RankResult {
    if ctx.rank() != 1 {
        return Ok(Value::Null);
    }
    match ctx.args().as_str() {
        Some("error") => Err("on purpose".into()),
        Some("panic") => panic!("on purpose"),
        Some("exit") => std::process::exit(7),
        Some("abort") => std::process::abort(),
        Some("hang") => loop {
            std::thread::sleep(SOON);
        },
        // Ends well, and its process badly afterwards.
        Some("late") => {
            exit_after_thread(3);
            done()
        }
        other => Err(format!("no such end: {other:?}").into()),
    }
}

/// Makes the process exit when this thread has ended, after all that it reports.
pub fn exit_after_thread(code: i32) {
    struct Bomb(i32);
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::process::exit(self.0);
        }
    }
    thread_local! {
        static BOMB: RefCell<Option<Bomb>> = const { RefCell::new(None) };
    }
    BOMB.set(Some(Bomb(code)));
}

fn sleeps(ctx: &RankCtx) -> RankResult {
    ctx.note("ready");
    ctx.await_go("on")?;
    Ok(json!("woken"))
}

/// Answers lines.
fn talks(ctx: &RankCtx) -> RankResult {
    println!("rank {} prints", ctx.rank());
    while let Some(line) = ctx.line(SOON) {
        if line == "end" {
            return done();
        }
        ctx.note_value(line, ctx.rank());
    }
    Err("no line came".into())
}

fn shows(ctx: &RankCtx) -> RankResult {
    let files = std::fs::read_to_string("/proc/self/limits")?;
    let files = files.lines().find(|l| l.starts_with("Max open files")).unwrap_or_default().to_string();
    Ok(json!({
        "instance": std::env::var("COMM_INSTANCE_ID")?,
        "set": std::env::var("TESTKIT_SET").ok(),
        "removed": std::env::var("PATH").ok(),
        "files": files,
        "user": rustix::process::geteuid().to_string(),
        "seed": ctx.seed(),
    }))
}

/// Forks a child that holds all its descriptors, and waits.
fn forks(ctx: &RankCtx) -> RankResult {
    // SAFETY: the child calls pause and nothing else, which is allowed in the fork of a process with threads.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        loop {
            // SAFETY: pause has no arguments and touches no memory.
            unsafe { libc::pause() };
        }
    }
    ctx.note_value("forked", pid);
    ctx.await_go("on")?;
    done()
}

/// Is a launcher itself, and says which launch it has made.
fn launches(ctx: &RankCtx) -> RankResult {
    let running = Launch::new("sleeps", 2, Layout::Processes).spawn()?;
    running.wait_note(0, "ready", SOON)?;
    running.wait_note(1, "ready", SOON)?;
    ctx.note_value("launched", running.id());
    ctx.await_go("on")?;
    done()
}

/// Joins a team; then rank 0 waits in a barrier for a rank that does not come.
fn meets(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("team"), ctx.rank(), ctx.world(), ctx.deadline())?;
    ctx.note("joined");
    if ctx.rank() == 1 {
        // Not a gate: a gate has a deadline below the limit.
        ctx.line(SOON);
    }
    team.barrier(SOON)?;
    done()
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher("launch", "ends/are/told/apart", ends_are_told_apart),
        Case::launcher("launch", "faults/at/points", faults_at_points),
        Case::launcher("launch", "points/recorded", points_recorded),
        Case::launcher("launch", "hold/and/go", hold_and_go),
        Case::launcher("launch", "stop/and/continue", stop_and_continue),
        Case::launcher("launch", "kill/is/timed", kill_is_timed),
        Case::launcher("launch", "lines/and/logs", lines_and_logs),
        Case::launcher("launch", "environment/and/limits", environment_and_limits)
            .layouts(&[Layout::Processes]),
        Case::launcher("launch", "nothing/is/left", nothing_is_left),
        Case::launcher("launch", "forked/child", forked_child)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Processes]),
        Case::launcher("launch", "dies/with/launcher", dies_with_launcher)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Threads]),
        Case::launcher("launch", "waiting/is/free", waiting_is_free).worlds(|w| w == 4),
        Case::launcher("launch", "other/user", other_user).worlds(|w| w == 2).layouts(&[Layout::Processes]),
        Case::launcher("launch", "watchdog/tells/waits", watchdog_tells_waits),
        Case::launcher("launch", "mistakes", mistakes).worlds(|w| w == 2).layouts(&[Layout::Threads]),
    ]
}

/// Whether a rank shares the process of rank 1 in this launch.
fn falls_with_1(report: &RankReport, reports: &[RankReport]) -> bool {
    report.process == reports[1].process
}

fn ends_are_told_apart(ctx: &LauncherCtx) -> RankResult {
    for (how, alone) in [
        ("error", Outcome::Err("on purpose".into())),
        ("exit", Outcome::Exited(7)),
        ("abort", Outcome::Killed(6)),
        ("late", Outcome::Exited(3)),
        ("hang", Outcome::Hung),
        ("panic", Outcome::Panicked(String::new())),
    ] {
        let limit = if how == "hang" { Duration::from_millis(300) } else { SOON };
        let launch = ctx.launch("ends").arg(how).limit(limit);
        let running = launch.spawn()?;
        let reports = running.wait(SOON);
        check_eq!(reports.len(), ctx.world());
        let takes_the_process = matches!(how, "exit" | "abort" | "late");
        for r in &reports {
            let seen = &r.outcome;
            match (r.rank, &alone) {
                (1, Outcome::Panicked(_)) => {
                    let Outcome::Panicked(text) = seen else { return Err(format!("{how}: {seen}").into()) };
                    check!(text.contains("on purpose at ") && text.contains("launches.rs:"), "{text}");
                }
                (1, expected) => check_eq!(seen, expected, "{how}"),
                // It may have returned before, but its process has not ended well.
                _ if takes_the_process && falls_with_1(r, &reports) => check_eq!(seen, &alone, "{how}"),
                _ => check_eq!(seen, &Outcome::Ok(Value::Null), "{how} rank {}", r.rank),
            }
        }
        if how == "hang" {
            let detail = reports[1].detail.clone().unwrap_or_default();
            check!(detail.contains("in ends for "), "{detail}");
            let log = running.log(reports[1].process);
            check!(log.contains("rank 1: in ends"), "the watchdog speaks on stderr: {log}");
        }
    }
    done()
}

fn faults_at_points(ctx: &LauncherCtx) -> RankResult {
    let site = || Fault::at("self.first").rank(1).hit(2);
    for (fault, expected) in [
        (site().kill(), Outcome::Killed(9)),
        (site().exit(5), Outcome::Exited(5)),
        (site().unwind(), Outcome::Panicked("unwound at self.first".into())),
    ] {
        let reports = ctx.launch("points").fault(fault).run(SOON)?;
        check_eq!(reports[1].outcome, expected);
        check!(reports[1].notes.is_empty(), "it went past the point");
        for r in reports.iter().filter(|r| !falls_with_1(r, &reports)) {
            check_eq!(r.outcome, Outcome::Ok(json!(r.rank)));
        }
    }
    let reports = ctx.launch("points").fault(site().panic()).run(SOON)?;
    check!(matches!(&reports[1].outcome, Outcome::Panicked(t) if t.starts_with("injected at self.first")));
    check!(reports.iter().all(|r| r.rank == 1 || r.outcome.is_ok()), "a panic is one rank's");

    // A third hit does not exist, and another process is not this one.
    let none = ctx.launch("points").fault(Fault::at("self.first").rank(1).hit(3).kill());
    let none = none.fault(Fault::at("self.first").process(99).kill());
    check!(none.run(SOON)?.iter().all(|r| r.outcome.is_ok()));

    let delay = Duration::from_millis(80);
    let reports = ctx.launch("points").fault(Fault::at("self.second").rank(0).delay(delay)).run(SOON)?;
    check!(reports[0].outcome.is_ok() && reports[0].elapsed >= delay, "{:?}", reports[0].elapsed);
    done()
}

fn points_recorded(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("points").record().spawn()?;
    check!(running.wait(SOON).iter().all(|r| r.outcome.is_ok()));
    let hits = running.hits();
    check_eq!(hits.len(), 2 * ctx.world());
    for (point, process, rank, n) in &hits {
        check_eq!(rank.and_then(|r| running.process_of(r)), Some(*process));
        check_eq!(*n, if point == "self.first" { 2 } else { 1 });
        check!(POINTS.contains(&point.as_str()));
    }
    done()
}

fn hold_and_go(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("points").fault(Fault::at("self.second").rank(1).hold("gate")).spawn()?;
    check_eq!(running.wait_held(1, "gate", SOON)?, "self.second");
    check!(running.wait_held(0, "gate", Duration::from_millis(10)).is_err());
    running.wait_note(0, "between", SOON)?;
    let opened = now_ns();
    running.go("gate")?;
    let reports = running.wait(SOON);
    check!(reports.iter().all(|r| r.outcome.is_ok()), "{reports:?}");
    check!(reports[1].note("between").is_some_and(|n| n.at_ns < opened));
    done()
}

fn stop_and_continue(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("sleeps").spawn()?;
    for rank in 0..ctx.world() {
        running.wait_note(rank, "ready", SOON)?;
    }
    let last = running.processes() - 1;
    running.stop(last)?;
    running.go("on")?;
    check!(running.wait_exit(last, Duration::from_millis(50)).is_err(), "a stopped process does not end");
    check_eq!(probe::state_of(running.pids()[last]), Some('T'));
    running.cont(last)?;
    check!(running.wait(SOON).iter().all(|r| r.outcome == Outcome::Ok(json!("woken"))));

    // Stopped for good, by itself: hung, and the report says why.
    let running = ctx.launch("points").fault(Fault::at("self.first").rank(1).stop()).spawn()?;
    let process = running.process_of(1).unwrap_or(0);
    running.wait_stopped(process, SOON)?;
    let reports = running.wait(Duration::from_millis(50));
    check_eq!(reports[1].outcome, Outcome::Hung);
    check_eq!(reports[1].detail.as_deref(), Some("its process is stopped (state T)"));
    for r in reports.iter().filter(|r| r.process != process) {
        check!(r.outcome.is_ok(), "{r:?}");
    }

    // All of them, as Ctrl-Z does.
    let running = ctx.launch("sleeps").spawn()?;
    (0..ctx.world()).try_for_each(|r| running.wait_note(r, "ready", SOON).map(drop))?;
    running.signal_all(Signal::TerminalStop);
    (0..running.processes()).try_for_each(|p| running.wait_stopped(p, SOON))?;
    running.signal_all(Signal::Continue);
    running.go("on")?;
    check!(running.wait(SOON).iter().all(|r| r.outcome.is_ok()));
    done()
}

fn kill_is_timed(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("sleeps").spawn()?;
    let ready = running.wait_note(1, "ready", SOON)?;
    (0..ctx.world()).try_for_each(|r| running.wait_note(r, "ready", SOON).map(drop))?;
    let process = running.process_of(1).unwrap_or(0);
    let before = now_ns();
    let killed = running.kill(process)?;
    check!(ready.at_ns < before && before <= killed && killed <= now_ns());
    check_eq!(running.wait_exit(process, SOON)?, Exit::Signal(9));
    check!(running.kill(process).is_err(), "it is dead already");
    running.go("on")?;
    for r in running.wait(SOON) {
        let expected = if r.process == process { Outcome::Killed(9) } else { Outcome::Ok(json!("woken")) };
        check_eq!(r.outcome, expected);
        check!(r.note("ready").is_some(), "what a killed rank has said is kept");
    }
    done()
}

fn lines_and_logs(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("talks").spawn()?;
    for rank in 0..ctx.world() {
        running.send(rank, format!("to {rank}"))?;
        check_eq!(running.wait_note(rank, &format!("to {rank}"), SOON)?.value, json!(rank));
    }
    for rank in 0..ctx.world() {
        running.send(rank, "end")?;
    }
    check!(running.wait(SOON).iter().all(|r| r.outcome.is_ok() && r.notes.len() == 1));
    for rank in 0..ctx.world() {
        let log = running.log(running.process_of(rank).unwrap_or(0));
        check!(log.contains(&format!("rank {rank} prints")), "{log}");
    }
    check!(running.wait_note(0, "never said", Duration::ZERO).is_err());
    done()
}

fn environment_and_limits(ctx: &LauncherCtx) -> RankResult {
    let launch = ctx.launch("shows").env("TESTKIT_SET", "yes").env_remove("PATH").seed(77);
    let launch = launch.rlimit(Limit::OpenFiles, 99);
    let (a, b) = (launch.spawn()?, launch.spawn()?);
    check!(a.instance() != b.instance());
    for running in [a, b] {
        for r in running.wait(SOON) {
            let Outcome::Ok(value) = &r.outcome else { return Err(format!("{}", r.outcome).into()) };
            check_eq!(value["instance"], json!(running.instance()));
            check_eq!(value["set"], json!("yes"));
            check_eq!(value["removed"], Value::Null);
            check_eq!(value["seed"], json!(77));
            let files: Vec<&str> = value["files"].as_str().unwrap_or_default().split_whitespace().collect();
            check!(files.ends_with(&["99", "99", "files"]), "{files:?}");
        }
    }
    let together = launch.instance("given").spawn()?;
    check_eq!(together.instance(), "given");
    done()
}

fn nothing_is_left(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("sleeps").spawn()?;
    running.wait_note(0, "ready", SOON)?;
    let (id, pids) = (running.id().to_string(), running.pids());
    let mut found = probe::processes_of_launch(&id);
    found.sort();
    let mut expected = pids.clone();
    expected.sort();
    check_eq!(found, expected);
    let began = Instant::now();
    drop(running);
    check!(began.elapsed() < SOON);
    check!(probe::processes_of_launch(&id).is_empty());
    check!(pids.iter().all(|&pid| probe::state_of(pid).is_none()), "they are reaped");
    done()
}

/// A forked child holds its parent's pipes open; the parent's end is seen at once all the same, and the child is
/// ended with the launch.
fn forked_child(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("forks").spawn()?;
    let forked = running.wait_note(0, "forked", SOON)?.value.as_u64().unwrap_or(0) as u32;
    running.wait_note(1, "forked", SOON)?;
    running.kill(0)?;
    check_eq!(running.wait_exit(0, Duration::from_secs(5))?, Exit::Signal(9));
    check!(probe::state_of(forked).is_some_and(|s| s != 'Z'), "the forked child goes on");
    let id = running.id().to_string();
    check!(probe::processes_of_launch(&id).contains(&forked));
    running.go("on")?;
    let reports = running.wait(SOON);
    check_eq!((&reports[0].outcome, &reports[1].outcome), (&Outcome::Killed(9), &Outcome::Ok(Value::Null)));
    drop(running);
    gone_soon(&id)
}

fn dies_with_launcher(_: &LauncherCtx) -> RankResult {
    let running = Launch::new("launches", 1, Layout::Threads).spawn()?;
    let note = running.wait_note(0, "launched", SOON)?;
    let inner = note.value.as_str().unwrap_or_default();
    check_eq!(probe::processes_of_launch(inner).len(), 2);
    running.kill(0)?;
    gone_soon(inner)
}

/// A killed process needs a moment to go.
fn gone_soon(id: &str) -> RankResult {
    let began = Instant::now();
    while !probe::processes_of_launch(id).is_empty() {
        check!(began.elapsed() < Duration::from_secs(5), "still there: {:?}", probe::processes_of_launch(id));
        std::thread::sleep(Duration::from_millis(5));
    }
    done()
}

/// What a test measures of a waiting process is the library's, not the testkit's.
fn waiting_is_free(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("sleeps").limit(SOON).spawn()?;
    (0..ctx.world()).try_for_each(|r| running.wait_note(r, "ready", SOON).map(drop))?;
    let used = || running.pids().iter().map(|&pid| probe::cpu_time(Some(pid))).sum::<Result<Duration, _>>();
    // The threads need a moment from the note to their sleep.
    std::thread::sleep(Duration::from_millis(50));
    let before = used()?;
    std::thread::sleep(Duration::from_millis(300));
    let cost = used()? - before;
    check!(cost < Duration::from_micros(300), "{cost:?} in 300 ms");
    running.go("on")?;
    check!(running.wait(SOON).iter().all(|r| r.outcome.is_ok()));
    done()
}

fn watchdog_tells_waits(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("meets").limit(Duration::from_millis(700)).spawn()?;
    let reports = running.wait(SOON);
    for r in &reports {
        check_eq!(r.outcome, Outcome::Hung, "rank {}: {}", r.rank, running.logs());
        let detail = r.detail.clone().unwrap_or_default();
        check!(detail.contains("last point "), "{detail}");
        check_eq!(detail.contains("waits for rank 1"), r.rank != 1, "rank {}: {detail}", r.rank);
    }
    done()
}

fn other_user(ctx: &LauncherCtx) -> RankResult {
    if !rustix::process::geteuid().is_root() {
        return Err(comm_testkit::Skip::because("only root can start a process of another user"));
    }
    let running = ctx.launch("shows").uid(65534).spawn()?;
    let reports = running.wait(SOON);
    check!(reports.iter().all(|r| r.outcome.is_ok()), "{reports:?}");
    for r in &reports {
        let Outcome::Ok(value) = &r.outcome else { continue };
        check_eq!(value["user"], json!("65534"));
    }
    done()
}

fn mistakes(_: &LauncherCtx) -> RankResult {
    check!(Launch::new("points", 2, Layout::Mixed).spawn().is_err());
    check!(Launch::new("points", 0, Layout::Threads).spawn().is_err());
    check!(Launch::new("points", 2, Layout::Threads).placement(vec![vec![0], vec![0]]).spawn().is_err());
    let running = Launch::new("no such program", 2, Layout::Processes).spawn()?;
    check!(running.wait(SOON).iter().all(|r| r.outcome == Outcome::Exited(2)));
    check!(running.log(0).contains("no program \"no such program\""), "{}", running.log(0));
    // One rank of three, as when the others never come.
    let reports = Launch::new("points", 3, Layout::Processes).placement(vec![vec![2]]).run(SOON)?;
    check_eq!(reports.len(), 1);
    check_eq!((reports[0].rank, &reports[0].outcome), (2, &Outcome::Ok(json!(2))));
    done()
}
