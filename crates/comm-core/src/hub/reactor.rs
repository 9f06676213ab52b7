//! The thread that serves sockets, wakes tasks, and knows the next deadline of a task.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::fds::HubFd;
use super::peer::ring;
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::wait::{Deadline, guarded};

/// What a source has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Go on watching it.
    Yes,
    /// It is ready but cannot be served now, for want of descriptors, say: look again in a moment. Until then it is not
    /// watched, for it would be found ready at once.
    Later,
    /// It is done: forget it, and close what it holds.
    No,
}

/// Something with a descriptor that the reactor watches.
pub(crate) trait Source: Send + Sync {
    /// The descriptor.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Called on the reactor thread when the descriptor is ready. Must not block.
    fn ready(&self, token: u64) -> Keep;
}

const BELL: u64 = 0;
/// How long a source that said [`Keep::Later`] is left alone.
const PAUSE: Duration = Duration::from_millis(20);

/// Most packets or connections that a source takes in one turn: whoever floods one must not keep the others waiting.
pub(crate) const TURN: usize = 64;

/// The deadline of a task.
pub(crate) struct Timer {
    token: u64,
    deadline: Deadline,
    /// The moment under which the reactor has it: the deadline as it stood then.
    at: Mutex<Instant>,
    waker: Mutex<Waker>,
    fired: AtomicBool,
}

impl Timer {
    /// Whether the deadline has come.
    pub(crate) fn has_fired(&self) -> bool {
        self.fired.load(Ordering::Acquire)
    }

    /// Wakes another task from now on. `false` if the deadline has come meanwhile: then nobody will be woken.
    pub(crate) fn set_waker(&self, waker: &Waker) -> bool {
        // The new one is cloned and the old one dropped outside of the lock: both are the user's code.
        drop(self.exchange(waker.clone()));
        !self.has_fired()
    }

    fn exchange(&self, waker: Waker) -> Waker {
        std::mem::replace(&mut *lock(&self.waker), waker)
    }

    fn key(&self) -> (Instant, u64) {
        (*lock(&self.at), self.token)
    }
}

type Timers = BTreeMap<(Instant, u64), Arc<Timer>>;

#[derive(Clone)]
struct Watched {
    source: Arc<dyn Source>,
    flags: epoll::EventFlags,
}

/// The reactor of a hub.
pub(crate) struct Reactor {
    epoll: HubFd,
    bell: HubFd,
    next_token: AtomicU64,
    sources: Mutex<HashMap<u64, Watched>>,
    /// The sources that are left alone, and until when.
    paused: Mutex<Vec<(Instant, u64)>>,
    timers: Mutex<Timers>,
}

