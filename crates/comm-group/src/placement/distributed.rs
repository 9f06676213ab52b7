//! A tensor that lies on a mesh, as one rank sees it.

use comm_core::tensor::{DType, Tensor};

use super::kind::Placement;

/// One rank's part of a tensor that lies on a mesh: the local tensor, the shape of the whole, and how it is placed.
///
/// It is only said, not checked, that the local tensor is what the placements give this rank: who works with it checks its
/// shape.
///
/// ```
/// use comm_core::tensor::Tensor;
/// use comm_group::placement::{Distributed, Placement::Shard};
///
/// // Rank 0 of 2 has three of five rows.
/// let mine = Tensor::from_slice(&[3, 2], &[0i32, 1, 2, 3, 4, 5])?;
/// let part = Distributed::new(mine, &[5, 2], &[Shard(0)]);
/// assert_eq!((part.shape(), part.local().shape()), (&[5, 2][..], &[3, 2][..]));
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Distributed {
    local: Tensor,
    shape: Vec<usize>,
    placements: Vec<Placement>,
}

impl Distributed {
    /// A local tensor of a whole of a global `shape`, with a placement for each dimension of the mesh.
    pub fn new(local: Tensor, shape: &[usize], placements: &[Placement]) -> Distributed {
        Distributed { local, shape: shape.to_vec(), placements: placements.to_vec() }
    }

    /// What this rank holds.
    pub fn local(&self) -> &Tensor {
        &self.local
    }

    /// What this rank holds, and nothing else.
    pub fn into_local(self) -> Tensor {
        self.local
    }

    /// The shape of the whole.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.local.dtype()
    }

    /// How the whole lies, along each dimension of the mesh.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }
}
