//! The backend for ranks on one device: it speaks to peers through a window only.
//!
//! An operation of round s goes like this. A rank exposes its input and writes its descriptor into its part of the
//! window, then says so in its first cell; when all have, every rank reads all descriptors and comes to the same
//! verdict. Then each rank pulls what it needs. At the end it says in its last cell that it has read everything, and
//! waits for the others to say the same: only then may inputs change and descriptors be written anew. Between
//! processes nobody ever writes into memory of another.

mod all_gather;
mod all_reduce;
#[cfg(test)]
mod tests;

use comm_core::team::{OpGuard, Team};
use comm_core::tensor::Tensor;
use comm_core::wait::Cell;
use comm_core::{Deadline, Error, Result, point};
use comm_store::Window;
use comm_store::window::{Exposed, Region};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) use all_gather::all_gather;
pub(crate) use all_reduce::all_reduce;

use crate::agreement::{self, Descriptor, Op};

const NAME: &str = "same-device";

/// The cells of a part, in the order in which an operation sets them.
#[derive(Clone, Copy)]
enum Phase {
    /// Input exposed, descriptor written.
    Described = 0,
    /// This rank's part of the reduction exposed.
    Reduced = 1,
    /// Everything read.
    Done = 2,
}

const PHASES: usize = 3;

/// The slots of a part.
#[derive(Clone, Copy)]
enum Slot {
    Input = 0,
    Partial = 1,
}

const SLOTS: usize = 2;

/// The window that the operations of a group need.
pub(crate) fn window(team: &Team, deadline: Deadline) -> Result<Window> {
    Window::alloc(team, PHASES, Descriptor::BYTES, SLOTS, deadline)
}

pub(crate) fn barrier(team: &Team, window: &Window, deadline: Deadline) -> Result<()> {
    Collective::run(team, window, Op::Barrier, None, deadline, |_, _| Ok(()))
}

/// One operation, from inside.
struct Collective<'a, 't> {
    window: &'a Window,
    op: OpGuard<'t>,
    deadline: Deadline,
    /// Whether there are peers in other processes.
    abroad: bool,
    /// What this rank has exposed, until all have read it or the operation has failed.
    exposed: Vec<Exposed<'a>>,
}

impl<'a, 't> Collective<'a, 't> {
    /// Agrees with all ranks on an operation, does this rank's part of it, and waits until the others have done theirs.
    ///
    /// `body` gets the descriptors of all ranks. Of the errors that it may return, those of [`is_verdict`] must follow
    /// from the descriptors alone, so that all ranks return them; any other ends the team.
    fn run<T>(
        team: &'t Team,
        window: &'a Window,
        op: Op,
        tensor: Option<&Tensor>,
        deadline: Deadline,
        body: impl FnOnce(&mut Self, &[Descriptor]) -> Result<T>,
    ) -> Result<T> {
        let guard = team.begin(op.name(), deadline)?;
        let abroad = (0..team.size()).any(|rank| !team.shares_process(rank));
        let mut this = Collective { window, op: guard, deadline, abroad, exposed: Vec::new() };
        let outcome = this.attempt(op, tensor, body);
        point!("group.done");
        let agreed = outcome.as_ref().err().is_some_and(is_verdict);
        let Collective { op, exposed, .. } = this;
        let outcome = op.settle(outcome, agreed);
        // Only now: a peer that finds a tensor withdrawn looks for what ended the team, and finds it.
        drop(exposed);
        outcome
    }

    fn attempt<T>(
        &mut self,
        op: Op,
        tensor: Option<&Tensor>,
        body: impl FnOnce(&mut Self, &[Descriptor]) -> Result<T>,
    ) -> Result<T> {
        let all = self.exchange(op, tensor)?;
        let outcome = agreement::agree(&all).and_then(|()| {
            point!("group.agreed");
            body(self, &all)
        });
        // On a verdict that all share, all go on to the end of the operation, and the next one works.
        if outcome.as_ref().err().is_none_or(is_verdict) {
            self.meet(Phase::Done, "the others to have read")?;
        }
        outcome
    }

    /// Exposes the input, writes the descriptor, and reads those of all ranks.
    fn exchange(&mut self, op: Op, tensor: Option<&Tensor>) -> Result<Vec<Descriptor>> {
        if let Some(tensor) = tensor {
            self.expose(Slot::Input, tensor)?;
        }
        self.window.write(0, Descriptor::new(self.op.seq(), op, tensor).as_bytes())?;
        point!("group.described");
        self.meet(Phase::Described, "the others to say what they do")?;
        let read = |rank| {
            let mut bytes = [0; Descriptor::BYTES];
            self.window.read(rank, 0, &mut bytes)?;
            Descriptor::read_from_bytes(&bytes).map_err(|_| Error::bad_peer("a descriptor of another size"))
        };
        (0..self.size()).map(read).collect()
    }

    fn size(&self) -> usize {
        self.op.team().size()
    }

    fn rank(&self) -> usize {
        self.op.team().rank()
    }

    /// Exposes a tensor until the end of the operation: in place where peers can reach it, else a copy.
    fn expose(&mut self, slot: Slot, tensor: &Tensor) -> Result<()> {
        let reachable = if self.abroad {
            tensor.contiguous_in(self.op.team().hub().tensors())?
        } else {
            tensor.contiguous()?
        };
        self.exposed.push(self.window.expose(slot as usize, self.op.seq(), &reachable, self.abroad)?);
        Ok(())
    }

    fn region(&self, rank: usize, slot: Slot) -> Result<Region<'a>> {
        self.window.region(self.op.team(), rank, slot as usize, self.op.seq(), self.deadline)
    }

    fn meet(&mut self, phase: Phase, what: &str) -> Result<()> {
        let cells: Result<Vec<&Cell>> =
            (0..self.size()).map(|rank| self.window.cell(rank, phase as usize)).collect();
        let cells = cells?;
        let round = self.op.seq();
        self.op.meet(what, |rank| cells[rank], round)
    }
}

/// Whether every rank comes to this error by itself.
fn is_verdict(error: &Error) -> bool {
    matches!(error, Error::Mismatch { .. } | Error::Unsupported { .. } | Error::InvalidArgument { .. })
}
