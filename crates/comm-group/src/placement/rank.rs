//! A rank on a mesh.

use std::fmt;
use std::sync::{Arc, OnceLock};

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
/// groups go on. (But for a plan of local steps that is [carried out](MeshRank::carry_out).) A later error is one rank's own (a peer that
/// died, no memory); it ends the groups of the lines through this rank, so that nobody waits for what it will not do.
///
/// It keeps its groups. One that is over stays so, and what needs it fails, whatever [`Groups`] would make by then: who has not heard
/// of the end would else wait with new members for one that died. To go on, all ranks of the mesh make a new `MeshRank`.
///
/// Where the threads of a process share a manager, that holds the groups of a thread which has ended: each keeps a
/// [`watch`](crate::ThreadGroupManager::watch), so that nobody waits for it.
///
/// ```
/// use comm_core::{Deadline, Result, tensor::Tensor};
/// use comm_group::ThreadGroupManager;
/// use comm_group::placement::{DeviceMesh, MeshRank, Placement::{Replicate, Shard}};
///
/// fn rank(id: usize) -> Result<()> {
///     let (mesh, deadline) = (DeviceMesh::new(&[2, 2], (0..4).collect())?, Deadline::default());
///     let groups = ThreadGroupManager::with_prefix("mesh-example");
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
    pub(super) id: usize,
    pub(super) coordinate: Vec<usize>,
    groups: &'a dyn Groups,
    /// Of all devices.
    everybody: OnceLock<Arc<ThreadGroup>>,
    /// By mesh dimension.
    axes: Vec<OnceLock<Arc<ThreadGroup>>>,
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
    pub fn new(mesh: &'a DeviceMesh, id: usize, groups: &'a dyn Groups) -> Result<MeshRank<'a>> {
        let (coordinate, axes) = (mesh.coordinate_of(id)?, vec![OnceLock::new(); mesh.ndim()]);
        Ok(MeshRank { mesh, id, coordinate, groups, everybody: OnceLock::new(), axes })
    }

    /// The mesh.
    pub fn mesh(&self) -> &DeviceMesh {
        self.mesh
    }

    /// The device that this rank is.
    pub fn id(&self) -> usize {
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
        self.keep(&self.axes[mesh_dim], &line.ids, deadline.into())
    }

    /// The group of all devices of the mesh.
    pub(super) fn everybody(&self, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
        self.keep(&self.everybody, self.mesh.ids(), deadline)
    }

    /// The group that is kept in a place, or a new one.
    fn keep(
        &self,
        place: &OnceLock<Arc<ThreadGroup>>,
        ids: &[usize],
        deadline: Deadline,
    ) -> Result<Arc<ThreadGroup>> {
        if let Some(group) = place.get() {
            return Ok(group.clone());
        }
        let group = groups::get(self.groups, self.everybody.get().map(Arc::as_ref), ids, self.id, deadline)?;
        Ok(place.get_or_init(|| group).clone())
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

    /// Does what joins several lines through this rank one after the other. When it fails here, its peers in the other lines learn of
    /// it. So they do when there is no group of one of the lines: those of the others are made all the same, and ended.
    pub(super) fn join_lines<T>(
        &self,
        op: &str,
        is_needed: impl Fn(usize) -> bool,
        deadline: Deadline,
        work: impl FnOnce(&Lines) -> Result<T>,
    ) -> Result<T> {
        let (mut lines, mut made) = (Lines(vec![None; self.mesh.ndim()]), Ok(()));
        for mesh_dim in (0..self.mesh.ndim()).filter(|&mesh_dim| is_needed(mesh_dim)) {
            match self.axis(mesh_dim, deadline) {
                Ok(group) => lines.0[mesh_dim] = Some(group),
                Err(error) => made = made.and(Err(error)),
            }
        }
        let outcome = made.and_then(|()| work(&lines));
        if let Err(error) = &outcome {
            for group in lines.0.iter().flatten() {
                group.abort_handle().abort(&format!("{op} failed: {error}"));
            }
        }
        outcome
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::manager::ThreadGroupManager;

    fn on_a_mesh(name: &str, body: impl Fn(MeshRank<'_>) + Sync) {
        let mesh = DeviceMesh::new(&[2, 2], vec![3, 5, 7, 9]).unwrap();
        let groups = ThreadGroupManager::with_prefix(name);
        std::thread::scope(|s| {
            for &id in mesh.ids() {
                let (mesh, groups, body) = (&mesh, &groups, &body);
                s.spawn(move || body(MeshRank::new(mesh, id, groups).unwrap()));
            }
        });
    }

    #[test]
    fn who_fails_between_lines_tells_all_of_them() {
        let (soon, made) = (Duration::from_secs(20), std::sync::Barrier::new(4));
        on_a_mesh("fails-between", |rank| {
            let outcome = rank.join_lines(
                "redistribute",
                |_| true,
                soon.into(),
                |lines| {
                    made.wait();
                    match rank.id() {
                        7 => Err(Error::invalid("test", "no more")),
                        // Shares no line with device 7.
                        5 => Ok(()),
                        // Device 9 shares the line along dimension 1, and device 3 that along 0.
                        id => lines.get(usize::from(id == 9))?.barrier(soon),
                    }
                },
            );
            match (rank.id(), outcome) {
                (7, Err(error)) => assert!(error.to_string().contains("no more"), "{error}"),
                (5, Ok(())) => {}
                (id, Err(Error::Aborted { by, reason, .. })) => {
                    assert!(by == usize::from(id == 3) && reason.contains("redistribute failed"), "{reason}");
                }
                (id, other) => panic!("{id}: {other:?}"),
            }
        });
    }

    /// Groups but for one, which a rank cannot have.
    struct Without<'a>(&'a ThreadGroupManager, [usize; 2]);

    impl Groups for Without<'_> {
        fn group(&self, ids: &[usize], my_id: usize, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
            if ids == self.1 {
                return Err(Error::invalid("Groups::group", "none left"));
            }
            Groups::group(self.0, ids, my_id, deadline)
        }
    }

    #[test]
    fn who_has_not_one_of_the_groups_tells_the_other_line() {
        let mesh = DeviceMesh::new(&[2, 2], vec![3, 5, 7, 9]).unwrap();
        // The line of devices 3 and 5 or of 3 and 7, either way round. The other one hears of it.
        for (name, lacks, peer, mesh_dim) in [("lacks-last", [3, 5], 7, 0), ("lacks-first", [3, 7], 5, 1)] {
            // One of each, as in processes: one that they share makes a group again that is over when its rank comes.
            let groups = [(); 2].map(|()| ThreadGroupManager::with_prefix(name));
            std::thread::scope(|s| {
                let (mesh, groups) = (&mesh, &groups);
                s.spawn(move || {
                    let groups = Without(&groups[0], lacks);
                    let rank = MeshRank::new(mesh, 3, &groups).unwrap();
                    let outcome =
                        rank.join_lines("collect", |_| true, Duration::from_secs(20).into(), |_| Ok(()));
                    assert!(outcome.unwrap_err().to_string().contains("none left"));
                });
                s.spawn(move || {
                    let rank = MeshRank::new(mesh, peer, &groups[1]).unwrap();
                    let line = rank.axis(mesh_dim, Duration::from_secs(20)).unwrap();
                    match line.barrier(Duration::from_secs(20)) {
                        Err(Error::Aborted { by: 0, reason, .. }) => {
                            assert!(reason.contains("collect failed") && reason.contains("none left"));
                        }
                        other => panic!("{name}: {other:?}"),
                    }
                });
            });
        }
    }

    const fn is_shared<T: Send + Sync>() {}
    const _: () = is_shared::<MeshRank<'_>>();

    #[test]
    fn each_axis_has_a_group() {
        on_a_mesh("axes", |rank| {
            let soon = Duration::from_secs(20);
            for mesh_dim in 0..2 {
                let group = rank.axis(mesh_dim, soon).unwrap();
                assert_eq!((group.rank(), group.size()), (rank.coordinate()[mesh_dim], 2));
                group.barrier(soon).unwrap();
            }
            assert!(rank.axis(2, soon).is_err());
        });
    }

    #[test]
    fn a_group_of_others_is_refused() {
        struct Wrong(ThreadGroupManager);
        impl Groups for Wrong {
            fn group(&self, ids: &[usize], my_id: usize, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
                let mut ids: Vec<usize> = ids.to_vec();
                ids.reverse();
                self.0.group(ids, my_id, deadline)
            }
        }
        let mesh = DeviceMesh::new(&[2], vec![0, 1]).unwrap();
        let groups = Wrong(ThreadGroupManager::with_prefix("of-others"));
        std::thread::scope(|s| {
            for id in 0..2 {
                let (mesh, groups) = (&mesh, &groups);
                s.spawn(move || {
                    let rank = MeshRank::new(mesh, id, groups).unwrap();
                    let error = rank.axis(0, Duration::from_secs(20)).unwrap_err();
                    assert!(matches!(error, Error::InvalidArgument { op: "Groups::group", .. }), "{error}");
                });
            }
        });
        assert!(MeshRank::new(&mesh, 2, &groups).is_err());
    }
}
