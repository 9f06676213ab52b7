//! What is known everywhere of a tensor that lies on a mesh.

use std::fmt;

use comm_core::tensor::{DType, Tensor};
use comm_core::{Error, Result};

use super::extent::{self, Extent, check_local_shape};
use super::kind::{List, Placement, check, check_bytes};
use super::mesh::DeviceMesh;

/// A tensor that lies on a mesh, without its elements: the shape of the whole, the dtype, the mesh, and a placement for each
/// dimension of it. All who have to do with the tensor say the same.
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_group::placement::{DeviceMesh, Placement::{Replicate, Shard}, TensorSpec};
///
/// let mesh = DeviceMesh::new(&[2, 2], vec![10, 11, 12, 13])?;
/// let spec = TensorSpec::new(&[5, 4], DType::F32, &mesh, &[Shard(0), Replicate])?;
/// assert_eq!(spec.local_shape(13)?, [2, 4]);
/// assert_eq!(spec.to_string(), "f32 of shape [5, 4] as [S(0), R] on the mesh [2, 2] of devices 10, 11, 12, 13");
///
/// let elsewhere = spec.on(&DeviceMesh::new(&[2, 2], vec![3, 2, 1, 0])?)?;
/// assert_eq!(elsewhere.local_shape(0)?, [2, 4]);
/// assert!(spec.on(&DeviceMesh::new(&[4], vec![3, 2, 1, 0])?).is_err());
/// # Ok::<(), comm_core::Error>(())
/// ```
#[doc(alias = "Operand")]
#[doc(alias = "DTensorSpec")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    shape: Vec<usize>,
    dtype: DType,
    mesh: DeviceMesh,
    placements: Vec<Placement>,
}

impl TensorSpec {
    /// A tensor of a global `shape` and a dtype, with a placement for each dimension of the mesh.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it cannot lie like that (see [`validate`](super::validate)), or its bytes do not fit into 63
    /// bits; [`Error::Unsupported`] for contributions to an operator that is not there for the dtype.
    pub fn new(
        shape: &[usize],
        dtype: DType,
        mesh: &DeviceMesh,
        placements: &[Placement],
    ) -> Result<TensorSpec> {
        const OP: &str = "TensorSpec::new";
        check(OP, shape, mesh, placements)?;
        check_bytes(OP, shape, dtype)?;
        placements.iter().filter_map(Placement::reduction).try_for_each(|op| op.check(dtype))?;
        Ok(TensorSpec { shape: shape.to_vec(), dtype, mesh: mesh.clone(), placements: placements.to_vec() })
    }

    /// The same on another mesh of the same shape.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if that has another shape.
    pub fn on(&self, mesh: &DeviceMesh) -> Result<TensorSpec> {
        if mesh.shape() != self.mesh.shape() {
            let why = format!("from the {} to the {mesh}, which has another shape", self.mesh);
            return Err(Error::invalid("TensorSpec::on", why));
        }
        Ok(TensorSpec { mesh: mesh.clone(), ..self.clone() })
    }

    /// The shape of the whole.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The mesh.
    pub fn mesh(&self) -> &DeviceMesh {
        &self.mesh
    }

    /// How it lies, along each dimension of the mesh.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// The shape of the local tensor of a device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the device is not in the mesh.
    #[doc(alias = "localShape")]
    pub fn local_shape(&self, id: usize) -> Result<Vec<usize>> {
        Ok(self.held_at(&self.mesh.coordinate_of(id)?).shape())
    }

    /// What the rank at a coordinate of the mesh holds.
    pub(super) fn held_at(&self, coordinate: &[usize]) -> Extent {
        extent::held(&self.shape, &self.mesh, &self.placements, coordinate)
    }

    /// Checks that a tensor is what a device of the mesh holds.
    pub(super) fn check_local(&self, op: &'static str, id: usize, local: &Tensor) -> Result<()> {
        let at = self.mesh.coordinate_of(id)?;
        check_local_shape(&self.shape, &self.mesh, &self.placements, &at, local.shape())?;
        self.check_dtype(op, local)
    }

    /// Checks that a tensor is the whole.
    pub(super) fn check_whole(&self, op: &'static str, whole: &Tensor) -> Result<()> {
        if whole.shape() != self.shape {
            return Err(Error::invalid(
                op,
                format!("a whole of shape {:?}, not {:?}", whole.shape(), self.shape),
            ));
        }
        self.check_dtype(op, whole)
    }

    fn check_dtype(&self, op: &'static str, tensor: &Tensor) -> Result<()> {
        if tensor.dtype() == self.dtype {
            return Ok(());
        }
        Err(Error::invalid(op, format!("elements of {}, not {}", tensor.dtype(), self.dtype)))
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorSpec { shape, dtype, mesh, placements } = self;
        write!(f, "{dtype} of shape {shape:?} as {} on the {mesh}", List(placements))
    }
}
