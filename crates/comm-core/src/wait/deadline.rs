//! When a wait gives up.

use std::time::{Duration, Instant};

use crate::config;

/// The moment at which a wait gives up.
///
/// Every blocking call takes `impl Into<Deadline>`: a [`Duration`] from now, an [`Instant`], or
/// [`Deadline::default()`], which is `COMM_TIMEOUT_MS` (600 s unless set) from now.
///
/// ```
/// use std::time::{Duration, Instant};
/// use comm_core::Deadline;
///
/// let soon: Deadline = Duration::from_millis(50).into();
/// assert!(soon.remaining() <= Duration::from_millis(50));
/// assert!(Deadline::from(Instant::now()).has_passed());
/// ```
#[doc(alias = "GetCommTimeoutSecond")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// Time left; zero once the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The moment itself.
    pub fn instant(&self) -> Instant {
        self.0
    }

    /// The deadline moved later, by time in which this process could not run.
    pub(crate) fn extended_by(&self, gap: Duration) -> Deadline {
        Deadline(self.0.checked_add(gap).unwrap_or(self.0))
    }
}

impl Default for Deadline {
    fn default() -> Self {
        config::timeout().into()
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Deadline(at)
    }
}

impl From<Duration> for Deadline {
    /// A duration past what the clock can hold means a century.
    fn from(after: Duration) -> Self {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        Deadline(Instant::now() + after.min(CENTURY))
    }
}
