//! How soon deaths were noticed, but for who had no core to notice it on.

use comm_testkit::witness::{Gap, HANDS, NOTICE, starved};

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
    pub fn note(&mut self, who: &str, died: u64, noticed: u64, gaps: &[Gap]) -> Result<(), String> {
        let took = noticed.saturating_sub(died);
        self.count += 1;
        self.sum += took;
        self.worst = self.worst.max(took);
        let limit = NOTICE.as_nanos() as u64;
        if took <= limit {
            return Ok(());
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        let starved = starved(died, noticed, gaps).as_nanos() as u64;
        let text = format!("{who} after {:.1} ms, with no core for {:.1} ms", ms(took), ms(starved));
        if took.saturating_sub(u64::from(HANDS) * starved) > limit {
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
