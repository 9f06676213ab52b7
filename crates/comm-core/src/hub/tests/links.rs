//! Links: what a stranger pushes is looked at before it is used, and what is wrong closes that link and nothing else.

use rustix::event::EventfdFlags;

use super::super::Known;
use super::super::link::{Incoming, Message};
use super::*;
use crate::error::{Error, Result};
use crate::hub::{Peer, socket};
use crate::wire;

/// A link as its two ends, the receiving one served by the test and not by the reactor.
struct Ends {
    theirs: Socket,
    ours: Arc<Incoming>,
    nonce: Nonce,
}

impl Ends {
    fn new() -> Ends {
        let (theirs, ours) = Socket::pair();
        Ends { theirs, ours: Incoming::new(ours, &hub()), nonce: Nonce::draw().unwrap() }
    }

    fn push(&self, bytes: &[u8], fds: &[OwnedFd]) -> Result<bool> {
        self.theirs.send(bytes, &borrow(fds)).unwrap();
        self.ours.drain(&hub())
    }

    fn introduction(&self) -> Vec<u8> {
        greet(Purpose::Link, self.nonce, &wire::encode(&Message::Introduction { robust: true }).unwrap())
    }

    /// A link that has been introduced.
    fn met() -> Ends {
        let ends = Ends::new();
        assert!(ends.push(&ends.introduction(), &[living(), bell()]).unwrap());
        assert!(alive(ends.nonce));
        ends
    }

    fn segment(&self, id: u64, len: u64, writable: bool, fds: &[OwnedFd]) -> Result<bool> {
        self.push(&wire::encode(&Message::Segment { id, len, writable }).unwrap(), fds)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        hub().peer_died(self.nonce);
    }
}

fn alive(nonce: Nonce) -> bool {
    matches!(hub().peers().get(&nonce), Some(Known::Alive(_)))
}

#[track_caller]
fn refused(outcome: Result<bool>, said: &str) {
    match outcome {
        Err(Error::BadPeer { what }) => assert!(what.contains(said), "{what:?} does not say {said:?}"),
        other => panic!("not refused with {said:?}: {other:?}"),
    }
}

fn file() -> OwnedFd {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    file.into()
}

fn segment_fd(access: Access) -> OwnedFd {
    Segment::create(4096, access).unwrap().share().unwrap()
}

#[test]
fn an_introduction_needs_two_descriptors() {
    for n in [0, 1, 3, 8] {
        let ends = Ends::new();
        let fds: Vec<OwnedFd> = [living(), bell()].into_iter().cycle_to(n);
        refused(ends.push(&ends.introduction(), &fds), "descriptors, expected 2");
        assert!(!alive(ends.nonce));
    }
}

/// As many descriptors as asked for, of two kinds.
trait CycleTo {
    fn cycle_to(self, n: usize) -> Vec<OwnedFd>;
}

impl<I: Iterator<Item = OwnedFd>> CycleTo for I {
    fn cycle_to(self, n: usize) -> Vec<OwnedFd> {
        self.chain(std::iter::repeat_with(bell)).take(n).collect()
    }
}

#[test]
fn a_life_word_must_be_in_a_sealed_memfd_of_its_size_and_alive() {
    type Make = fn() -> OwnedFd;
    let wrong: [(Make, &str); 7] = [
        (|| unsealed(4096), "lacks the seals"),
        (|| Segment::create(8192, Access::ReadOnly).unwrap().share().unwrap(), "8192 bytes, not 4096"),
        (file, "not a memfd"),
        (bell, "not a memfd"),
        (|| life(0), "never alive"),
        (|| life(4711), "never alive"),
        (|| life(0x8000_0000), "never alive"),
    ];
    for (life, said) in wrong {
        let ends = Ends::new();
        refused(ends.push(&ends.introduction(), &[life(), bell()]), said);
        assert!(!alive(ends.nonce), "{said}");
    }
}

