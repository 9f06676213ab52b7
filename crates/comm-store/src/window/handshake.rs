//! Signals that go with a transfer: sent when it is done, or waited for before it begins.

use std::sync::Arc;

use comm_core::{Deadline, Error, Result};

use super::Window;
use super::signals::Signals;
use crate::signal::{Cmp, NotifyOp};

/// A signal to send when something has been [put](super::View::put) into a peer's part.
#[derive(Debug, Clone, Copy)]
pub struct Notify<'a> {
    signals: &'a Signals<'a>,
    cell: &'a [usize],
    value: i32,
    op: NotifyOp,
}

impl<'a> Notify<'a> {
    /// Adds to a cell of the peer.
    pub fn add(signals: &'a Signals<'_>, cell: &'a [usize], value: i32) -> Notify<'a> {
        Notify { signals, cell, value, op: NotifyOp::Add }
    }

    /// Sets a cell of the peer.
    pub fn set(signals: &'a Signals<'_>, cell: &'a [usize], value: i32) -> Notify<'a> {
        Notify { signals, cell, value, op: NotifyOp::Set }
    }

    /// Whether it can be sent to a peer of this window.
    pub(super) fn check(&self, op: &'static str, window: &Window, peer: usize) -> Result<()> {
        same_rank(op, self.signals.window, window)?;
        self.signals.cell_of(peer, self.cell).map(drop)
    }

    pub(super) fn send(&self, peer: usize) -> Result<()> {
        self.signals.notify(peer, self.cell, self.value, self.op)
    }
}

/// A signal to wait for, before something is [got](super::View::get) from a peer or by itself.
#[derive(Debug, Clone, Copy)]
pub struct Await<'a> {
    signals: &'a Signals<'a>,
    cell: &'a [usize],
    cmp: Cmp,
    expected: i32,
    from: Option<usize>,
    deadline: Deadline,
}

impl<'a> Await<'a> {
    /// A cell of this rank that compares so to a number, by the default deadline.
    pub fn new(signals: &'a Signals<'_>, cell: &'a [usize], cmp: Cmp, expected: i32) -> Await<'a> {
        Await { signals, cell, cmp, expected, from: None, deadline: Deadline::default() }
    }

    /// A cell of this rank that is at least this.
    pub fn ge(signals: &'a Signals<'_>, cell: &'a [usize], expected: i32) -> Await<'a> {
        Await::new(signals, cell, Cmp::Ge, expected)
    }

    /// It is this rank that sends it.
    #[must_use]
    pub fn from(self, rank: usize) -> Await<'a> {
        Await { from: Some(rank), ..self }
    }

    /// It must have come by then.
    #[must_use]
    pub fn by(self, deadline: impl Into<Deadline>) -> Await<'a> {
        Await { deadline: deadline.into(), ..self }
    }

    /// Whether it comes to the rank of this window.
    pub(super) fn check(&self, op: &'static str, window: &Window) -> Result<()> {
        same_rank(op, self.signals.window, window)
    }

    /// Waits for it, and returns what the cell holds.
    ///
    /// # Errors
    /// Those of [`Signals::wait`].
    pub fn now(&self) -> Result<i32> {
        self.signals.wait(self.cell, self.cmp, self.expected, self.from, self.deadline)
    }
}

/// The signal of a transfer is of the same ranks as its bytes: numbers of ranks of another team are others.
fn same_rank(op: &'static str, signals: &Window, window: &Window) -> Result<()> {
    if Arc::ptr_eq(&signals.member, &window.member) {
        return Ok(());
    }
    Err(Error::invalid(op, "the signal is of a window of another team than the bytes"))
}
