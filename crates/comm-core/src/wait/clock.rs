//! Time in which this process did not run: stopped by Ctrl-Z, by a debugger, by a frozen cgroup.
//!
//! Such time is nobody's fault, so every [`Deadline`](super::Deadline) is moved by it. The liveness thread looks up
//! every 80 ms and says so; whoever judges whether a deadline has passed looks first when that was last. A silence that is
//! much longer means that nobody ran. It is credited once, by whoever finds it, before anything is judged.
//!
//! In a forked child nobody looks up, and silence means nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::shm::fork;

/// How often the liveness thread looks up at least.
pub(crate) const BEAT: Duration = Duration::from_millis(80);

/// A silence longer than this, past the beat, means that the process did not run. Oversleeping of up to 194 ms was seen
/// with 32 busy threads per core.
const SILENCE: Duration = Duration::from_millis(250);

/// When somebody has last looked up; zero while nobody does.
static LAST: AtomicU64 = AtomicU64::new(0);
static STOPPED: AtomicU64 = AtomicU64::new(0);
static CREDIT: Mutex<()> = Mutex::new(());

/// `CLOCK_MONOTONIC` in nanoseconds: the same for all processes of the host.
///
/// ```
/// let before = comm_core::wait::now_ns();
/// assert!(comm_core::wait::now_ns() >= before);
/// ```
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Says that this process runs. Called by the liveness thread.
pub(crate) fn beat() {
    stopped();
    LAST.fetch_max(now(), Ordering::Release);
}

/// How long this process has been stopped in all, as far as there is a liveness thread to tell.
pub(crate) fn stopped() -> Duration {
    let allowed = (BEAT + SILENCE).as_nanos() as u64;
    let silent = |last: u64| last != 0 && now().saturating_sub(last) > allowed;
    if silent(LAST.load(Ordering::Acquire)) && !fork::is_forked() {
        let _one = CREDIT.lock().unwrap_or_else(PoisonError::into_inner);
        let last = LAST.load(Ordering::Acquire);
        let now = now();
        if last != 0 && now.saturating_sub(last) > allowed {
            // All of it, though part of a beat of it may have been running time: too much moves a deadline a little, too
            // little accuses a peer.
            STOPPED.fetch_add(now - last, Ordering::Release);
            // After the credit, so that nobody who sees the silence ended misses it.
            LAST.fetch_max(now, Ordering::Release);
        }
    }
    Duration::from_nanos(STOPPED.load(Ordering::Acquire))
}
