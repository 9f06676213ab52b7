//! A launch that is going on.

use std::fs::File;
use std::io::PipeWriter;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use comm_core::Deadline;
use rustix::process as sys;
use serde_json::Value;

use super::io::{self, Port};
use super::shared::{CaseEnds, CaseState, LIVE, Proc, ProcState, RankState, Shared, State, outcome};
use super::{Launch, LaunchError};
use crate::clock::now_ns;
use crate::outcome::{Exit, Note, Outcome, RankReport};
use crate::probe;
use crate::proto::{Command, Step};
use crate::sync::lock;
use crate::{RankResult, check_eq, done};

/// A signal for [`Running::signal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    /// SIGTSTP, what Ctrl-Z sends; SIGSTOP where there is no terminal to press it at (the kernel drops SIGTSTP for
    /// orphaned process groups).
    TerminalStop,
    /// SIGCONT.
    Continue,
    /// SIGTERM.
    Terminate,
    /// SIGINT, what Ctrl-C sends.
    Interrupt,
}

impl Signal {
    pub(super) fn sys(self) -> sys::Signal {
        match self {
            Signal::Kill => sys::Signal::KILL,
            Signal::Stop => sys::Signal::STOP,
            Signal::TerminalStop if probe::group_is_orphaned() => sys::Signal::STOP,
            Signal::TerminalStop => sys::Signal::TSTP,
            Signal::Continue => sys::Signal::CONT,
            Signal::Terminate => sys::Signal::TERM,
            Signal::Interrupt => sys::Signal::INT,
        }
    }
}

/// A launch that is going on. Dropping it kills what is left of it and waits until that is gone.
pub struct Running {
    id: String,
    instance: String,
    placement: Vec<Vec<usize>>,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    stop: Option<PipeWriter>,
}

impl Running {
    pub(super) fn new(
        launch: &Launch,
        id: String,
        instance: String,
        placement: Vec<Vec<usize>>,
        procs: Vec<Proc>,
        ports: Vec<Port>,
    ) -> Result<Running, LaunchError> {
        let ranks = placement.iter().flatten().max().map_or(0, |max| max + 1);
        let state = State {
            procs: procs.iter().map(|_| ProcState::default()).collect(),
            ranks: (0..ranks).map(|_| RankState::default()).collect(),
            judged: false,
        };
        let first_ranks = placement.iter().filter_map(|ranks| ranks.first().copied()).collect();
        let (owner, state, changed) = (launch.owner, Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { owner, procs, first_ranks, state, changed });
        let mut live = lock(&LIVE);
        live.retain(|s| s.strong_count() > 0);
        live.push(Arc::downgrade(&shared));
        drop(live);
        let mut running =
            Running { id, instance, placement, shared: Arc::clone(&shared), reader: None, stop: None };
        let (stopped, stop) = std::io::pipe().map_err(|e| LaunchError::io("cannot make a pipe", e))?;
        let named = std::thread::Builder::new().name("testkit-reader".into());
        let reader = named
            .spawn(move || io::watch(&shared, ports, &File::from(OwnedFd::from(stopped))))
            .map_err(|e| LaunchError::io("cannot start a thread", e))?;
        running.reader = Some(reader);
        running.stop = Some(stop);
        Ok(running)
    }

    /// The number of processes.
    pub fn processes(&self) -> usize {
        self.shared.procs.len()
    }

    /// The process ids, by number of the process.
    pub fn pids(&self) -> Vec<u32> {
        self.shared.procs.iter().map(|p| p.pid).collect()
    }

    /// The ranks of a process.
    pub fn ranks_of(&self, process: usize) -> &[usize] {
        &self.placement[process]
    }

    /// The process of a rank; `None` if the launch does not run it.
    pub fn process_of(&self, rank: usize) -> Option<usize> {
        self.placement.iter().position(|ranks| ranks.contains(&rank))
    }

    /// The `COMM_INSTANCE_ID` of its processes.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// What marks its processes and their forked children; for [`probe::processes_of_launch`].
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Sends a signal to a process, and says when (just before), on the clock of [`now_ns`].
    ///
    /// # Errors
    /// The process has ended.
    pub fn signal(&self, process: usize, signal: Signal) -> Result<u64, LaunchError> {
        let at_ns = now_ns();
        self.shared.signal(process, signal)?;
        Ok(at_ns)
    }

    /// Sends a signal to all processes that have not ended.
    pub fn signal_all(&self, signal: Signal) -> u64 {
        let at_ns = now_ns();
        for process in 0..self.processes() {
            // Having ended already is no error here.
            let _ = self.shared.signal(process, signal);
        }
        at_ns
    }

