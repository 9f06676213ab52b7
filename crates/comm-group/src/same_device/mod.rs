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

mod all_gather;
mod all_reduce;
mod input;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use comm_core::device::Device;
use comm_core::shm::Arena;
use comm_core::team::{Member, OpGuard};
use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result, point};
use comm_store::Window;
use comm_store::window::{Cost, Exposed, Region, WindowSpec};
use zerocopy::{FromBytes, IntoBytes};

use crate::agreement::{self, Descriptor, Op};
use input::Input;

pub(crate) const NAME: &str = "same-device";

/// The most bytes of an input that travel in a letter.
pub(crate) const CARRIED: usize = 512;

/// Whole cache lines.
const LETTER: usize = Descriptor::BYTES.next_multiple_of(64) + CARRIED;

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
}

impl SameDevice {
    pub(crate) fn new(member: &Arc<Member>, deadline: Deadline) -> Result<SameDevice> {
        let n = member.size();
        let spec = WindowSpec::bytes(2 * n * LETTER).signals(n).slots(SLOTS);
        let window = Window::alloc(member, spec, deadline)?;
        Ok(SameDevice { window, turns: AtomicU64::new(0), carried: AtomicU64::new(0) })
    }

    pub(crate) fn costs(&self) -> Cost {
        let carried = Cost { bytes: self.carried.load(Ordering::Relaxed), ..Cost::default() };
        self.window.costs() + carried
    }

    pub(crate) fn barrier(&self, deadline: Deadline) -> Result<()> {
        self.run(Op::Barrier, None, deadline, |_| Ok(()), |_, ()| Ok(()))
    }

    /// Agrees with all ranks on an operation, does this rank's part of it, and waits until the others have done theirs, as
    /// far as they need what is this rank's.
    ///
    /// `judge` sees the descriptors of all ranks, and nothing else decides what it says: so all ranks come to the same
    /// verdict, and if that is an error the team goes on. `act` does this rank's part. Its errors are this rank's own,
    /// whatever they are, and end the team, because the others wait for what this rank will not do.
    fn run<P, T>(
        &self,
        op: Op,
        tensor: Option<&Tensor>,
        deadline: Deadline,
        judge: impl FnOnce(&[Descriptor]) -> Result<P>,
        act: impl FnOnce(&mut Collective<'_>, P) -> Result<T>,
    ) -> Result<T> {
        let guard = self.window.context().begin(op.name(), deadline)?;
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) % 2;
        let mut this = Collective {
            device: self,
            op: guard,
            turn: turn as usize,
            letters: Vec::new(),
            input: None,
            exposed: Vec::new(),
        };
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
}

/// One operation, from inside.
struct Collective<'a> {
    device: &'a SameDevice,
    op: OpGuard<'a>,
    /// Which place letters are in.
    turn: usize,
    /// What all ranks say, in rank order.
    letters: Vec<Descriptor>,
    /// What this rank contributes, dense.
    input: Option<Tensor>,
    /// What this rank has exposed, until all have read it or the operation has failed.
    exposed: Vec<Exposed<'a>>,
}

/// What became of an attempt.
enum Attempt<T> {
    Done(T),
    /// All ranks refuse, each by itself, for the same reason.
    Refused(Error),
}

impl<'a> Collective<'a> {
    fn attempt<P, T>(
        &mut self,
        op: Op,
        tensor: Option<&Tensor>,
        judge: impl FnOnce(&[Descriptor]) -> Result<P>,
        act: impl FnOnce(&mut Self, P) -> Result<T>,
    ) -> Result<Attempt<T>> {
        self.exchange(op, tensor)?;
        let plan = match agreement::agree(&self.letters).and_then(|()| judge(&self.letters)) {
            Ok(plan) => plan,
            Err(verdict) => return Ok(Attempt::Refused(verdict)),
        };
        point!("group.agreed");
        let value = act(self, plan)?;
        if self.letters.iter().any(|letter| letter.carried().is_none()) {
            self.meet("the others to have read")?;
        }
        Ok(Attempt::Done(value))
    }