impl Reactor {
    pub(super) fn new() -> Result<Reactor> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::io("making an epoll", e))?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("making an eventfd", e))?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(|e| Error::io("watching an eventfd", e))?;
        Ok(Reactor {
            epoll: epoll.into(),
            bell: bell.into(),
            next_token: AtomicU64::new(BELL + 1),
            sources: Mutex::default(),
            paused: Mutex::default(),
            timers: Mutex::default(),
        })
    }

    /// The eventfd that peers write.
    pub(super) fn bell(&self) -> &HubFd {
        &self.bell
    }

    /// Wakes the reactor: a task's cell may have changed.
    pub(crate) fn ring(&self) {
        ring(&self.bell);
    }

    /// A token for a source that is about to be added.
    pub(crate) fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Watches a source until it says [`Keep::No`] or is removed.
    pub(crate) fn add(&self, token: u64, flags: epoll::EventFlags, source: Arc<dyn Source>) -> Result<()> {
        self.sources().insert(token, Watched { source: source.clone(), flags });
        epoll::add(&self.epoll, source.fd(), epoll::EventData::new_u64(token), flags).map_err(|e| {
            self.sources().remove(&token);
            Error::io("watching a socket", e)
        })
    }

    /// Forgets a source. To close its descriptor would not do: where a duplicate lives on, in this process, in a peer
    /// or in a forked child, an epoll goes on watching.
    pub(crate) fn remove(&self, token: u64) {
        let watched = self.sources().remove(&token);
        if let Some(watched) = watched {
            let _ = epoll::delete(&self.epoll, watched.source.fd());
        }
    }

    /// Wakes a task at a moment, unless disarmed before.
    pub(crate) fn arm(&self, deadline: Deadline, waker: &Waker) -> Arc<Timer> {
        let timer = Arc::new(Timer {
            token: self.token(),
            deadline,
            at: Mutex::new(deadline.instant()),
            waker: Mutex::new(waker.clone()),
            fired: AtomicBool::new(false),
        });
        let first = {
            let mut timers = self.timers();
            timers.insert(timer.key(), timer.clone());
            timers.keys().next() == Some(&timer.key())
        };
        if first {
            self.ring();
        }
        timer
    }

    /// Takes a timer back.
    pub(crate) fn disarm(&self, timer: &Timer) {
        let mut timers = self.timers();
        timers.remove(&timer.key());
    }

    /// Serves for ever. `on_bell` is called after each ring.
    pub(super) fn run(&self, on_bell: impl Fn()) {
        let mut events = Vec::with_capacity(64);
        loop {
            let now = Instant::now();
            let timer = self.timers().keys().next().map(|(at, _)| *at);
            let paused = self.paused().iter().map(|(until, _)| *until).min();
            let next = [timer, paused].into_iter().flatten().min();
            let next = next.map(|next| next.saturating_duration_since(now));
            let timeout =
                next.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the reactor's epoll failed");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            for event in &events {
                match event.data.u64() {
                    BELL => {
                        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
                        guarded(&on_bell);
                    }
                    token => self.serve(token),
                }
            }
            self.fire();
            self.resume();
        }
    }

    /// Lets a source do what it can do now. Called on the reactor thread.
    pub(super) fn serve(&self, token: u64) {
        let Some(watched) = self.sources().get(&token).cloned() else { return };
        let mut keep = Keep::No;
        guarded(|| keep = watched.source.ready(token));
        match keep {
            Keep::Yes => {}
            Keep::Later => {
                if self.rewatch(token, &watched, epoll::EventFlags::empty()) {
                    self.paused().push((Instant::now() + PAUSE, token));
                }
            }
            Keep::No => self.remove(token),
        }
    }

    fn rewatch(&self, token: u64, watched: &Watched, flags: epoll::EventFlags) -> bool {
        let data = epoll::EventData::new_u64(token);
        epoll::modify(&self.epoll, watched.source.fd(), data, flags).is_ok()
    }

    /// Watches the sources again that have been left alone long enough.
    fn resume(&self) {
        let now = Instant::now();
        let due: Vec<(Instant, u64)> = self.paused().extract_if(.., |(until, _)| *until <= now).collect();
        for (_, token) in due {
            let watched = self.sources().get(&token).cloned();
            if let Some(watched) = watched {
                self.rewatch(token, &watched, watched.flags);
            }
        }
    }

    /// Wakes the tasks whose deadline has come.
    fn fire(&self) {
        let due = {
            let mut timers = self.timers();
            let later = timers.split_off(&(Instant::now(), u64::MAX));
            std::mem::replace(&mut *timers, later)
        };
        for timer in due.into_values() {
            if !timer.deadline.has_passed() {
                // It has been moved by time in which this process was stopped.
                *lock(&timer.at) = timer.deadline.instant();
                self.timers().insert(timer.key(), timer);
                continue;
            }
            timer.fired.store(true, Ordering::Release);
            // To drop a waker is the user's code as well, and this may be the last handle of the timer.
            guarded(move || {
                timer.exchange(Waker::noop().clone()).wake();
                drop(timer);
            });
        }
    }

    fn sources(&self) -> MutexGuard<'_, HashMap<u64, Watched>> {
        lock(&self.sources)
    }

    fn paused(&self) -> MutexGuard<'_, Vec<(Instant, u64)>> {
        lock(&self.paused)
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        lock(&self.timers)
    }
}
