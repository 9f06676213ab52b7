//! A message to one rank and one from another, or the same, at the same time.
//!
//! Each half succeeds or fails by itself, since it is another rank's as well, which cannot take back what it has done. So that
//! nothing is lost, what has been received in an exchange that could not send is kept for the next call that receives from there.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};

use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result};

use comm_store::NotifyOp;

use super::mail::fits;
use super::{Outcome, SameDevice, Target};

const OP: &str = "exchange";

/// What was received in vain from a rank, oldest first.
#[derive(Default)]
pub(super) struct Kept(Mutex<VecDeque<Tensor>>);

impl Kept {
    pub(super) fn take(&self) -> Option<Tensor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    pub(super) fn put_back(&self, tensor: Tensor) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_front(tensor);
    }
}

impl SameDevice {
    /// Sends a tensor to a rank and receives one of another, or the same, at the same time. What is wrong with either is found
    /// out before anything moves.
    pub(crate) fn exchange(
        &self,
        tensor: &Tensor,
        to: usize,
        from: usize,
        deadline: Deadline,
    ) -> Result<Tensor> {
        self.tell_end(self.send_and_receive(tensor, to, from, deadline))
    }

    fn send_and_receive(
        &self,
        tensor: &Tensor,
        to: usize,
        from: usize,
        deadline: Deadline,
    ) -> Result<Tensor> {
        self.peer(OP, from)?;
        let parcel = self.pack(OP, tensor, to)?;
        let (received, sent) = match self.try_post(&parcel)? {
            Some(posted) => {
                let received = self.recv(from, Target::Fresh, deadline);
                (received, self.answered(posted, deadline))
            }
            // Behind the message of another thread, whose receiver may be waiting for what this one is about to receive.
            None => thread::scope(|s| -> Result<_> {
                let spawned = Builder::new().spawn_scoped(s, || self.deliver(&parcel, deadline));
                let sending = spawned.map_err(|error| Error::io("starting the thread that sends", error))?;
                let received = self.recv(from, Target::Fresh, deadline);
                let sent = sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                Ok((received, sent))
            })?,
        };
        match (received, sent) {
            (Ok(Outcome::One(tensor)), Ok(())) => Ok(tensor),
            (Ok(Outcome::One(tensor)), Err(error)) => {
                self.keep(from, tensor);
                Err(error)
            }
            (Ok(Outcome::Nothing | Outcome::Many(_)), _) => {
                Err(Error::bad_peer("a message without a tensor"))
            }
            (Err(error), Ok(())) => Err(error),
            (Err(not_received), Err(not_sent)) => Err(neither(not_received, not_sent)),
        }
    }

    /// Gives out what was kept. If the caller's buffer is another one, it stays: nobody sends it again.
    pub(super) fn unpack(&self, from: usize, tensor: Tensor, target: Target<'_>) -> Result<Outcome> {
        if let Err(error) = fits(from, tensor.shape(), tensor.dtype(), &target) {
            self.keep(from, tensor);
            return Err(error);
        }
        match target {
            Target::Fresh => Ok(Outcome::One(tensor)),
            Target::Given(mut out) => out.copy_from(&tensor).map(|()| Outcome::Nothing).map_err(Error::from),
        }
    }

    /// Keeps what has been received for who receives from there next, and wakes who may be waiting for it.
    fn keep(&self, from: usize, tensor: Tensor) {
        let me = self.window.rank();
        self.mail.kept[from].put_back(tensor);
        let wake = || {
            self.boxes()?.notify(me, &[from], 0, NotifyOp::Add)?;
            self.doorbell()?.notify(me, &[0], 1, NotifyOp::Add)
        };
        // If the team is over by now, nobody waits.
        let _: Result<()> = wake();
    }
}

/// The error of both halves: of two time-outs one that names both.
fn neither(not_received: Error, not_sent: Error) -> Error {
    let (mut error, other) = (not_received, not_sent);
    if let Error::Timeout { what, missing, .. } = &mut error
        && let Error::Timeout { what: sending, missing: receivers, .. } = other
    {
        *what = format!("{what}; {sending}");
        let named = missing.clone();
        missing.extend(receivers.into_iter().filter(|m| !named.iter().any(|other| other.rank == m.rank)));
    }
    error
}
