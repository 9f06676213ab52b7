//! Strangers: other users, connections without number, noise.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use comm_testkit::values::SplitMix64;
use comm_testkit::{LauncherCtx, Layout, Limit, Outcome, Running, Skip, probe};
use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::names::fresh;
use super::raw::{self, Greeting};
use super::*;

pub const PROGRAMS: &[Program] = &[
    Program { name: "rendezvous/stranger", run: stranger },
    Program { name: "rendezvous/squatter", run: squatter },
];

const NOBODY: u32 = 65534;

/// How long a victim is watched.
const WINDOW: Duration = Duration::from_millis(700);

pub fn cases() -> Vec<Case> {
    let once = |name, run: fn(&LauncherCtx) -> RankResult| {
        Case::launcher("rendezvous", name, run).worlds(|w| w == 2).layouts(&[Layout::Processes])
    };
    vec![
        once("hostile/-/-/other-user-connects", other_user_connects),
        once("hostile/-/-/other-user-squats", other_user_squats),
        once("hostile/-/-/flood", flood).limit(Duration::from_secs(60)),
        once("hostile/-/-/flood-with-few-descriptors", flood_few).limit(Duration::from_secs(60)),
        once("hostile/-/-/no-descriptor-left", none_left).limit(Duration::from_secs(60)),
        once("hostile/-/-/noise", noise).limit(Duration::from_secs(60)),
    ]
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A rank that waits for another, and the names that it can be reached by.
struct Victim {
    running: Running,
    team: String,
    hub: String,
}

impl Victim {
    fn start(
        ctx: &LauncherCtx,
        files: Option<u64>,
    ) -> Result<Victim, Box<dyn std::error::Error + Send + Sync>> {
        let instance = fresh();
        let mut launch =
            ctx.launch("rendezvous/meet").limit(2 * AMPLE).instance(&instance).placement(vec![vec![0]]);
        if let Some(files) = files {
            launch = launch.rlimit(Limit::OpenFiles, files);
        }
        let running = launch.spawn()?;
        running.wait_note(0, "joining", AMPLE)?;
        let team = format!("comm/{}/{instance}/team/t", uid());
        raw::connect_soon(&raw::abstract_name(&team))?;
        let hubs = probe::sockets_named(&format!("comm/{}/{instance}/hub/", uid()))?;
        let [hub] = hubs.as_slice() else { return Err(format!("its hub is one of {hubs:?}").into()) };
        let hub = hub.trim_start_matches('@').to_string();
        Ok(Victim { running, team, hub })
    }

    fn pid(&self) -> u32 {
        self.running.pids()[0]
    }

    fn fds(&self) -> std::io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    fn threads(&self) -> std::io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/task", self.pid()))?.count())
    }

    /// The other rank comes, and they meet.
    fn meets(&self, ctx: &LauncherCtx) -> Result<Duration, Box<dyn std::error::Error + Send + Sync>> {
        let started = Instant::now();
        let other = ctx.launch("rendezvous/meet").limit(AMPLE).instance(self.running.instance());
        let reports = other.placement(vec![vec![1]]).run(AMPLE)?;
        for report in reports.into_iter().chain(self.running.wait(AMPLE)) {
            check_ok(&report.outcome)?;
        }
        Ok(started.elapsed())
    }
}

fn check_ok(outcome: &Outcome) -> Result<(), String> {
    if outcome.is_ok() { Ok(()) } else { Err(outcome.to_string()) }
}

/// Speaks to each of the names that its argument lists, and is not listened to.
fn stranger(ctx: &RankCtx) -> RankResult {
    for name in ctx.args().as_array().into_iter().flatten().filter_map(|name| name.as_str()) {
        for _ in 0..20 {
            let socket = raw::connect_soon(&raw::abstract_name(name))?;
            // It may be closed already.
            let _ = raw::send(&socket, b"let me in", &[]);
            match raw::receive(&socket) {
                // Closed; with what was said unread, the second.
                Ok(bytes) if bytes.is_empty() => {}
                Err(Errno::CONNRESET) => {}
                // A user of ours would be told that this is no greeting.
                other => return Err(format!("{name} answered a stranger: {other:?}").into()),
            }
        }
    }
    done()
}

fn other_user_connects(ctx: &LauncherCtx) -> RankResult {
    if uid() != 0 {
        return Err(Skip::because("needs root to start a process of another user"));
    }
    let victim = Victim::start(ctx, None)?;
    let fds = victim.fds()?;
    let names = [victim.team.as_str(), victim.hub.as_str()];
    let stranger = ctx.launch_on("rendezvous/stranger", 1, Layout::Threads).uid(NOBODY).limit(AMPLE);
    for report in stranger.arg(&names[..]).run(AMPLE)? {
        check_ok(&report.outcome)?;
    }
    // The same words from one of ours are heard.
    let socket = raw::connect_soon(&raw::abstract_name(&victim.team))?;
    raw::send(&socket, b"let me in", &[])?;
    check!(!raw::receive(&socket)?.is_empty(), "one of ours is answered");
    drop(socket);
    victim.meets(ctx)?;
    check!(fds < 100, "{fds}");
    done()
}

