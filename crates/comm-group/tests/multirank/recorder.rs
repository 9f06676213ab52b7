//! What ranks write down when one of them does not come.

use std::path::Path;
use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::Tensor;
use comm_group::{OpState, ReduceOp};
use comm_testkit::{Case, LauncherCtx, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::support::{Any, group};

const SUITE: &str = "recorder";
const SOON: Duration = Duration::from_secs(20);

/// Operations in one group for each in the other; all of the first together are more than a rank keeps.
const EACH: u64 = 5;
const ROUNDS: u64 = 60;
const KEPT: usize = 256;
const STUCK: usize = 1;

pub const PROGRAMS: &[Program] = &[
    Program { name: "recorded", run: recorded },
    Program { name: "recorded-leaving", run: leaving },
    Program { name: "recorded-receiving", run: receiving },
    Program { name: "recorded-small-files", run: small_files },
];

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        Case::launcher(SUITE, name, run).worlds(|world| world == 3).limit(Duration::from_secs(60))
    };
    vec![
        case("dump/-/-/stuck-rank", stuck),
        case("dump/-/-/no-folder", no_folder),
        case("dump/-/-/rank-that-left", left),
        case("dump/-/-/inside-a-message", inside_a_message),
        case("dump/-/-/file-size-limit", file_size_limit),
    ]
}

/// Two groups, one with more to do than the other; then one rank does not come to the busy one, and later one ends the other.
fn recorded(ctx: &RankCtx) -> RankResult {
    let (busy, idle) = (group(ctx, "busy/1")?, group(ctx, "idle")?);
    let mine = Tensor::from_slice(&[2, 3], &[1f32; 6])?;
    for _ in 0..ROUNDS {
        for _ in 0..EACH {
            busy.all_reduce(&mine, ReduceOp::Max, SOON)?;
        }
        idle.barrier(SOON)?;
    }
    check_eq!((busy.recent().len(), idle.recent().len()), (KEPT, ROUNDS as usize));
    check!(busy.recent().iter().all(|record| record.state == OpState::Done));
    if ctx.rank() == STUCK {
        ctx.note("stuck");
        ctx.await_go("on")?;
    }
    let error = busy.reduce(&mine, ReduceOp::Sum, 0, Duration::from_millis(700)).err();
    let timed_out = matches!(&error, Some(Error::Timeout { missing, .. }) if missing[0].rank == STUCK);
    check!(timed_out, "{error:?}");
    ctx.note("told");
    ctx.await_go("on")?;
    check!(busy.barrier(SOON).is_err(), "and nothing more is written");
    if ctx.rank() == 0 {
        idle.abort_handle().abort("enough");
    }
    check!(matches!(idle.barrier(SOON), Err(Error::Aborted { by: 0, .. })));
    let last = idle.recent().pop();
    check!(last.is_some_and(|record| matches!(record.state, OpState::Failed(_)) && record.op == "barrier"));
    done()
}

struct Dump {
    rank: usize,
    /// The operations, in order.
    operations: Vec<Value>,
    /// What stands at the end.
    end: Value,
}

/// All dumps of a team, by rank.
fn dumps(folder: &Path, team: &str) -> Any<Vec<Dump>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let events: Vec<Value> = serde_json::from_slice(&std::fs::read(&path)?)?;
        let end = events.iter().find(|event| event["ph"] == "i").ok_or("no end")?["args"].clone();
        if !end["team"].as_str().is_some_and(|name| name.ends_with(team)) {
            continue;
        }
        let rank = end["rank"].as_u64().ok_or("no rank")? as usize;
        let named = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().ends_with(&format!("-rank{rank}.json")));
        assert!(named, "{path:?} is of rank {rank}");
        assert!(events.iter().all(|event| event["tid"] == rank && event["pid"] == events[0]["pid"]));
        let operations = events.into_iter().filter(|event| event["cat"] == "collective").collect();
        all.push(Dump { rank, operations, end });
    }
    all.sort_by_key(|dump| dump.rank);
    Ok(all)
}

