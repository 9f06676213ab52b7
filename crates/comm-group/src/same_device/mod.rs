//! The backend for ranks on one device: it speaks to peers through a window only.
//!
//! **Letters.** A rank writes what it is about to do, and its input if that is small, into its row of every peer's part,
//! and notifies it; a rank that has been notified by all has all letters in its own memory. All come to the same verdict
//! about them. What fits into letters is done then, after one round.
//!
//! Letters lie in two places by turns. A rank writes into the first again two operations later, and between them lies an
//! operation that it could finish only because the peer had come to it, so had done with the letter before.
//!
//! **In place.** Larger inputs are exposed instead, and each rank pulls what it needs. At the end all meet once more:
//! only then may inputs change. Between processes nobody ever writes into memory of another but for the window.

mod collective;
mod exchange;
mod input;
mod letters;
mod mail;
mod reduce;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use comm_core::team::Member;
use comm_core::tensor::{DType, Tensor, TensorBuf, TensorMut};
use comm_core::{Deadline, Error, Result, point};
use comm_store::Window;
use comm_store::window::{Cost, WindowSpec};

use crate::agreement::out_code;
use crate::dump;
use crate::recorder::{OpRecord, OpState, Recorder};
use crate::request::Request;
use collective::{Attempt, Collective};
use input::Input;
use mail::Mail;

/// The slots of a part.
#[derive(Clone, Copy)]
enum Slot {
    Input = 0,
    Partial = 1,
}

const SLOTS: usize = 2;

/// What the operations of a group need.
pub(crate) struct SameDevice {
    window: Window,
    /// How many operations there have been: which of the two places letters go to.
    turns: AtomicU64,
    /// Bytes that this rank has sent in letters.
    carried: AtomicU64,
    mail: Mail,
    recorder: Recorder,
}

/// Where a result goes.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub(crate) enum Target<'a> {
    /// Into a new tensor.
    Fresh,
    /// To the caller.
    Given(TensorMut<'a>),
}

/// What comes out of an operation on one rank.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Nothing, or it is where the caller wanted it.
    Nothing,
    One(Tensor),
    Many(Vec<Tensor>),
}

impl SameDevice {
    pub(crate) fn new(member: &Arc<Member>, deadline: Deadline) -> Result<SameDevice> {
        let n = member.size();
        // Of operations, and after them of messages.
        let spec = WindowSpec::bytes(2 * n * letters::bytes(n) + n * mail::BOX)
            .signals(n + SameDevice::mail_signals(n))
            .slots(SLOTS + n);
        let window = Window::alloc(member, spec, deadline)?;
        Ok(SameDevice {
            window,
            turns: AtomicU64::new(0),
            carried: AtomicU64::new(0),
            mail: Mail::new(n),
            recorder: Recorder::default(),
        })
    }

    pub(crate) fn costs(&self) -> Cost {
        let carried = Cost { bytes: self.carried.load(Ordering::Relaxed), ..Cost::default() };
        self.window.costs() + carried
    }

    /// A tensor one element after the other, where those can reach it who need to: in place if it lies so, else a copy.
    fn dense(&self, tensor: &Tensor, is_small: bool) -> Result<Tensor> {
        if !is_small && self.window.context().processes() > 1 {
            Ok(tensor.contiguous_in(self.window.context().hub().tensors())?)
        } else if tensor.is_ours() {
            Ok(tensor.contiguous()?)
        } else {
            // Threads read it in place, and there are no references to what another process may write.
            Ok(tensor.to_buf()?.freeze())
        }
    }

    /// This rank's last operations.
    pub(crate) fn recent(&self) -> Vec<OpRecord> {
        self.recorder.recent()
    }

    /// Writes down what was going on, if this is the first error with which the group is of no use any more: the team is over,
    /// or a rank has left that every operation of all needs.
    fn tell_why(&self, error: &Error) {
        let member = self.window.context();
        let is_last = member.is_over() || matches!(error, Error::PeerLeft { .. });
        if is_last && !matches!(error, Error::Forked) && self.recorder.close() {
            dump::dump(member, &self.recorder.recent(), error);
        }
    }

    /// The same after a message, which needs two ranks alone: that one has left is no end of anything else.
    fn tell_end<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| {
            if self.window.context().is_over() {
                self.tell_why(error);
            }
        })
    }

    /// Agrees with all ranks on an operation, does this rank's part of it, and waits until the others have done theirs, as
    /// far as they need what is this rank's.
    ///
    /// The verdict depends on what all ranks say and on nothing else: so all come to the same one, and if it is an error
    /// the team goes on. Later errors are this rank's own, whatever they are, and end the team, because the others wait for
    /// what this rank will not do.
    pub(crate) fn run(&self, request: Request, target: Target<'_>, deadline: Deadline) -> Result<Outcome> {
        let member = self.window.context();
        let (name, rank) = (request.op.name(), member.rank());
        let guard = match member.begin(name, deadline) {
            Ok(guard) => guard,
            Err(error) => {
                if member.is_over() {
                    self.recorder.refuse(member.operations() + 1, &request, &error);
                    self.tell_why(&error);
                }
                return Err(error);
            }
        };
        let seq = guard.seq();
        let _span = tracing::debug_span!("collective", op = name, seq, rank, team = member.name()).entered();
        let record = self.recorder.start(seq, &request);
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) % 2;
        let mut this = Collective {
            device: self,
            op: guard,
            record,
            turn: turn as usize,
            letters: Vec::new(),
            input: None,
            exposed: Vec::new(),
        };
        let outcome = this.attempt(request, target);
        point!("group.done");
        let Collective { op, exposed, .. } = this;
        let (outcome, is_agreed) = match outcome {
            Ok(Attempt::Done(value)) => (Ok(value), true),
            Ok(Attempt::Refused(error)) => (Err(error), true),
            Err(error) => (Err(error), false),
        };
        let outcome = op.decide(outcome, is_agreed);
        // After the end of the team, if this is one: a peer that finds a tensor withdrawn looks for what ended the team.
        // Before another thread of this rank can come in and expose its own.
        drop(exposed);
        let state = match &outcome {
            Ok(_) => OpState::Done,
            Err(error) if is_agreed => OpState::Refused(error.to_string()),
            Err(error) => OpState::Failed(error.to_string()),
        };
        self.recorder.end(record, state);
        // Still inside, so that the others can see where this rank is.
        if let (Err(error), false) = (&outcome, is_agreed) {
            self.tell_why(error);
        }
        op.finish();
        outcome
    }
}

/// Lets a result be written where it is to go.
fn produce(
    target: Target<'_>,
    shape: &[usize],
    dtype: DType,
    fill: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<Outcome> {
    if let Target::Given(mut out) = target {
        if let Some(bytes) = out.bytes_mut()? {
            fill(bytes)?;
        } else {
            let mut dense = TensorBuf::zeros(shape, dtype)?;
            fill(dense.bytes_mut()?)?;
            out.copy_from(&dense.freeze())?;
        }
        return Ok(Outcome::Nothing);
    }
    let mut fresh = TensorBuf::zeros(shape, dtype)?;
    fill(fresh.bytes_mut()?)?;
    Ok(Outcome::One(fresh.freeze()))
}