    /// SIGKILL; says when.
    ///
    /// # Errors
    /// The process has ended.
    pub fn kill(&self, process: usize) -> Result<u64, LaunchError> {
        self.signal(process, Signal::Kill)
    }

    /// SIGSTOP; returns when the process is seen to be stopped, and says when the signal was sent.
    ///
    /// # Errors
    /// The process has ended, or is not stopped after 10 s.
    pub fn stop(&self, process: usize) -> Result<u64, LaunchError> {
        let at_ns = self.signal(process, Signal::Stop)?;
        self.wait_stopped(process, Duration::from_secs(10))?;
        Ok(at_ns)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// The process has ended.
    pub fn cont(&self, process: usize) -> Result<u64, LaunchError> {
        self.signal(process, Signal::Continue)
    }

    /// Waits until a process is stopped (state T), by whatever signal.
    ///
    /// # Errors
    /// It has ended, or is not stopped by the deadline.
    pub fn wait_stopped(&self, process: usize, deadline: impl Into<Deadline>) -> Result<(), LaunchError> {
        let deadline = deadline.into();
        let pid = self.shared.procs[process].pid;
        loop {
            let state = probe::state_of(pid);
            if state == Some('T') {
                return Ok(());
            }
            if deadline.has_passed() || self.exit_of(process).is_some() {
                let state = format!("its state is {state:?}");
                return Err(LaunchError::Missing { what: format!("process {process} to be stopped"), state });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until a rank has said something, and returns the first such note.
    ///
    /// # Errors
    /// The rank has not said so by the deadline, or its process has ended without.
    pub fn wait_note(
        &self,
        rank: usize,
        text: &str,
        deadline: impl Into<Deadline>,
    ) -> Result<Note, LaunchError> {
        self.wait_rank(rank, &format!("the note {text:?} of rank {rank}"), deadline.into(), |r| {
            r.notes.iter().find(|n| n.text == text).cloned()
        })
    }

    /// Waits until the thread of a rank sits in a `Hold` with this gate, and returns the point it is at. A held
    /// worker thread of the library counts for the first rank of its process, and only [`Running::go`] frees it.
    ///
    /// # Errors
    /// No thread is held there by the deadline, or the process has ended.
    pub fn wait_held(
        &self,
        rank: usize,
        gate: &str,
        deadline: impl Into<Deadline>,
    ) -> Result<String, LaunchError> {
        self.wait_rank(rank, &format!("rank {rank} to be held at {gate:?}"), deadline.into(), |r| {
            r.held.iter().find(|(g, _)| g == gate).map(|(_, point)| point.clone())
        })
    }

    fn wait_rank<T>(
        &self,
        rank: usize,
        what: &str,
        deadline: Deadline,
        mut look: impl FnMut(&RankState) -> Option<T>,
    ) -> Result<T, LaunchError> {
        let missing = |state: String| LaunchError::Missing { what: what.to_string(), state };
        let process =
            self.process_of(rank).ok_or_else(|| missing("the launch does not run it".to_string()))?;
        let seen = self.shared.until(deadline, |s| match look(&s.ranks[rank]) {
            Some(found) => Some(Ok(found)),
            None => s.procs[process].exit.map(|(exit, _)| Err(missing(format!("its process {exit}")))),
        });
        match seen {
            Some(result) => result,
            None => {
                let state = lock(&self.shared.state);
                let rank = &state.ranks[rank];
                let said: Vec<&str> = rank.notes.iter().map(|n| n.text.as_str()).collect();
                let end =
                    rank.end.as_ref().map_or(String::new(), |(end, _)| format!(", and ended with {end:?}"));
                Err(missing(format!("it has said {said:?}{end}")))
            }
        }
    }

    /// Opens a gate for all ranks; it stays open.
    ///
    /// # Errors
    /// A process that has not ended does not take the line.
    pub fn go(&self, gate: &str) -> Result<(), LaunchError> {
        for process in 0..self.processes() {
            let sent = self.shared.command(process, &Command::Go { rank: None, gate: gate.to_string() });
            if self.exit_of(process).is_none() && !is_gone(&sent) {
                sent?;
            }
        }
        Ok(())
    }

    /// Opens a gate for one rank; it stays open.
    ///
    /// # Errors
    /// The rank's process does not take the line.
    pub fn go_rank(&self, rank: usize, gate: &str) -> Result<(), LaunchError> {
        self.tell(rank, &Command::Go { rank: Some(rank), gate: gate.to_string() })
    }

    /// Sends a line of text to a rank, which reads it with [`RankCtx::line`](crate::RankCtx::line).
    ///
    /// # Errors
    /// The rank's process does not take the line.
    pub fn send(&self, rank: usize, text: impl Into<String>) -> Result<(), LaunchError> {
        self.tell(rank, &Command::Line { rank, text: text.into() })
    }

    fn tell(&self, rank: usize, command: &Command) -> Result<(), LaunchError> {
        let process = self.process_of(rank).ok_or_else(|| LaunchError::Missing {
            what: format!("rank {rank}"),
            state: "the launch does not run it".to_string(),
        })?;
        self.shared.command(process, command)
    }

    /// What a rank has said so far.
    pub fn notes(&self, rank: usize) -> Vec<Note> {
        lock(&self.shared.state).ranks.get(rank).map_or_else(Vec::new, |r| r.notes.clone())
    }

    /// The last 64 KiB of what a process has printed.
    pub fn log(&self, process: usize) -> String {
        lock(&self.shared.state).procs[process].log.text()
    }

    /// The logs of all processes that printed anything, with a heading each.
    pub fn logs(&self) -> String {
        let state = lock(&self.shared.state);
        let mut text = String::new();
        for (process, ranks) in self.placement.iter().enumerate().take(state.procs.len()) {
            let log = state.procs[process].log.text();
            if !log.is_empty() {
                text.push_str(&format!("--- process {process}, ranks {ranks:?}\n{}\n", log.trim_end()));
            }
        }
        text
    }

    /// How often each point was hit, in a launch with [`Launch::record`] whose processes have ended well: point,
    /// process, rank (`None` for a worker thread of the library), hits.
    pub fn hits(&self) -> Vec<(String, usize, Option<usize>, u64)> {
        let state = lock(&self.shared.state);
        let mut all = Vec::new();
        for (process, proc) in state.procs.iter().enumerate() {
            for (point, rank, n) in proc.hits.iter().flatten() {
                all.push((point.clone(), process, *rank, *n));
            }
        }
        all.sort();
        all
    }

    /// How a process ended; `None` while it has not.
    pub fn exit_of(&self, process: usize) -> Option<Exit> {
        lock(&self.shared.state).procs[process].exit.map(|(exit, _)| exit)
    }

    /// Waits for the end of one process.
    ///
    /// # Errors
    /// It has not ended by the deadline.
    pub fn wait_exit(&self, process: usize, deadline: impl Into<Deadline>) -> Result<Exit, LaunchError> {
        self.shared.until(deadline.into(), |s| s.procs[process].exit.map(|(exit, _)| exit)).ok_or_else(|| {
            LaunchError::Missing {
                what: format!("the end of process {process}"),
                state: "it goes on".to_string(),
            }
        })
    }

    /// Waits until all processes have ended and reports on every rank, in rank order. At the deadline, or when a
    /// watchdog speaks, the rest is asked where it is and killed, and ranks that had not finished are `Hung`.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Vec<RankReport> {
        let all_ended = |s: &State| s.procs.iter().all(|p| p.exit.is_some());
        let over = self.shared.until(deadline.into(), |s| {
            (all_ended(s) || s.procs.iter().any(|p| p.hung)).then(|| !all_ended(s))
        });
        let hung: Vec<bool> = match over {
            Some(false) => vec![false; self.processes()],
            _ => self.end_hung(),
        };
        self.report(&hung)
    }

    /// As [`wait`](Running::wait), for a launch whose ranks are all to end well, and have nothing to say.
    ///
    /// # Errors
    /// What became of one that did not.
    pub fn end_well(&self, deadline: impl Into<Deadline>) -> RankResult {
        for report in self.wait(deadline) {
            check_eq!(report.outcome, Outcome::Ok(Value::Null), "rank {}: {:?}", report.rank, report.detail);
        }
        done()
    }

    /// Asks where everybody is, kills all, and says which processes had to be killed.
    fn end_hung(&self) -> Vec<bool> {
        let alive: Vec<bool> = (0..self.processes()).map(|p| self.exit_of(p).is_none()).collect();
        let stopped: Vec<bool> = self.pids().iter().map(|&pid| probe::state_of(pid) == Some('T')).collect();
        let asked = |p: usize| alive[p] && !stopped[p];
        for process in (0..self.processes()).filter(|&p| asked(p)) {
            // One that does not take the line does not answer either, and the wait below is short.
            let _ = self.shared.command(process, &Command::Dump);
        }
        let _ = self.shared.until(Duration::from_millis(500).into(), |s| {
            s.procs
                .iter()
                .enumerate()
                .all(|(p, state)| !asked(p) || state.dumped || state.exit.is_some())
                .then_some(())
        });
        self.shared.change(|s| {
            s.judged = true;
            for (process, ranks) in self.placement.iter().enumerate() {
                for &rank in ranks.iter().filter(|_| stopped.get(process) == Some(&true)) {
                    s.ranks[rank].place = Some("its process is stopped (state T)".to_string());
                }
            }
        });
        self.end_all();
        alive
    }

    /// Kills all processes and waits until they are gone.
    pub fn end_all(&self) {
        self.shared.kill_all();
        // A process in an uninterruptible system call cannot be waited for without end.
        let _ = self.shared.until(Duration::from_secs(30).into(), |s| {
            s.procs.iter().all(|p| p.exit.is_some()).then_some(())
        });
    }

    fn report(&self, hung: &[bool]) -> Vec<RankReport> {
        let state = lock(&self.shared.state);
        let now = now_ns();
        let mut reports = Vec::new();
        for (process, ranks) in self.placement.iter().enumerate().take(state.procs.len()) {
            let exit = state.procs[process].exit;
            for &rank in ranks {
                let r = &state.ranks[rank];
                let killed_by_us = hung[process];
                let outcome = outcome(r.end.as_ref().map(|(end, _)| end), exit.map(|(e, _)| e), killed_by_us);
                let from = r.started_ns.unwrap_or(now);
                let to = r.end.as_ref().map(|(_, at)| *at).or(exit.map(|(_, at)| at)).unwrap_or(now);
                let detail = if outcome == Outcome::Hung { r.place.clone() } else { None };
                let elapsed = Duration::from_nanos(to.saturating_sub(from));
                reports.push(RankReport { rank, process, outcome, elapsed, notes: r.notes.clone(), detail });
            }
        }
        reports.sort_by_key(|r| r.rank);
        reports
    }

    /// Sends a step of the batch program to all processes.
    pub(crate) fn step(&self, step: Step) -> Result<(), LaunchError> {
        (0..self.processes()).try_for_each(|p| self.shared.command(p, &Command::Step(step)))
    }

    /// Waits until a case is over on all ranks, a process has ended, or a watchdog has spoken: then what every
    /// rank has reported.
    pub(crate) fn wait_case(&self, case: usize, deadline: Deadline) -> (CaseState, CaseEnds) {
        let seen = self.shared.until(deadline, |s| {
            let ends = self.case_ends(s, case);
            if ends.iter().all(|(_, end)| end.is_some()) {
                return Some((CaseState::Over, ends));
            }
            if s.procs.iter().any(|p| p.exit.is_some()) {
                return Some((CaseState::Crashed, ends));
            }
            s.procs.iter().any(|p| p.hung).then_some((CaseState::Hung, ends))
        });
        seen.unwrap_or_else(|| (CaseState::Hung, self.case_ends(&lock(&self.shared.state), case)))
    }

    /// After a crash: waits until the ranks of the processes that are left have reported.
    pub(crate) fn wait_survivors(&self, case: usize, deadline: Deadline) -> CaseEnds {
        let seen = self.shared.until(deadline, |s| {
            let ends = self.case_ends(s, case);
            let gone = |rank: usize| self.process_of(rank).is_none_or(|p| s.procs[p].exit.is_some());
            let settled = ends.iter().all(|(rank, end)| end.is_some() || gone(*rank));
            settled.then_some(ends)
        });
        seen.unwrap_or_else(|| self.case_ends(&lock(&self.shared.state), case))
    }

    fn case_ends(&self, state: &State, case: usize) -> CaseEnds {
        let find = |rank: usize| state.ranks[rank].cases.iter().find(|c| c.case == case).cloned();
        let mut ends: CaseEnds = self.placement.iter().flatten().map(|&rank| (rank, find(rank))).collect();
        ends.sort_by_key(|(rank, _)| *rank);
        ends
    }
}

fn is_gone(sent: &Result<(), LaunchError>) -> bool {
    matches!(sent, Err(LaunchError::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe)
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.reader.is_none() {
            // The reader never started, so nobody reaps: at least nothing goes on.
            self.shared.kill_all();
        } else {
            self.end_all();
        }
        self.stop = None;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        probe::kill_processes_of_launch(&self.id);
    }
}
