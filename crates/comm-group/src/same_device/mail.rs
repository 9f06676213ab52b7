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
//!
//! Any number of threads of a rank may receive at once, of one sender or of all: a message is his who claims it. So nobody holds
//! anything while he looks, and nobody looks in vain for what another thread has in its hands and gives back.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comm_core::device::Device;
use comm_core::tensor::{DType, Layout, Tensor};
use comm_core::{Deadline, Error, Result, point};
use comm_store::NotifyOp;
use comm_store::window::{Exposed, Signals};
use zerocopy::{FromBytes, IntoBytes};

use super::exchange::Kept;
use super::letters::CARRIED;
use super::{Input, Outcome, SameDevice, Target, out_code, produce};
use crate::agreement::{Descriptor, Saying};
use crate::request::{Op, Request};
use crate::turn::{Held, Turn};

/// How long a message that has been claimed is waited for when the time of who sends or receives it is over. It is a copy away,
/// unless the other one is stopped.
const GRACE: Duration = Duration::from_secs(2);

const SEND: &str = "send";

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

/// What is to be sent: dense, and where the receiver can reach it.
pub(super) struct Parcel {
    dense: Tensor,
    is_small: bool,
    to: usize,
}

/// A message that lies in its box. Dropped before it is answered, it is left there: the next one to that rank waits for its answer.
pub(super) struct Posted<'a> {
    parcel: &'a Parcel,
    turn: Held<'a, Sent>,
    _exposed: Option<Exposed<'a>>,
}

/// A message that is there for the thread that has found it.
enum Found {
    /// In the box, with this number.
    Claimed(i32),
    /// Received before, by an exchange that failed.
    Kept(Box<Tensor>),
}

/// What this rank remembers of each peer.
pub(super) struct Mail {
    /// The last message that was sent to a peer. Held while one is on its way: one at a time.
    sent: Vec<Turn<Sent>>,
    /// What was received in exchanges that could not send.
    pub(super) kept: Vec<Kept>,
    /// The rounds in which messages have been exposed.
    rounds: AtomicU64,
}

#[derive(Default, Clone, Copy)]
struct Sent {
    number: i32,
    /// Whether the receiver has not answered, and this rank has not withdrawn it: what lies in the box may still be read.
    unanswered: bool,
}

impl Mail {
    pub(super) fn new(ranks: usize) -> Mail {
        Mail {
            sent: (0..ranks).map(|_| Turn::default()).collect(),
            kept: (0..ranks).map(|_| Kept::default()).collect(),
            rounds: AtomicU64::new(0),
        }
    }
}

impl SameDevice {
    /// Signals for messages: the boxes of this part by sender, the answers to this rank by receiver, and a bell.
    pub(super) fn mail_signals(n: usize) -> usize {
        2 * n + 1
    }

