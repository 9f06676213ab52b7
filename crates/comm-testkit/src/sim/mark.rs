//! A place in a queue that can be waited for.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use comm_core::device::{EventDriver, HostFn};
use comm_core::error::At;
use comm_core::{Deadline, Error, Result};

use crate::sync::{lock, wait};

/// Not reached yet, reached, or never to be reached because the stream has failed.
#[derive(Debug, Clone, Default)]
enum State {
    #[default]
    Ahead,
    Reached,
    Failed(Error),
}

/// A place in a queue: reached once, for good.
#[derive(Clone)]
pub(super) struct Mark {
    name: Arc<str>,
    inner: Arc<(Mutex<State>, Condvar)>,
    /// What is told when it is no longer ahead.
    told: Arc<Mutex<Vec<HostFn>>>,
}

impl Mark {
    pub fn new(name: impl Into<Arc<str>>) -> Mark {
        Mark { name: name.into(), inner: Arc::default(), told: Arc::default() }
    }

    pub fn reach(&self) {
        self.set(State::Reached);
    }

    pub fn fail(&self, why: Error) {
        self.set(State::Failed(why));
    }

    fn set(&self, state: State) {
        let (mutex, changed) = &*self.inner;
        {
            let mut now = lock(mutex);
            if matches!(*now, State::Ahead) {
                *now = state;
                changed.notify_all();
            }
        }
        self.tell();
    }

    /// Runs what is to be told, without a lock.
    fn tell(&self) {
        let told = std::mem::take(&mut *lock(&self.told));
        told.into_iter().for_each(|f| f());
    }

    pub fn is_reached(&self) -> Result<bool> {
        match &*lock(&self.inner.0) {
            State::Ahead => Ok(false),
            State::Reached => Ok(true),
            State::Failed(why) => Err(why.clone()),
        }
    }

    pub fn wait(&self, deadline: Deadline) -> Result<()> {
        let began = Instant::now();
        let (mutex, changed) = &*self.inner;
        let mut now = lock(mutex);
        loop {
            match &*now {
                State::Reached => return Ok(()),
                State::Failed(why) => return Err(why.clone()),
                State::Ahead if deadline.has_passed() => break,
                State::Ahead => now = wait(changed, now, deadline.remaining()),
            }
        }
        let waited = began.elapsed();
        let at = Box::new(At { op: self.name.to_string(), elapsed: waited, ..At::default() });
        Err(Error::Timeout {
            what: self.name.to_string(),
            waited,
            missing: Vec::new(),
            seen: 0,
            expected: 1,
            at,
        })
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({}, {:?})", self.name, lock(&self.inner.0))
    }
}

impl EventDriver for Mark {
    fn query(&self) -> Result<bool> {
        self.is_reached()
    }

    fn synchronize(&self, deadline: Deadline) -> Result<()> {
        self.wait(deadline)
    }

    fn then(&self, f: HostFn) -> std::result::Result<(), HostFn> {
        lock(&self.told).push(f);
        // Whoever has set it before this was pushed has not told it.
        if !matches!(*lock(&self.inner.0), State::Ahead) {
            self.tell();
        }
        Ok(())
    }
}
