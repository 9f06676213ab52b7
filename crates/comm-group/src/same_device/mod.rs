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

use comm_core::device::Device;
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
    Collective::run(team, window, Op::Barrier, None, deadline, |_| Ok(()), |_, ()| Ok(()))
}

/// One operation, from inside.
struct Collective<'a, 't> {
    window: &'a Window,
    op: OpGuard<'t>,
    /// Whether there are peers in other processes.
    abroad: bool,
    /// What this rank has exposed, until all have read it or the operation has failed.
    exposed: Vec<Exposed<'a>>,
}

/// What became of an attempt.
enum Attempt<T> {
    Done(T),
    /// All ranks refuse, each by itself, for the same reason.
    Refused(Error),
}

impl<'a, 't> Collective<'a, 't> {
    /// Agrees with all ranks on an operation, does this rank's part of it, and waits until the others have done theirs.
    ///
    /// `judge` sees the descriptors of all ranks, and nothing else decides what it says: so all ranks come to the same
    /// verdict, and if that is an error the team goes on. `act` does this rank's part. Its errors are this rank's own,
    /// whatever they are, and end the team, because the others wait for what this rank will not do.
    fn run<P, T>(
        team: &'t Team,
        window: &'a Window,
        op: Op,
        tensor: Option<&Tensor>,
        deadline: Deadline,
        judge: impl FnOnce(&[Descriptor]) -> Result<P>,
        act: impl FnOnce(&mut Self, P) -> Result<T>,
    ) -> Result<T> {
        let guard = team.begin(op.name(), deadline)?;
        let abroad = (0..team.size()).any(|rank| !team.shares_process(rank));
        let mut this = Collective { window, op: guard, abroad, exposed: Vec::new() };
        let outcome = this.attempt(op, tensor, judge, act);
        point!("group.done");
        let Collective { op, exposed, .. } = this;
        let outcome = match outcome {
            Ok(Attempt::Done(value)) => op.decide(Ok(value), true),
            Ok(Attempt::Refused(error)) => op.decide(Err(error), true),
            Err(error) => op.decide(Err(error), false),
        };
        // After the end of the team, if this is one: a peer that finds a tensor withdrawn looks for what ended the team.
        // Before another thread of this rank can come in and expose its own.
        drop(exposed);
        op.finish();
        outcome
    }

    fn attempt<P, T>(
        &mut self,
        op: Op,
        tensor: Option<&Tensor>,
        judge: impl FnOnce(&[Descriptor]) -> Result<P>,
        act: impl FnOnce(&mut Self, P) -> Result<T>,
    ) -> Result<Attempt<T>> {
        let all = self.exchange(op, tensor)?;
        let attempt = match agreement::agree(&all).and_then(|()| judge(&all)) {
            Ok(plan) => {
                point!("group.agreed");
                Attempt::Done(act(self, plan)?)
            }
            Err(verdict) => Attempt::Refused(verdict),
        };
        self.meet(Phase::Done, "the others to have read")?;
        Ok(attempt)
    }

    /// Exposes the input, writes the descriptor, and reads those of all ranks.
    fn exchange(&mut self, op: Op, tensor: Option<&Tensor>) -> Result<Vec<Descriptor>> {
        // Others will read of the device that this one is on, and refuse.
        if let Some(tensor) = tensor.filter(|tensor| tensor.device().is_cpu()) {
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
        } else if tensor.is_ours() {
            tensor.contiguous()?
        } else {
            // Threads read it in place, and there are no references to what another process may write.
            tensor.to_buf()?.freeze()
        };
        self.exposed.push(self.window.expose(slot as usize, self.op.seq(), &reachable, self.abroad)?);
        Ok(())
    }

    fn region(&mut self, rank: usize, slot: Slot) -> Result<Region<'a>> {
        let round = self.op.seq();
        self.window.region(&mut self.op, rank, slot as usize, round)
    }

    fn meet(&mut self, phase: Phase, what: &str) -> Result<()> {
        let cells: Result<Vec<&Cell>> =
            (0..self.size()).map(|rank| self.window.cell(rank, phase as usize)).collect();
        let cells = cells?;
        let round = self.op.seq();
        self.op.meet(what, |rank| cells[rank], round)
    }
}

/// Passes a tensor of host memory on. Ranks that disagree about the device have been told so before.
fn on_cpu<'t>(op: &'static str, tensor: &'t Tensor) -> Result<&'t Tensor> {
    if tensor.device().is_cpu() {
        return Ok(tensor);
    }
    let (seen, expected) = (tensor.device().to_string(), Device::Cpu.to_string());
    Err(Error::DeviceMismatch { op, seen, expected })
}