    pub(super) fn boxes(&self) -> Result<Signals<'_>> {
        let n = self.window.nranks();
        self.window.signals_from(n, &[n])
    }

    fn answers(&self) -> Result<Signals<'_>> {
        let n = self.window.nranks();
        self.window.signals_from(2 * n, &[n])
    }

    pub(super) fn doorbell(&self) -> Result<Signals<'_>> {
        self.window.signals_from(3 * self.window.nranks(), &[1])
    }

    /// Where the box for a sender lies in every part.
    fn box_at(&self, sender: usize) -> usize {
        let n = self.window.nranks();
        2 * n * super::letters::bytes(n) + sender * BOX
    }

    /// Whether there can be messages to or from a rank.
    pub(crate) fn peer(&self, op: &'static str, peer: usize) -> Result<()> {
        let n = self.window.nranks();
        if peer >= n || peer == self.window.rank() {
            return Err(Error::invalid(op, format!("rank {peer}: another rank of {n} sends or receives")));
        }
        Ok(())
    }

    /// Sends a tensor to a rank, and waits until that has it.
    pub(crate) fn send(&self, tensor: &Tensor, to: usize, deadline: Deadline) -> Result<()> {
        self.tell_end(self.pack(SEND, tensor, to).and_then(|parcel| self.deliver(&parcel, deadline)))
    }

    /// What is to be sent, where the receiver can reach it. After this nothing can be wrong with the arguments.
    pub(super) fn pack(&self, op: &'static str, tensor: &Tensor, to: usize) -> Result<Parcel> {
        self.peer(op, to)?;
        self.window.context().check(op)?;
        tensor.device().expect(Device::Cpu, op)?;
        let is_small = tensor.nbytes() <= CARRIED;
        Ok(Parcel { dense: self.dense(tensor, is_small)?, is_small, to })
    }

    pub(super) fn deliver(&self, parcel: &Parcel, deadline: Deadline) -> Result<()> {
        let behind = || format!("the message to rank {} of another thread", parcel.to);
        let mut turn = self.mail.sent[parcel.to].hold(self.window.context(), SEND, behind, deadline)?;
        let sent = &mut turn.value;
        if sent.unanswered {
            // The one before may still be read.
            self.answer(parcel.to, sent.number, deadline)?;
            sent.unanswered = false;
        }
        self.answered(self.post(parcel, turn)?, deadline)
    }

    /// Puts a message into its box, if nothing is to be waited for before.
    pub(super) fn try_post<'a>(&'a self, parcel: &'a Parcel) -> Result<Option<Posted<'a>>> {
        let free = self.mail.sent[parcel.to].try_hold().filter(|turn| !turn.value.unanswered);
        free.map(|turn| self.post(parcel, turn)).transpose()
    }

    fn post<'a>(&'a self, parcel: &'a Parcel, mut turn: Held<'a, Sent>) -> Result<Posted<'a>> {
        let &Parcel { ref dense, is_small, to } = parcel;
        let number = next(turn.value.number);
        // Rounds of slots only ever grow, and numbers wrap.
        let round = self.mail.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let exposed = match is_small {
            true => None,
            false => Some(self.window.expose(super::SLOTS + to, round, dense)?),
        };
        let saying = Saying { carried: is_small.then(|| dense.nbytes()), ..Saying::default() };
        let descriptor = Descriptor::new(round, &Request::new(Op::AllGatherVec, Some(dense)), saying);
        let (me, at) = (self.window.rank(), self.box_at(self.window.rank()));
        self.window.write_bytes(to, at, descriptor.as_bytes())?;
        if is_small {
            self.window.write_bytes(to, at + BOX - CARRIED, dense.bytes()?)?;
            self.carried.fetch_add(dense.nbytes() as u64, Ordering::Relaxed);
        }
        turn.value = Sent { number, unanswered: true };
        self.boxes()?.notify(to, &[me], word(number, POSTED), NotifyOp::Set)?;
        self.doorbell()?.notify(to, &[0], 1, NotifyOp::Add)?;
        point!("group.posted");
        Ok(Posted { parcel, turn, _exposed: exposed })
    }

    /// Waits until the receiver of a message has it, or withdraws it.
    pub(super) fn answered(&self, posted: Posted<'_>, deadline: Deadline) -> Result<()> {
        let Posted { parcel: &Parcel { ref dense, to, .. }, mut turn, _exposed } = posted;
        let number = turn.value.number;
        let outcome = match self.answer(to, number, deadline) {
            Err(error @ Error::Timeout { .. }) => {
                let (boxes, lies) = (self.boxes()?, word(number, POSTED));
                if boxes.replace(to, &[self.window.rank()], lies, 0)? == lies {
                    turn.value.unanswered = false;
                    return Err(error);
                }
                // Claimed meanwhile: a copy away, unless the receiver has been stopped.
                self.answer(to, number, GRACE.into())
                    .map_err(|late| if matches!(late, Error::Timeout { .. }) { error } else { late })
            }
            outcome => outcome,
        };
        let answer = outcome?;
        turn.value.unanswered = false;
        match answer {
            REFUSED => Err(Error::Mismatch {
                rank: to,
                field: "message",
                theirs: "a buffer of another shape or dtype".into(),
                others: format!("{} {:?}", dense.dtype(), dense.shape()),
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
        let other =
            |seen| Error::bad_peer(format!("rank {to} answers message {} and not {number}", seen >> 2));
        let look = |seen| match seen {
            seen if seen >> 2 == number => Some(Ok(seen & 3)),
            seen if seen == old => None,
            seen => Some(Err(other(seen))),
        };
        let what = fmt::from_fn(|f| write!(f, "send: rank {to} to take the message"));
        await_one(&answers, to, &what, Some(to), look, deadline)
    }

    /// Receives the next message of a rank.
    pub(crate) fn recv(&self, from: usize, target: Target<'_>, deadline: Deadline) -> Result<Outcome> {
        self.tell_end(self.receive(from, target, deadline))
    }

    fn receive(&self, from: usize, target: Target<'_>, deadline: Deadline) -> Result<Outcome> {
        const OP: &str = "recv";
        self.peer(OP, from)?;
        self.window.context().check(OP)?;
        let boxes = self.boxes()?;
        let what = fmt::from_fn(|f| write!(f, "{OP}: a message of rank {from}"));
        let look = |seen| self.find(&boxes, from, seen).transpose();
        let found = await_one(&boxes, from, &what, Some(from), look, deadline)?;
        self.take(from, found, target, deadline)
    }

    /// Receives the next message of any rank.
    pub(crate) fn recv_any(&self, deadline: Deadline) -> Result<(usize, Outcome)> {
        self.tell_end(self.receive_any(deadline))
    }

    fn receive_any(&self, deadline: Deadline) -> Result<(usize, Outcome)> {
        const OP: &str = "recv_any";
        self.window.context().check(OP)?;
        let (me, n) = (self.window.rank(), self.window.nranks());
        let (boxes, bell) = (self.boxes()?, self.doorbell()?);
        // Who posts rings afterwards, so a message that comes after a look is looked for again.
        let look = |_rung| {
            let find = |from| Ok(self.find(&boxes, from, boxes.read(&[from])?)?.map(|found| (from, found)));
            (1..n).map(|i| (me + i) % n).find_map(|from| find(from).transpose())
        };
        let what = fmt::from_fn(|f| write!(f, "{OP}: a message of any rank"));
        let (from, found) = await_one(&bell, 0, &what, None, look, deadline)?;
        Ok((from, self.take(from, found, Target::Fresh, deadline)?))
    }

    /// The next message of a rank, whose box holds `seen`: one that was kept, or the one in the box, which this claims. Nothing, if
    /// there is none, or another thread has been faster, or a sender who has just given up, which is one that has not sent.
    fn find(&self, boxes: &Signals<'_>, from: usize, seen: i32) -> Result<Option<Found>> {
        if let Some(tensor) = self.mail.kept[from].take() {
            return Ok(Some(Found::Kept(Box::new(tensor))));
        }
        if seen & 3 != POSTED {
            return Ok(None);
        }
        let number = seen >> 2;
        let held = boxes.replace(self.window.rank(), &[from], seen, word(number, CLAIMED))?;
        Ok((held == seen).then_some(Found::Claimed(number)))
    }

    /// Takes a message that has been found, and answers who waits for that.
    fn take(&self, from: usize, found: Found, target: Target<'_>, deadline: Deadline) -> Result<Outcome> {
        let number = match found {
            Found::Claimed(number) => number,
            Found::Kept(tensor) => return self.unpack(from, *tensor, target),
        };
        point!("group.claimed");
        let outcome = self.read_message(from, target, deadline);
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

    fn read_message(&self, from: usize, target: Target<'_>, deadline: Deadline) -> Result<Outcome> {
        let (me, at) = (self.window.rank(), self.box_at(from));
        let mut bytes = [0; Descriptor::BYTES];
        self.window.read_bytes(me, at, &mut bytes)?;
        let bad = || Error::bad_peer(format!("rank {from} sends a tensor that cannot be"));
        let descriptor = Descriptor::read_from_bytes(&bytes).map_err(|_| bad())?;
        descriptor.check_layout(from)?;
        let (dtype, shape) = (descriptor.dtype().ok_or_else(bad)?, descriptor.shape().ok_or_else(bad)?);
        let numel = Layout::contiguous(&shape).map_err(|_| bad())?.numel();
        let len = dtype.bytes_of(numel).ok_or_else(bad)?;
        fits(from, &shape, dtype, &target)?;
        let input = match descriptor.carried() {
            None => {
                // Claimed, it is lost if it is not taken: so there is time for it, also when that of the receiver is over.
                let deadline = if deadline.remaining() > GRACE { deadline } else { GRACE.into() };
                let region = self.window.region(from, super::SLOTS + me, descriptor.seq(), deadline)?;
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

/// Whether a message goes into the caller's buffer.
pub(super) fn fits(from: usize, shape: &[usize], dtype: DType, target: &Target<'_>) -> Result<()> {
    match target {
        Target::Given(out) if out_code(out.shape(), out.dtype()) != out_code(shape, dtype) => {
            Err(Error::Mismatch {
                rank: from,
                field: "message",
                theirs: format!("{dtype} {shape:?}"),
                others: format!("a buffer of {} {:?}", out.dtype(), out.shape()),
                at: Box::default(),
            })
        }
        Target::Given(_) | Target::Fresh => Ok(()),
    }
}

/// Waits until `look` finds a message, or the answer to one; a time-out says how many have come, and not what is in a cell.
fn await_one<T>(
    signals: &Signals<'_>,
    cell: usize,
    what: &dyn Display,
    from: Option<usize>,
    look: impl FnMut(i32) -> Option<Result<T>>,
    deadline: Deadline,
) -> Result<T> {
    let found = signals.wait_for(&[cell], what, from, 1, look, deadline);
    found.map_err(|mut error| {
        if let Error::Timeout { seen, .. } = &mut error {
            *seen = 0;
        }
        error
    })?
}