    /// Tells all ranks what this one does, and reads what they do.
    fn exchange(&mut self, op: Op, tensor: Option<&Tensor>) -> Result<()> {
        let mut carried = Some(0);
        // Of a device that this is not, others will read in the letter, and refuse.
        if let Some(tensor) = tensor.filter(|tensor| tensor.device().is_cpu()) {
            let is_small = tensor.nbytes() <= CARRIED;
            carried = is_small.then_some(tensor.nbytes());
            let input = self.prepare(tensor, is_small)?;
            if !is_small {
                self.expose_prepared(Slot::Input, &input)?;
            }
            self.input = Some(input);
        }
        let own = Descriptor::new(self.op.seq(), op, tensor, carried);
        let mut letter = own.as_bytes().to_vec();
        if let (Some(bytes), Some(input)) = (carried, &self.input) {
            letter.extend_from_slice(&input.bytes()?[..bytes]);
        }
        point!("group.described");
        let (device, at) = (self.device, self.letter_at(self.rank()));
        let signals = device.window.signals(&[self.size()])?;
        signals.meet(&mut self.op, &"the others to say what they do", |peer| {
            device.window.write_bytes(peer, at, &letter)?;
            device.carried.fetch_add(carried.unwrap_or_default() as u64, Ordering::Relaxed);
            Ok(())
        })?;
        let read = |rank| {
            if rank == self.rank() {
                return Ok(own);
            }
            let mut bytes = [0; Descriptor::BYTES];
            device.window.read_bytes(self.rank(), self.letter_at(rank), &mut bytes)?;
            Descriptor::read_from_bytes(&bytes).map_err(|_| Error::bad_peer("a descriptor of another size"))
        };
        self.letters = (0..self.size()).map(read).collect::<Result<_>>()?;
        Ok(())
    }

    /// Where the letter of a rank lies in every part but its own.
    fn letter_at(&self, rank: usize) -> usize {
        (self.turn * self.size() + rank) * LETTER
    }

    /// What a rank contributes: so many bytes, as all have agreed.
    fn input(&mut self, rank: usize, len: usize) -> Result<Input<'a>> {
        if rank == self.rank() {
            let own = self.input.clone().filter(|own| own.nbytes() == len);
            return own
                .map(|own| Input::Own(Box::new(own)))
                .ok_or_else(|| Error::bad_peer("this rank's input has another size"));
        }
        let Some(carried) = self.letters.get(rank).map(Descriptor::carried) else {
            return Err(Error::bad_peer(format!("rank {rank} has sent no letter")));
        };
        let Some(carried) = carried else {
            let region = self.region(rank, Slot::Input)?;
            region.expect_len(len)?;
            return Ok(Input::Region(region));
        };
        if carried != len as u64 || len > CARRIED {
            return Err(Error::bad_peer(format!("rank {rank} sends {carried} bytes, not {len}")));
        }
        let mut bytes = vec![0; len];
        self.device.window.read_bytes(self.rank(), self.letter_at(rank) + Descriptor::BYTES, &mut bytes)?;
        Ok(Input::Letter(bytes))
    }

    fn size(&self) -> usize {
        self.op.team().size()
    }

    fn rank(&self) -> usize {
        self.op.team().rank()
    }

    /// Whether there are peers in other processes.
    fn abroad(&self) -> bool {
        self.op.team().processes() > 1
    }

    fn arena(&self) -> &'a Arena {
        self.device.window.context().hub().tensors()
    }

    /// The tensor where those can reach it who need to: in place if it lies so, else a copy.
    fn prepare(&self, tensor: &Tensor, is_small: bool) -> Result<Tensor> {
        if !is_small && self.abroad() {
            Ok(tensor.contiguous_in(self.arena())?)
        } else if tensor.is_ours() {
            Ok(tensor.contiguous()?)
        } else {
            // Threads read it in place, and there are no references to what another process may write.
            Ok(tensor.to_buf()?.freeze())
        }
    }

    /// Exposes a tensor until the end of the operation: in place where peers can reach it, else a copy.
    fn expose(&mut self, slot: Slot, tensor: &Tensor) -> Result<()> {
        let reachable = self.prepare(tensor, false)?;
        self.expose_prepared(slot, &reachable)
    }

    fn expose_prepared(&mut self, slot: Slot, tensor: &Tensor) -> Result<()> {
        self.exposed.push(self.device.window.expose(slot as usize, self.op.seq(), tensor)?);
        Ok(())
    }

    fn region(&mut self, rank: usize, slot: Slot) -> Result<Region<'a>> {
        let round = self.op.seq();
        self.device.window.region_in(&mut self.op, rank, slot as usize, round)
    }

    fn meet(&mut self, what: &str) -> Result<()> {
        let signals = self.device.window.signals(&[self.size()])?;
        signals.meet(&mut self.op, &what, |_| Ok(()))
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
