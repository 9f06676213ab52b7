//! Joining a team, from the side of one rank.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::control::{Control, TeamId};
use super::ending::Ending;
use super::guard::NameGuard;
use super::host::Host;
use super::messages::{Answer, Request, Welcome};
use super::shared::TeamShared;
use crate::error::{At, Error, Missing, PeerState, Result};
use crate::hub::Hub;
use crate::hub::hello::{self, Purpose};
use crate::hub::names::Address;
use crate::hub::socket::{self, Listener, Packet, Socket};
use crate::point;
use crate::shm::{Access, Segment};
use crate::wait::{Deadline, Next, Patience};
use crate::wire;

/// How long one who gives up waits to be told who was there.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// Who was there so long ago counts as having arrived: ranks that give up together do not name each other.
const TOGETHER: Duration = Duration::from_millis(500);

/// The first and the longest pause before coming again to a name that is not free yet.
const PAUSE: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(10));

/// How often one looks who might know that somebody will not come.
pub(super) const HEED: Duration = Duration::from_millis(20);

/// A number of this thread's own.
fn caller() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static CALLER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    CALLER.with(|&caller| caller)
}

/// One rank's attempts to get into a team.
pub(super) struct Joining<'a> {
    hub: &'a Arc<Hub>,
    name: &'a str,
    rank: usize,
    size: usize,
    deadline: Deadline,
    patience: Patience,
    /// Whether it is known from elsewhere that somebody will not come.
    heed: Option<&'a dyn Fn() -> Result<bool>>,
    address: Address,
    /// Whether the last attempt found the name in use by a team that this rank has left.
    name_lingers: bool,
    /// When each of the other ranks was last said to be there.
    seen: BTreeMap<usize, Instant>,
}

/// What one attempt came to.
enum Attempt {
    Welcome(Box<Welcome>, Vec<OwnedFd>),
    /// Come again, at once or after a pause.
    Again {
        pause: bool,
    },
    GaveUp,
}