/// From the dumps of those who came, as a person would find it: the operation that nobody has ended, and who is not in it.
fn verdict(dumps: &[Dump]) -> Any<(u64, String, Vec<u64>)> {
    let open = |dump: &Dump| dump.operations.iter().find(|event| event["ph"] == "B").cloned();
    let open = open(&dumps[0]).ok_or("nothing is open")?;
    let (seq, op) = (open["args"]["seq"].as_u64().ok_or("no seq")?, open["name"].as_str().ok_or("no name")?);
    let behind = |dump: &Dump| -> Vec<u64> {
        let ranks = dump.end["ranks"].as_array().cloned().unwrap_or_default();
        ranks.iter().filter(|r| r["seq"].as_u64() < Some(seq)).filter_map(|r| r["rank"].as_u64()).collect()
    };
    // Who was only a little late is there in its own dump.
    let mut stuck = behind(&dumps[0]);
    stuck.retain(|rank| dumps.iter().all(|dump| behind(dump).contains(rank)));
    Ok((seq, op.to_string(), stuck))
}

fn stuck(ctx: &LauncherCtx) -> RankResult {
    let folder = tempfile::tempdir()?;
    // It is made when it is needed.
    let folder = folder.path().join("made/for it");
    let running =
        ctx.launch("recorded").env("COMM_DUMP_DIR", folder.to_string_lossy()).limit(SOON).spawn()?;
    for rank in (0..ctx.world()).filter(|&rank| rank != STUCK) {
        running.wait_note(rank, "told", SOON)?;
    }
    let came = dumps(&folder, "busy/1")?;
    check_eq!(came.iter().map(|dump| dump.rank).collect::<Vec<_>>(), [0, 2]);
    check!(dumps(&folder, "idle")?.is_empty(), "that group goes on");
    // The join, the window, and all that were done.
    let (seq, op, stuck) = verdict(&came)?;
    let before = came[0].operations.len() as u64 - 1;
    let last = came[0].operations[before as usize - 1]["args"]["seq"].as_u64();
    check_eq!((op.as_str(), stuck, Some(seq)), ("reduce", vec![STUCK as u64], last.map(|seq| seq + 1)));
    for dump in &came {
        check_eq!(dump.operations.len(), KEPT);
        let [done @ .., open] = &dump.operations[..] else { return Err("nothing was kept".into()) };
        check!(done.iter().all(|event| event["ph"] == "X" && event["args"]["state"] == "done"));
        check!(done.iter().all(|event| event["name"] == "all_reduce" && event["args"]["operator"] == "max"));
        check!(done.iter().all(|event| event["dur"].as_f64() > Some(0.0)));
        let ordered = done.windows(2).all(|two| {
            two[0]["ts"].as_f64() <= two[1]["ts"].as_f64()
                && two[0]["args"]["seq"].as_u64().map(|seq| seq + 1) == two[1]["args"]["seq"].as_u64()
        });
        check!(ordered);
        let args = &open["args"];
        check_eq!(args["state"], json!("failed"));
        check_eq!(
            (&args["shape"], &args["dtype"], &args["root"]),
            (&json!([2, 3]), &json!("f32"), &json!(0))
        );
        check!(args["agreed_ns"].is_null(), "they never agreed");
        let error = args["error"].as_str().unwrap_or_default();
        check!(error.contains("timeout") && error.contains("missing: rank 1"), "{error}");
    }
    running.go("on")?;
    let reports = running.wait(SOON);
    check!(reports.iter().all(|r| r.outcome == Outcome::Ok(json!(null))), "{}", running.logs());
    // The one that was stuck has written its own, and all have of the other group.
    let (busy, idle) = (dumps(&folder, "busy/1")?, dumps(&folder, "idle")?);
    check_eq!((busy.len(), idle.len()), (ctx.world(), ctx.world()));
    let of_stuck = &busy[STUCK].operations;
    let last_two: Vec<_> =
        of_stuck[of_stuck.len() - 2..].iter().map(|e| e["args"]["state"].clone()).collect();
    check_eq!(last_two, ["done", "failed"]);
    for dump in &idle {
        // Those before, and the one that failed.
        check_eq!(dump.operations.len(), ROUNDS as usize + 1);
        check!(dump.operations.iter().all(|event| event["name"] == "barrier"));
        check!(dump.end["error"].as_str().is_some_and(|error| error.contains("enough")), "{}", dump.end);
    }
    check_eq!(std::fs::read_dir(&folder)?.count(), 2 * ctx.world(), "one file for each rank and team");
    done()
}

/// One rank leaves while the others have one more operation to do.
fn leaving(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let mine = Tensor::from_slice(&[2], &[1f32; 2])?;
    for _ in 0..EACH {
        group.all_reduce(&mine, ReduceOp::Sum, SOON)?;
    }
    if ctx.rank() != STUCK {
        for _ in 0..2 {
            let error = group.reduce(&mine, ReduceOp::Sum, 0, SOON).err();
            check!(matches!(error, Some(Error::PeerLeft { rank: STUCK, .. })), "{error:?}");
        }
    }
    done()
}

