//! One operation of a rank, from inside.

use comm_core::device::Device;
use comm_core::shm::Arena;
use comm_core::team::OpGuard;
use comm_core::tensor::{DType, Tensor, TensorBuf, Tile};
use comm_core::{Error, Result, point};
use comm_store::window::{Exposed, Region};

use super::{Outcome, SameDevice, Slot, Target, produce};
use crate::agreement::{self, Letter, out_code};
use crate::recorder::RecordId;
use crate::request::{Op, Request};
use crate::schedule::{self, Action, Move, Schedule};

/// One operation, from inside.
pub(super) struct Collective<'a> {
    pub(super) device: &'a SameDevice,
    pub(super) op: OpGuard<'a>,
    pub(super) record: RecordId,
    /// Which place letters are in.
    pub(super) turn: usize,
    /// What all ranks say, in rank order.
    pub(super) letters: Vec<Letter>,
    /// What this rank contributes, dense.
    pub(super) input: Option<Tensor>,
    /// What this rank has exposed, until all have read it or the operation has failed.
    pub(super) exposed: Vec<Exposed<'a>>,
}

/// What became of an attempt.
pub(super) enum Attempt {
    Done(Outcome),
    /// All ranks refuse, each by itself, for the same reason.
    Refused(Error),
}

impl<'a> Collective<'a> {
    pub(super) fn attempt(&mut self, mut request: Request, target: Target<'_>) -> Result<Attempt> {
        let op = request.op;
        // What does not count is nothing to agree about.
        request.input = request.input.filter(|_| op.takes_input(self.rank()));
        let target = if op.gives_result(self.rank()) { target } else { Target::Fresh };
        let wrong = request.wrong.take().or_else(|| self.wrong(&request, &target).err());
        if let Some(error @ Error::OutOfMemory { .. }) = wrong {
            return Err(error);
        }
        let out = match &target {
            Target::Fresh => 0,
            Target::Given(out) => out_code(out.shape(), out.dtype()),
        };
        let device = request.input.as_ref().map_or(Device::Cpu, Tensor::device);
        self.exchange(request, wrong.is_some(), out)?;
        if let Some(error) = wrong {
            return Ok(Attempt::Refused(error));
        }
        let schedule = agreement::agree(&self.letters)
            .and_then(|()| on_cpu(op, &self.letters, device))
            .and_then(|()| schedule::schedule(op, &self.letters, self.rank()));
        let schedule = match schedule {
            Ok(schedule) => schedule,
            Err(verdict) => return Ok(Attempt::Refused(verdict)),
        };
        self.device.recorder.agree(self.record);
        point!("group.agreed");
        let outcome = match schedule {
            Some(schedule) => self.act(schedule, target)?,
            None => Outcome::Nothing,
        };
        if self.any_exposed() {
            self.meet("the others to have read")?;
        }
        Ok(Attempt::Done(outcome))
    }

    /// What is wrong with this rank's own arguments, whatever the others have.
    fn wrong(&self, request: &Request, target: &Target<'_>) -> Result<()> {
        let (op, n) = (request.op, self.size());
        let name = op.name();
        let refuse = |why: String| Err(Error::invalid(name, why));
        if let Some(root) = op.root().filter(|&root| root >= n) {
            return refuse(format!("root {root} of {n} ranks"));
        }
        if let (Op::AllToAllRows, sizes) = (op, request.sizes().len())
            && sizes != 2 * n
        {
            return refuse(format!("{sizes} numbers of rows for {n} ranks: one for each to send and to get"));
        }
        if let Target::Given(out) = target {
            out.device().expect(Device::Cpu, name)?;
        }
        // Without sizes in a letter the rule holds.
        if request.sizes.as_ref().is_some_and(Vec::is_empty) {
            return refuse(format!("no sizes for {n} ranks"));
        }
        let Some(tensor) = &request.input else {
            let needs = op.takes_input(self.rank());
            return if needs { refuse("this rank must bring a tensor".into()) } else { Ok(()) };
        };
        if let Target::Given(out) = target
            && out.dtype() != tensor.dtype()
        {
            return refuse(format!("a result of {} into a buffer of {}", tensor.dtype(), out.dtype()));
        }
        Ok(())
    }

