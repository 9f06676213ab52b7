//! What the reading thread of a launch and its callers share.

use std::collections::BTreeMap;
use std::io::{PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, Weak};

use comm_core::Deadline;
use rustix::process as sys;

use super::LaunchError;
use super::io::Ring;
use super::running::Signal;
use crate::outcome::{Exit, Note, Outcome};
use crate::proto::{Command, End, Event, HitList, Message};
use crate::sync::{lock, wait};

/// One process of a launch, as the launcher holds it.
pub(super) struct Proc {
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    pub(super) commands: Mutex<PipeWriter>,
}

impl Proc {
    pub fn new(pid: u32, pidfd: OwnedFd, commands: PipeWriter) -> Proc {
        Proc { pid, pidfd, commands: Mutex::new(commands) }
    }
}

#[derive(Default)]
pub(super) struct ProcState {
    pub(super) exit: Option<(Exit, u64)>,
    pub(super) log: Ring,
    pub(super) dumped: bool,
    pub(super) hung: bool,
    pub(super) hits: Option<HitList>,
}

/// A case's end on one rank.
#[derive(Debug, Clone)]
pub(crate) struct CaseEnd {
    pub case: usize,
    pub end: End,
    pub ms: u64,
}

#[derive(Default)]
pub(super) struct RankState {
    pub(super) started_ns: Option<u64>,
    pub(super) end: Option<(End, u64)>,
    pub(super) notes: Vec<Note>,
    pub(super) held: Vec<(String, String)>,
    pub(super) cases: Vec<CaseEnd>,
    pub(super) place: Option<String>,
}

pub(super) struct State {
    pub(super) procs: Vec<ProcState>,
    /// By rank; ranks that the launch does not run are empty.
    pub(super) ranks: Vec<RankState>,
    /// The launch is being ended because something hangs: what ranks make of each other's death is not their end.
    pub(super) judged: bool,
}

/// What the reading thread and the callers share.
pub(super) struct Shared {
    pub(super) owner: u64,
    pub(super) procs: Vec<Proc>,
    pub(super) first_ranks: Vec<usize>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

/// All launches that are going on, so that a case that is over time can be ended from outside.
pub(super) static LIVE: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Kills the processes of all launches of this owner.
pub(crate) fn kill_all_of(owner: u64) {
    for shared in lock(&LIVE).iter().filter_map(Weak::upgrade).filter(|s| s.owner == owner) {
        shared.kill_all();
    }
}

impl Shared {
    pub(super) fn change(&self, what: impl FnOnce(&mut State)) {
        what(&mut lock(&self.state));
        self.changed.notify_all();
    }

    pub(super) fn log(&self, process: usize, bytes: &[u8]) {
        self.change(|s| s.procs[process].log.push(bytes));
    }

    pub(super) fn exited(&self, process: usize, exit: Exit, at_ns: u64) {
        self.change(|s| s.procs[process].exit = Some((exit, at_ns)));
    }

    pub(super) fn take(&self, process: usize, message: Message) {
        self.change(|s| {
            let Message { rank, at_ns, event } = message;
            match event {
                Event::Hits(hits) => s.procs[process].hits = Some(hits),
                Event::Hung { dump } => {
                    s.procs[process].hung = true;
                    s.places(process, dump);
                }
                Event::Dump { dump } => s.places(process, dump),
                Event::Held { point, gate } => {
                    // A worker thread of the library stands for the first rank of its process.
                    let rank = rank.or_else(|| self.first_ranks.get(process).copied());
                    if let Some(rank) = rank.and_then(|r| s.ranks.get_mut(r)) {
                        rank.held.push((gate, point));
                    }
                }
                event => {
                    let Some(rank) = rank.and_then(|r| s.ranks.get_mut(r)) else { return };
                    match event {
                        Event::Result(_) | Event::Row { .. } if s.judged => {}
                        Event::Started => rank.started_ns = Some(at_ns),
                        Event::Note { text, value } => rank.notes.push(Note { at_ns, text, value }),
                        Event::Result(end) => rank.end = Some((end, at_ns)),
                        Event::Row { case, end, ms } => rank.cases.push(CaseEnd { case, end, ms }),
                        _ => {}
                    }
                }
            }
        });
    }

    /// What `look` finds by the deadline. It is called with the state locked, at every change.
    pub(super) fn until<T>(
        &self,
        deadline: Deadline,
        mut look: impl FnMut(&State) -> Option<T>,
    ) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = look(&state) {
                return Some(found);
            }
            if deadline.has_passed() {
                return None;
            }
            state = wait(&self.changed, state, deadline.remaining());
        }
    }

    pub(super) fn command(&self, process: usize, command: &Command) -> Result<(), LaunchError> {
        let mut line =
            serde_json::to_vec(command).map_err(|e| LaunchError::io("cannot write a command", e))?;
        line.push(b'\n');
        lock(&self.procs[process].commands)
            .write_all(&line)
            .map_err(|e| LaunchError::io(format!("process {process} does not take a line"), e))
    }

    pub(super) fn signal(&self, process: usize, signal: Signal) -> Result<(), LaunchError> {
        // A pidfd never names another process, even after this one has been reaped.
        sys::pidfd_send_signal(self.procs[process].pidfd.as_fd(), signal.sys())
            .map_err(|e| LaunchError::io(format!("cannot signal process {process}"), e))
    }

    pub(super) fn kill_all(&self) {
        for process in 0..self.procs.len() {
            // One that has ended already needs no killing.
            let _ = self.signal(process, Signal::Kill);
        }
    }
}

impl State {
    fn places(&mut self, process: usize, dump: BTreeMap<usize, String>) {
        self.procs[process].dumped = true;
        for (rank, text) in dump {
            if let Some(rank) = self.ranks.get_mut(rank) {
                rank.place = Some(text);
            }
        }
    }
}

/// What the rank said and how its process ended, put together. A rank that ended well in a process that did
/// not has not ended well.
pub(super) fn outcome(end: Option<&End>, exit: Option<Exit>, killed_by_us: bool) -> Outcome {
    match (end, exit) {
        (Some(End::Err(text)), _) => Outcome::Err(text.clone()),
        (Some(End::Skipped(why)), _) => Outcome::Err(format!("skipped: {why}")),
        (Some(End::Panicked(text)), _) => Outcome::Panicked(text.clone()),
        (Some(End::Ok(value)), Some(Exit::Code(0))) => Outcome::Ok(value.clone()),
        // Another rank of the process hung, not this one.
        (Some(End::Ok(value)), _) if killed_by_us => Outcome::Ok(value.clone()),
        (None, _) if killed_by_us => Outcome::Hung,
        (_, Some(Exit::Code(code))) => Outcome::Exited(code),
        (_, Some(Exit::Signal(signal))) => Outcome::Killed(signal),
        (_, None) => Outcome::Hung,
    }
}

/// What every rank has reported about a case.
pub(crate) type CaseEnds = Vec<(usize, Option<CaseEnd>)>;

/// How a case of the batch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaseState {
    Over,
    Crashed,
    Hung,
}
