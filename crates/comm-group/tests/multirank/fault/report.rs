//! How a rank tells the launcher about an error.

use std::time::Duration;

use comm_core::Error;
use comm_core::error::PeerState;
use comm_testkit::{Note, RankCtx, RankResult, check, check_eq, done};
use serde_json::{Value, json};

/// Says which error a rank has got, at the moment when it has.
pub fn tell(ctx: &RankCtx, error: &Error) {
    ctx.note_value("error", to_json(error));
}

fn to_json(error: &Error) -> Value {
    let text = error.to_string();
    match error {
        Error::PeerLost { rank, ranks, how, .. } => {
            json!({"kind": "lost", "rank": rank, "ranks": ranks, "how": format!("{how:?}"), "text": text})
        }
        Error::Timeout { missing, .. } => {
            let ranks: Vec<usize> = missing.iter().map(|m| m.rank).collect();
            let stopped = missing.iter().all(|m| m.state == PeerState::Stopped);
            json!({"kind": "timeout", "ranks": ranks, "stopped": stopped, "text": text})
        }
        Error::Aborted { by, reason, .. } => {
            json!({"kind": "aborted", "by": by, "reason": reason, "text": text})
        }
        Error::OutOfMemory { .. } => json!({"kind": "memory", "text": text}),
        _ => json!({"kind": "other", "text": text}),
    }
}

/// Checks that a survivor knows which ranks are lost, and how.
pub fn is_lost(note: &Note, ranks: &[usize], how: &str) -> RankResult {
    let seen = (&note.value["kind"], &note.value["ranks"], &note.value["how"]);
    check_eq!(seen, (&json!("lost"), &json!(ranks), &json!(how)), "{}", note.value["text"]);
    done()
}

/// Checks that it was told in time.
pub fn in_time(note: &Note, since_ns: u64, bound: Duration) -> Result<Duration, String> {
    let took = Duration::from_nanos(note.at_ns.saturating_sub(since_ns));
    if took > bound { Err(format!("noticed after {took:?}, not within {bound:?}")) } else { Ok(took) }
}

/// Checks that it waited for some of these ranks, which are stopped.
pub fn is_stopped(note: &Note, among: &[usize]) -> RankResult {
    let value = &note.value;
    check_eq!(value["kind"], json!("timeout"), "{}", value["text"]);
    check_eq!(value["stopped"], json!(true), "{}", value["text"]);
    let ranks: Vec<usize> = serde_json::from_value(value["ranks"].clone())?;
    check!(!ranks.is_empty() && ranks.iter().all(|r| among.contains(r)), "{}", value["text"]);
    done()
}
