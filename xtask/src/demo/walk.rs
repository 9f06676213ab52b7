//! What one rank does: every tensor step by step along the chain of every mesh, timed, counted and compared.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Instant;

use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Error, Result};
use comm_group::placement::{Distributed, Groups, MeshRank, Placement, Plan, extent, plan};
use comm_group::{ReduceOp, ThreadGroup};
use comm_store::window::Cost;

use super::compare::{Difference, Equal, first_difference};
use super::course::{Course, Step, courses};
use super::report::{Finding, Measured, RankReport};
use super::weights::{Spec, Weights};

/// The rank that has the tensors at first. The last one gets them in the end.
const ROOT: usize = 0;

/// Who walks.
pub struct Walker<'a> {
    /// Which rank this is.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Where the groups of the meshes' lines come from.
    pub groups: &'a dyn Groups,
    /// A step in which the last rank gets a bit wrong, to show that it is seen.
    pub spoil: Option<String>,
}

/// Bytes of tensors that go through all steps together, for the progress bar.
pub fn work(specs: &[Spec], courses: &[Course]) -> u64 {
    let steps = |spec: &Spec| courses.iter().map(|course| course.steps_of(spec).len() as u64).sum::<u64>();
    specs.iter().map(|spec| steps(spec) * spec.bytes).sum()
}

/// One tensor in one step.
struct Visit<'a> {
    at: [usize; 3],
    during: String,
    step: &'a Step,
    whole: &'a Tensor,
    /// One like it that adds nothing to a sum, made when it is first needed.
    nothing: &'a OnceCell<Result<Tensor>>,
    equal: Equal,
}

/// What has come of a step.
struct Taken {
    holds: Option<Distributed>,
    /// The plan, if there was one, and what each of its steps has cost this rank.
    carried_out: Option<(Plan, Vec<Cost>)>,
}

impl Walker<'_> {
    /// Takes all tensors through all steps. `progress` is called with the bytes that are through.
    ///
    /// All ranks read the weights, but only the first one's are handed on: the others compare with them.
    /// A difference does not end the run: the other ranks are inside the same collectives.
    ///
    /// # Errors
    /// What the library or the file said, with the tensor, the mesh and the step.
    pub fn run(&self, weights: &Weights, progress: &dyn Fn(u64)) -> Result<RankReport, String> {
        let said = |e: Error| e.to_string();
        let courses = courses(self.ranks).map_err(said)?;
        let sites: Result<Vec<Site<'_>>> = courses.iter().map(|course| Site::new(self, course)).collect();
        let sites = sites.map_err(said)?;
        let measured = courses.iter().map(|course| vec![Measured::default(); course.steps.len()]);
        let mut report = RankReport { measured: measured.collect(), ..RankReport::default() };
        for (tensor, spec) in weights.specs().iter().enumerate() {
            let whole = spec.tensor(&weights.read(tensor)?);
            let whole = &whole.map_err(|e| format!("tensor {spec}: {e}"))?;
            let nothing = &OnceCell::new();
            for (mesh, site) in sites.iter().enumerate() {
                let (mut held, mut equal) = (None, Equal::Bits);
                for (nth, step) in site.course.steps_of(spec).iter().enumerate() {
                    if step.sums_up() {
                        equal = Equal::BitsOrNan;
                    }
                    let during = format!("tensor {spec}, mesh {}, conversion {step}", site.course.name());
                    let visit = Visit { at: [tensor, mesh, nth], during, step, whole, nothing, equal };
                    let next = site.visit(&visit, held.as_ref(), &mut report);
                    held = next.map_err(|e| format!("{}: {e}", visit.during))?;
                    progress(spec.bytes);
                }
            }
        }
        Ok(report)
    }
}

/// A rank on one of the meshes.
struct Site<'a> {
    walker: &'a Walker<'a>,
    course: &'a Course,
    me: MeshRank<'a>,
    everybody: Arc<ThreadGroup>,
    /// That of everybody and those of the lines, each once.
    groups: Vec<Arc<ThreadGroup>>,
}

