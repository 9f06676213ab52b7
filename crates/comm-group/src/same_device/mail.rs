//! Messages from one rank to another: no other rank takes part, and no operation of the group.
//!
//! A message lies in the receiver's part, in a box of its own for each sender: a letter as those of collectives are, with
//! the tensor if it is small; else the sender exposes it. One word of the box says what becomes of it, and changes by
//! compare-and-swap, so that sender and receiver never differ:
//!
//! ```text
//! empty ── sender posts ──> posted ── receiver claims ──> claimed ── receiver has it ──> empty, and the sender is told
//!                              └───── sender gives up ──> empty
//! ```
//!
//! A sender that gives up has withdrawn the message for good; or finds it claimed, and then waits for the receiver to have
//! it, which is a copy away. Pairs count their messages, so that an answer is not taken for that of another.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use comm_core::tensor::{DType, Layout, Tensor};
use comm_core::{Deadline, Error, Result, point};
use comm_store::window::Signals;
use comm_store::{Cmp, NotifyOp};
use zerocopy::{FromBytes, IntoBytes};

use super::letters::CARRIED;
use super::{Input, Outcome, SameDevice, Target, out_code, produce};
use crate::agreement::{Descriptor, Saying};
use crate::request::{Op, Request};
use crate::turn::{Held, Turn, late};

/// How long a sender whose time is over waits for a receiver that has claimed the message. It copies, unless it is stopped.
const GRACE: Duration = Duration::from_secs(2);

/// Bytes of a box: a letter's descriptor and its tensor.
pub(super) const BOX: usize = Descriptor::BYTES.next_multiple_of(64) + CARRIED;

/// What a box holds: the number of the message and what has become of it, in one word. Zero is an empty box.
const POSTED: i32 = 1;
const CLAIMED: i32 = 2;

/// What a receiver answers.
const TAKEN: i32 = 1;
const REFUSED: i32 = 2;
const FAILED: i32 = 3;

fn word(number: i32, state: i32) -> i32 {
    (number << 2) | state
}

/// Messages of a pair are numbered from 1 on, and the numbers wrap long after nobody remembers.
fn next(number: i32) -> i32 {
    if number >= i32::MAX >> 3 { 1 } else { number + 1 }
}

/// What this rank remembers of each peer.
pub(super) struct Mail {
    /// The last message that was sent to a peer. Held while one is on its way: one at a time.
    sent: Vec<Turn<Sent>>,
    /// Held while one is taken from a peer.
    taking: Vec<Turn<()>>,
    /// Threads that take from whoever has sent: they pass over what is held, and must be told when it no longer is.
    from_any: AtomicUsize,
    /// The rounds in which messages have been exposed.
    rounds: AtomicU64,
}

#[derive(Default, Clone, Copy)]
struct Sent {
    number: i32,
    /// Whether the receiver had claimed it when this rank gave up: it may still read what lies in the box.
    unanswered: bool,
}

impl Mail {
    pub(super) fn new(ranks: usize) -> Mail {
        Mail {
            sent: (0..ranks).map(|_| Turn::default()).collect(),
            taking: (0..ranks).map(|_| Turn::default()).collect(),
            from_any: AtomicUsize::new(0),
            rounds: AtomicU64::new(0),
        }
    }
}

/// A thread in `recv_any`.
struct FromAny<'a>(&'a AtomicUsize);

impl<'a> FromAny<'a> {
    fn new(count: &'a AtomicUsize) -> FromAny<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        // Of this fence and the one in `Taking::drop` one comes first: either the turn is seen to be free, or this thread
        // is seen, and the bell rung after it was read.
        fence(Ordering::SeqCst);
        FromAny(count)
    }
}

impl Drop for FromAny<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The looks of one receiver.
struct Looks {
    op: &'static str,
    started: Instant,
    deadline: Deadline,
    late: u32,
}

impl Looks {
    fn new(op: &'static str, deadline: Deadline) -> Looks {
        Looks { op, started: Instant::now(), deadline, late: 0 }
    }