/// The team goes on, and yet nothing can be done with it: that is written down, once.
fn left(ctx: &LauncherCtx) -> RankResult {
    let folder = tempfile::tempdir()?;
    let launch = ctx.launch("recorded-leaving").env("COMM_DUMP_DIR", folder.path().to_string_lossy());
    for report in launch.limit(SOON).run(SOON)? {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
    }
    let came = dumps(folder.path(), "g")?;
    check_eq!(came.iter().map(|dump| dump.rank).collect::<Vec<_>>(), [0, 2]);
    let (_, op, behind) = verdict(&came)?;
    check_eq!((op.as_str(), behind), ("reduce", vec![STUCK as u64]));
    for dump in came {
        check_eq!(dump.operations.len(), EACH as usize + 1, "the second call tells nothing new");
        check_eq!(dump.end["ranks"][STUCK]["left"], json!(true));
        let error = dump.end["error"].as_str().unwrap_or_default();
        check!(error.contains("left") && error.contains(&format!("rank {STUCK}")), "{error}");
    }
    done()
}

/// One rank waits for a message that does not come, when another one ends the team.
fn receiving(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    group.barrier(SOON)?;
    let outcome = match ctx.rank() {
        0 => group.recv(STUCK, SOON).map(drop),
        STUCK => group.recv_any(SOON).map(drop),
        _ => {
            group.abort_handle().abort("enough");
            group.send(&Tensor::from_slice(&[1], &[0u8])?, 0, SOON)
        }
    };
    check!(matches!(outcome, Err(Error::Aborted { by: 2, .. })), "{outcome:?}");
    done()
}

/// The end of the team is written down by whoever hears of it, also in a message.
fn inside_a_message(ctx: &LauncherCtx) -> RankResult {
    let folder = tempfile::tempdir()?;
    let launch = ctx.launch("recorded-receiving").env("COMM_DUMP_DIR", folder.path().to_string_lossy());
    for report in launch.limit(SOON).run(SOON)? {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
    }
    let all = dumps(folder.path(), "g")?;
    check_eq!(all.iter().map(|dump| dump.rank).collect::<Vec<_>>(), [0, 1, 2]);
    for dump in all {
        check_eq!(dump.operations.len(), 1, "the barrier; messages are no operations of all");
        check!(dump.end["error"].as_str().is_some_and(|error| error.contains("enough")), "{}", dump.end);
    }
    done()
}

/// The group ends when files of this process may be no larger than a part of what is to be written.
fn small_files(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for _ in 0..KEPT {
        group.barrier(SOON)?;
    }
    let limit = Rlimit { current: Some(10_000), ..getrlimit(Resource::Fsize) };
    setrlimit(Resource::Fsize, limit)?;
    // All have it by then. Who is slow hears of the end inside of this one.
    let met = group.barrier(SOON);
    if ctx.rank() == STUCK {
        group.abort_handle().abort("enough");
    }
    let over = met.and_then(|()| group.barrier(SOON));
    check!(matches!(over, Err(Error::Aborted { by: STUCK, .. })), "{over:?}");
    done()
}

/// To go over the limit would be a signal, and half a file.
fn file_size_limit(ctx: &LauncherCtx) -> RankResult {
    let folder = tempfile::tempdir()?;
    let launch = ctx.launch("recorded-small-files").env("COMM_DUMP_DIR", folder.path().to_string_lossy());
    for report in launch.limit(SOON).run(SOON)? {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}", report.rank);
    }
    check_eq!(std::fs::read_dir(folder.path())?.count(), 0);
    done()
}

/// That nothing can be written changes nothing.
fn no_folder(ctx: &LauncherCtx) -> RankResult {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("a file");
    std::fs::write(&file, "in the way")?;
    let running = ctx.launch("recorded").env("COMM_DUMP_DIR", file.to_string_lossy()).limit(SOON).spawn()?;
    for rank in (0..ctx.world()).filter(|&rank| rank != STUCK) {
        running.wait_note(rank, "told", SOON)?;
    }
    running.go("on")?;
    let reports = running.wait(SOON);
    check!(reports.iter().all(|r| r.outcome == Outcome::Ok(json!(null))), "{}", running.logs());
    check_eq!(std::fs::read_to_string(&file)?, "in the way");
    check_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    done()
}