#[test]
fn a_bell_must_be_an_eventfd_that_does_not_block() {
    let blocking = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap().1;
    let socket = || {
        let (a, _) = Socket::pair();
        a.as_fd().try_clone_to_owned().unwrap()
    };
    let memfd = || {
        let fd = unsealed(8);
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::RDWR).unwrap();
        fd
    };
    let epoll = || {
        let fd = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK).unwrap();
        fd
    };
    for (bell, said) in
        [(blocking(), "can block"), (file(), "can block"), (pipe(), "no eventfd"), (socket(), "no eventfd")]
            .into_iter()
            .chain([(memfd(), "no eventfd"), (epoll(), "no eventfd")])
    {
        let ends = Ends::new();
        refused(ends.push(&ends.introduction(), &[living(), bell]), said);
        assert!(!alive(ends.nonce));
    }
}

#[test]
fn nobody_speaks_for_somebody_else() {
    let ends = Ends::met();
    // Neither alive nor dead.
    for life in [living(), life(0xc000_0000), life(0)] {
        let other = Ends::new();
        let introduction = ends.introduction();
        refused(other.push(&introduction, &[life, bell()]), "a second link");
        assert!(alive(ends.nonce), "he who is spoken of lives");
    }
    let other = Ends::new();
    let ours =
        greet(Purpose::Link, hub().nonce(), &wire::encode(&Message::Introduction { robust: true }).unwrap());
    for life in [living(), life(0xc000_0000)] {
        refused(other.push(&ours, &[life, bell()]), "own nonce");
    }
    refused(ends.push(&ends.introduction(), &[living(), bell()]), "");
}

#[test]
fn who_died_before_he_was_heard_is_dead() {
    let ends = Ends::new();
    assert!(ends.push(&ends.introduction(), &[life(0xc000_0000), bell()]).unwrap());
    assert!(matches!(hub().peers().get(&ends.nonce), Some(Known::Dead)));
}

#[test]
fn a_link_begins_with_an_introduction_and_has_one() {
    let ends = Ends::new();
    let segment = wire::encode(&Message::Segment { id: 1, len: 4096, writable: false }).unwrap();
    refused(ends.push(&segment, &[segment_fd(Access::ReadOnly)]), "greeting");
    let ends = Ends::new();
    refused(
        ends.push(&greet(Purpose::Link, ends.nonce, &segment), &[living(), bell()]),
        "does not begin with an introduction",
    );
    for purpose in [Purpose::Join, Purpose::Answer] {
        let ends = Ends::new();
        let body = wire::encode(&Message::Introduction { robust: true }).unwrap();
        refused(ends.push(&greet(purpose, ends.nonce, &body), &[living(), bell()]), "purpose");
    }
    let ends = Ends::met();
    refused(
        ends.push(&wire::encode(&Message::Introduction { robust: true }).unwrap(), &[living(), bell()]),
        "a second introduction",
    );
}

#[test]
fn a_segment_must_be_what_it_is_said_to_be() {
    let ends = Ends::met();
    assert!(ends.segment(5, 4096, false, &[segment_fd(Access::ReadOnly)]).unwrap());
    assert!(ends.segment(6, 4096, true, &[segment_fd(Access::ReadWrite)]).unwrap());
    refused(ends.segment(5, 4096, false, &[segment_fd(Access::ReadOnly)]), "pushed twice");
    refused(ends.segment(7, 4096, false, &[]), "0 descriptors");
    refused(ends.segment(7, 4096, false, &[segment_fd(Access::ReadOnly), bell()]), "2 descriptors");
    refused(ends.segment(7, 4096, true, &[segment_fd(Access::ReadOnly)]), "does not allow");
    for len in [0, 1, 4095, 4097, u64::MAX] {
        let said = if len == 0 { "no bytes" } else { "4096 bytes, not" };
        refused(ends.segment(7, len, false, &[segment_fd(Access::ReadOnly)]), said);
    }
    refused(ends.segment(7, 4096, false, &[unsealed(4096)]), "lacks the seals");
    refused(ends.segment(7, 4096, false, &[file()]), "not a memfd");
    refused(ends.segment(7, 4096, false, &[bell()]), "not a memfd");
    assert!(alive(ends.nonce), "a test's link is not served by the reactor, which would have closed it");
}

#[test]
fn segments_are_not_without_number() {
    let ends = Ends::met();
    let fd = segment_fd(Access::ReadOnly);
    for id in 0..4096 {
        assert!(ends.segment(id, 4096, false, &[fd.try_clone().unwrap()]).unwrap());
    }
    refused(ends.segment(4096, 4096, false, &[fd]), "more than 4096 segments");
}