impl<'a> Joining<'a> {
    pub(super) fn new(
        hub: &'a Arc<Hub>,
        name: &'a str,
        rank: usize,
        size: usize,
        deadline: Deadline,
        heed: Option<&'a dyn Fn() -> Result<bool>>,
    ) -> Result<Joining<'a>> {
        let address = hub.namespace().address("team", name)?;
        let patience = Patience::sleeping(deadline);
        let seen = BTreeMap::new();
        let name_lingers = false;
        Ok(Joining { hub, name, rank, size, deadline, patience, heed, address, name_lingers, seen })
    }

    /// Whether somebody is known not to come.
    fn is_hopeless(&self) -> Result<bool> {
        self.heed.map_or(Ok(false), |heed| heed())
    }

    /// Comes until welcomed, refused, or out of time; then opens the team.
    pub(super) fn join(mut self) -> Result<Arc<TeamShared>> {
        let mut pause = PAUSE.0;
        loop {
            match self.attempt()? {
                Attempt::Welcome(welcome, fds) => {
                    point!("join.welcomed");
                    return self.open(*welcome, fds);
                }
                Attempt::GaveUp => return Err(self.timed_out()),
                Attempt::Again { .. } if self.is_hopeless()? => return Err(self.timed_out()),
                Attempt::Again { pause: false } => {}
                Attempt::Again { pause: true } => {
                    if let Next::GiveUp = self.patience.next() {
                        return Err(self.timed_out());
                    }
                    std::thread::sleep(pause.min(self.deadline.remaining()));
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    fn attempt(&mut self) -> Result<Attempt> {
        let socket = match socket::connect(&self.address) {
            Ok(socket) => socket,
            Err(Errno::CONNREFUSED | Errno::NOENT) => {
                return Ok(match self.hub.namespace().claim(&self.address, self.deadline)? {
                    Some(listener) => {
                        point!("join.bound");
                        Host::open(self.hub, listener, self.name)?;
                        Attempt::Again { pause: false }
                    }
                    None => Attempt::Again { pause: true },
                });
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Attempt::Again { pause: true }),
            Err(Errno::PROTOTYPE) => {
                return Err(Error::bad_peer(format!(
                    "the name {:?} ({}) is held by a socket of another kind, so by another program",
                    self.name, self.address
                )));
            }
            Err(e) => return Err(Error::io(format!("connecting to {}", self.address), e)),
        };
        if let Some(uid) = socket.foreign_uid() {
            return Err(Error::bad_peer(format!(
                "the name {:?} ({}) is held by uid {uid}",
                self.name, self.address
            )));
        }
        point!("join.connected");
        let request = Request::Join {
            team: self.name.to_string(),
            rank: self.rank as u32,
            size: self.size as u32,
            caller: caller(),
            hub: self.hub.hub_name(),
            patience_ms: u64::try_from(self.deadline.remaining().as_millis()).unwrap_or(u64::MAX),
        };
        let body = wire::encode(&request)?;
        let packet = hello::greet(Purpose::Join, self.hub.nonce(), self.hub.boot(), &body);
        if socket.send(&packet, &[]).is_err() {
            return Ok(Attempt::Again { pause: true });
        }
        // Whoever answered before need not be who is asked now.
        self.name_lingers = false;
        point!("join.asked");
        loop {
            match socket.receive() {
                Ok(Some(packet)) => {
                    if let Some(attempt) = self.answered(packet)? {
                        return Ok(attempt);
                    }
                    if self.deadline.has_passed() {
                        return self.last_words(&socket);
                    }
                }
                Ok(None) | Err(Errno::CONNRESET) => return Ok(Attempt::Again { pause: true }),
                Err(Errno::AGAIN) => match self.patience.next() {
                    Next::Look => {}
                    Next::Sleep(slice) if self.heed.is_none() => socket.await_readable(slice),
                    Next::Sleep(_) if self.is_hopeless()? => return self.last_words(&socket),
                    Next::Sleep(slice) => socket.await_readable(slice.min(HEED)),
                    Next::GiveUp => return self.last_words(&socket),
                },
                Err(Errno::MSGSIZE) => return Err(Error::bad_peer("an answer that is too large")),
                Err(e) => return Err(Error::io(format!("reading from {}", self.address), e)),
            }
        }
    }

    /// What an answer comes to; `None` if it only says who is there.
    fn answered(&mut self, packet: Packet) -> Result<Option<Attempt>> {
        let (_, body) = hello::check(&packet.bytes, Purpose::Answer, self.hub.boot())?;
        self.name_lingers = false;
        Ok(Some(match wire::decode(body)? {
            Answer::Welcome(welcome) => Attempt::Welcome(Box::new(welcome), packet.fds),
            Answer::InUse => return Err(Error::NameInUse { name: self.name.to_string() }),
            Answer::Later => {
                self.name_lingers = true;
                Attempt::Again { pause: true }
            }
            Answer::Over => Attempt::Again { pause: true },
            Answer::Refused(why) => {
                return Err(Error::bad_peer(format!("the host of {:?} refused: {why}", self.name)));
            }
            Answer::Mismatch { rank, field, theirs, others } => {
                let (rank, field) = (rank as usize, field.name());
                return Err(Error::Mismatch { rank, field, theirs, others, at: Box::new(self.at()) });
            }
            Answer::Arrived(ranks) => {
                let now = Instant::now();
                let ranks = ranks.into_iter().map(|rank| rank as usize).filter(|&rank| rank < self.size);
                self.seen.extend(ranks.map(|rank| (rank, now)));
                return Ok(None);
            }
        }))
    }

    /// Asks who was there, so that the error can say who was not.
    fn last_words(&mut self, socket: &Socket) -> Result<Attempt> {
        let until = Instant::now() + LAST_WORDS;
        let asked = wire::encode(&Request::WhoArrived).is_ok_and(|ask| socket.send(&ask, &[]).is_ok());
        let mut told = !asked;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match socket.receive() {
                Ok(Some(packet)) => match self.answered(packet)? {
                    // The last one came just now.
                    Some(Attempt::Welcome(welcome, fds)) => return Ok(Attempt::Welcome(welcome, fds)),
                    Some(_) => return Ok(Attempt::GaveUp),
                    None => told = true,
                },
                Err(Errno::AGAIN) if !told && !left.is_zero() => socket.await_readable(left),
                _ => return Ok(Attempt::GaveUp),
            }
            if left.is_zero() {
                return Ok(Attempt::GaveUp);
            }
        }
    }

    fn at(&self) -> At {
        At {
            team: self.name.to_string(),
            rank: self.rank,
            op: "join".into(),
            elapsed: self.patience.waited(),
        }
    }

    /// What is wrong with this process, if nobody can come because of that.
    fn shut(&self) -> Option<Error> {
        let what = || format!("joining {:?}: nobody can connect to this process", self.name);
        self.hub.lobby.shut().map(|error| Error::io(what(), error))
    }

    fn timed_out(&self) -> Error {
        if self.name_lingers {
            return Error::NameInUse { name: self.name.to_string() };
        }
        if let Some(error) = self.shut() {
            return error;
        }
        let there = |rank: &usize| self.seen.get(rank).is_some_and(|when| when.elapsed() <= TOGETHER);
        let missing = (0..self.size).filter(|rank| *rank != self.rank && !there(rank));
        let missing: Vec<_> = missing.map(|rank| Missing { rank, state: PeerState::Unknown }).collect();
        let instance = self.hub.instance();
        let what = if instance.shared {
            format!("joining {} ranks in the instance {:?} of {}", self.size, instance.id, instance.source)
        } else {
            format!(
                "joining {} ranks (only threads of this process could have met: COMM_INSTANCE_ID is not set)",
                self.size
            )
        };
        Error::Timeout {
            what,
            waited: self.patience.waited(),
            seen: (self.size - missing.len()) as i64,
            missing,
            expected: self.size as i64,
            at: Box::new(self.at()),
        }
    }

    /// Opens the team for this rank: the first rank of the process maps it, and all see to its links.
    fn open(&mut self, welcome: Welcome, fds: Vec<OwnedFd>) -> Result<Arc<TeamShared>> {
        let Welcome { id, processes, process_of } = welcome;
        let [block, name] = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
            Error::bad_peer(format!("a welcome with {} descriptors, expected 2", fds.len()))
        })?;
        let process_of: Vec<usize> = process_of.into_iter().map(usize::from).collect();
        let sound = process_of.len() == self.size
            && !processes.is_empty()
            && process_of.iter().all(|&p| p < processes.len())
            && (0..processes.len()).all(|p| process_of.contains(&p))
            && processes[process_of[self.rank]].0 == self.hub.nonce();
        let (nonces, hub_names): (Vec<_>, Vec<_>) = processes.into_iter().unzip();
        let distinct = nonces.iter().enumerate().all(|(i, nonce)| !nonces[..i].contains(nonce));
        if !sound || !distinct {
            return Err(Error::bad_peer("a welcome that contradicts itself"));
        }
        let make = |register: &dyn Fn(&Arc<TeamShared>)| {
            let control = self.map(block, id, nonces.len())?;
            let (hub, place) = (self.hub.clone(), process_of.clone());
            let team = TeamShared::new(self.name.to_string(), id, hub, control, &nonces, place)?;
            let team = Arc::new(team);
            register(&team);
            Ok(team)
        };
        let team = self.hub.teams.open(id, make)?;
        // Another rank of this process may have opened it, or it is another team, and the host repeats its id.
        if !team.is(self.name, &nonces, &process_of) {
            return Err(Error::bad_peer("a welcome with the id of another team"));
        }
        self.settle_in(&team, Listener::from(name), &hub_names).map_err(|error| {
            // The others count on this rank by now.
            let reason = format!("rank {} could not join: {error}", self.rank);
            team.end(&Ending::Aborted { by: self.rank, reason });
            // And it may come for the next team of this name.
            team.leave(self.rank, 0);
            error
        })?;
        Ok(team)
    }

    /// What has to be done once for a process. Each of its ranks does what no other has done yet, by its own deadline.
    fn settle_in(&mut self, team: &Arc<TeamShared>, name: Listener, hub_names: &[String]) -> Result<()> {
        NameGuard::open(team, name)?;
        match team.link(hub_names, &mut self.patience) {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => {
                if let Some(error) = self.shut() {
                    team.release_name();
                    return Err(error);
                }
                let what = "linking to the processes of the team";
                team.give_up(self.rank, what, self.patience.waited(), missing);
            }
            Err(error) => {
                team.release_name();
                return Err(error);
            }
        }
        point!("join.linked");
        Ok(())
    }

    fn map(&self, block: OwnedFd, id: TeamId, processes: usize) -> Result<Control> {
        let len = Control::len(self.size, processes);
        let segment = Segment::receive(block, 0, len, Access::ReadWrite)?;
        Control::receive(segment, id, self.size, processes)
    }
}
