//! Into tensors that are there.

use comm_core::device::Device;
use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Error, Result};

use super::Participant;
use super::convert::Route;
use super::handover::Handover;
use crate::placement::{DeviceMesh, TensorSpec};

impl Participant<'_> {
    /// Copies a tensor that lies on a mesh into tensors that are there on the same mesh, or on another of the same shape: the
    /// local tensor of each rank of the one into that of the same rank of the other. Who is in the source brings its `local`
    /// tensor, and who is in the target the one `into` which it is copied.
    ///
    /// On one mesh each device copies its own, and the store has nothing to do.
    ///
    /// ```
    /// use comm_core::{Deadline, Result, team::Team, tensor::{DType, Tensor, TensorBuf}};
    /// use comm_group::placement::{DeviceMesh, TensorSpec, flow::Participant};
    ///
    /// // From device 0 into a tensor of device 1.
    /// fn rank(rank: usize) -> Result<()> {
    ///     let deadline = Deadline::default();
    ///     let team = Team::join("copy-example", rank, 2, deadline)?;
    ///     let store = comm_store::store::open(&team, deadline)?;
    ///     let me = Participant::new(&*store, rank);
    ///     let source = TensorSpec::new(&[3], DType::U8, &DeviceMesh::new(&[], vec![0])?, &[])?;
    ///     let target = DeviceMesh::new(&[], vec![1])?;
    ///     if rank == 0 {
    ///         let mine = Tensor::from_slice(&[3], &[1u8, 2, 3])?;
    ///         me.copy("weights", &source, &target, Some(&mine), None, deadline)
    ///     } else {
    ///         let mut mine = TensorBuf::zeros(&[3], DType::U8)?;
    ///         me.copy("weights", &source, &target, None, Some((&mut mine).into()), deadline)?;
    ///         assert_eq!(mine.as_slice::<u8>()?, [1, 2, 3]);
    ///         Ok(())
    ///     }
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..2 {
    /// #         s.spawn(move || rank(r).unwrap());
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the meshes differ in shape, this device is in neither, or it brings no tensor and should, or
    /// one of another shape or dtype than it holds; [`Error::DeviceMismatch`] to copy into memory of a device;
    /// [`Error::Mismatch`] if what comes is of another shape or dtype, and nothing is copied then; [`Error::Timeout`], with the
    /// key, if somebody does not come; those of the store.
    #[doc(alias = "CopyTensor")]
    #[doc(alias = "CopyKernel")]
    #[doc(alias = "copy_")]
    pub fn copy(
        &self,
        name: &str,
        source: &TensorSpec,
        target: &DeviceMesh,
        local: Option<&Tensor>,
        into: Option<TensorMut<'_>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        const FLOW: &str = "copy";
        let target = source.on(target)?;
        let route = Route::new(self.id, source.mesh(), target.mesh());
        if route.gives_to.is_none() && route.gets_from.is_none() {
            let why = format!(
                "device {} is neither in the {} nor in the {}",
                self.id,
                source.mesh(),
                target.mesh()
            );
            return Err(Error::invalid(FLOW, why));
        }
        let given = route.given(FLOW, self.id, source, local)?;
        let into = match route.gets_from {
            Some(giver) => Some((giver, self.room_for(FLOW, &target, into)?)),
            None => None,
        };
        Handover::new(self, FLOW, name, deadline).run(&route.published(self.id, given), |flow| {
            let Some((giver, mut into)) = into else { return Ok(()) };
            if let Some(own) = given.filter(|_| giver == self.id) {
                let own = own.to_device(into.device(), &self.stream, flow.deadline())?;
                return Ok(into.copy_from(&own)?);
            }
            // Where it is copied to, which need not be where this participant's work goes through.
            let fetched = flow.fetch_to(giver, into.device())?;
            flow.check(giver, &fetched, into.shape(), into.dtype())?;
            into.copy_from(&fetched)?;
            flow.finish(giver, fetched)
        })
    }

    /// Where to copy to, checked.
    fn room_for<'t>(
        &self,
        op: &'static str,
        target: &TensorSpec,
        into: Option<TensorMut<'t>>,
    ) -> Result<TensorMut<'t>> {
        let brought = || {
            Error::invalid(
                op,
                format!("device {} is of the target, so it must bring a tensor to copy into", self.id),
            )
        };
        let into = into.ok_or_else(brought)?;
        let (shape, dtype) = (target.local_shape(self.id)?, target.dtype());
        if (into.shape(), into.dtype()) != (&shape[..], dtype) {
            let (seen, is) = (into.shape(), into.dtype());
            return Err(Error::invalid(
                op,
                format!("{dtype} of shape {shape:?} into {is} of shape {seen:?}"),
            ));
        }
        into.device().expect(Device::Cpu, op)?;
        Ok(into)
    }
}
