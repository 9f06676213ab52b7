//! From one device onto a mesh.

use comm_core::shm::Arena;
use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result};

use super::Participant;
use super::handover::Handover;
use crate::placement::TensorSpec;
use crate::placement::kind::can_contribute;

const FLOW: &str = "scatter";

impl Participant<'_> {
    /// Hands out a tensor that one device has, the `producer`, to the devices of a mesh: to each what it holds of it (see
    /// [`TensorSpec::cut`]). The producer, which brings the `whole`, may be in the mesh or not. Who is in the mesh gets its local
    /// tensor.
    ///
    /// See the [module](super) for an example.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the producer brings no tensor, or one that is not such a whole;
    /// [`Error::Unsupported`] if contributions cannot be made for an operator; [`Error::Mismatch`] if what comes is not what this
    /// device holds; [`Error::Timeout`], with the key, if somebody does not come; those of the store.
    #[doc(alias = "ScatherTensor")]
    #[doc(alias = "ScatterTensor")]
    #[doc(alias = "DistributedScather")]
    pub fn scatter(
        &self,
        name: &str,
        producer: usize,
        target: &TensorSpec,
        whole: Option<&Tensor>,
        deadline: impl Into<Deadline>,
    ) -> Result<Option<Tensor>> {
        can_contribute(target.mesh(), target.placements(), target.dtype())?;
        let flow = Handover::new(self, FLOW, name, deadline);
        let is_in = target.mesh().contains(self.id);
        if self.id != producer {
            let get = |flow: &Handover<'_>| flow.take(self.id, &target.local_shape(self.id)?, target.dtype());
            return flow.run(&[], |flow| is_in.then(|| get(flow)).transpose());
        }
        let brought =
            || Error::invalid(FLOW, format!("device {producer} is the producer, so it must bring a tensor"));
        let whole = whole.ok_or_else(brought)?;
        target.check_whole(FLOW, whole)?;
        let cut = |whole: &Tensor, id: usize, room: Option<&Arena>| {
            // A contribution that adds nothing is made by the host, wherever the whole is.
            target.cut_in(whole, id, room)?.to_device(whole.device(), &self.stream, flow.deadline())
        };
        let own = if is_in { Some(cut(whole, self.id, None)?) } else { None };
        let others: Vec<usize> = target.mesh().ids().iter().copied().filter(|&id| id != producer).collect();
        let shared = if others.is_empty() { whole.clone() } else { flow.shared(whole)? };
        let piece = |id: usize| Ok((id, cut(&shared, id, flow.room())?));
        let given = others.into_iter().map(piece).collect::<Result<Vec<_>>>()?;
        flow.run(&given, |_| Ok(own))
    }
}
