//! The host of a join: whoever could bind the name gathers the ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::control::{Control, MAX_RANKS, TeamId};
use super::desk::{Clerk, Desk, Visitor};
use super::messages::{Answer, Field, Request, Welcome};
use crate::error::{Error, Result};
use crate::hub::socket::Listener;
use crate::hub::{Hub, Nonce};
use crate::point;
use crate::sync::lock;

/// Those who wait are told at most this often who else is there.
const NEWS: Duration = Duration::from_millis(100);

/// A rank that has arrived.
struct Arrived {
    visitor: Arc<Visitor>,
    nonce: Nonce,
    caller: u64,
    hub: String,
    size: u32,
}

/// Those who have been told that a join has failed: by rank, and by who they are, for a rank may be what they
/// disagreed about.
#[derive(Default)]
struct Told {
    ranks: BTreeSet<u32>,
    callers: BTreeSet<(Nonce, u64)>,
}

impl Told {
    /// Whether he has not been told before.
    fn insert(&mut self, rank: u32, caller: (Nonce, u64)) -> bool {
        let (rank, caller) = (self.ranks.insert(rank), self.callers.insert(caller));
        rank && caller
    }
}

/// How far a join has come.
enum State {
    Gathering {
        arrived: BTreeMap<u32, Arrived>,
        /// A duplicate of the desk's socket, to be handed to every process of the team.
        name: OwnedFd,
        /// When all were last told who is there.
        told: Option<Instant>,
    },
    /// The ranks disagreed. Those who come late are told so too, until all have been, or until one comes again.
    Failed {
        verdict: Answer,
        told: Told,
        of: u32,
        until: Instant,
    },
    Closed,
}

/// Gathers the ranks of one team.
pub(super) struct Host {
    me: Weak<Host>,
    hub: Weak<Hub>,
    team: String,
    desk: OnceLock<u64>,
    state: Mutex<State>,
}

