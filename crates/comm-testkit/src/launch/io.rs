//! The one thread of a launch that reads what its processes say, and reaps them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::shared::Shared;
use crate::clock::now_ns;
use crate::outcome::Exit;
use crate::proto::Message;

/// How much of what a process printed is kept, in bytes.
const LOG_BYTES: usize = 64 * 1024;

/// The last part of what a process printed.
#[derive(Default)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
    lost: u64,
}

impl Ring {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(LOG_BYTES);
        self.bytes.drain(..over);
        self.lost += over as u64;
    }

    pub fn text(&self) -> String {
        let (a, b) = self.bytes.as_slices();
        let text = String::from_utf8_lossy(&[a, b].concat()).into_owned();
        if self.lost > 0 { format!("[{} bytes before this are not kept]\n{text}", self.lost) } else { text }
    }
}

/// What the thread reads of one process.
pub(super) struct Port {
    process: usize,
    events: Option<PipeReader>,
    output: Option<PipeReader>,
    pidfd: Option<OwnedFd>,
    partial: Vec<u8>,
}

impl Port {
    pub fn new(process: usize, events: PipeReader, output: PipeReader, pidfd: OwnedFd) -> Port {
        Port { process, events: Some(events), output: Some(output), pidfd: Some(pidfd), partial: Vec::new() }
    }

    fn read_events(&mut self, shared: &Shared) {
        let Some(pipe) = &mut self.events else { return };
        let mut bytes = Vec::new();
        let end = read_available(pipe, &mut bytes);
        self.partial.extend_from_slice(&bytes);
        while let Some(at) = self.partial.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=at).collect();
            match serde_json::from_slice::<Message>(&line) {
                Ok(message) => shared.take(self.process, message),
                Err(e) => {
                    shared.log(self.process, format!("testkit: an unreadable report: {e}\n").as_bytes())
                }
            }
        }
        if end {
            self.events = None;
        }
    }

    fn read_output(&mut self, shared: &Shared) {
        let Some(pipe) = &mut self.output else { return };
        let mut bytes = Vec::new();
        let end = read_available(pipe, &mut bytes);
        shared.log(self.process, &bytes);
        if end {
            self.output = None;
        }
    }

    /// The process has ended. What it said before is all in the pipes; a forked child of it may hold them
    /// open, so what is there is read and then nobody listens any more.
    fn ended(&mut self, shared: &Shared) {
        let at_ns = now_ns();
        self.read_events(shared);
        self.read_output(shared);
        let Some(pidfd) = self.pidfd.take() else { return };
        self.events = None;
        self.output = None;
        let exit = match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                (None, None) => Exit::Code(-1),
            },
            // Somebody else has reaped it (a waitpid(-1) of the test), and with it its status.
            _ => Exit::Code(-1),
        };
        shared.exited(self.process, exit, at_ns);
    }
}

/// Reads what is there; whether that was the end.
fn read_available(pipe: &mut PipeReader, bytes: &mut Vec<u8>) -> bool {
    let mut chunk = [0; 16 * 1024];
    loop {
        match pipe.read(&mut chunk) {
            Ok(0) => return true,
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
        // A process that prints without end must not keep the others from being heard.
        if bytes.len() > 1 << 20 {
            return false;
        }
    }
}

enum Source {
    Stop,
    Events(usize),
    Output(usize),
    Exit(usize),
}

/// The body of the thread: until all processes have ended, or `stop` can be read.
pub(super) fn watch(shared: &Arc<Shared>, mut ports: Vec<Port>, stop: &File) {
    loop {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        let mut sources = vec![Source::Stop];
        for (i, port) in ports.iter().enumerate() {
            if let Some(pipe) = &port.events {
                fds.push(PollFd::new(pipe, PollFlags::IN));
                sources.push(Source::Events(i));
            }
            if let Some(pipe) = &port.output {
                fds.push(PollFd::new(pipe, PollFlags::IN));
                sources.push(Source::Output(i));
            }
            if let Some(pidfd) = &port.pidfd {
                fds.push(PollFd::new(pidfd, PollFlags::IN));
                sources.push(Source::Exit(i));
            }
        }
        if ports.iter().all(|p| p.pidfd.is_none()) {
            return;
        }
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for source in sources.iter().zip(ready).filter_map(|(source, ready)| ready.then_some(source)) {
            match *source {
                Source::Stop => return,
                Source::Events(i) => ports[i].read_events(shared),
                Source::Output(i) => ports[i].read_output(shared),
                Source::Exit(i) => ports[i].ended(shared),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_end() {
        let mut ring = Ring::default();
        ring.push(&vec![b'a'; LOG_BYTES]);
        ring.push(b"end");
        let text = ring.text();
        assert!(text.ends_with("aend"));
        assert!(text.starts_with("[3 bytes before"));
    }
}