/// Holds the name that its argument says.
fn squatter(ctx: &RankCtx) -> RankResult {
    let name = ctx.args().as_str().unwrap_or_default();
    let _listener = raw::listen(&raw::abstract_name(name));
    ctx.note("squatting");
    ctx.line(AMPLE);
    done()
}

fn other_user_squats(ctx: &LauncherCtx) -> RankResult {
    if uid() != 0 {
        return Err(Skip::because("needs root to start a process of another user"));
    }
    let instance = fresh();
    let team = format!("comm/{}/{instance}/team/t", uid());
    let squatter = ctx
        .launch_on("rendezvous/squatter", 1, Layout::Threads)
        .uid(NOBODY)
        .limit(AMPLE)
        .arg(team)
        .spawn()?;
    squatter.wait_note(0, "squatting", AMPLE)?;
    let comers = ctx.launch("rendezvous/try").arg(10_000).limit(AMPLE).instance(&instance);
    for report in comers.run(AMPLE)? {
        let Outcome::Ok(value) = &report.outcome else { return Err(report.outcome.to_string().into()) };
        check_eq!(value["kind"], "bad-peer", "{value}");
        let text = value["text"].as_str().unwrap_or_default();
        check!(text.contains(&format!("uid {NOBODY}")) && text.contains("\"t\""), "{text}");
        check!(value["ms"].as_u64() < Some(9_000), "{value}");
    }
    drop(squatter);
    for report in ctx.launch("rendezvous/meet").limit(AMPLE).instance(&instance).run(AMPLE)? {
        check_ok(&report.outcome)?;
    }
    done()
}

fn flood(ctx: &LauncherCtx) -> RankResult {
    flooded(ctx, None, 256)
}

fn flood_few(ctx: &LauncherCtx) -> RankResult {
    flooded(ctx, Some(256), 64)
}

/// What a victim uses while it should be doing nothing.
fn idle(victim: &Victim) -> Result<(Duration, usize), Box<dyn std::error::Error + Send + Sync>> {
    let cpu = probe::cpu_time(Some(victim.pid()))?;
    let (mut fds, started) = (0, Instant::now());
    while started.elapsed() < WINDOW {
        fds = fds.max(victim.fds()?);
        std::thread::sleep(Duration::from_millis(10));
    }
    let used = probe::cpu_time(Some(victim.pid()))?.saturating_sub(cpu);
    if used >= WINDOW / 7 {
        return Err(format!("{used:?} of CPU time in {WINDOW:?}: it spins").into());
    }
    Ok((used, fds))
}

/// Connections of those who know how to greet, until there is no descriptor for the next.
fn none_left(ctx: &LauncherCtx) -> RankResult {
    let (greeting, _) = overheard(ctx)?;
    let victim = Victim::start(ctx, Some(256))?;
    let before = victim.fds()?;
    let desk = raw::abstract_name(&victim.team);
    let mut held = Vec::new();
    for n in 0..400_u64 {
        let socket = raw::connect_soon(&desk)?;
        let nonce = std::array::from_fn(|i| (n >> (i % 8)) as u8 | 1);
        raw::send(&socket, &greeting.with(2, nonce, &[1]), &[])?;
        held.push(socket);
    }
    let patience = Instant::now() + AMPLE;
    while victim.fds()? < 250 {
        check!(Instant::now() < patience, "only {} descriptors", victim.fds()?);
        std::thread::sleep(Duration::from_millis(5));
    }
    let (used, fds) = idle(&victim)?;
    ctx.progress(&format!(
        "{} connections: {used:?} of CPU in {WINDOW:?}, {before} and then {fds} descriptors",
        held.len()
    ));
    drop(held);
    let took = victim.meets(ctx)?;
    ctx.progress(&format!("met after {took:?}"));
    done()
}

/// Two thousand connections that say nothing.
fn flooded(ctx: &LauncherCtx, files: Option<u64>, most: usize) -> RankResult {
    let victim = Victim::start(ctx, files)?;
    let before = victim.fds()?;
    let doors = [&victim.team, &victim.hub].map(|name| raw::abstract_name(name));
    let mut held = Vec::new();
    let until = Instant::now() + Duration::from_secs(4);
    while held.len() < 2000 && Instant::now() < until {
        match raw::connect(&doors[held.len() % 2]) {
            Ok(socket) => held.push(socket),
            // The queue is full: he takes some, and turns others out.
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            Err(other) => return Err(format!("after {}: {other}", held.len()).into()),
        }
    }
    check!(held.len() >= 1000, "only {} connections", held.len());
    let (used, fds) = idle(&victim)?;
    ctx.progress(&format!(
        "{} connections: {used:?} of CPU in {WINDOW:?}, {before} and then {fds} descriptors",
        held.len()
    ));
    // Beside those of the connections it may have some open for a moment: files in /proc, a socket that it is about to close.
    const FOR_A_MOMENT: usize = 8;
    check!(fds <= before + most + FOR_A_MOMENT, "{fds} descriptors, {before} before");
    let took = victim.meets(ctx)?;
    ctx.progress(&format!("met beside them after {took:?}"));
    drop(held);
    done()
}