impl Host {
    /// Opens the desk of a name that this process has just bound.
    pub(super) fn open(hub: &Arc<Hub>, listener: Listener, team: &str) -> Result<()> {
        let name = listener
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::io("duplicating the socket of a name", e))?;
        let state = Mutex::new(State::Gathering { arrived: BTreeMap::new(), name, told: None });
        let host = Arc::new_cyclic(|me| Host {
            me: me.clone(),
            hub: Arc::downgrade(hub),
            team: team.to_string(),
            desk: OnceLock::new(),
            state,
        });
        let desk = Desk::open(hub, listener, host.clone())?;
        let _ = host.desk.set(desk);
        Ok(())
    }

    /// Gives the name up, or leaves it to those who hold a duplicate of its socket.
    fn close(&self, state: &mut State) {
        *state = State::Closed;
        if let (Some(hub), Some(&desk)) = (self.hub.upgrade(), self.desk.get()) {
            hub.reactor().remove(desk);
        }
    }

    fn join(
        &self,
        arrived: &mut BTreeMap<u32, Arrived>,
        visitor: &Arc<Visitor>,
        rank: u32,
        size: u32,
        caller: u64,
        hub: String,
    ) -> Outcome {
        let Some(nonce) = visitor.nonce() else { return Outcome::Refuse("no greeting".into()) };
        if size == 0 || size as usize > MAX_RANKS || rank >= size {
            return Outcome::Refuse(format!("rank {rank} of {size}; a team has 1 to {MAX_RANKS} ranks"));
        }
        if let Some(first) = arrived.get(&rank) {
            let pid =
                |v: &Visitor| v.pid().map_or("an unknown process".into(), |pid| format!("process {pid}"));
            return Outcome::Disagree {
                rank,
                field: Field::Rank,
                theirs: format!("{rank}, from {}", pid(visitor)),
                others: format!("{rank}, from {} before", pid(&first.visitor)),
            };
        }
        arrived.insert(rank, Arrived { visitor: visitor.clone(), nonce, caller, hub, size });
        if let Some((rank, theirs, others)) = odd_size(arrived) {
            let (theirs, others) = (theirs.to_string(), others.to_string());
            return Outcome::Disagree { rank, field: Field::Size, theirs, others };
        }
        if arrived.len() == size as usize { Outcome::Complete } else { Outcome::Wait }
    }

    /// Makes the team and tells everybody.
    fn complete(arrived: &BTreeMap<u32, Arrived>, name: &OwnedFd) -> Result<()> {
        let mut processes: Vec<(Nonce, String)> = Vec::new();
        let mut process_of = Vec::new();
        for rank in arrived.values() {
            let known = processes.iter().position(|(nonce, _)| *nonce == rank.nonce);
            let process = known.unwrap_or_else(|| {
                processes.push((rank.nonce, rank.hub.clone()));
                processes.len() - 1
            });
            process_of.push(process as u16);
        }
        let draw = Nonce::draw()?.bytes();
        let (low, high) = draw.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let id = TeamId([word(low), word(high)]);
        point!("host.complete");
        let control = Control::create(id, arrived.len(), processes.len())?;
        let block = control.segment().share()?;
        let welcome = Answer::Welcome(Welcome { id, processes, process_of });
        for rank in arrived.values() {
            rank.visitor.answer(&welcome, &[block.as_fd(), name.as_fd()])?;
            point!("host.welcoming");
        }
        Ok(())
    }

    /// Nobody is told of a disagreement for ever: when those who were asked to come have had their time, the name is
    /// free.
    fn forget_at(&self, until: Instant) {
        let Some(hub) = self.hub.upgrade() else { return };
        let waker = Waker::from(Arc::new(Forget(self.me.clone())));
        // The timer is not needed again: it fires, and is gone.
        let _ = hub.reactor().arm(until.into(), &waker);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Closes the desk of a join that has failed, when its time is over.
struct Forget(Weak<Host>);

impl Wake for Forget {
    fn wake(self: Arc<Self>) {
        let Some(host) = self.0.upgrade() else { return };
        let mut state = host.lock();
        if matches!(*state, State::Failed { .. }) {
            host.close(&mut state);
        }
    }
}

/// What a request to join comes to.
enum Outcome {
    Wait,
    Complete,
    Refuse(String),
    Disagree { rank: u32, field: Field, theirs: String, others: String },
}

/// The rank with another world size: the one outside the majority, else the first that differs from the lowest rank.
fn odd_size(arrived: &BTreeMap<u32, Arrived>) -> Option<(u32, u32, u32)> {
    let sizes: Vec<(u32, u32)> = arrived.iter().map(|(&rank, a)| (rank, a.size)).collect();
    let (odd, common) = super::odd_one_out(&sizes.iter().map(|&(_, size)| size).collect::<Vec<_>>())?;
    Some((sizes[odd].0, sizes[odd].1, sizes[common].1))
}

impl Clerk for Host {
    fn asked(&self, visitor: &Arc<Visitor>, request: Request) -> Option<Answer> {
        let mut state = self.lock();
        let (arrived, name, news) = match &mut *state {
            State::Gathering { arrived, name, told } => (arrived, name, told),
            State::Closed => return Some(Answer::Over),
            State::Failed { verdict, told, of, until } => {
                let Request::Join { rank, caller, .. } = request else { return Some(verdict.clone()) };
                let fresh = visitor.nonce().is_some_and(|nonce| told.insert(rank, (nonce, caller)));
                if !fresh || Instant::now() > *until {
                    // He has been told: this is the next attempt, and it gets the name.
                    self.close(&mut state);
                    return Some(Answer::Over);
                }
                let answer = verdict.clone();
                if told.callers.len() >= *of as usize {
                    self.close(&mut state);
                }
                return Some(answer);
            }
        };
        let (rank, size, caller, hub, patience_ms) = match request {
            Request::WhoArrived => {
                let who = Answer::Arrived(arrived.keys().copied().collect());
                // Whoever asks is about to leave, and this process with him, perhaps. Others will give up at the same
                // moment: they should know now that he was there.
                if news.is_none_or(|when| when.elapsed() >= NEWS) {
                    *news = Some(Instant::now());
                    let others = arrived.values().filter(|a| !Arc::ptr_eq(&a.visitor, visitor));
                    others.for_each(|a| a.visitor.say(&who));
                }
                return Some(who);
            }
            Request::Join { team, .. } if team != self.team => {
                return Some(Answer::Refused(format!(
                    "the name of this socket is {:?}, not {team:?}",
                    self.team
                )));
            }
            Request::Join { rank, size, caller, hub, patience_ms, .. } => {
                (rank, size, caller, hub, patience_ms)
            }
        };
        match self.join(arrived, visitor, rank, size, caller, hub) {
            Outcome::Wait => None,
            Outcome::Refuse(why) => Some(Answer::Refused(why)),
            Outcome::Complete => {
                if let Err(error) = Host::complete(arrived, name) {
                    let refused = Answer::Refused(error.to_string());
                    arrived.values().for_each(|rank| rank.visitor.say(&refused));
                }
                self.close(&mut state);
                None
            }
            Outcome::Disagree { rank: odd, field, theirs, others } => {
                let verdict = Answer::Mismatch { rank: odd, field, theirs, others };
                let of = arrived.values().map(|a| a.size).chain([size]).max().unwrap_or(size);
                let mut told = Told::default();
                for (&rank, there) in arrived.iter() {
                    told.insert(rank, (there.nonce, there.caller));
                    if !Arc::ptr_eq(&there.visitor, visitor) {
                        there.visitor.say(&verdict);
                    }
                }
                if let Some(nonce) = visitor.nonce() {
                    told.insert(rank, (nonce, caller));
                }
                let until = Instant::now() + Duration::from_millis(patience_ms.min(3_600_000));
                let answer = verdict.clone();
                if told.callers.len() >= of as usize {
                    self.close(&mut state);
                } else {
                    *state = State::Failed { verdict, told, of, until };
                    drop(state);
                    self.forget_at(until);
                }
                Some(answer)
            }
        }
    }

    fn gone(&self, visitor: &Visitor) {
        let mut state = self.lock();
        if let State::Gathering { arrived, .. } = &mut *state {
            let before = arrived.len();
            arrived.retain(|_, a| a.visitor.token() != visitor.token());
            // Somebody who looks in and goes, before the first has arrived, is no reason to close.
            if arrived.is_empty() && before > 0 {
                // Everybody has given up: whoever comes next binds the name anew.
                self.close(&mut state);
            }
        }
    }

    fn is_open(&self) -> bool {
        !matches!(*self.lock(), State::Closed)
    }
}