    fn act(&mut self, schedule: Schedule, target: Target<'_>) -> Result<Outcome> {
        let Schedule { dtype, inputs, shape, action } = schedule;
        let outcome = match (action, shape) {
            (Action::Nothing, _) => Outcome::Nothing,
            (Action::Apart, _) => self.take_apart(dtype, &inputs)?,
            (Action::ReduceAll(reduce, root), shape) => {
                self.reduce_all(reduce, dtype, &inputs[self.rank()], shape, root, target)?
            }
            (Action::Reduce(reduce, tile), Some(shape)) => {
                let bytes = numel(&inputs[self.rank()]) * dtype.size();
                produce(target, &shape, dtype, |out| self.reduce_tile(reduce, dtype, bytes, &tile, out))?
            }
            (Action::Copy(moves), Some(shape)) => {
                produce(target, &shape, dtype, |out| self.copy(dtype, &inputs, &moves, out))?
            }
            (Action::Reduce(..) | Action::Copy(_), None) => Outcome::Nothing,
        };
        point!("group.gathered");
        Ok(outcome)
    }

    /// Puts a result together out of rectangles of inputs.
    fn copy(&mut self, dtype: DType, inputs: &[Vec<usize>], moves: &[Move], out: &mut [u8]) -> Result<()> {
        let size = dtype.size();
        for Move { rank, from, to } in moves.iter().filter(|m| m.from.numel() > 0) {
            let input = self.input(*rank, numel(&inputs[*rank]) * size)?;
            for (to, from, len) in Tile::pair("collective", to, from)? {
                input.read(from * size, &mut out[to * size..(to + len) * size])?;
            }
            input.verify()?;
        }
        Ok(())
    }

    /// Each input as a tensor of its own.
    fn take_apart(&mut self, dtype: DType, inputs: &[Vec<usize>]) -> Result<Outcome> {
        let mut all = Vec::with_capacity(inputs.len());
        for (rank, shape) in inputs.iter().enumerate() {
            let mut copy = TensorBuf::zeros(shape, dtype)?;
            if copy.numel() > 0 {
                let input = self.input(rank, copy.nbytes())?;
                input.read(0, copy.bytes_mut()?)?;
                input.verify()?;
            }
            all.push(copy.freeze());
        }
        Ok(Outcome::Many(all))
    }

    pub(super) fn any_exposed(&self) -> bool {
        self.letters.iter().any(|letter| letter.descriptor.carried().is_none())
    }

    pub(super) fn size(&self) -> usize {
        self.op.team().size()
    }

    pub(super) fn rank(&self) -> usize {
        self.op.team().rank()
    }

    /// Whether there are peers in other processes.
    pub(super) fn abroad(&self) -> bool {
        self.op.team().processes() > 1
    }

    pub(super) fn arena(&self) -> &'a Arena {
        self.device.window.context().hub().tensors()
    }

    /// Exposes a tensor until the end of the operation.
    pub(super) fn expose(&mut self, slot: Slot, tensor: &Tensor) -> Result<()> {
        self.exposed.push(self.device.window.expose(slot as usize, self.op.seq(), tensor)?);
        Ok(())
    }

    pub(super) fn region(&mut self, rank: usize, slot: Slot) -> Result<Region<'a>> {
        let round = self.op.seq();
        self.device.window.region_in(&mut self.op, rank, slot as usize, round)
    }

    pub(super) fn meet(&mut self, what: &str) -> Result<()> {
        let signals = self.device.window.signals(&[self.size()])?;
        signals.meet(&mut self.op, &what, |_| Ok(()))
    }
}

/// Ranks that disagree about the device have been told so before; here all have it elsewhere, or the root has.
fn on_cpu(op: Op, letters: &[Letter], own: Device) -> Result<()> {
    let Some(rank) = letters.iter().position(|letter| letter.descriptor.is_elsewhere()) else {
        return Ok(());
    };
    let seen = if own.is_cpu() { format!("another device, on rank {rank}") } else { own.to_string() };
    Err(Error::DeviceMismatch { op: op.name(), seen, expected: Device::Cpu.to_string() })
}

pub(super) fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}
