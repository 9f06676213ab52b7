//! How a rank tells the launcher about an error.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_core::Error;
use comm_core::error::PeerState;
use comm_testkit::{Note, RankCtx, RankResult, check_eq, done, now_ns};
use serde_json::{Value, json};

use super::NOTICE;

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

pub fn to_json(error: &Error) -> Value {
    let text = error.to_string();
    match error {
        Error::PeerLost { ranks, how, .. } => {
            json!({"kind": "lost", "ranks": ranks, "how": format!("{how:?}"), "text": text})
        }
        Error::Timeout { missing, .. } => {
            let ranks: Vec<usize> = missing.iter().map(|m| m.rank).collect();
            let stopped = missing.iter().all(|m| m.state == PeerState::Stopped);
            json!({"kind": "timeout", "ranks": ranks, "stopped": stopped, "text": text})
        }
        _ => json!({"kind": "other", "text": text}),
    }
}

/// Checks that a survivor knows which ranks have died.
pub fn is_lost(note: &Note, ranks: &[usize]) -> RankResult {
    let seen = (&note.value["kind"], &note.value["ranks"], &note.value["how"]);
    check_eq!(seen, (&json!("lost"), &json!(ranks), &json!("Died")), "{}", note.value);
    done()
}

/// Checks that it gave up on ranks that are stopped.
pub fn is_stopped(value: &Value, ranks: &[usize]) -> RankResult {
    check_eq!(value["kind"], json!("timeout"), "{value}");
    check_eq!(value["stopped"], json!(true), "{value}");
    check_eq!(value["ranks"], json!(ranks), "{value}");
    done()
}

/// A thread that sleeps a millisecond at a time has nothing to say about oversleeping less than this.
const ORDINARY: u64 = 8_000_000;

/// Threads that must get a core before a survivor knows: the victim's to die, the watcher, the waiter.
const HANDS: u32 = 3;

/// A thread that sees when this machine has no core for somebody who wants one.
pub struct Witness {
    over: Arc<AtomicBool>,
    gaps: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Witness {
    pub fn start() -> Witness {
        let witness = Witness { over: Arc::default(), gaps: Arc::default() };
        let (over, gaps) = (witness.over.clone(), witness.gaps.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let from = now_ns();
                std::thread::sleep(Duration::from_millis(1));
                let to = now_ns();
                if to - from > ORDINARY {
                    gaps.lock().unwrap().push((from, to));
                }
            }
        });
        witness
    }

    /// The longest time within a span in which it got no core.
    fn starved(&self, from: u64, to: u64) -> Duration {
        let gaps = self.gaps.lock().unwrap();
        let longest = gaps.iter().map(|&(a, b)| b.min(to).saturating_sub(a.max(from))).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
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

/// Checks that it was told in time: within 100 ms. On a machine with more to do than cores, time in which its thread ran
/// or was runnable and got no core is no time in which it could have been told, nor is time in which others on the way
/// got none, as a witness saw.
pub fn in_time(note: &Note, since_ns: u64, witness: &Witness) -> Result<Notice, String> {
    let took = Duration::from_nanos(note.at_ns.saturating_sub(since_ns));
    let busy = Duration::from_nanos(note.value["busy_ns"].as_u64().unwrap_or(0)).min(took);
    let starved = witness.starved(since_ns, note.at_ns);
    let notice = Notice { took, busy, starved };
    let excused = busy.max(starved * HANDS);
    if took.saturating_sub(excused) > NOTICE {
        Err(format!("noticed after {notice}, not within {NOTICE:?}"))
    } else {
        Ok(notice)
    }
}
