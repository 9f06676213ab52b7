//! The thread that shows that this process lives, and watches whether its peers do.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::identity::Nonce;
use super::robust::{self, Watched};
use crate::error::{Error, Result};
use crate::shm::{Access, Segment};
use crate::sync::lock;
use crate::wait::{clock, futex, guarded};

/// The watcher looks up this often even when nothing wakes it: to beat, and because the kernel wakes one sleeper of a dead process's word,
/// who wakes the others; should just that one be stopped, the others notice at their next slice.
const SLICE: Duration = clock::BEAT;

/// How often it looks where the kernel cannot wait for several words.
const SHORT_SLICE: Duration = Duration::from_millis(20);

/// Size of the segment that holds the life word.
pub(super) const SEGMENT_LEN: u64 = 4096;

/// A peer's life word, as mapped here.
#[derive(Debug)]
pub(crate) struct LifeWord {
    segment: Arc<Segment>,
    alive: u32,
}

impl LifeWord {
    /// Takes a peer's life segment. The peer may be dead already.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the word was never alive.
    pub(super) fn of_peer(segment: Arc<Segment>) -> Result<LifeWord> {
        let alive = match robust::state(word(&segment)?) {
            robust::State::Alive(alive) => alive,
            // Of no owner that lives is this the value.
            robust::State::Died => 0,
            robust::State::Never(value) => {
                return Err(Error::bad_peer(format!("a life word that was never alive: {value:#x}")));
            }
        };
        Ok(LifeWord { segment, alive })
    }

    fn word(&self) -> Option<&AtomicU32> {
        word(&self.segment).ok()
    }

    /// Whether the peer is dead.
    pub(crate) fn is_dead(&self) -> bool {
        self.word().is_none_or(|word| robust::is_dead(word, self.alive))
    }
}

/// The life word of a segment; peers map it read-only.
fn word(segment: &Segment) -> Result<&AtomicU32> {
    let at = segment.range(0, size_of::<AtomicU32>() as u64)?.cast::<AtomicU32>();
    // SAFETY: the range lies in the segment, which stays mapped while it is borrowed, and starts at its first byte, so
    // it is aligned. It may be mapped read-only: it is only loaded here (the owner stores through its own pointer).
    Ok(unsafe { at.as_ref() })
}

/// What the watcher thread and the rest of the hub share.
#[derive(Debug)]
pub(crate) struct Liveness {
    own: Arc<Segment>,
    peers: Mutex<Vec<(Nonce, Arc<LifeWord>)>>,
    /// Changed and woken when the list of peers has changed.
    news: AtomicU32,
}

impl Liveness {
    /// Starts the thread; `on_death` is called on it for each peer that dies. Also gives whether the kernel will mark this
    /// process's own word.
    ///
    /// # Errors
    /// [`Error::Io`] if the segment or the thread cannot be made.
    pub(super) fn start(on_death: impl Fn(Nonce) + Send + 'static) -> Result<(Arc<Liveness>, bool)> {
        let own = Arc::new(Segment::create(SEGMENT_LEN, Access::ReadOnly)?);
        let liveness = Arc::new(Liveness { own, peers: Mutex::default(), news: AtomicU32::new(0) });
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let shared = liveness.clone();
        std::thread::Builder::new()
            .name("comm-life".into())
            .spawn(move || {
                // SAFETY: the segment was made here, so it is mapped writable, and this thread holds it until it ends,
                // which is with the process.
                let outcome = shared.own.range(0, 4).map(|at| unsafe { robust::mark_alive(at.cast()) });
                let failed = outcome.is_err();
                let _ = ready.send(outcome.map_err(Error::from));
                if !failed {
                    shared.watch(&on_death);
                }
            })
            .map_err(|e| Error::io("starting the liveness thread", e))?;
        let robust = is_ready
            .recv()
            .map_err(|_| Error::io("starting the liveness thread", std::io::Error::other("it ended")))??;
        if !robust {
            tracing::info!(
                "set_robust_list is refused here: deaths are noticed by pidfds and sockets, later"
            );
        }
        Ok((liveness, robust))
    }

    /// The segment with this process's life word, to be pushed to peers.
    pub(super) fn own_segment(&self) -> &Arc<Segment> {
        &self.own
    }

    /// Starts watching a peer, which may have come again.
    pub(super) fn watch_peer(&self, nonce: Nonce, life: Arc<LifeWord>) {
        {
            let mut peers = self.lock();
            peers.retain(|(other, _)| *other != nonce);
            peers.push((nonce, life));
        }
        self.tell();
    }

    /// Stops watching a peer that is known to be dead.
    pub(super) fn forget_peer(&self, nonce: Nonce) {
        self.lock().retain(|(other, _)| *other != nonce);
        self.tell();
    }

    fn tell(&self) {
        self.news.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.news);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Nonce, Arc<LifeWord>)>> {
        lock(&self.peers)
    }

    fn watch(&self, on_death: &dyn Fn(Nonce)) {
        let mut offset = 0;
        loop {
            clock::beat();
            let news = Watched { word: &self.news, value: self.news.load(Ordering::Acquire) };
            let peers = self.lock().clone();
            for (nonce, life) in &peers {
                if life.is_dead() {
                    tracing::debug!(%nonce, "a peer process has died");
                    if let Some(word) = life.word() {
                        // Only one watcher was woken by the kernel.
                        futex::wake_all(word);
                    }
                    self.lock().retain(|(other, _)| other != nonce);
                    // Were this thread to end by a panic, peers would take this process for dead.
                    guarded(|| on_death(*nonce));
                }
            }
            // More peers than one call takes: part of them at a time, in turn.
            let room = robust::MAX_WORDS - 1;
            let mut words = vec![news];
            for (_, life) in peers.iter().cycle().skip(offset).take(room.min(peers.len())) {
                if let Some(word) = life.word() {
                    words.push(Watched { word, value: life.alive });
                }
            }
            let slice = if peers.len() > room { SHORT_SLICE } else { SLICE };
            offset = if peers.len() > room { (offset + room) % peers.len() } else { 0 };
            if !robust::sleep_on(&words, slice) {
                futex::wait(&self.news, news.value, SHORT_SLICE);
            }
        }
    }
}
