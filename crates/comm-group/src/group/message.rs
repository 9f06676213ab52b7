//! Messages from rank to rank.

use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Error, Result};

use super::{Inner, Target, ThreadGroup, one};
use crate::work::{Queue, Work};

/// Messages from one rank to another, in which no other rank takes part. Those of a pair arrive in the order in which they
/// were sent. Whoever waits for a message in vain gets a time-out, which changes nothing else: the group goes on.
///
/// Any number of threads may send and receive at once. Of several that would receive the same message, one gets it.
///
/// What has been [started](Work) goes in order with everything that goes the same way between the same two ranks, and with nothing
/// else: not with messages of other ranks, or the other way, nor with operations of all. There is a thread for each rank to which
/// messages have been started, and one for each from which.
///
/// When the time of one of the two is over, and the receiver has begun to take the message, it is waited for: it is a copy away.
/// So a call may return up to 2 s after its deadline if the other process is stopped just then.
impl ThreadGroup {
    /// Sends a tensor to a rank, and returns when that has it.
    ///
    /// Two ranks that send to each other at the same time wait for each other: one of them receives first, or both use
    /// [`exchange`](ThreadGroup::exchange).
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::ThreadGroup;
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("send-example", rank, 2, deadline)?, deadline)?;
    ///     if rank == 0 {
    ///         return group.send(&Tensor::from_slice(&[2], &[3u8, 4])?, 1, deadline);
    ///     }
    ///     assert_eq!(group.recv(0, deadline)?.as_slice::<u8>()?, [3, 4]);
    ///     Ok(())
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..2 {
    /// #         s.spawn(move || rank(r).unwrap());
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this rank itself or one that is not there; [`Error::Mismatch`], on both, if the
    /// receiver has a buffer of another shape or dtype; [`Error::Timeout`], which withdraws the message (unless the receiver
    /// has begun to take it: then it is waited for up to 2 s longer, and if it is stopped the message may still arrive); [`Error::BadPeer`] if the receiver has failed to take
    /// it; what ended the team, [`Error::PeerLeft`].
    #[doc(alias = "Send")]
    pub fn send(&self, tensor: &Tensor, to: usize, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        self.after_messages(&self.inner.started.sending, to, "send", deadline)?;
        self.inner.backend.send(tensor, to, deadline)
    }

    /// Starts a [`send`](ThreadGroup::send).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this rank itself or one that is not there, and those of starting a thread; the others are
    /// the work's.
    pub fn send_start(&self, tensor: &Tensor, to: usize, deadline: impl Into<Deadline>) -> Result<Work<()>> {
        const OP: &str = "send";
        let (tensor, deadline) = (tensor.clone(), deadline.into());
        self.inner.backend.peer(OP, to)?;
        let run = move |group: &Inner| group.backend.send(&tensor, to, deadline);
        self.inner.started.sending[to].start(&self.inner, OP, run)
    }

    /// Receives the next message of a rank.
    ///
    /// # Errors
    /// [`Error::Timeout`] if there is none (one that has begun to arrive may take up to 2 s longer, if its sender is slow to
    /// pass on its memory); [`Error::InvalidArgument`] for this rank itself or one that is not there;
    /// [`Error::BadPeer`] if what the sender says cannot be; no memory; what ended the team, [`Error::PeerLeft`].
    #[doc(alias = "Recv")]
    pub fn recv(&self, from: usize, deadline: impl Into<Deadline>) -> Result<Tensor> {
        let deadline = deadline.into();
        self.after_messages(&self.inner.started.receiving, from, "recv", deadline)?;
        self.inner.backend.recv(from, Target::Fresh, deadline).and_then(one)
    }

    /// [`recv`](ThreadGroup::recv) into the caller's buffer, of the message's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`recv`](ThreadGroup::recv); [`Error::Mismatch`], on both ranks, if the message is of another shape or dtype.
    pub fn recv_into<'a>(
        &self,
        from: usize,
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let deadline = deadline.into();
        self.after_messages(&self.inner.started.receiving, from, "recv_into", deadline)?;
        self.inner.backend.recv(from, Target::Given(out.into()), deadline).map(drop)
    }

    /// Starts a [`recv`](ThreadGroup::recv).
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::ThreadGroup;
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("recv-start-example", rank, 2, deadline)?, deadline)?;
    ///     let other = 1 - rank;
    ///     let theirs = group.recv_start(other, deadline)?;
    ///     group.send(&Tensor::from_slice(&[1], &[rank as i32])?, other, deadline)?;
    ///     assert_eq!(theirs.wait()?.as_slice::<i32>()?, [other as i32]);
    ///     Ok(())
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..2 {
    /// #         s.spawn(move || rank(r).unwrap());
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this rank itself or one that is not there, and those of starting a thread; the others are
    /// the work's.
    pub fn recv_start(&self, from: usize, deadline: impl Into<Deadline>) -> Result<Work<Tensor>> {
        const OP: &str = "recv";
        let deadline = deadline.into();
        self.inner.backend.peer(OP, from)?;
        let run = move |group: &Inner| group.backend.recv(from, Target::Fresh, deadline).and_then(one);
        self.inner.started.receiving[from].start(&self.inner, OP, run)
    }

    /// Receives the next message of whichever rank sends one first, and says which. It may be one for which another call waits,
    /// started or not: whoever is faster has it.
    ///
    /// # Errors
    /// Those of [`recv`](ThreadGroup::recv); [`Error::PeerLeft`] if all others have left.
    pub fn recv_any(&self, deadline: impl Into<Deadline>) -> Result<(usize, Tensor)> {
        let deadline = deadline.into();
        let (from, outcome) = self.inner.backend.recv_any(deadline)?;
        Ok((from, one(outcome)?))
    }

    /// Sends a tensor to one rank and receives one of another, or the same, at the same time.
    ///
    /// If something is wrong with the arguments, neither happens. Later each half ends by itself, for a tensor that has been
    /// sent cannot be called back. So a [`Error::Timeout`] names in its `what` what has not come about, `send`, `recv`, or both, and in
    /// `missing` whom it wants. The other half is done: what was sent has arrived, and what was received, and not returned, is
    /// what the next call gets that receives from there.
    ///
    /// # Errors
    /// Those of [`recv`](ThreadGroup::recv), else those of [`send`](ThreadGroup::send), and of starting a thread.
    #[doc(alias = "sendrecv")]
    pub fn exchange(
        &self,
        tensor: &Tensor,
        to: usize,
        from: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        let deadline = deadline.into();
        self.after_messages(&self.inner.started.sending, to, "exchange", deadline)?;
        self.after_messages(&self.inner.started.receiving, from, "exchange", deadline)?;
        self.inner.backend.exchange(tensor, to, from, deadline)
    }

    /// Waits for messages that have been started before, the same way. What is wrong with the peer, the call says itself.
    fn after_messages(
        &self,
        queues: &[Queue],
        peer: usize,
        op: &'static str,
        deadline: Deadline,
    ) -> Result<(), Error> {
        queues.get(peer).map_or(Ok(()), |queue| queue.drain(&self.inner, op, deadline))
    }
}
