//! The child's end of the two pipes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use comm_core::Deadline;

use crate::clock::now_ns;
use crate::fault::Host;
use crate::proto::{Command, Event, Message, Step};
use crate::sync::{lock, wait};

/// Lines out, and what lines in have brought.
pub(crate) struct Link {
    out: Mutex<File>,
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

#[derive(Default)]
struct Inbox {
    open: HashSet<(Option<usize>, String)>,
    lines: HashMap<usize, VecDeque<String>>,
    steps: Vec<Step>,
    closed: bool,
}

impl Link {
    /// Takes the two inherited descriptors. They are marked close-on-exec, so that programs started by a rank
    /// do not keep the launcher waiting.
    pub fn open(to_launcher: RawFd, from_launcher: RawFd) -> io::Result<(Link, File)> {
        let take = |fd: RawFd| -> io::Result<File> {
            // SAFETY: F_SETFD takes no pointer; a number that is no descriptor is refused with EBADF.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the descriptor is open (just checked). The launcher left it open across exec for this
            // process alone, and nothing else in this process knows its number, so this is its only owner.
            Ok(unsafe { File::from_raw_fd(fd) })
        };
        let link =
            Link { out: Mutex::new(take(to_launcher)?), inbox: Mutex::default(), changed: Condvar::new() };
        Ok((link, take(from_launcher)?))
    }

    /// Tells the launcher. If it is gone, this process is about to be killed and nobody would read a complaint.
    pub fn send(&self, rank: Option<usize>, event: Event) {
        let message = Message { rank, at_ns: now_ns(), event };
        if let Ok(mut line) = serde_json::to_vec(&message) {
            line.push(b'\n');
            let _ = lock(&self.out).write_all(&line);
        }
    }

    /// Waits until the gate is open for this rank or for all.
    pub fn await_go(&self, rank: Option<usize>, gate: &str, deadline: Deadline) -> Result<(), String> {
        self.until(deadline, |inbox| {
            let open = |who| inbox.open.contains(&(who, gate.to_string()));
            (open(None) || (rank.is_some() && open(rank))).then_some(())
        })
        .ok_or_else(|| format!("the gate {gate:?} did not open"))
    }

    /// The next line for this rank.
    pub fn line(&self, rank: usize, deadline: Deadline) -> Option<String> {
        self.until(deadline, |inbox| inbox.lines.get_mut(&rank).and_then(VecDeque::pop_front))
    }

    /// The nth step of the batch.
    pub fn step(&self, nth: usize, deadline: Deadline) -> Option<Step> {
        self.until(deadline, |inbox| inbox.steps.get(nth).copied())
    }

    fn until<T>(&self, deadline: Deadline, mut look: impl FnMut(&mut Inbox) -> Option<T>) -> Option<T> {
        let mut inbox = lock(&self.inbox);
        loop {
            if let Some(found) = look(&mut inbox) {
                return Some(found);
            }
            if inbox.closed || deadline.has_passed() {
                return None;
            }
            inbox = wait(&self.changed, inbox, deadline.remaining());
        }
    }

    fn take(&self, command: Command) {
        let mut inbox = lock(&self.inbox);
        match command {
            Command::Go { rank, gate } => {
                inbox.open.insert((rank, gate));
            }
            Command::Line { rank, text } => inbox.lines.entry(rank).or_default().push_back(text),
            Command::Step(step) => inbox.steps.push(step),
            Command::Dump => {}
        }
        self.changed.notify_all();
    }
}

impl Host for Link {
    fn hold(&self, rank: Option<usize>, point: &str, gate: &str) {
        self.send(rank, Event::Held { point: point.to_string(), gate: gate.to_string() });
        let patience = Duration::from_secs(600);
        if let Err(why) = self.await_go(rank, gate, patience.into()) {
            super::complain(&format!("held at {point}: {why}"));
        }
    }
}

/// Reads the launcher's lines until there are no more.
pub(crate) fn read_lines(link: &Link, from: File, mut also: impl FnMut(&Command)) {
    for line in BufReader::new(from).lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str::<Command>(&line) {
            Ok(command) => {
                also(&command);
                link.take(command);
            }
            Err(e) => super::complain(&format!("a line of the launcher cannot be read: {e}")),
        }
    }
    lock(&link.inbox).closed = true;
    link.changed.notify_all();
}
