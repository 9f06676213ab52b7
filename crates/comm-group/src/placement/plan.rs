//! From one list of placements to another, step by step.

use std::fmt;

use comm_core::tensor::DType;
use comm_core::{Error, Result};

use super::kind::{List, Placement, check, check_bytes};
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
/// assert_eq!(plan.cost(), 4 * (16 + 16 + 16));
/// println!("{plan}");
/// # Ok::<(), comm_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if `from` or `to` is impossible (see [`validate`](super::validate)) or the tensor's bytes do not fit
/// into 63 bits. [`Error::Unsupported`] if a mesh dimension of several ranks has different shards before and after and one of them is
/// a sub-split: two plans do that, by way of `R`.
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
    let steps = search::steps(shape, dtype, mesh, from, to).ok_or_else(|| Error::Unsupported {
        backend: "the planner",
        op: format!("{} -> {}", List(from), List(to)),
        why: "it finds no steps; plan to R on all mesh dimensions first, and from there".into(),
    })?;
    Ok(Plan { shape: shape.to_vec(), dtype, mesh: mesh.clone(), from: from.to_vec(), steps })
}

impl Plan {
    /// The steps, in the order in which all ranks take them. None if nothing changes.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Bytes that the busiest rank copies from others in each step, summed over the steps.
    pub fn cost(&self) -> u64 {
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

    /// Bytes that the rank at a coordinate of the mesh copies from others, in each step.
    ///
    /// ```
    /// use comm_core::tensor::DType;
    /// use comm_group::placement::{DeviceMesh, Placement::{Replicate, Shard}, plan};
    ///
    /// let mesh = DeviceMesh::new(&[3], vec![0, 1, 2])?;
    /// let plan = plan(&[7], DType::F64, &mesh, &[Shard(0)], &[Replicate])?; // 3, 2 and 2 elements
    /// assert_eq!((plan.bytes(&[0])?, plan.bytes(&[2])?), (vec![4 * 8], vec![5 * 8]));
    /// assert_eq!(plan.cost(), 5 * 8, "the busiest one's");
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the mesh has no such coordinate.
    pub fn bytes(&self, coordinate: &[usize]) -> Result<Vec<u64>> {
        self.mesh.check_coordinate("Plan::bytes", coordinate)?;
        let states = self.states();
        let bytes = self.steps.iter().zip(states.windows(2)).map(|(step, around)| {
            let around = [&around[0][..], &around[1][..]];
            let elements =
                traffic::of_rank(&self.shape, &self.mesh, around, step.mesh_dim, step.op, coordinate);
            elements.saturating_mul(self.dtype.size() as u64)
        });
        Ok(bytes.collect())
    }
}

/// The placements at both ends, the cost, and a line for each step.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = self.states();
        let (from, to) = (List(&states[0]), List(&states[states.len() - 1]));
        write!(f, "{from} -> {to}, {} of shape {:?}: {} bytes", self.dtype, self.shape, self.cost())?;
        self.steps.iter().try_for_each(|step| write!(f, "\n  {step}"))
    }
}
