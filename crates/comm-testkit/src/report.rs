//! How a rank tells the launcher about an error, and whether it was told in time.

use std::fmt;
use std::time::Duration;

use comm_core::Error;
use comm_core::error::PeerState;
use serde_json::{Value, json};

use crate::witness::{Gap, HANDS, NOTICE, starved};
use crate::{Note, RankCtx, RankResult, check_eq, done};

/// Time that this thread has spent running, or waiting for a core, since it was started; zero where the kernel does not
/// count it.
pub fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let both = text.split_whitespace().take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_nanos(both)
}

/// Says which error a rank has got in which call, at the moment when it has, and how much of the time since `before` (a
/// [`busy`] when the call began) it was busy and not waiting for anybody.
pub fn tell(ctx: &RankCtx, call: &str, error: &Error, before: Duration) {
    let mut value = to_json(error);
    value["call"] = json!(call);
    value["busy_ns"] = json!(busy().saturating_sub(before).as_nanos() as u64);
    ctx.note_value("error", value);
}

/// What the functions below look at.
pub fn to_json(error: &Error) -> Value {
    let text = error.to_string();
    match error {
        Error::PeerLost { rank, ranks, how, .. } => {
            json!({"kind": "lost", "rank": rank, "ranks": ranks, "how": format!("{how:?}"), "text": text})
        }
        Error::Timeout { missing, .. } => {
            let ranks: Vec<usize> = missing.iter().map(|m| m.rank).collect();
            let stopped = missing.iter().filter(|m| m.state == PeerState::Stopped);
            let stopped: Vec<usize> = stopped.map(|m| m.rank).collect();
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

/// How long a survivor took to notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Notice {
    took: Duration,
    /// How much of that its thread was busy, or waiting for a core, and how long a witness was without one.
    busy: Duration,
    starved: Duration,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1?}", self.took)?;
        if self.took > NOTICE {
            write!(f, " ({:.1?} busy, a witness had no core for {:.1?})", self.busy, self.starved)?;
        }
        Ok(())
    }
}

/// Checks that it was told in time: within [`NOTICE`]. On a machine with more to do than cores, time in which its thread
/// ran or was runnable and got no core is no time in which it could have been told; nor is time in which others on the
/// way got none, as a witness saw, whose gaps these are.
pub fn in_time(note: &Note, since_ns: u64, gaps: &[Gap]) -> Result<Notice, String> {
    let took = Duration::from_nanos(note.at_ns.saturating_sub(since_ns));
    let busy = Duration::from_nanos(note.value["busy_ns"].as_u64().unwrap_or(0)).min(took);
    let notice = Notice { took, busy, starved: starved(since_ns, note.at_ns, gaps) };
    let excused = busy.max(notice.starved * HANDS);
    if took.saturating_sub(excused) > NOTICE {
        Err(format!("noticed after {notice}, not within {NOTICE:?}"))
    } else {
        Ok(notice)
    }
}
