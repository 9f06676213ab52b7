//! From a mesh to one device.

use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result};
use comm_store::store::Fetched;

use super::Participant;
use super::handover::Handover;
use crate::placement::TensorSpec;

impl Participant<'_> {
    /// Puts a tensor that lies on a mesh together on one device, the `consumer`, which gets the whole (see [`TensorSpec::join`]).
    /// It may be in the mesh or not. Who is in the mesh brings its `local` tensor.
    ///
    /// See the [module](super) for an example.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this device brings no tensor and should, or one that is not what it holds;
    /// [`Error::Mismatch`] if what comes is not what a device holds; [`Error::Timeout`], with the key, if somebody does not
    /// come; those of the store; memory of a device, if there is something to join.
    #[doc(alias = "GatherTensor")]
    #[doc(alias = "DistributeGather")]
    pub fn gather(
        &self,
        name: &str,
        source: &TensorSpec,
        local: Option<&Tensor>,
        consumer: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Option<Tensor>> {
        const FLOW: &str = "gather";
        let ids = source.mesh().ids();
        let brought =
            || Error::invalid(FLOW, format!("device {} is in the mesh, so it must bring a tensor", self.id));
        let own = source.mesh().contains(self.id).then(|| local.ok_or_else(brought)).transpose()?;
        own.map_or(Ok(()), |own| source.check_local(FLOW, self.id, own))?;
        let leaves = own.filter(|_| self.id != consumer);
        let given: Vec<_> = leaves.map(|own| (self.id, own.clone())).into_iter().collect();
        Handover::new(self, FLOW, name, deadline).run(&given, |flow| {
            if self.id != consumer {
                return Ok(None);
            }
            // All of them, before any is looked at: so nobody waits for this device because of what another one has.
            let others = ids.iter().copied().filter(|&id| id != consumer);
            let reads: Vec<(usize, Fetched)> =
                others.map(|id| Ok((id, flow.fetch(id)?))).collect::<Result<_>>()?;
            for (id, read) in &reads {
                flow.check(*id, read, &source.local_shape(*id)?, source.dtype())?;
            }
            let of_another = |id| reads.iter().find(|(other, _)| *other == id).map(|(_, read)| read.tensor());
            let parts: Vec<Tensor> = ids.iter().filter_map(|&id| of_another(id).or(own).cloned()).collect();
            let whole = source.join(&parts)?;
            reads.into_iter().try_for_each(|(id, read)| flow.finish(id, read))?;
            Ok(Some(whole))
        })
    }
}
