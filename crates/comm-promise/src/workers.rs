//! Threads for what may take its time: to set a promise copies, waits for a peer that takes nothing, and calls wakers, which are
//! the user's code and may wait for another promise.
//!
//! There is always one that is free: whoever hands something over while all are busy starts another. One that has had nothing to
//! do for a while goes.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use comm_core::wait::guarded;

use crate::home::lock;

type Job = Box<dyn FnOnce() + Send>;

/// How long one stays that has nothing to do.
const LINGER: Duration = Duration::from_secs(10);

struct Pool {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { jobs: VecDeque::new(), idle: 0 });
static HANDED_OVER: Condvar = Condvar::new();

/// Has one of the threads do something.
pub(crate) fn hand_over(job: impl FnOnce() + Send + 'static) {
    let mut pool = lock(&POOL);
    if pool.idle > pool.jobs.len() {
        pool.jobs.push_back(Box::new(job));
        HANDED_OVER.notify_one();
        return;
    }
    drop(pool);
    let first = move || {
        guarded(job);
        work();
    };
    // Without a thread the job is dropped, and so is its promise, which breaks.
    if let Err(error) = std::thread::Builder::new().name("comm-promise".into()).spawn(first) {
        tracing::error!(%error, "no thread can be started that sets promises");
    }
}

fn work() {
    let mut pool = lock(&POOL);
    loop {
        if let Some(job) = pool.jobs.pop_front() {
            drop(pool);
            guarded(job);
            pool = lock(&POOL);
            continue;
        }
        pool.idle += 1;
        let (again, timeout) = HANDED_OVER.wait_timeout(pool, LINGER).unwrap_or_else(PoisonError::into_inner);
        pool = again;
        pool.idle -= 1;
        if timeout.timed_out() && pool.jobs.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comm_core::wait::OneShot;

    use super::*;

    /// A job that waits for the next one does not keep it, though one thread alone has nothing to do.
    #[test]
    fn a_job_does_not_stand_behind_another() {
        let ample = Duration::from_secs(8);
        for _ in 0..20 {
            let there = Arc::new(OneShot::default());
            let is_there = there.clone();
            hand_over(move || {
                there.set(true);
            });
            assert!(is_there.wait(ample).is_some());
            while lock(&POOL).idle == 0 {
                std::thread::yield_now();
            }
            let [first, second] = std::array::from_fn(|_| Arc::new(OneShot::default()));
            let (waits, ends) = (second.clone(), first.clone());
            hand_over(move || {
                ends.set(waits.wait(ample).is_some());
            });
            hand_over(move || {
                second.set(true);
            });
            assert_eq!(first.wait(2 * ample), Some(true));
        }
    }
}
