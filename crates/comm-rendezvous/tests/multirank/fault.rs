//! Those who take part are killed at each point of a rendezvous, or stopped, and the others go on, or are told.

use std::time::Duration;

use comm_core::Deadline;
use comm_rendezvous::{Error, FileStore, POINTS, Rendezvous, ServerOptions, TcpServer, TcpStore};
use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

/// Time that is never needed.
const SOON: Duration = Duration::from_secs(30);

/// What each rank does so often.
const ROUNDS: usize = 20;

pub const PROGRAMS: &[Program] =
    &[Program { name: "rendezvous.rank", run: rank }, Program { name: "rendezvous.served", run: served }];

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        Case::launcher("fault", name, run)
            .worlds(|world| world == 4)
            .layouts(&[Layout::Processes])
            .limit(Duration::from_secs(300))
    };
    vec![
        case("kill/writer", writers).backend("file"),
        case("stop/writer", stopped_writer).backend("file"),
        case("kill/client", clients).backend("tcp"),
        case("kill/server", servers).backend("tcp"),
        case("stop/server", stopped_server).backend("tcp"),
    ]
}

fn open(ctx: &RankCtx) -> Result<Box<dyn Rendezvous>, Error> {
    let place = ctx.args()["place"].as_str().unwrap_or_default();
    Ok(match ctx.args()["kind"].as_str() {
        // One more takes part than there are ranks: the test itself.
        Some("file") => Box::new(FileStore::open(place, "run", ctx.world() + 1)?),
        _ => Box::new(TcpStore::connect(place, SOON)?),
    })
}

/// Leaves something in each round, counts it, and looks at what it has left.
fn rank(ctx: &RankCtx) -> RankResult {
    let store = open(ctx)?;
    let soon = || Deadline::from(SOON);
    for round in 0..ROUNDS {
        let key = format!("rank {} round {round}", ctx.rank());
        store.set(&key, key.as_bytes(), soon())?;
        store.add("count", 1, soon())?;
        check_eq!(store.get(&key, soon())?, key.as_bytes());
        check!(store.check(&["count"], soon())?);
    }
    ctx.note("through");
    store.add("through", 1, soon())?;
    // Who is dead is waited for in vain, and no longer than this.
    let never = store.get("of nobody", Duration::from_millis(50).into());
    check!(matches!(never, Err(Error::Timeout { .. })), "{never:?}");
    done()
}

/// Kills one rank at each point of these, at several times, and looks at what the others have made of it.
fn kill_each(
    ctx: &LauncherCtx,
    kind: &str,
    points: &[&str],
    place: &mut dyn FnMut() -> Result<(String, Box<dyn Rendezvous>), Error>,
) -> RankResult {
    for point in points {
        for hit in [1, 2, 3, 17] {
            let (place, store) = place()?;
            let arg = json!({ "kind": kind, "place": place });
            let fault = Fault::at(*point).rank(1).hit(hit).kill();
            let reports = ctx.launch("rendezvous.rank").arg(arg).fault(fault).run(SOON)?;
            let dead = reports.iter().filter(|report| matches!(report.outcome, Outcome::Killed(9))).count();
            for report in &reports {
                check!(
                    report.outcome.is_ok() || report.rank == 1,
                    "{point} #{hit}: rank {} {}",
                    report.rank,
                    report.outcome
                );
            }
            // A point that is passed less often than that kills nobody.
            check!(dead == 1 || hit > 1, "{point} #{hit} has killed {dead}");
            // All that the living have left is there, and goes on.
            let soon = || Deadline::from(SOON);
            for rank in (0..ctx.world()).filter(|&rank| rank != 1) {
                let key = format!("rank {rank} round {}", ROUNDS - 1);
                check_eq!(store.get(&key, soon())?, key.as_bytes());
            }
            let count = store.add("count", 0, soon())?;
            let living = (ctx.world() - dead) * ROUNDS;
            check!((living..=living + dead * ROUNDS).contains(&(count as usize)), "{point} #{hit}: {count}");
            check_eq!(store.add("through", 0, soon())? as usize, ctx.world() - dead);
        }
    }
    done()
}

fn with_prefix(prefix: &str) -> Vec<&'static str> {
    POINTS.iter().copied().filter(|point| point.starts_with(prefix)).collect()
}

fn writers(ctx: &LauncherCtx) -> RankResult {
    let folder = tempfile::tempdir()?;
    let mut number = 0;
    kill_each(ctx, "file", &with_prefix("file."), &mut || {
        number += 1;
        let place = folder.path().join(format!("store {number}")).display().to_string();
        let store = FileStore::open(&place, "run", ctx.world() + 1)?;
        Ok((place, Box::new(store)))
    })
}

