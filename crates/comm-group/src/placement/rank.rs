//! A rank on a mesh.

use std::fmt;
use std::sync::Arc;

use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result};

use super::Distributed;
use super::consent::Claim;
use super::extent::check_local_shape;
use super::groups::{self, Groups};
use super::mesh::DeviceMesh;
use crate::group::ThreadGroup;

/// One rank of a mesh, with the groups through which it speaks to the others. It is what tensors are distributed by,
/// redistributed and collected.
///
/// All ranks of the mesh make the same calls in the same order. Each call begins with one round among all of them, in which they tell
/// each other what they are about to do: so wrong arguments of one are an error on every rank, before anything moves, and the
/// groups go on. Where no rank needs another there is no round either. A later error is one rank's own (a peer that
/// died, no memory); it ends the groups of the lines through this rank, so that nobody waits for what it will not do.
///
/// ```
/// use std::{cell::RefCell, collections::HashMap, sync::Arc};
///
/// use comm_core::{Deadline, Result, team::Team, tensor::Tensor};
/// use comm_group::ThreadGroup;
/// use comm_group::placement::{DeviceMesh, Distributed, Groups, MeshRank, Placement::{Replicate, Shard}};
///
/// /// A group is known by its ids.
/// #[derive(Default)]
/// struct Cache(RefCell<HashMap<Vec<u64>, Arc<ThreadGroup>>>);
///
/// impl Groups for Cache {
///     fn group(&self, ids: &[u64], my_id: u64, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
///         if let Some(group) = self.0.borrow().get(ids) {
///             return Ok(group.clone());
///         }
///         let rank = ids.iter().position(|&id| id == my_id).unwrap_or(ids.len());
///         let team = Team::join(&format!("mesh-example-{ids:?}"), rank, ids.len(), deadline)?;
///         let group = Arc::new(ThreadGroup::new(team, deadline)?);
///         self.0.borrow_mut().insert(ids.to_vec(), group.clone());
///         Ok(group)
///     }
/// }
///
/// fn rank(id: u64) -> Result<()> {
///     let (mesh, groups, deadline) = (DeviceMesh::new(&[2, 2], (0..4).collect())?, Cache::default(), Deadline::default());
///     let me = MeshRank::new(&mesh, id, &groups)?;
///     // Device 2 has a tensor; it comes to lie on the mesh in four quarters, and then in columns.
///     let whole = Tensor::from_slice(&[2, 2], &[10, 11, 12, 13])?;
///     let quarter = me.distribute((id == 2).then_some(&whole), 2, &[Shard(0), Shard(1)], deadline)?;
///     assert_eq!(quarter.local().to_vec::<i32>()?, [10 + id as i32]);
///     let column = me.redistribute(&quarter, &[Replicate, Shard(1)], deadline)?;
///     assert_eq!(column.local().to_vec::<i32>()?, if id % 2 == 0 { [10, 12] } else { [11, 13] });
///     // Device 1 collects it.
///     let back = me.collect(&column, 1, deadline)?;
///     assert_eq!(back.is_some(), id == 1);
///     assert!(back.is_none_or(|back| back.bytes_equal(&whole).unwrap()));
///     Ok(())
/// }
/// # std::thread::scope(|s| {
/// #     for id in 0..4 {
/// #         s.spawn(move || rank(id).unwrap());
/// #     }
/// # });
/// ```
pub struct MeshRank<'a> {
    pub(super) mesh: &'a DeviceMesh,
    pub(super) id: u64,
    pub(super) coordinate: Vec<usize>,
    groups: &'a dyn Groups,
}

impl fmt::Debug for MeshRank<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshRank({} at {:?} of {:?})", self.id, self.coordinate, self.mesh)
    }
}

impl<'a> MeshRank<'a> {
    /// The rank that is device `id` of a mesh. Nobody is spoken to yet.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the device is not in the mesh.
    pub fn new(mesh: &'a DeviceMesh, id: u64, groups: &'a dyn Groups) -> Result<MeshRank<'a>> {
        Ok(MeshRank { mesh, id, coordinate: mesh.coordinate_of(id)?, groups })
    }

    /// The mesh.
    pub fn mesh(&self) -> &DeviceMesh {
        self.mesh
    }

    /// The device that this rank is.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where in the mesh it is.
    pub fn coordinate(&self) -> &[usize] {
        &self.coordinate
    }

    /// The group of the line through this rank along a mesh dimension: those that a step of a plan joins.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension; those of [`Groups::group`].
    pub fn axis(&self, mesh_dim: usize, deadline: impl Into<Deadline>) -> Result<Arc<ThreadGroup>> {
        let line = self.mesh.line(mesh_dim, self.id)?;
        groups::get(self.groups, &line.ids, self.id, deadline.into())
    }

    /// The group of all devices of the mesh.
    pub(super) fn everybody(&self, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
        groups::get(self.groups, self.mesh.ids(), self.id, deadline)
    }

    /// Tells all ranks of the mesh what this one is about to do. Returns their notes.
    pub(super) fn settle(
        &self,
        mut claim: Claim,
        complaint: Result<()>,
        deadline: Deadline,
    ) -> Result<Vec<String>> {
        if self.mesh.size() == 1 {
            return complaint.map(|()| vec![claim.note]);
        }
        claim.fields.insert(0, ("mesh", format!("{:?} of {:?}", self.mesh.shape(), self.mesh.ids())));
        claim.settle(complaint, self.everybody(deadline), deadline)
    }

    /// Whether a rank's part of a tensor is what it is said to be.
    pub(super) fn check(&self, part: &Distributed) -> Result<()> {
        check_local_shape(part.shape(), self.mesh, part.placements(), &self.coordinate, part.local().shape())
    }

    /// The groups of some lines through this rank, by mesh dimension.
    pub(super) fn lines(&self, is_needed: impl Fn(usize) -> bool, deadline: Deadline) -> Result<Lines> {
        let line = |mesh_dim| is_needed(mesh_dim).then(|| self.axis(mesh_dim, deadline)).transpose();
        Ok(Lines((0..self.mesh.ndim()).map(line).collect::<Result<_>>()?))
    }

    /// How many ranks a line along a mesh dimension has.
    pub(super) fn ranks(&self, mesh_dim: usize) -> usize {
        self.mesh.shape()[mesh_dim]
    }
}

/// Groups by mesh dimension, of those that are needed.
pub(super) struct Lines(Vec<Option<Arc<ThreadGroup>>>);

impl Lines {
    pub(super) fn get(&self, mesh_dim: usize) -> Result<&ThreadGroup> {
        let group = self.0.get(mesh_dim).and_then(Option::as_deref);
        group.ok_or_else(|| {
            Error::invalid("redistribute", format!("no group along mesh dimension {mesh_dim}"))
        })
    }

    /// Does what joins several lines one after the other. When it fails on this rank, its peers in other lines learn of it.
    pub(super) fn run<T>(&self, op: &str, work: impl FnOnce(&Lines) -> Result<T>) -> Result<T> {
        let outcome = work(self);
        if let Err(error) = &outcome {
            for group in self.0.iter().flatten() {
                group.abort_handle().abort(&format!("{op} failed: {error}"));
            }
        }
        outcome
    }
}

/// Whether what a rank does to its own tensor can be done to it where it is.
pub(super) fn on_cpu(op: &'static str, tensor: &Tensor) -> Result<()> {
    let device = tensor.device();
    if device.is_cpu() {
        return Ok(());
    }
    let expected = comm_core::device::Device::Cpu.to_string();
    Err(Error::DeviceMismatch { op, seen: device.to_string(), expected })
}