/// A greeting of this build, said by a rank that came to the wrong host.
fn overheard(ctx: &LauncherCtx) -> Result<(Greeting, Vec<u8>), Box<dyn std::error::Error + Send + Sync>> {
    let instance = fresh();
    let listener = raw::listen(&raw::abstract_name(&format!("comm/{}/{instance}/team/t", uid())));
    let rank = ctx.launch_on("rendezvous/try", 1, Layout::Threads).arg(20_000).instance(&instance).spawn()?;
    let packet = raw::receive(&raw::accept(&listener)?)?;
    rank.end_all();
    Ok(Greeting::heard(&packet)?)
}

/// Something that can be passed.
fn descriptor(rng: &mut SplitMix64) -> OwnedFd {
    let memfd = |len, seals: SealFlags| {
        let fd = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let all = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    match rng.below(7) {
        0 => memfd(4096, all),
        1 => memfd(4096, SealFlags::empty()),
        2 => memfd(0, all),
        3 => rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        4 => rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap().1,
        5 => std::fs::File::open("/dev/null").unwrap().into(),
        _ => rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
    }
}

/// A packet that begins as a right one does, further and further.
fn packet(rng: &mut SplitMix64, greeting: &Greeting, request: &[u8]) -> Vec<u8> {
    let noise = |rng: &mut SplitMix64, most| -> Vec<u8> {
        (0..rng.below(most)).map(|_| rng.next_u64() as u8).collect()
    };
    let nonce = std::array::from_fn(|_| rng.next_u64() as u8);
    let purpose = 1 + rng.below(3) as u32;
    match rng.below(6) {
        0 => noise(rng, 300),
        1 => noise(rng, 66_000),
        2 => {
            let body = noise(rng, 100);
            greeting.with(purpose, nonce, &body)
        }
        // An introduction, or the question who is there.
        3 => greeting.with(purpose, nonce, &[rng.below(2) as u8]),
        4 => vec![rng.below(2) as u8],
        _ => {
            let mut body = request.to_vec();
            let at = rng.below(body.len() as u64) as usize;
            body[at] = rng.next_u64() as u8;
            greeting.with(purpose, nonce, &body)
        }
    }
}

/// Random packets with random descriptors, from several connections at once, at a desk and at a hub's door.
fn noise(ctx: &LauncherCtx) -> RankResult {
    let time = Duration::from_secs(if ctx.full() { 10 } else { 3 });
    let (greeting, request) = overheard(ctx)?;
    // Of another team, so that what is changed into a sound request does not get in.
    let request: Vec<u8> = [&[0, 2, b'x', b'y'], &request[3..]].concat();
    let victim = Victim::start(ctx, None)?;
    let names = [&victim.team, &victim.hub].map(|name| raw::abstract_name(name));
    let (threads, fds) = (victim.threads()?, victim.fds()?);
    let (packets, until) = (AtomicU64::new(0), Instant::now() + time);
    let mut most = 0;
    let resident = || probe::memory(Some(victim.pid())).map(|m| m.resident);
    let before = std::thread::scope(|scope| {
        for thread in 0..4 {
            let (names, greeting, request, packets) = (&names, &greeting, &request, &packets);
            let mut rng = ctx.rng().fork(thread);
            scope.spawn(move || {
                while Instant::now() < until {
                    let Ok(socket) = raw::connect(&names[rng.below(2) as usize]) else {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    };
                    for _ in 0..1 + rng.below(20) {
                        let most = if rng.below(20) == 0 { 30 } else { 4 };
                        let fds: Vec<OwnedFd> = (0..rng.below(most)).map(|_| descriptor(&mut rng)).collect();
                        if raw::send(&socket, &packet(&mut rng, greeting, request), &fds).is_err() {
                            break;
                        }
                        packets.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        // What the first of it costs is bought once: buffers, and the allocator's arenas.
        std::thread::sleep(time / 4);
        let before = resident()?;
        while Instant::now() < until {
            most = most.max(victim.fds()?);
            std::thread::sleep(Duration::from_millis(20));
        }
        std::io::Result::Ok(before)
    })?;
    let after = resident()?;
    let sent = packets.into_inner();
    ctx.progress(&format!(
        "{sent} packets in {time:?}; resident {} KiB, {} KiB more at the end; {fds} descriptors, {most} at most",
        before >> 10,
        after.saturating_sub(before) >> 10
    ));
    check!(sent > 500, "only {sent} packets");
    check!(after <= before + (24 << 20), "memory grows: {before} bytes, then {after}");
    check!(most <= fds + 512, "{most} descriptors");
    check_eq!(victim.threads()?, threads, "threads");
    let patience = Instant::now() + AMPLE;
    while victim.fds()? > fds + 4 {
        check!(Instant::now() < patience, "{} descriptors are left of {fds}", victim.fds()?);
        std::thread::sleep(Duration::from_millis(10));
    }
    victim.meets(ctx)?;
    done()
}
