//! A whole and what the devices of a mesh hold of it, all in one place: cut and joined without a group.

use comm_core::shm::Arena;
use comm_core::tensor::Tensor;
use comm_core::{Error, Result};

use super::blocks;
use super::kind::can_contribute;
use super::pieces;
use super::spec::TensorSpec;
use crate::reduce::{self, ReduceOp};

/// From a whole to its parts, and back. Nothing is communicated.
///
/// ```
/// use comm_core::tensor::{DType, Tensor};
/// use comm_group::ReduceOp;
/// use comm_group::placement::{DeviceMesh, Placement::{Partial, Shard}, TensorSpec};
///
/// let mesh = DeviceMesh::new(&[2, 2], vec![0, 1, 2, 3])?;
/// let spec = TensorSpec::new(&[3], DType::I32, &mesh, &[Shard(0), Partial(ReduceOp::Sum)])?;
/// let whole = Tensor::from_slice(&[3], &[7, 8, 9])?;
/// let parts = [0, 1, 2, 3].map(|id| spec.cut(&whole, id).unwrap());
/// assert_eq!(parts.each_ref().map(|part| part.to_vec::<i32>().unwrap()), [&[7, 8][..], &[0, 0], &[9], &[0]]);
/// assert!(spec.join(&parts)?.bytes_equal(&whole)?);
/// # Ok::<(), comm_core::Error>(())
/// ```
impl TensorSpec {
    /// What a device of the mesh holds of a whole: a view where that is in one piece. Of contributions the first device of a
    /// line has the value, and the others the operator's [identity](ReduceOp::identity); of an average all have the value.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the device is not in the mesh, or the tensor is not such a whole; [`Error::Unsupported`] if
    /// contributions cannot be made for an operator; memory of a device, where it takes a copy.
    #[doc(alias = "DistributedScather")]
    #[doc(alias = "DistributedScatter")]
    pub fn cut(&self, whole: &Tensor, id: usize) -> Result<Tensor> {
        const OP: &str = "TensorSpec::cut";
        self.check_whole(OP, whole)?;
        can_contribute(self.mesh(), self.placements(), self.dtype())?;
        self.cut_in(whole, id, None)
    }

    /// The same of what has been checked; what has to be copied comes into a room.
    pub(super) fn cut_in(&self, whole: &Tensor, id: usize, room: Option<&Arena>) -> Result<Tensor> {
        let at = self.mesh().coordinate_of(id)?;
        let held = self.held_at(&at);
        match self.adds_nothing(&at) {
            Some(op) => pieces::identities(op, &held.shape(), self.dtype(), room),
            None => blocks::cut(whole, held.dims(), room),
        }
    }

    /// The operator whose identity the rank at a coordinate contributes, if it has no value. Reductions nest, so the innermost
    /// line in which it does not come first is the one that counts.
    fn adds_nothing(&self, at: &[usize]) -> Option<ReduceOp> {
        let lines = self.placements().iter().zip(at).rev();
        lines.filter_map(|(placement, &index)| pieces::adds_nothing(placement, index)).next()
    }

    /// The whole, of the local tensors of all devices in the order of the mesh: a copy, or one of them if that is all of it.
    /// Contributions are reduced in mesh order, inner dimensions first. Of what several devices have alike, the first one's
    /// counts.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a tensor is not what its device holds, or there are not as many as devices; memory of a
    /// device, where it takes a copy.
    #[doc(alias = "DistributeGather")]
    pub fn join(&self, parts: &[Tensor]) -> Result<Tensor> {
        const OP: &str = "TensorSpec::join";
        if parts.len() != self.mesh().size() {
            return Err(Error::invalid(OP, format!("{} parts on the {}", parts.len(), self.mesh())));
        }
        for (&id, part) in self.mesh().ids().iter().zip(parts) {
            self.check_local(OP, id, part)?;
        }
        let mut held: Vec<(Vec<usize>, Tensor)> =
            self.mesh().coordinates().zip(parts.iter().cloned()).collect();
        for (mesh_dim, placement) in self.placements().iter().enumerate().rev() {
            let ranks = self.mesh().shape()[mesh_dim];
            if placement.sharded_dim().is_some() || placement.is_only_a_name(ranks) {
                continue;
            }
            let firsts = held.iter().filter(|(at, _)| at[mesh_dim] == 0);
            let one = |(at, first): &(Vec<usize>, Tensor)| {
                let Some(op) = placement.reduction() else { return Ok((at.clone(), first.clone())) };
                let is_in_line = |other: &[usize]| (0..at.len()).all(|d| d == mesh_dim || other[d] == at[d]);
                let line = held.iter().filter(|(other, _)| is_in_line(other));
                let line: Vec<&Tensor> = line.map(|(_, tensor)| tensor).collect();
                Ok((at.clone(), reduce::reduce(op, &line)?))
            };
            held = firsts.map(one).collect::<Result<_>>()?;
        }
        let extents: Vec<_> = held.iter().map(|(at, _)| self.held_at(at)).collect();
        let told: Vec<_> =
            extents.iter().zip(&held).map(|(extent, (_, tensor))| (extent.dims(), tensor)).collect();
        blocks::join(self.shape(), self.dtype(), &told)
    }
}