fn clients(ctx: &LauncherCtx) -> RankResult {
    let mut servers = Vec::new();
    kill_each(ctx, "tcp", &with_prefix("tcp."), &mut || {
        let server = TcpServer::start()?;
        let place = server.address().to_string();
        servers.push(server);
        let store = TcpStore::connect(&place, SOON)?;
        Ok((place, Box::new(store)))
    })
}

/// A writer that is stopped holds the lock: whoever wants to write gives up in time, and goes on when it does.
fn stopped_writer(ctx: &LauncherCtx) -> RankResult {
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("store").display().to_string();
    let store = FileStore::open(&place, "run", ctx.world() + 1)?;
    store.set("before", b"", SOON.into())?;
    let arg = json!({ "kind": "file", "place": place });
    let fault = Fault::at("file.locked").rank(1).hit(5).hold("gate");
    let running = ctx.launch("rendezvous.rank").arg(arg).fault(fault).spawn()?;
    check_eq!(running.wait_held(1, "gate", SOON)?, "file.locked");
    let error = store.set("k", b"", Duration::from_millis(200).into());
    check!(matches!(&error, Err(Error::Timeout { why, .. }) if why.contains("lock")), "{error:?}");
    // Reading takes no lock.
    check_eq!(store.get("before", SOON.into())?, b"");
    running.go("gate")?;
    for report in running.wait(SOON) {
        check!(report.outcome.is_ok(), "rank {} {}", report.rank, report.outcome);
    }
    store.set("k", b"", SOON.into())?;
    done()
}

/// The first rank serves, and the others ask until it is gone.
fn served(ctx: &RankCtx) -> RankResult {
    if ctx.rank() == 0 {
        let port = ctx.args()["port"].as_u64().unwrap_or_default() as u16;
        let _server = ServerOptions::new().port(port).start()?;
        ctx.note("serves");
        ctx.await_go("never")?;
        return done();
    }
    let place = format!("127.0.0.1:{}", ctx.args()["port"]);
    let store = match TcpStore::connect(&place, Duration::from_millis(700)) {
        Ok(store) => store,
        // It was killed when it had just begun.
        Err(error) => return told(&error),
    };
    for round in 0.. {
        let deadline = || Deadline::from(Duration::from_millis(500));
        let key = format!("rank {} round {round}", ctx.rank());
        let outcome = store.set(&key, b"value", deadline()).and_then(|()| match ctx.rank() {
            // One of them waits for what does not come.
            1 if round > 2 => store.get("never", SOON.into()).map(drop),
            _ => store.add("count", 1, deadline()).map(drop),
        });
        if let Err(error) = outcome {
            return told(&error);
        }
    }
    done()
}

/// What a client is told of a server that is gone or stopped.
fn told(error: &Error) -> RankResult {
    check!(matches!(error, Error::Lost { .. } | Error::Timeout { .. }), "{error}");
    Ok(json!(error.to_string()))
}

fn free_port() -> Result<u16, std::io::Error> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn servers(ctx: &LauncherCtx) -> RankResult {
    for point in with_prefix("server.") {
        for hit in [1, 2, 3, 50] {
            let fault = Fault::at(point).process(0).hit(hit).kill();
            let arg = json!({ "port": free_port()? });
            let running = ctx.launch("rendezvous.served").arg(arg).fault(fault).spawn()?;
            if point == "server.accepted" && hit > 3 {
                // So many do not come: it is killed from outside.
                running.wait_note(0, "serves", SOON)?;
                running.kill(0)?;
            }
            let reports = running.wait(SOON);
            for report in &reports {
                let expected = if report.rank == 0 {
                    matches!(report.outcome, Outcome::Killed(9))
                } else {
                    report.outcome.is_ok()
                };
                check!(expected, "{point} #{hit}: rank {} {}", report.rank, report.outcome);
            }
        }
    }
    done()
}

/// A server that is stopped answers nothing: operations end by their deadlines, and go on when it does.
fn stopped_server(ctx: &LauncherCtx) -> RankResult {
    let port = free_port()?;
    let running =
        ctx.launch_on("rendezvous.served", 1, Layout::Processes).arg(json!({ "port": port })).spawn()?;
    running.wait_note(0, "serves", SOON)?;
    let store = TcpStore::connect(format!("127.0.0.1:{port}"), SOON)?;
    store.set("k", b"v", SOON.into())?;
    running.stop(0)?;
    running.wait_stopped(0, SOON)?;
    let time = Duration::from_millis(300);
    for _ in 0..2 {
        let error = store.add("n", 1, time.into());
        check!(matches!(&error, Err(Error::Timeout { waited, .. }) if *waited >= time), "{error:?}");
    }
    running.cont(0)?;
    check_eq!(store.get("k", SOON.into())?, b"v");
    running.kill(0)?;
    let error = store.get("k", time.into());
    check!(matches!(error, Err(Error::Lost { .. } | Error::Timeout { .. })), "{error:?}");
    done()
}
