//! From one list of placements to another, step by step.

use std::fmt;

use comm_core::tensor::DType;
use comm_core::{Error, Result};
use comm_store::window::Cost;

use super::kind::{List, Placement, can_begin, check, check_bytes};
use super::mesh::DeviceMesh;
use super::search;
use super::step::Step;
use super::traffic;

/// The steps that turn one list of placements into another, and what they cost. Made by [`plan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    shape: Vec<usize>,
    dtype: DType,
    mesh: DeviceMesh,
    from: Vec<Placement>,
    steps: Vec<Step>,
}

/// Finds the cheapest steps that turn the placements `from` of a tensor of a global `shape` into `to`.
///
/// A step changes the placement on one mesh dimension by one operation; the [module](super) says which there are and when they
/// may be done. The cost is the sum, over the steps, of the bytes that the busiest rank copies in it: all ranks
/// meet in each step, and the busiest one is waited for. Of equal costs fewer steps win, and of equally many those that change the
/// earlier mesh dimension first, straight to its end. The plan depends on the arguments alone: all ranks get the same one.
///
/// **What is searched.** All orders of steps through `R`, `S` of every tensor dimension, and the placement in `from` and in `to`, on
/// every mesh dimension: a tensor may well be sharded otherwise for a while, if that is cheaper. With more than 4096 such lists of
/// placements (say, with 6 mesh dimensions and a tensor of 4) only `R`, `from` and `to` are tried; where even they are more than 4096,
/// with 8 mesh dimensions, the plan goes by `R` on all mesh dimensions from the first that differs, which is right and not cheap.
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_group::ReduceOp;
/// use comm_group::placement::{DeviceMesh, Placement::{Partial, Replicate, Shard}, StepOp, plan};
///
/// let mesh = DeviceMesh::new(&[2, 2], (0..4).collect())?;
/// let from = [Shard(0), Partial(ReduceOp::Sum)];
/// let to = [Replicate, Shard(0)];
/// let plan = plan(&[8, 8], DType::F32, &mesh, &from, &to)?;
///
/// // Mesh dimension 0 holds columns for a while, so that mesh dimension 1 may shard the rows.
/// let ops: Vec<_> = plan.steps().iter().map(|step| (step.mesh_dim, step.op)).collect();
/// assert_eq!(ops, [(0, StepOp::AllToAll), (1, StepOp::ReduceScatter), (0, StepOp::AllGather)]);
/// assert_eq!(plan.busiest_bytes(), 4 * (16 + 16 + 16));
/// println!("{plan}");
/// # Ok::<(), comm_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if `from` or `to` is impossible (see [`validate`](super::validate)) or the tensor's bytes do not fit
/// into 63 bits. [`Error::Unsupported`] if a mesh dimension of several ranks has different shards before and after and one of them is
/// a sub-split: two plans do that, by way of `R`; if an operator is not there for the dtype ([`ReduceOp::check`](crate::ReduceOp::check));
/// and if contributions are to be made for an operator without [identity](crate::ReduceOp::identity) that is no average, which
/// is `premul_sum`.
#[doc(alias = "ConvertPlacements")]
#[doc(alias = "GetDiffDims")]
pub fn plan(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    from: &[Placement],
    to: &[Placement],
) -> Result<Plan> {
    const OP: &str = "plan";
    check(OP, shape, mesh, from)?;
    check(OP, shape, mesh, to)?;
    check_bytes(OP, shape, dtype)?;
    for (mesh_dim, (a, b)) in from.iter().zip(to).enumerate() {
        let is_cut = |p: &Placement| matches!(p, Placement::SubSplit { .. });
        let shards = a.sharded_dim().is_some() && b.sharded_dim().is_some();
        if mesh.shape()[mesh_dim] > 1 && a != b && shards && (is_cut(a) || is_cut(b)) {
            return Err(Error::Unsupported {
                backend: "the planner",
                op: format!("{a} -> {b} on mesh dimension {mesh_dim}"),
                why: "a sub-split is made of R and goes to R or P; plan to R first, and from there".into(),
            });
        }
    }
    for op in from.iter().chain(to).filter_map(Placement::reduction) {
        op.check(dtype)?;
    }
    for (mesh_dim, (a, b)) in from.iter().zip(to).enumerate() {
        let Some(reduction) = b.reduction().filter(|_| !b.is_only_a_name(mesh.shape()[mesh_dim]) && a != b)
        else {
            continue;
        };
        if !can_begin(reduction, dtype) {
            return Err(Error::Unsupported {
                backend: "the planner",
                op: format!("{a} -> {b} on mesh dimension {mesh_dim}"),
                why: format!(
                    "{reduction} of {dtype} has no element that changes nothing; reduce by another operator"
                ),
            });
        }
    }
    let steps = search::steps(shape, dtype, mesh, from, to).ok_or_else(|| Error::Unsupported {
        backend: "the planner",
        op: format!("{} -> {}", List(from), List(to)),
        why: "it finds no steps; plan to R on all mesh dimensions first, and from there".into(),
    })?;
    Ok(Plan { shape: shape.to_vec(), dtype, mesh: mesh.clone(), from: from.to_vec(), steps })
}

impl Plan {
    /// The global shape of the tensor.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The mesh.
    pub fn mesh(&self) -> &DeviceMesh {
        &self.mesh
    }

    /// The placements before the first step.
    pub fn from(&self) -> &[Placement] {
        &self.from
    }

    /// The placements after the last step.
    pub fn to(&self) -> Vec<Placement> {
        let mut to = self.from.clone();
        self.steps.iter().for_each(|step| to[step.mesh_dim] = step.to.clone());
        to
    }

