//! What one participant does with the store in one flow.

use std::time::Instant;

use comm_core::device::Device;
use comm_core::error::At;
use comm_core::shm::Arena;
use comm_core::tensor::{DType, Tensor};
use comm_core::{Deadline, Error, Result};
use comm_store::store::{Fetched, MAX_KEY_BYTES};

use super::Participant;

/// One flow, as one participant sees it.
pub(super) struct Handover<'a> {
    me: &'a Participant<'a>,
    flow: &'static str,
    name: &'a str,
    deadline: Deadline,
    started: Instant,
}

impl<'a> Handover<'a> {
    pub(super) fn new(
        me: &'a Participant<'a>,
        flow: &'static str,
        name: &'a str,
        deadline: impl Into<Deadline>,
    ) -> Handover<'a> {
        Handover { me, flow, name, deadline: deadline.into(), started: Instant::now() }
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Where tensors are made so that all who fetch them reach them; none if they are all in this process.
    pub(super) fn room(&self) -> Option<&Arena> {
        let member = self.me.store.context();
        (member.processes() > 1).then(|| member.hub().tensors())
    }

    /// A tensor where all reach it, so that views of it need no copies each.
    pub(super) fn shared(&self, tensor: &Tensor) -> Result<Tensor> {
        match self.room() {
            Some(room) if tensor.device().is_cpu() && tensor.block().is_none() => tensor.contiguous_in(room),
            _ => Ok(tensor.clone()),
        }
    }

    /// The three steps: publishes what is given, each tensor under the id of a device; gets what is gotten; and waits until
    /// what was given has been read. In another order, who gives to itself, or two who give to each other, would wait for what
    /// they do only afterwards.
    pub(super) fn run<T>(
        &self,
        given: &[(usize, Tensor)],
        get: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        self.check_name()?;
        given.iter().try_for_each(|(id, tensor)| self.publish(*id, tensor))?;
        let got = get(self)?;
        given.iter().try_for_each(|(id, _)| self.wait(*id))?;
        Ok(got)
    }

    /// Whether the name leaves room for every id: else some keys of a flow were published before another is refused, and one
    /// device were refused what another one is not.
    fn check_name(&self) -> Result<()> {
        let beside = self.key(usize::MAX).len() - self.name.len();
        let (bytes, most) = (self.name.len(), MAX_KEY_BYTES - beside);
        if bytes > most {
            return Err(Error::invalid(self.flow, format!("a name of {bytes} bytes: it has at most {most}")));
        }
        Ok(())
    }

    /// Publishes a tensor for one reader.
    fn publish(&self, id: usize, tensor: &Tensor) -> Result<()> {
        let key = self.key(id);
        let Participant { store, stream, to, .. } = self.me;
        store.publish(&key, tensor, stream, 1, *to).map_err(|error| self.placed(error, &key))
    }

    /// Fetches what is published under the id of a device, to this participant's.
    pub(super) fn fetch(&self, id: usize) -> Result<Fetched> {
        self.fetch_to(id, self.me.stream.device())
    }

    /// As [`fetch`](Handover::fetch), to any device.
    pub(super) fn fetch_to(&self, id: usize, device: Device) -> Result<Fetched> {
        let key = self.key(id);
        let Participant { store, stream, .. } = self.me;
        let fetched = store.fetch_to_device(&key, stream, device, self.deadline);
        fetched.map_err(|error| self.placed(error, &key))
    }

    /// Whether what was fetched is what it must be.
    pub(super) fn check(&self, id: usize, fetched: &Fetched, shape: &[usize], dtype: DType) -> Result<()> {
        let (field, own, theirs) = if fetched.shape() != shape {
            ("shape", format!("{shape:?}"), format!("{:?}", fetched.shape()))
        } else if fetched.dtype() != dtype {
            ("dtype", dtype.to_string(), fetched.dtype().to_string())
        } else {
            return Ok(());
        };
        let member = self.me.store.context();
        let (op, key) = (String::new(), self.key(id));
        let at = At { team: member.name().into(), rank: member.rank(), op, elapsed: self.started.elapsed() };
        // Who published it is not told, so it is this rank that differs.
        let error =
            Error::Mismatch { rank: member.rank(), field, theirs: own, others: theirs, at: Box::new(at) };
        Err(self.placed(error, &key))
    }

    /// Fetches what must have this shape and dtype, for keeps.
    pub(super) fn take(&self, id: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let fetched = self.fetch(id)?;
        self.check(id, &fetched, shape, dtype)?;
        let tensor = fetched.tensor().clone();
        self.finish(id, fetched)?;
        Ok(tensor)
    }

    /// Finishes a read.
    pub(super) fn finish(&self, id: usize, fetched: Fetched) -> Result<()> {
        fetched.finish().map_err(|error| self.placed(error, &self.key(id)))
    }

    /// Waits until what this participant has published has been read.
    fn wait(&self, id: usize) -> Result<()> {
        let key = self.key(id);
        self.me.store.wait_consumed(&key, self.deadline).map_err(|error| self.placed(error, &key))
    }

    fn key(&self, id: usize) -> String {
        format!("{}/{}/{id}", self.name, self.flow)
    }

    /// The error with the flow and the key, where it can say so.
    fn placed(&self, mut error: Error, key: &str) -> Error {
        if let Some(at) = error.at_mut() {
            let colon = if at.op.is_empty() { "" } else { ": " };
            at.op = format!("{} of key {key:?}{colon}{}", self.flow, at.op);
        }
        error
    }
}