impl<'a> Site<'a> {
    /// Meets the other ranks, so that no step has to wait for that.
    fn new(walker: &'a Walker<'a>, course: &'a Course) -> Result<Site<'a>> {
        let (mesh, deadline) = (&course.mesh, Deadline::default());
        let me = MeshRank::new(mesh, walker.rank, walker.groups)?;
        let everybody = walker.groups.group(mesh.ids(), me.id(), deadline)?;
        let mut groups = vec![everybody.clone()];
        for mesh_dim in 0..mesh.ndim() {
            let line = me.axis(mesh_dim, deadline)?;
            if !Arc::ptr_eq(&line, &everybody) {
                groups.push(line);
            }
        }
        Ok(Site { walker, course, me, everybody, groups })
    }

    /// Takes a step, and notes how that went. Returns what this rank holds then.
    fn visit(
        &self,
        visit: &Visit<'_>,
        held: Option<&Distributed>,
        report: &mut RankReport,
    ) -> Result<Option<Distributed>> {
        let Visit { at: at @ [_, mesh, _], during, step, whole, .. } = visit;
        let finding = |difference| Finding { at: *at, during: during.clone(), difference };
        // So that the time of comparing on a slower rank does not count as the library's.
        self.everybody.barrier(Deadline::default())?;
        let (before, start) = (self.counted(), Instant::now());
        let Taken { mut holds, carried_out } = self.take(step, whole, held)?;
        let (time, counted) = (start.elapsed(), self.counted() - before);
        let moved = match &carried_out {
            Some((plan, costs)) => {
                if report.unplanned.is_none() {
                    let planned = plan.costs(self.me.coordinate())?;
                    report.unplanned = unplanned(plan, costs, &planned).map(finding);
                }
                costs.iter().map(|cost| cost.bytes).sum()
            }
            None => counted,
        };
        let row = self.course.steps.iter().position(|other| other == *step);
        if let Some(row) = row.and_then(|row| report.measured.get_mut(*mesh)?.get_mut(row)) {
            row.tensors += 1;
            row.bytes += whole.nbytes() as u64;
            row.moved += moved;
            row.time += time;
        }

        if self.walker.spoil.as_ref().is_some_and(|spoil| *spoil == step.to_string())
            && self.me.id() == self.collector()
        {
            holds = holds.as_ref().map(spoiled).transpose()?;
        }
        if let (Some(part), None) = (&holds, &report.difference) {
            report.difference = self.compare(part, visit)?.map(finding);
        }
        Ok(holds)
    }

    /// Where what this rank holds differs from what it should hold. Of a sum the first rank of a line has the value, and
    /// the others have what adds nothing to it.
    fn compare(&self, part: &Distributed, visit: &Visit<'_>) -> Result<Option<Difference>> {
        let (coordinate, placements) = (self.me.coordinate(), part.placements());
        let extent = extent(part.shape(), self.me.mesh(), placements, coordinate)?;
        let adds_nothing = |(&at, placement): (&usize, &Placement)| at > 0 && placement.reduction().is_some();
        let difference = if coordinate.iter().zip(placements).any(adds_nothing) {
            let nothing = visit.nothing.get_or_init(|| nothing(visit.whole)).clone()?;
            first_difference(part.local(), &nothing, &extent, Equal::Bits)
        } else {
            first_difference(part.local(), visit.whole, &extent, visit.equal)
        };
        Ok(difference?)
    }

    /// What the library does.
    fn take(&self, step: &Step, whole: &Tensor, held: Option<&Distributed>) -> Result<Taken> {
        let (me, deadline) = (&self.me, Deadline::default());
        let held = || held.ok_or_else(|| Error::invalid("demo", "there is nothing to go on with"));
        match step {
            Step::Distribute(to) => {
                let mine = (me.id() == ROOT).then_some(whole);
                let part = me.distribute(mine, ROOT, to, deadline)?;
                Ok(Taken { holds: Some(part), carried_out: None })
            }
            // This is what `redistribute` does, which keeps the costs for itself.
            Step::Convert(_, to) => {
                let part = held()?;
                let plan = plan(part.shape(), part.dtype(), me.mesh(), part.placements(), to)?;
                let (local, costs) = me.carry_out(&plan, part.local(), deadline)?;
                let part = Distributed::new(local, part.shape(), to);
                Ok(Taken { holds: Some(part), carried_out: Some((plan, costs)) })
            }
            Step::Collect(_) => {
                let part = held()?;
                let everything = vec![Placement::Replicate; me.mesh().ndim()];
                let collected = me.collect(part, self.collector(), deadline)?;
                let holds = collected.map(|whole| Distributed::new(whole, part.shape(), &everything));
                Ok(Taken { holds, carried_out: None })
            }
        }
    }

    fn collector(&self) -> usize {
        self.walker.ranks - 1
    }

    /// Bytes that this rank's groups have counted so far.
    fn counted(&self) -> u64 {
        self.groups.iter().map(|group| group.costs().bytes).sum()
    }
}

/// The first step of a plan that has cost something else than it should.
fn unplanned(plan: &Plan, costs: &[Cost], planned: &[Cost]) -> Option<Difference> {
    let both = plan.steps().iter().zip(costs.iter().zip(planned));
    let first = both.into_iter().find(|(_, (seen, expected))| seen != expected);
    first.map(|(step, (seen, expected))| Difference {
        place: step.to_string(),
        seen: seen.to_string(),
        expected: expected.to_string(),
    })
}

/// A tensor like this whose elements add nothing to a sum.
fn nothing(like: &Tensor) -> Result<Tensor> {
    let identity = ReduceOp::Sum.identity(like.dtype())?;
    let identity = identity.ok_or_else(|| Error::invalid("demo", "there is no sum"))?;
    let mut tensor = TensorBuf::zeros(like.shape(), like.dtype())?;
    tensor
        .bytes_mut()?
        .chunks_exact_mut(identity.len())
        .for_each(|element| element.copy_from_slice(&identity));
    Ok(tensor.freeze())
}

/// A part with another first bit, if it has any.
fn spoiled(part: &Distributed) -> Result<Distributed> {
    let mut local = part.local().to_buf()?;
    if let Some(byte) = local.bytes_mut()?.first_mut() {
        *byte ^= 1;
    }
    Ok(Distributed::new(local.freeze(), part.shape(), part.placements()))
}

#[cfg(test)]
mod tests {
    use comm_core::tensor::DType;
    use comm_group::DeviceMesh;
    use comm_group::placement::Placement::{Replicate, Shard};

    use super::*;

    #[test]
    fn a_step_that_costs_something_else_is_named() -> Result<()> {
        let mesh = DeviceMesh::new(&[2, 2], (0..4).collect())?;
        let plan = plan(&[64, 64], DType::F32, &mesh, &[Shard(0), Shard(1)], &[Replicate, Replicate])?;
        let planned = plan.costs(&[1, 0])?;
        assert_eq!((planned.len(), unplanned(&plan, &planned, &planned)), (2, None));
        let mut costs = planned.clone();
        costs[1].bytes += 1;
        let difference = unplanned(&plan, &costs, &planned).map(|difference| difference.to_string());
        assert_eq!(
            difference.as_deref(),
            Some(
                "mesh dimension 1: S(1) -> R by all-gather, 8192 bytes, seen 2 notifies, 2 waits, 2 rounds, 8193 bytes, \
                 expected 2 notifies, 2 waits, 2 rounds, 8192 bytes"
            )
        );
        Ok(())
    }
}
