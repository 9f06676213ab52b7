//! Whether a notice that came late was late, or only its reader: threads that note when they were kept waiting for a
//! core.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_testkit::now_ns;

/// How soon a death must be known to all.
pub const NOTICE: Duration = Duration::from_millis(100);

/// A thread that sleeps a millisecond at a time has nothing to say about oversleeping less than this.
const ORDINARY: u64 = 8_000_000;

/// A thread has to get a core three times before a survivor knows: the victim's to die, the watcher, the waiter.
const HANDS: u64 = 3;

pub struct Witness {
    over: Arc<AtomicBool>,
    gaps: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Witness {
    pub fn start() -> Witness {
        let witness = Witness { over: Arc::default(), gaps: Arc::default() };
        let (over, gaps) = (witness.over.clone(), witness.gaps.clone());
        std::thread::Builder::new()
            .name("witness".into())
            .spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let from = now_ns();
                    std::thread::sleep(Duration::from_millis(1));
                    let to = now_ns();
                    if to - from > ORDINARY {
                        gaps.lock().unwrap().push((from, to));
                    }
                }
            })
            .unwrap();
        witness
    }

    pub fn gaps(&self) -> Vec<(u64, u64)> {
        self.gaps.lock().unwrap().clone()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// The longest time within a span in which a witness did not get a core.
fn starved(from: u64, to: u64, gaps: &[(u64, u64)]) -> u64 {
    gaps.iter().map(|&(a, b)| b.min(to).saturating_sub(a.max(from))).max().unwrap_or(0)
}

/// Notices so far.
#[derive(Debug, Default)]
pub struct Notices {
    count: usize,
    sum: u64,
    worst: u64,
    excused: Vec<String>,
}

impl Notices {
    /// A death at `died` was noticed at `noticed`; `gaps` are those of all witnesses.
    pub fn note(&mut self, who: &str, died: u64, noticed: u64, gaps: &[(u64, u64)]) -> Result<(), String> {
        let took = noticed.saturating_sub(died);
        self.count += 1;
        self.sum += took;
        self.worst = self.worst.max(took);
        let limit = NOTICE.as_nanos() as u64;
        if took <= limit {
            return Ok(());
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        let starved = starved(died, noticed, gaps);
        let text = format!("{who} after {:.1} ms, with no core for {:.1} ms", ms(took), ms(starved));
        if took.saturating_sub(HANDS * starved) > limit {
            return Err(format!("noticed too late: {text}"));
        }
        self.excused.push(text);
        Ok(())
    }

    pub fn summary(&self) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let mean = ms(self.sum / (self.count as u64).max(1));
        let mut text = format!("{} notices, mean {mean:.2} ms, worst {:.1} ms", self.count, ms(self.worst));
        if !self.excused.is_empty() {
            text += &format!("; late for want of a core: {}", self.excused.join(", "));
        }
        text
    }
}