#[cfg(test)]
mod tests {
    use comm_core::tensor::DType;

    use super::*;
    use crate::placement::{DeviceMesh, Placement, Placement::*};

    fn spec(shape: &[usize], dtype: DType, placements: &[Placement]) -> TensorSpec {
        let mesh = DeviceMesh::new(&[2, 2], vec![5, 6, 7, 8]).unwrap();
        TensorSpec::new(shape, dtype, &mesh, placements).unwrap()
    }

    #[test]
    fn contributions_nest() {
        let nested = spec(&[1], DType::I32, &[Partial(ReduceOp::Sum), Partial(ReduceOp::Max)]);
        let whole = Tensor::from_slice(&[1], &[-7]).unwrap();
        let parts = [5, 6, 7, 8].map(|id| nested.cut(&whole, id).unwrap());
        let values = parts.each_ref().map(|part| part.to_vec::<i32>().unwrap()[0]);
        assert_eq!(values, [-7, i32::MIN, 0, i32::MIN], "the maxima are -7 and 0");
        assert!(nested.join(&parts).unwrap().bytes_equal(&whole).unwrap());
        // max(1, 4) + max(8, 2), and not max(1 + 8, 4 + 2).
        let parts = [1, 4, 8, 2].map(|x| Tensor::from_slice(&[1], &[x]).unwrap());
        assert_eq!(nested.join(&parts).unwrap().to_vec::<i32>().unwrap(), [12]);
        let average = spec(&[1], DType::F32, &[Partial(ReduceOp::Avg), Replicate]);
        let parts = [1f32, 99.0, 4.0, 99.0].map(|x| Tensor::from_slice(&[1], &[x]).unwrap());
        assert_eq!(
            average.join(&parts).unwrap().to_vec::<f32>().unwrap(),
            [2.5],
            "of copies the first one's"
        );
    }

    #[test]
    fn one_contribution_to_a_premultiplied_sum_is_multiplied() {
        let mesh = DeviceMesh::new(&[2, 1], vec![5, 6]).unwrap();
        let one = |op| TensorSpec::new(&[1], DType::F32, &mesh, &[Replicate, Partial(op)]).unwrap();
        let parts = [8f32, 8.0].map(|x| Tensor::from_slice(&[1], &[x]).unwrap());
        let half = one(ReduceOp::premul_sum(0.5)).join(&parts).unwrap();
        assert_eq!(half.to_vec::<f32>().unwrap(), [4.0]);
        assert!(one(ReduceOp::premul_sum(0.5)).cut(&parts[0], 5).is_err());
        assert!(one(ReduceOp::Sum).join(&parts).unwrap().shares_storage(&parts[0]), "nothing but a name");
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let rows = spec(&[3, 2], DType::U8, &[Shard(0), Replicate]);
        let whole = Tensor::from_slice(&[3, 2], &[1u8, 2, 3, 4, 5, 6]).unwrap();
        let parts = [5, 6, 7, 8].map(|id| rows.cut(&whole, id).unwrap());
        let why = |error: Error| error.to_string();
        assert!(why(rows.join(&parts[1..]).unwrap_err()).contains("3 parts on the mesh"));
        let turned = [3, 2, 1, 0].map(|i| parts[i].clone());
        assert!(why(rows.join(&turned).unwrap_err()).contains("is [2, 2], not [1, 2]"));
        let other = Tensor::from_slice(&[3, 2], &[0i8; 6]).unwrap();
        assert!(why(rows.cut(&other, 5).unwrap_err()).contains("elements of i8, not u8"));
        assert!(why(rows.cut(&parts[0], 5).unwrap_err()).contains("a whole of shape [2, 2], not [3, 2]"));
        assert!(rows.cut(&whole, 1).is_err(), "no such device");
        let premul = spec(&[1], DType::F32, &[Replicate, Partial(ReduceOp::premul_sum(0.5))]);
        let one = Tensor::from_slice(&[1], &[1f32]).unwrap();
        assert!(matches!(premul.cut(&one, 5), Err(Error::Unsupported { .. })));
    }
}
