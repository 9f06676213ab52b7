//! The thread of a server: one loop that never waits for a client.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::point;
use rustix::event::{epoll, epoll::EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::Timespec;

use super::connection::Connection;
use super::state::{Answers, Client, State};
use crate::error::{Error, Result};
use crate::tcp::limits::Limits;
use crate::tcp::parser::Refused;
use crate::tcp::secret::SharedKey;

/// Numbers of what is watched besides clients.
const LISTENER: u64 = 0;
const BELL: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// How many connections are taken in one turn.
const ACCEPTED: usize = 64;

/// How many bytes a client is answered with in one turn, if it fetches them as fast as they come.
const TURN: usize = 256 << 10;

/// How long the door is left alone when there are no descriptors for who stands before it.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Reactor {
    listener: TcpListener,
    /// Held as long as it is watched.
    _bell: Arc<OwnedFd>,
    epoll: OwnedFd,
    key: Option<SharedKey>,
    limits: Limits,
    state: State,
    clients: HashMap<Client, Connection>,
    next: Client,
    /// When which client is closed, if nothing comes until then.
    expiring: BTreeSet<(Instant, Client)>,
    /// Bytes that all connections hold beyond the usual.
    held: usize,
    /// When the door is looked at again.
    shut: Option<Instant>,
    /// When leases are looked at again.
    sweep: Option<Instant>,
    scratch: Vec<u8>,
}

