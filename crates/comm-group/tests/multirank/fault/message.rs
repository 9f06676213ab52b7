//! What becomes of a message, of the group, and of the next message when sender or receiver dies, falls, stops, is late, or has a
//! buffer of another shape.

use std::time::Duration;

use comm_core::Error;
use comm_core::error::LostHow;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::ThreadGroup;
use comm_testkit::fault::Fault;
use comm_testkit::values::is_poison;
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::{Value, json};

use super::{BACKEND, SOON, SUITE};
use crate::call::poisoned;
use crate::support::{Any, group};

pub const MESSAGE: Program = Program { name: "group-message", run: two_messages };

/// The points that only a message passes. At the last one its sender has its answer, so nothing comes of what happens there but
/// the end of the team, which is the next operation's.
pub const POINTS: &[&str] = &["group.posted", "group.claimed", "group.taken"];

const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// Where each of the two comes by, first of all in the first message.
const PLACES: [(&str, usize); 4] = [
    ("window.notify", SENDER),
    ("group.posted", SENDER),
    ("group.claimed", RECEIVER),
    ("window.read", RECEIVER),
];

/// What becomes of the one that comes by, and in which layouts.
const FATES: [(&str, &[Layout]); 6] = [
    ("kill", &[Layout::Processes]),
    ("panic", Layout::ALL),
    ("stop", &[Layout::Processes]),
    ("late", Layout::ALL),
    ("too-late", Layout::ALL),
    ("mismatch", Layout::ALL),
];

pub fn cases() -> Vec<Case> {
    let of = |fate: &'static str, layouts, (point, victim): (&'static str, usize)| {
        Case::launcher(SUITE, format!("{fate}/-/-/message/{point}"), move |ctx| {
            visit(ctx, fate, point, victim)
        })
        .layouts(layouts)
        .worlds(|w| w == 3)
        .backend(BACKEND)
    };
    let all = FATES.iter().flat_map(|&(fate, layouts)| PLACES.map(|place| of(fate, layouts, place)));
    // One of another shape is not read.
    all.filter(|case| case.title() != format!("{SUITE}/mismatch/-/-/message/window.read")).collect()
}

fn visit(ctx: &LauncherCtx, fate: &str, point: &str, victim: usize) -> RankResult {
    let (site, gate) = (Fault::at(point).rank(victim), "late");
    let fault = match fate {
        "kill" => site.kill(),
        "panic" => site.unwind(),
        "stop" => site.stop(),
        _ => site.hold(gate),
    };
    let is_short = matches!(fate, "stop" | "too-late");
    let args = json!({"ms": if is_short { 300 } else { 20_000 }, "wrong": fate == "mismatch"});
    let running = ctx.launch("group-message").arg(args).fault(fault).limit(SOON).spawn()?;
    match fate {
        "kill" | "panic" => {}
        "stop" => {
            let process = running.process_of(victim).ok_or("the launch runs it")?;
            running.wait_stopped(process, SOON)?;
            running.wait_note(1 - victim, "message", SOON)?;
            running.cont(process)?;
        }
        _ => {
            running.wait_held(victim, gate, SOON)?;
            if is_short {
                running.wait_note(1 - victim, "message", SOON)?;
            }
            running.go(gate)?;
        }
    }
    let reports = running.wait(SOON);
    for report in &reports {
        let rank = report.rank;
        let expected = match fate {
            "kill" if rank == victim => Outcome::Killed(9),
            "panic" if rank == victim => {
                check!(matches!(report.outcome, Outcome::Panicked(_)), "{}", report.outcome);
                continue;
            }
            "kill" => Outcome::Ok(json!(format!("lost {victim} {:?}", LostHow::Died))),
            "panic" => Outcome::Ok(json!(format!("lost {victim} {:?}", LostHow::Panicked))),
            _ => Outcome::Ok(json!("goes on")),
        };
        check_eq!(report.outcome, expected, "rank {rank}");
    }
    let message = |rank: usize| reports[rank].note("message").map(|note| note.value.clone());
    let both = (message(SENDER), message(RECEIVER));
    let has = |text: &str| Some(json!(text));
    match fate {
        "late" => check_eq!(both, (has("ok"), has("ok"))),
        "mismatch" => check_eq!(both, (has("mismatch 1"), has("mismatch 0"))),
        "stop" | "too-late" => {
            // What lies there already needs no sender any more. Else the one who waits names the other.
            let waits = message(1 - victim);
            let text = if point == "group.posted" { "ok".into() } else { format!("timeout {victim}") };
            check_eq!(waits, has(&text));
            ctx.progress(&format!("the late one: {:?}", message(victim)));
        }
        _ => {}
    }
    done()
}

const LEN: usize = 1 << 17;

/// Larger than what a letter holds, and than what is read at once.
fn content(number: i64) -> Any<Tensor> {
    let values: Vec<i64> = (0..LEN as i64).map(|i| number * 1_000_000 + i % 1000).collect();
    Ok(Tensor::from_slice(&[LEN], &values)?)
}

/// A message that something becomes of, and then an operation of all and another message, whatever became of the first.
/// Arguments: `ms` (the deadline of the first), `wrong` (the receiver's buffer has another shape).
fn two_messages(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let deadline = Duration::from_millis(ctx.args()["ms"].as_u64().unwrap_or_default());
    let first = match ctx.rank() {
        SENDER => group.send(&content(1)?, RECEIVER, deadline),
        RECEIVER => receive(ctx, &group, deadline)?,
        _ => Ok(()),
    };
    ctx.note_value("message", told(&first));
    // A message that has arrived is one; the end of the team is then seen in the next operation.
    if let Err(error) = group.barrier(SOON) {
        let Error::PeerLost { rank, how, .. } = error else { return Err(error.into()) };
        return Ok(json!(format!("lost {rank} {how:?}")));
    }
    match ctx.rank() {
        SENDER => group.send(&content(2)?, RECEIVER, SOON)?,
        RECEIVER => check!(group.recv(SENDER, SOON)?.bytes_equal(&content(2)?)?, "the second message"),
        _ => {}
    }
    group.barrier(SOON)?;
    Ok(json!("goes on"))
}

/// The first message, which is right if it comes; where it does not fit, the buffer stays as it was.
fn receive(ctx: &RankCtx, group: &ThreadGroup, deadline: Duration) -> Any<Result<(), Error>> {
    let is_wrong = ctx.args()["wrong"].as_bool().unwrap_or_default();
    let mut buf: TensorBuf = poisoned(&[LEN - usize::from(is_wrong)], DType::I64)?;
    let outcome = group.recv_into(SENDER, &mut buf, deadline);
    let buf = buf.freeze();
    match &outcome {
        Ok(()) => as_it_was_sent(&buf)?,
        Err(Error::Mismatch { .. }) => untouched(&buf)?,
        Err(_) => Value::Null,
    };
    Ok(outcome)
}

fn as_it_was_sent(buf: &Tensor) -> RankResult {
    check!(buf.bytes_equal(&content(1)?)?, "not what was sent");
    done()
}

fn untouched(buf: &Tensor) -> RankResult {
    check!(is_poison(buf.bytes()?), "somebody wrote");
    done()
}

fn told(outcome: &Result<(), Error>) -> Value {
    json!(match outcome {
        Ok(()) => "ok".to_string(),
        Err(Error::Mismatch { rank, field: "message", .. }) => format!("mismatch {rank}"),
        Err(Error::Timeout { missing, .. }) => {
            missing.iter().fold("timeout".to_string(), |text, missing| format!("{text} {}", missing.rank))
        }
        Err(error) => error.to_string(),
    })
}
