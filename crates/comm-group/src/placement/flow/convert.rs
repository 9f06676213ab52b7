//! From one mesh to another.

use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result};

use super::Participant;
use super::handover::Handover;
use crate::placement::{DeviceMesh, TensorSpec};

/// Which devices a device gives to and gets from, if what each rank of a mesh has goes to the same rank of another.
pub(super) struct Route {
    pub(super) gives_to: Option<usize>,
    pub(super) gets_from: Option<usize>,
}

impl Route {
    pub(super) fn new(id: usize, source: &DeviceMesh, target: &DeviceMesh) -> Route {
        // They have the same shape.
        let across =
            |here: &DeviceMesh, there: &DeviceMesh| here.rank_of(id).ok().map(|rank| there.ids()[rank]);
        Route { gives_to: across(source, target), gets_from: across(target, source) }
    }

    /// What is to be given, checked.
    pub(super) fn given<'t>(
        &self,
        op: &'static str,
        id: usize,
        source: &TensorSpec,
        local: Option<&'t Tensor>,
    ) -> Result<Option<&'t Tensor>> {
        if self.gives_to.is_none() {
            return Ok(None);
        }
        let brought =
            || Error::invalid(op, format!("device {id} is of the source, so it must bring a tensor"));
        let local = local.ok_or_else(brought)?;
        source.check_local(op, id, local)?;
        Ok(Some(local))
    }

    /// What of that goes through the store.
    pub(super) fn published(&self, id: usize, given: Option<&Tensor>) -> Vec<(usize, Tensor)> {
        let leaves = given.filter(|_| self.gives_to != Some(id));
        leaves.map(|local| (id, local.clone())).into_iter().collect()
    }
}

impl Participant<'_> {
    /// Moves a tensor from its mesh to another of the same shape: the local tensor of each rank of the one to the same rank of
    /// the other. A device may be in both. Who is in the source brings its `local` tensor; who is in the target gets one.
    ///
    /// ```
    /// use comm_core::{Deadline, Result, team::Team, tensor::{DType, Tensor}};
    /// use comm_group::placement::{DeviceMesh, Placement::Shard, TensorSpec, flow::Participant};
    ///
    /// // From devices 0 and 1 to devices 1 and 2.
    /// fn rank(rank: usize) -> Result<()> {
    ///     let deadline = Deadline::default();
    ///     let team = Team::join("convert-mesh-example", rank, 3, deadline)?;
    ///     let store = comm_store::store::open(&team, deadline)?;
    ///     let me = Participant::new(&*store, rank);
    ///     let source = TensorSpec::new(&[2], DType::I32, &DeviceMesh::new(&[2], vec![0, 1])?, &[Shard(0)])?;
    ///     let mine = Tensor::from_slice(&[1], &[rank as i32])?;
    ///     let got = me.convert_mesh("x", &source, &DeviceMesh::new(&[2], vec![1, 2])?, Some(&mine), deadline)?;
    ///     let got = got.map(|got| got.to_vec::<i32>()).transpose()?;
    ///     assert_eq!(got, [None, Some(vec![0]), Some(vec![1])][rank]);
    ///     Ok(())
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..3 {
    /// #         s.spawn(move || rank(r).unwrap());
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the meshes differ in shape, or this device brings no tensor and should, or one that is not
    /// what it holds; [`Error::Mismatch`] if what comes is not; [`Error::Timeout`], with the key, if somebody does not come;
    /// those of the store.
    #[doc(alias = "ConvertDeviceMesh")]
    #[doc(alias = "ConvertKernel")]
    pub fn convert_mesh(
        &self,
        name: &str,
        source: &TensorSpec,
        target: &DeviceMesh,
        local: Option<&Tensor>,
        deadline: impl Into<Deadline>,
    ) -> Result<Option<Tensor>> {
        const FLOW: &str = "convert_mesh";
        let target = source.on(target)?;
        let route = Route::new(self.id, source.mesh(), target.mesh());
        let given = route.given(FLOW, self.id, source, local)?;
        let (id, dtype) = (self.id, source.dtype());
        Handover::new(self, FLOW, name, deadline).run(&route.published(id, given), |flow| {
            match route.gets_from {
                None => Ok(None),
                Some(giver) if giver == id => Ok(given.cloned()),
                Some(giver) => flow.take(giver, &target.local_shape(id)?, dtype).map(Some),
            }
        })
    }
}