    /// The steps, in the order in which all ranks take them. None if nothing changes.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Bytes that the busiest rank copies from others in each step, summed over the steps: what plans are chosen by.
    pub fn busiest_bytes(&self) -> u64 {
        self.steps.iter().fold(0, |sum, step| sum.saturating_add(step.bytes))
    }

    /// The placements before the first step and after each one.
    ///
    /// ```
    /// use comm_core::tensor::DType;
    /// use comm_group::placement::{DeviceMesh, Placement::{Replicate, Shard}, plan};
    ///
    /// let mesh = DeviceMesh::new(&[2, 2], (0..4).collect())?;
    /// let plan = plan(&[8], DType::U8, &mesh, &[Shard(0), Shard(0)], &[Replicate, Replicate])?;
    /// let states = [[Shard(0), Shard(0)], [Shard(0), Replicate], [Replicate, Replicate]];
    /// assert_eq!(plan.states(), states, "the inner shards are joined first");
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn states(&self) -> Vec<Vec<Placement>> {
        let mut states = vec![self.from.clone()];
        for step in &self.steps {
            let mut next = states[states.len() - 1].clone();
            next[step.mesh_dim] = step.to.clone();
            states.push(next);
        }
        states
    }

    /// Bytes that the rank at a coordinate of the mesh copies from others, in each step, if all inputs are read in place. Small
    /// ones are not: see [`costs`](Plan::costs).
    ///
    /// ```
    /// use comm_core::tensor::DType;
    /// use comm_group::placement::{DeviceMesh, Placement::{Replicate, Shard}, plan};
    ///
    /// let mesh = DeviceMesh::new(&[3], vec![0, 1, 2])?;
    /// let plan = plan(&[7], DType::F64, &mesh, &[Shard(0)], &[Replicate])?; // 3, 2 and 2 elements
    /// assert_eq!((plan.bytes_in_place(&[0])?, plan.bytes_in_place(&[2])?), (vec![4 * 8], vec![5 * 8]));
    /// assert_eq!(plan.busiest_bytes(), 5 * 8, "the busiest one's");
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the mesh has no such coordinate.
    pub fn bytes_in_place(&self, coordinate: &[usize]) -> Result<Vec<u64>> {
        self.mesh.check_coordinate("Plan::bytes_in_place", coordinate)?;
        let states = self.states();
        let bytes = self.steps.iter().zip(states.windows(2)).map(|(step, around)| {
            let around = [&around[0][..], &around[1][..]];
            let elements =
                traffic::of_rank(&self.shape, &self.mesh, around, step.mesh_dim, step.op, coordinate);
            elements.saturating_mul(self.dtype.size() as u64)
        });
        Ok(bytes.collect())
    }

    /// What each step costs the rank at a coordinate of the mesh, exactly as [`ThreadGroup::costs`](crate::ThreadGroup::costs)
    /// counts it.
    ///
    /// The bytes are those [in place](Plan::bytes_in_place) where every input has more than 512 bytes. A smaller one is pushed to all others
    /// in a letter, the whole of it, which saves a round or two: then the rank that has it counts it W-1 times, and who reads it
    /// counts nothing. Plans do not know this. They weigh bytes that are read in place, so of tensors so small they may take one
    /// that moves a few bytes more.
    ///
    /// ```
    /// use comm_core::tensor::DType;
    /// use comm_group::placement::{DeviceMesh, Placement::{Replicate, Shard}, plan};
    ///
    /// let mesh = DeviceMesh::new(&[3], vec![0, 1, 2])?;
    /// let cost = |rows: usize, rank: usize| -> comm_core::Result<_> {
    ///     let plan = plan(&[rows, 100], DType::U8, &mesh, &[Shard(0)], &[Replicate])?;
    ///     Ok((plan.bytes_in_place(&[rank])?[0], plan.costs(&[rank])?[0].bytes, plan.costs(&[rank])?[0].rounds))
    /// };
    /// // 400, 300 and 300 bytes: rank 0 pushes its 400 twice, and the others push 300 twice.
    /// assert_eq!((cost(10, 0)?, cost(10, 1)?), ((600, 800, 1), (700, 600, 1)));
    /// // 600, 500 and 500 bytes: rank 1 reads the 600 of rank 0 in place.
    /// assert_eq!((cost(16, 0)?, cost(16, 1)?), ((1000, 0, 2), (1100, 1600, 2)));
    /// // 10000 bytes each.
    /// assert_eq!(cost(300, 0)?, (20000, 20000, 2));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the mesh has no such coordinate.
    pub fn costs(&self, coordinate: &[usize]) -> Result<Vec<Cost>> {
        self.mesh.check_coordinate("Plan::costs", coordinate)?;
        let states = self.states();
        let costs = self.steps.iter().zip(states.windows(2)).map(|(step, around)| {
            let around = [&around[0][..], &around[1][..]];
            let element = self.dtype.size() as u64;
            traffic::counted(&self.shape, &self.mesh, around, step.mesh_dim, step.op, coordinate, element)
        });
        Ok(costs.collect())
    }
}

/// The placements at both ends, the cost, and a line for each step.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = self.states();
        let (from, to) = (List(&states[0]), List(&states[states.len() - 1]));
        write!(
            f,
            "{from} -> {to}, {} of shape {:?}: {} bytes",
            self.dtype,
            self.shape,
            self.busiest_bytes()
        )?;
        self.steps.iter().try_for_each(|step| write!(f, "\n  {step}"))
    }
}
