//! Carrying plans out.

use comm_core::device::Device;
use comm_core::tensor::{DType, Tensor};
use comm_core::{Deadline, Error, Result};
use comm_store::window::Cost;

use super::Distributed;
use super::consent::Claim;
use super::kind::{List, Placement};
use super::pieces;
use super::plan::{Plan, plan};
use super::rank::{Lines, MeshRank};
use super::step::{Step, StepOp};

const OP: &str = "redistribute";

/// From one list of placements to another.
impl MeshRank<'_> {
    /// Places a tensor otherwise on its mesh, by the cheapest steps: [`plan`], and its steps as
    /// [`carry_out`](MeshRank::carry_out) takes them.
    ///
    /// It begins with one round of all ranks, also if all steps are local: a rank whose arguments are wrong cannot know whether the
    /// others need it. Who has a plan of local steps and wants no round carries it out himself.
    ///
    /// The new local tensor may be a view of the old one. What a sum over several mesh dimensions rounds depends on the plan.
    ///
    /// # Errors
    /// Those of [`plan`], on the ranks whose arguments are wrong, of which the others hear as a [`Error::Mismatch`] of `arguments`; those of
    /// [`carry_out`](MeshRank::carry_out).
    #[doc(alias = "ConvertPlacements")]
    pub fn redistribute(
        &self,
        part: &Distributed,
        to: &[Placement],
        deadline: impl Into<Deadline>,
    ) -> Result<Distributed> {
        let deadline = deadline.into();
        let (shape, dtype, from) = (part.shape(), part.dtype(), part.placements());
        let plan = plan(shape, dtype, self.mesh, from, to);
        let can_start =
            plan.as_ref().map_err(Error::clone).and_then(|plan| self.can_start(plan, part.local()));
        self.settle(claim(shape, dtype, from, to), can_start, deadline)?;
        let (local, _) = self.take_steps(&plan?, part.local(), deadline)?;
        Ok(Distributed::new(local, part.shape(), to))
    }

    /// Takes the steps of a plan, which all ranks of its mesh do together. Returns the new local tensor, and what each step has cost
    /// this rank: exactly what [`Plan::costs`] foretells, if nobody else uses the groups meanwhile.
    ///
    /// A plan all of whose steps are [local](StepOp::is_local) is done by each rank alone; any other begins with one round of all
    /// ranks of the mesh, which is not in the costs of the steps.
    ///
    /// # Errors
    /// On every rank, and the groups go on: the rank whose local tensor has another shape or dtype than the plan says gets
    /// [`Error::InvalidArgument`], on a device [`Error::DeviceMismatch`], and the others [`Error::Mismatch`] of `arguments`; all get
    /// [`Error::Mismatch`] if their plans differ. Of ranks that need no others, only their own. Then those of the collectives, and
    /// of [`Groups::group`](super::Groups::group).
    pub fn carry_out(
        &self,
        plan: &Plan,
        local: &Tensor,
        deadline: impl Into<Deadline>,
    ) -> Result<(Tensor, Vec<Cost>)> {
        let deadline = deadline.into();
        let can_start = self.can_start(plan, local);
        if plan.steps().iter().all(|step| step.op.is_local()) {
            can_start?;
        } else {
            let claim = claim(plan.shape(), plan.dtype(), plan.from(), &plan.to());
            self.settle(claim, can_start, deadline)?;
        }
        self.take_steps(plan, local, deadline)
    }

    fn take_steps(&self, plan: &Plan, local: &Tensor, deadline: Deadline) -> Result<(Tensor, Vec<Cost>)> {
        let is_needed = |mesh_dim| plan.steps().iter().any(|s| s.mesh_dim == mesh_dim && !s.op.is_local());
        self.join_lines(OP, is_needed, deadline, |lines| {
            let (mut tensor, mut costs) = (local.clone(), Vec::new());
            for step in plan.steps() {
                let group = if step.op.is_local() { None } else { Some(lines.get(step.mesh_dim)?) };
                let before = group.map(|group| group.costs()).unwrap_or_default();
                tensor = self.take(step, &tensor, lines, deadline)?;
                costs.push(group.map(|group| group.costs() - before).unwrap_or_default());
            }
            Ok((tensor, costs))
        })
    }

    fn can_start(&self, plan: &Plan, local: &Tensor) -> Result<()> {
        if plan.mesh() != self.mesh {
            return Err(Error::invalid(OP, format!("a plan for {}, and this is {}", plan.mesh(), self.mesh)));
        }
        if plan.dtype() != local.dtype() {
            return Err(Error::invalid(OP, format!("{} by a plan for {}", local.dtype(), plan.dtype())));
        }
        self.check(&Distributed::new(local.clone(), plan.shape(), plan.from()))?;
        // A view can be made anywhere.
        let is_view = |step: &Step| match (&step.op, &step.to) {
            (StepOp::Nothing, _) => true,
            (StepOp::ReplicateToShard, to) => !matches!(to, Placement::SubSplit { .. }),
            _ => false,
        };
        if plan.steps().iter().all(is_view) { Ok(()) } else { local.device().expect(Device::Cpu, OP) }
    }

    fn take(&self, step: &Step, tensor: &Tensor, lines: &Lines, deadline: Deadline) -> Result<Tensor> {
        let Step { mesh_dim, from, to, op, .. } = step;
        let (ranks, index) = (self.ranks(*mesh_dim), self.coordinate[*mesh_dim]);
        let group = || lines.get(*mesh_dim);
        let unplanned = || Error::invalid(OP, format!("no such step: {step}"));
        let dim = |placement: &Placement| placement.sharded_dim().ok_or_else(unplanned);
        let reduction = |placement: &Placement| placement.reduction().ok_or_else(unplanned);
        match (op, to) {
            (StepOp::Nothing, _) => Ok(tensor.clone()),
            (StepOp::ReplicateToShard, to) => pieces::take(tensor, to, ranks, index),
            (StepOp::AllGather, _) => {
                let dealt = group()?.all_gather(tensor, dim(from)?, deadline)?;
                pieces::undeal(&dealt, from, ranks)
            }
            (StepOp::AllToAll, Placement::Uneven { dim: to, sizes }) => {
                group()?.all_to_all_sizes(tensor, dim(from)?, *to, sizes, deadline)
            }
            (StepOp::AllToAll, to) => group()?.all_to_all(tensor, dim(from)?, dim(to)?, deadline),
            (StepOp::ReduceScatter, Placement::Shard(to)) => {
                group()?.reduce_scatter(tensor, reduction(from)?, *to, deadline)
            }
            (StepOp::ReduceScatter, to) => {
                let (dealt, sizes) = pieces::deal(tensor, to, ranks)?;
                group()?.reduce_scatter_sizes(&dealt, reduction(from)?, dim(to)?, &sizes, deadline)
            }
            (StepOp::AllReduce, _) => group()?.all_reduce(tensor, reduction(from)?, deadline),
            (StepOp::Mask, to) => pieces::mask(tensor, to, index),
        }
    }
}

/// What ranks must say alike before they place a tensor otherwise.
fn claim(shape: &[usize], dtype: DType, from: &[Placement], to: &[Placement]) -> Claim {
    let fields = vec![
        ("shape", format!("{shape:?}")),
        ("dtype", dtype.to_string()),
        ("placements", format!("{} -> {}", List(from), List(to))),
    ];
    Claim { op: OP, fields, note: String::new() }
}