#[test]
fn every_message_cut_or_flipped_is_refused_or_harmless() {
    let introduction = Ends::new().introduction();
    let mut kept = 0;
    for mut bytes in mutations(&introduction) {
        let ends = Ends::new();
        if bytes.len() >= 48 && bytes[32..48] == introduction[32..48] {
            // Nobody comes again once he has died.
            bytes[32..48].copy_from_slice(&ends.nonce.bytes());
        }
        match ends.push(&bytes, &[living(), bell()]) {
            Ok(going_on) => {
                assert!(going_on);
                kept += 1;
                let nonce = Nonce::from_bytes(std::array::from_fn(|i| bytes[32 + i]));
                assert!(alive(nonce));
                hub().peer_died(nonce);
            }
            Err(Error::BadPeer { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    // The nonce and the words for the build can be anything.
    assert!((1000..1200).contains(&kept), "{kept}");

    let ends = Ends::met();
    let segment = wire::encode(&Message::Segment { id: 300, len: 4096, writable: false }).unwrap();
    for bytes in mutations(&segment) {
        match ends.push(&bytes, &[segment_fd(Access::ReadOnly)]) {
            Ok(going_on) => assert!(going_on),
            Err(Error::BadPeer { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_packet_that_is_too_large_or_brings_too_many_descriptors_is_refused() {
    let ends = Ends::new();
    refused(ends.push(&vec![0; crate::wire::LIMIT + 1025], &[]), "too large");
}

#[test]
fn at_the_door_what_is_wrong_closes_that_connection_alone() {
    let hub = hub();
    let address = hub.namespace().address("hub", &hub.hub_name()).unwrap();
    let good = Ends::new();
    let link = socket::connect(&address).unwrap();
    link.send(&good.introduction(), &borrow(&[living(), bell()])).unwrap();
    for bytes in mutations(&Ends::new().introduction()).take(300) {
        let door = socket::connect(&address).unwrap();
        door.send(&bytes, &borrow(&[living(), bell()])).unwrap();
        assert!(reply(&door).is_none(), "a link is not answered");
    }
    assert!(alive(good.nonce));
    all_is_well("beside-bad-links");
    drop(link);
    let until = Instant::now() + AMPLE;
    while alive(good.nonce) {
        assert!(Instant::now() < until, "the end of a link is noticed");
        std::thread::yield_now();
    }
}

fn peer(nonce: Nonce) -> Arc<Peer> {
    match hub().peers().get(&nonce) {
        Some(Known::Alive(peer)) => peer.clone(),
        _ => panic!("{nonce} has not come"),
    }
}

/// What has been sent comes, also when nobody serves the link and the sender is dead; what has not, never does.
#[test]
fn a_segment_that_was_sent_outlives_its_sender() {
    let ends = Ends::met();
    let peer = peer(ends.nonce);
    let said = wire::encode(&Message::Segment { id: 7, len: 4096, writable: false }).unwrap();
    ends.theirs.send(&said, &borrow(&[segment_fd(Access::ReadOnly)])).unwrap();
    hub().peer_died(ends.nonce);
    assert!(peer.is_dead());
    assert_eq!(peer.await_segment(7, Duration::ZERO).unwrap().id(), 7);
    assert!(peer.await_segment(8, Duration::ZERO).is_none() && !peer.is_link_over());
    ends.theirs.shut_down();
    assert!(peer.await_segment(8, AMPLE).is_none() && peer.is_link_over());
    assert!(peer.await_segment(7, Duration::ZERO).is_some());
}

/// Whoever wants to be linked to is; and if that cannot be, since nobody is there, he is known to be gone.
#[test]
fn one_who_wants_to_meet_and_is_not_there_is_gone() {
    let ends = Ends::met();
    ends.push(&wire::encode(&Message::Meet).unwrap(), &[]).unwrap();
    assert!(!alive(ends.nonce));
    assert!(hub().meet(ends.nonce, AMPLE).unwrap().is_none());
    assert!(hub().meet(Nonce::draw().unwrap(), AMPLE).unwrap().is_none());
    assert!(matches!(hub().meet(hub().nonce(), AMPLE), Err(Error::InvalidArgument { .. })));
}