impl Reactor {
    pub fn new(
        listener: TcpListener,
        bell: Arc<OwnedFd>,
        key: Option<SharedKey>,
        limits: Limits,
        identity: Vec<u8>,
    ) -> Result<Reactor> {
        let failed = |e: Errno| Error::io("watching the sockets of a server", e);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), EventFlags::IN).map_err(failed)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), EventFlags::IN).map_err(failed)?;
        Ok(Reactor {
            listener,
            _bell: bell,
            epoll,
            key,
            sweep: limits.lease.and_then(|lease| Instant::now().checked_add(lease / 4)),
            limits,
            state: State::new(identity),
            clients: HashMap::new(),
            next: FIRST_CLIENT,
            expiring: BTreeSet::new(),
            held: 0,
            shut: None,
            scratch: vec![0; 64 << 10],
        })
    }

    /// Serves until the bell rings.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the server's epoll failed");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    BELL => return,
                    LISTENER => self.accept(),
                    client => self.serve(client, event.flags),
                }
            }
            self.expire();
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let next = [self.expiring.first().map(|&(when, _)| when), self.shut, self.sweep];
        let next = next.into_iter().flatten().min()?;
        // A little later rather than a little earlier, which would be a turn for nothing.
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(left).ok()
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    if let Err(error) = self.welcome(stream, peer) {
                        tracing::warn!(%peer, %error, "a client cannot be served");
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Whoever stood there has gone again.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                // Who is silent has a descriptor that others need. One each time: those that have come now may have greeted.
                Err(e) if is_out_of_descriptors(&e) && self.make_room() => return,
                Err(error) => {
                    // Out of descriptors or memory: the door would be found open at once, again and again.
                    tracing::warn!(%error, "a server cannot take clients now");
                    self.door(EventFlags::empty());
                    self.shut = Instant::now().checked_add(PAUSE);
                    return;
                }
            }
        }
    }

    fn door(&mut self, flags: EventFlags) {
        let data = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, &self.listener, data, flags) {
            tracing::error!(%error, "a server does not find its door");
        }
    }

    fn welcome(&mut self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        point!("server.accepted");
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // A client on a machine that is gone says nothing, ever; but its system would answer.
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60))?;
        if self.clients.len() >= self.limits.clients {
            self.make_room();
        }
        if self.clients.len() >= self.limits.clients {
            return Err(io::Error::other(format!("there are {} clients, the most", self.clients.len())));
        }
        let client = self.next;
        self.next += 1;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(client), EventFlags::IN)?;
        let connection = Connection::new(stream, peer, self.key.is_some(), &self.limits);
        self.expiring.extend(connection.expires().map(|when| (when, client)));
        self.clients.insert(client, connection);
        Ok(())
    }

    /// Closes the client that has gone the longest without saying who it is; whether there was one.
    fn make_room(&mut self) -> bool {
        let silent = self.clients.iter().filter(|(_, connection)| !connection.is_open());
        let Some(&client) = silent.map(|(client, _)| client).min() else { return false };
        self.close(client, "others want to come, and it does not say who it is");
        true
    }

    /// Does what can be done for a client now.
    fn serve(&mut self, client: Client, flags: EventFlags) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        let before = connection.expires();
        let mut answers = Answers::new();
        let mut outcome = Ok(());
        let mut stirred = flags.contains(EventFlags::OUT);
        let (mut answered, mut goes_on) = (0, false);
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) && connection.wants().0 {
            match connection.read(&mut self.scratch) {
                Ok(some) => stirred |= some,
                Err(e) => outcome = Err(Refused::new(e.to_string())),
            }
        }
        // Answers that have been fetched make room for requests that have come before.
        if outcome.is_ok() {
            outcome = connection.flush().map_err(|e| Refused::new(e.to_string()));
        }
        while outcome.is_ok() {
            let Some(connection) = self.clients.get_mut(&client) else { return };
            outcome = match connection.next(self.key.as_ref(), &self.limits) {
                Ok(None) => match connection.unblock() {
                    Ok(true) => continue,
                    Ok(false) => break,
                    Err(e) => Err(Refused::new(e.to_string())),
                },
                Ok(Some(request)) if self.state.is_waiting(client) && !request.ends_wait() => {
                    Err(Refused::new("it asks for something while it waits"))
                }
                Ok(Some(request)) => {
                    point!("server.asked");
                    let done = self.state.act(client, request, &self.limits, &mut answers);
                    point!("server.done");
                    done
                }
                Err(refused) => Err(refused),
            };
            answered += answers.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
            self.deliver(client, &mut answers);
            if answered >= TURN && outcome.is_ok() {
                // The last answer is still in line, so it has another turn as soon as it can be sent something.
                goes_on = true;
                break;
            }
        }
        let Some(connection) = self.clients.get_mut(&client) else { return };
        if connection.is_over() && !goes_on {
            outcome = outcome.and(Err(Refused::new("it has closed its end")));
        }
        if stirred {
            connection.settle(self.limits.stall);
        }
        self.settled(client, before);
        match outcome {
            Err(Refused(why)) => self.close(client, &why),
            Ok(()) => self.relieve(),
        }
    }

    /// Puts answers in line. Those to others than the one who is served go at once.
    fn deliver(&mut self, served: Client, answers: &mut Answers) {
        for (client, bytes) in answers.drain(..) {
            let Some(connection) = self.clients.get_mut(&client) else { continue };
            if client == served {
                connection.send(&bytes);
                continue;
            }
            let before = connection.expires();
            connection.send(&bytes);
            let flushed = connection.flush();
            connection.settle(self.limits.stall);
            self.settled(client, before);
            if let Err(error) = flushed {
                self.close(client, &error.to_string());
            }
        }
    }

    /// Looks at what has become of a client in a turn: what it is watched for, when it expires, what it holds.
    fn settled(&mut self, client: Client, expired: Option<Instant>) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        let now = connection.held() + self.state.held(client);
        self.held = self.held - std::mem::replace(&mut connection.counted, now) + now;
        if expired != connection.expires() {
            expired.map(|when| self.expiring.remove(&(when, client)));
            self.expiring.extend(connection.expires().map(|when| (when, client)));
        }
        let (reading, writing) = connection.wants();
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, reading);
        flags.set(EventFlags::OUT, writing);
        let data = epoll::EventData::new_u64(client);
        if let Err(error) = epoll::modify(&self.epoll, &connection.stream, data, flags) {
            self.close(client, &error.to_string());
        }
    }

    /// Closes those that hold the most while all together hold too much.
    fn relieve(&mut self) {
        while self.held > self.limits.buffers {
            let largest = self.clients.iter().max_by_key(|(_, connection)| connection.counted);
            let Some((&client, _)) = largest else { return };
            self.close(client, "its requests or answers take too much memory together with those of others");
        }
    }

    fn close(&mut self, client: Client, why: &str) {
        let Some(connection) = self.clients.remove(&client) else { return };
        tracing::debug!(peer = %connection.peer, why, "a client is let go");
        connection.expires().map(|when| self.expiring.remove(&(when, client)));
        self.held -= connection.counted;
        self.state.forget(client);
        // Dropping it closes it, and a descriptor that is closed is not watched any more.
    }

    /// Does what is due by the clock.
    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(&(when, client)) = self.expiring.first().filter(|(when, _)| *when <= now) {
            self.expiring.remove(&(when, client));
            self.close(client, "nothing came of it for too long");
        }
        if self.shut.is_some_and(|when| when <= now) {
            self.shut = None;
            self.door(EventFlags::IN);
        }
        if let (Some(when), Some(lease)) = (self.sweep, self.limits.lease)
            && when <= now
        {
            self.state.sweep(lease);
            self.sweep = now.checked_add(lease / 4);
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::tcp::request::{Request, VALIDATE};

    /// Who asks for much at once, and could fetch all of it, gets a part in each turn, and others have theirs in between.
    #[test]
    fn a_turn_has_an_end() {
        const SIZE: usize = 50_000;
        const ASKED: usize = 40;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let bell = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut reactor = Reactor::new(listener, bell, None, Limits::default(), vec![]).unwrap();
        let set = Request::Set { key: b"/k".to_vec(), value: vec![7; SIZE] };
        reactor.state.act(0, set, &reactor.limits, &mut Answers::new()).unwrap();
        while reactor.clients.is_empty() {
            reactor.accept();
        }
        far.write_all(&VALIDATE).unwrap();
        far.write_all(&Request::Get(b"/k".to_vec()).encode().repeat(ASKED)).unwrap();
        far.set_nonblocking(true).unwrap();
        let (mut part, mut got, mut turns) = (vec![0; 1 << 20], 0, 0);
        while got < ASKED * (8 + SIZE) {
            // All of the requests come with the first, and then only what epoll would say.
            let flags = if turns == 0 { EventFlags::IN } else { EventFlags::OUT };
            assert!(turns == 0 || reactor.clients[&FIRST_CLIENT].wants().1, "nothing would wake it");
            reactor.serve(FIRST_CLIENT, flags);
            let before = got;
            while let Ok(n) = far.read(&mut part) {
                assert!(n > 0, "it is let go");
                got += n;
            }
            // What one turn has left in line goes in the next.
            assert!(got - before <= 2 * (TURN + SIZE), "{} bytes in a turn", got - before);
            turns += 1;
        }
        assert!(turns >= ASKED * SIZE / (2 * (TURN + SIZE)));
        // It is idle now, and may stay.
        assert!(reactor.clients[&FIRST_CLIENT].expires().is_none());
    }
}
