//! When a wait gives up.

use std::time::{Duration, Instant};

use super::clock;
use crate::config;

/// The moment at which a wait gives up.
///
/// Every blocking call takes `impl Into<Deadline>`: a [`Duration`] from now, an [`Instant`], or
/// [`Deadline::default()`], which is `COMM_TIMEOUT_MS` (600 s unless set) from now. (Those of traits take a `Deadline`:
/// `.into()`.) Time in which this process was stopped (Ctrl-Z) moves it, from the moment on at which the deadline was made.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    at: Instant,
    /// What had been credited when it was made.
    stopped: Duration,
}

impl Deadline {
    /// Time left; zero once the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.instant().saturating_duration_since(Instant::now())
    }

    /// Whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The moment itself, as it stands now.
    pub fn instant(&self) -> Instant {
        let since = clock::stopped().saturating_sub(self.stopped);
        self.at.checked_add(since).unwrap_or(self.at)
    }
}

impl Default for Deadline {
    fn default() -> Self {
        config::timeout().into()
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Deadline { at, stopped: clock::stopped() }
    }
}

impl From<Duration> for Deadline {
    /// A duration past what the clock can hold means a century.
    fn from(after: Duration) -> Self {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        let stopped = clock::stopped();
        Deadline { at: Instant::now() + after.min(CENTURY), stopped }
    }
}