    /// Something has changed. That is worth a look also when time is up, but not for as long as a peer likes that changes
    /// it again and again.
    fn one_more(&mut self, device: &SameDevice, what: &str) -> Result<()> {
        const LATE: u32 = 3;
        self.late += u32::from(self.deadline.has_passed());
        if self.late > LATE {
            return Err(late(device.window.context(), self.op, what, 0, self.started));
        }
        Ok(())
    }
}

/// The turn to take from a peer. While it was held, a message may have come and rung, and been passed over.
struct Taking<'a> {
    device: &'a SameDevice,
    held: Option<Held<'a, ()>>,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        drop(self.held.take());
        fence(Ordering::SeqCst);
        if self.device.mail.from_any.load(Ordering::Relaxed) > 0 {
            let me = self.device.window.rank();
            // If the team is over, who waits hears of that.
            let _ = self.device.doorbell().and_then(|bell| bell.notify(me, &[0], 1, NotifyOp::Add));
        }
    }
}

impl SameDevice {
    /// Signals for messages: the boxes of this part by sender, the answers to this rank by receiver, and a bell.
    pub(super) fn mail_signals(n: usize) -> usize {
        2 * n + 1
    }

    fn boxes(&self) -> Result<Signals<'_>> {
        let n = self.window.nranks();
        self.window.signals_from(n, &[n])
    }

    fn answers(&self) -> Result<Signals<'_>> {
        let n = self.window.nranks();
        self.window.signals_from(2 * n, &[n])
    }

    fn doorbell(&self) -> Result<Signals<'_>> {
        self.window.signals_from(3 * self.window.nranks(), &[1])
    }

    /// Where the box for a sender lies in every part.
    fn box_at(&self, sender: usize) -> usize {
        let n = self.window.nranks();
        2 * n * super::letters::bytes(n) + sender * BOX
    }

    fn peer(&self, op: &'static str, peer: usize) -> Result<()> {
        let n = self.window.nranks();
        if peer >= n || peer == self.window.rank() {
            return Err(Error::invalid(op, format!("rank {peer}: another rank of {n} sends or receives")));
        }
        Ok(())
    }

    /// Whether these are a rank to send this to, and one to receive from.
    pub(crate) fn check_message(
        &self,
        op: &'static str,
        to: Option<(usize, &Tensor)>,
        from: Option<usize>,
    ) -> Result<()> {
        to.map(|(to, _)| to).into_iter().chain(from).try_for_each(|peer| self.peer(op, peer))?;
        self.window.context().check(op)?;
        match to.filter(|(_, tensor)| !tensor.device().is_cpu()) {
            Some((_, tensor)) => {
                let (seen, expected) = (tensor.device().to_string(), "cpu".to_string());
                Err(Error::DeviceMismatch { op, seen, expected })
            }
            None => Ok(()),
        }
    }

    /// Sends a tensor to a rank, and waits until that has it.
    pub(crate) fn send(&self, tensor: &Tensor, to: usize, deadline: Deadline) -> Result<()> {
        self.tell_end(self.deliver(tensor, to, deadline))
    }

    fn deliver(&self, tensor: &Tensor, to: usize, deadline: Deadline) -> Result<()> {
        const OP: &str = "send";
        self.check_message(OP, Some((to, tensor)), None)?;
        let is_small = tensor.nbytes() <= CARRIED;
        let dense = self.dense(tensor, is_small)?;
        let member = self.window.context();
        let behind = || format!("the message to rank {to} of another thread");
        let mut turn = self.mail.sent[to].hold(member, OP, behind, deadline)?;
        let sent = &mut turn.value;
        if sent.unanswered {
            // The one before may still be read.
            self.answer(to, sent.number, deadline)?;
            sent.unanswered = false;
        }
        let number = next(sent.number);
        sent.number = number;
        // Rounds of slots only ever grow, and numbers wrap.
        let round = self.mail.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let exposed = match is_small {
            true => None,
            false => Some(self.window.expose(super::SLOTS + to, round, &dense)?),
        };
        let saying = Saying { carried: is_small.then(|| dense.nbytes()), ..Saying::default() };
        let descriptor = Descriptor::new(round, &Request::new(Op::AllGatherVec, Some(&dense)), saying);
        let (me, at) = (self.window.rank(), self.box_at(self.window.rank()));
        self.window.write_bytes(to, at, descriptor.as_bytes())?;
        if is_small {
            self.window.write_bytes(to, at + BOX - CARRIED, dense.bytes()?)?;
            self.carried.fetch_add(dense.nbytes() as u64, Ordering::Relaxed);
        }
        let boxes = self.boxes()?;
        boxes.notify(to, &[me], word(number, POSTED), NotifyOp::Set)?;
        self.doorbell()?.notify(to, &[0], 1, NotifyOp::Add)?;
        point!("group.posted");
        let outcome = match self.answer(to, number, deadline) {
            Err(error @ Error::Timeout { .. }) => {
                if boxes.replace(to, &[me], word(number, POSTED), 0)? == word(number, POSTED) {
                    return Err(error);
                }
                // Claimed meanwhile: a copy away, unless the receiver has been stopped.
                self.answer(to, number, GRACE.into()).map_err(|late| {
                    sent.unanswered = matches!(late, Error::Timeout { .. });
                    if sent.unanswered { error } else { late }
                })
            }
            outcome => outcome,
        };
        drop(exposed);
        match outcome? {
            REFUSED => Err(Error::Mismatch {
                rank: to,
                field: "message",
                theirs: "a buffer of another shape or dtype".into(),
                others: format!("{} {:?}", tensor.dtype(), tensor.shape()),
                at: Box::default(),
            }),
            FAILED => Err(Error::bad_peer(format!("rank {to} has failed to take the message"))),
            _ => Ok(()),
        }
    }

    /// Waits for the receiver's answer to a message.
    fn answer(&self, to: usize, number: i32, deadline: Deadline) -> Result<i32> {
        let answers = self.answers()?;
        // It is the only one on its way, so the cell holds an older answer or this one.
        let old = answers.read(&[to])?;
        let seen = if old >> 2 == number {
            old
        } else {
            let answered = answers.wait(&[to], Cmp::Ne, old, Some(to), deadline);
            answered.map_err(|error| told("send", &format!("rank {to} to take the message"), error))?
        };
        if seen >> 2 != number {
            return Err(Error::bad_peer(format!("rank {to} answers message {} and not {number}", seen >> 2)));
        }
        Ok(seen & 3)
    }

    /// Receives the next message of a rank.
    pub(crate) fn recv(&self, from: usize, target: Target<'_>, deadline: Deadline) -> Result<Outcome> {
        self.tell_end(self.receive(from, target, deadline))
    }

    fn receive(&self, from: usize, target: Target<'_>, deadline: Deadline) -> Result<Outcome> {
        const OP: &str = "recv";
        self.check_message(OP, None, Some(from))?;
        let behind = || format!("another thread that receives from rank {from}");
        let held = self.mail.taking[from].hold(self.window.context(), OP, behind, deadline)?;
        let _taking = Taking { device: self, held: Some(held) };
        let (boxes, mut looks) = (self.boxes()?, Looks::new(OP, deadline));
        let what = format!("a message of rank {from}");
        loop {
            let seen = boxes.read(&[from])?;
            if seen & 3 == POSTED {
                // A sender that has just given up is one that has not sent.
                if boxes.replace(self.window.rank(), &[from], seen, (seen & !3) | CLAIMED)? == seen {
                    return self.take(from, seen >> 2, target);
                }
            } else {
                let waited = boxes.wait(&[from], Cmp::Ne, seen, Some(from), deadline);
                waited.map_err(|error| told(OP, &what, error))?;
            }
            looks.one_more(self, &what)?;
        }
    }

    /// Receives the next message of any rank.
    pub(crate) fn recv_any(&self, deadline: Deadline) -> Result<(usize, Outcome)> {
        self.tell_end(self.receive_any(deadline))
    }

    fn receive_any(&self, deadline: Deadline) -> Result<(usize, Outcome)> {
        const OP: &str = "recv_any";
        self.window.context().check(OP)?;
        let (me, n) = (self.window.rank(), self.window.nranks());
        let (boxes, bell, mut looks) = (self.boxes()?, self.doorbell()?, Looks::new(OP, deadline));
        let _from_any = FromAny::new(&self.mail.from_any);
        loop {
            // The bell first: who posts after this look rings after it.
            let rung = bell.read(&[0])?;
            for from in (1..n).map(|i| (me + i) % n) {
                let Some(held) = self.mail.taking[from].try_hold() else { continue };
                let seen = boxes.read(&[from])?;
                let claim = (seen & !3) | CLAIMED;
                if seen & 3 == POSTED && boxes.replace(me, &[from], seen, claim)? == seen {
                    let _taking = Taking { device: self, held: Some(held) };
                    return Ok((from, self.take(from, seen >> 2, Target::Fresh)?));
                }
            }
            let waited = bell.wait(&[0], Cmp::Ne, rung, None, deadline);
            waited.map_err(|error| told(OP, ANY, error))?;
            looks.one_more(self, ANY)?;
        }
    }

    /// Takes a message that has been claimed, and answers.
    fn take(&self, from: usize, number: i32, target: Target<'_>) -> Result<Outcome> {
        point!("group.claimed");
        let outcome = self.read_message(from, target);
        let answer = match &outcome {
            Ok(_) => TAKEN,
            Err(Error::Mismatch { .. }) => REFUSED,
            Err(_) => FAILED,
        };
        let me = self.window.rank();
        // The box is free before the sender hears of it.
        self.boxes()?.notify(me, &[from], 0, NotifyOp::Set)?;
        self.answers()?.notify(from, &[me], word(number, answer), NotifyOp::Set)?;
        point!("group.taken");
        outcome
    }

    fn read_message(&self, from: usize, target: Target<'_>) -> Result<Outcome> {
        let (me, at) = (self.window.rank(), self.box_at(from));
        let mut bytes = [0; Descriptor::BYTES];
        self.window.read_bytes(me, at, &mut bytes)?;
        let bad = || Error::bad_peer(format!("rank {from} sends a tensor that cannot be"));
        let descriptor = Descriptor::read_from_bytes(&bytes).map_err(|_| bad())?;
        descriptor.check_layout(from)?;
        let (dtype, shape) = (descriptor.dtype().ok_or_else(bad)?, descriptor.shape().ok_or_else(bad)?);
        let len = nbytes(&shape, dtype).ok_or_else(bad)?;
        if let Target::Given(out) = &target
            && out_code(out.shape(), out.dtype()) != out_code(&shape, dtype)
        {
            return Err(Error::Mismatch {
                rank: from,
                field: "message",
                theirs: format!("{dtype} {shape:?}"),
                others: format!("a buffer of {} {:?}", out.dtype(), out.shape()),
                at: Box::default(),
            });
        }
        let input = match descriptor.carried() {
            None => {
                let region = self.window.region(from, super::SLOTS + me, descriptor.seq(), GRACE)?;
                region.expect_len(len)?;
                Input::Region(region)
            }
            Some(carried) if carried == len as u64 && len <= CARRIED => {
                let mut bytes = vec![0; len];
                self.window.read_bytes(me, at + BOX - CARRIED, &mut bytes)?;
                Input::Letter(bytes)
            }
            Some(_) => return Err(bad()),
        };
        produce(target, &shape, dtype, |out| {
            input.read(0, out)?;
            input.verify()
        })
    }
}

const ANY: &str = "a message of any rank";

/// What was waited for, in place of the signal that would have told of it.
fn told(op: &'static str, what: &str, mut error: Error) -> Error {
    match &mut error {
        Error::Timeout { what: waited_for, seen, expected, at, .. } => {
            *waited_for = format!("{op}: {what}");
            (*seen, *expected) = (0, 1);
            at.op = op.into();
        }
        Error::PeerLost { at, .. } | Error::PeerLeft { at, .. } | Error::Aborted { at, .. } => {
            at.op = format!("{op}: {what}");
        }
        _ => {}
    }
    error
}

/// The bytes of a dense tensor, if there can be one.
fn nbytes(shape: &[usize], dtype: DType) -> Option<usize> {
    let numel = Layout::contiguous(shape).ok()?.numel();
    numel.checked_mul(dtype.size()).filter(|&bytes| isize::try_from(bytes).is_ok())
}
