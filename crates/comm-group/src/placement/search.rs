//! The cheapest steps, exactly: Dijkstra's algorithm over lists of placements.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use comm_core::tensor::DType;

use super::kind::{Placement, can_begin};
use super::mesh::DeviceMesh;
use super::split;
use super::step::{Step, StepOp, operation};
use super::traffic;

/// How many lists of placements are searched at most.
const MAX_STATES: usize = 4096;

/// The cheapest steps between placements that are possible and have been found supported. Between those there are always some.
pub(super) fn steps(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    from: &[Placement],
    to: &[Placement],
) -> Option<Vec<Step>> {
    let space = |with_shards| Space::new(shape, dtype, mesh, from, to, with_shards);
    match space(true).or_else(|| space(false)) {
        Some(space) => space.cheapest(),
        None => by_replicating(shape, dtype, mesh, from, to),
    }
}

/// All lists of placements that a plan may pass through. A list is known by a number: the positions of its placements among the
/// candidates of their mesh dimensions, as digits.
struct Space<'a> {
    shape: &'a [usize],
    dtype: DType,
    mesh: &'a DeviceMesh,
    /// For each mesh dimension: where it ends, where it begins, R, and the shards by the rule; each once.
    candidates: Vec<Vec<Placement>>,
    /// The number of states.
    states: usize,
    start: usize,
}

/// Bytes, then steps.
type Weight = (u64, usize);

/// The state in which every mesh dimension has its first candidate.
const END: usize = 0;

impl<'a> Space<'a> {
    /// `None` if it is too large.
    fn new(
        shape: &'a [usize],
        dtype: DType,
        mesh: &'a DeviceMesh,
        from: &[Placement],
        to: &[Placement],
        with_shards: bool,
    ) -> Option<Space<'a>> {
        let (mut candidates, mut states, mut start) = (Vec::new(), 1usize, 0);
        for ((a, b), &ranks) in from.iter().zip(to).zip(mesh.shape()) {
            let mut all = vec![b.clone()];
            let mut add = |placement: Placement| match all.iter().position(|p| *p == placement) {
                Some(at) => at,
                None => {
                    all.push(placement);
                    all.len() - 1
                }
            };
            start += add(a.clone()) * states;
            add(Placement::Replicate);
            // Shards of one rank are R.
            if with_shards && ranks > 1 {
                (0..shape.len()).for_each(|dim| {
                    add(Placement::Shard(dim));
                });
            }
            states = states.checked_mul(all.len()).filter(|&n| n <= MAX_STATES)?;
            candidates.push(all);
        }
        Some(Space { shape, dtype, mesh, candidates, states, start })
    }

    /// Backwards from the end, so that the first step of a cheapest plan can be chosen first.
    fn cheapest(&self) -> Option<Vec<Step>> {
        let mut costs: Vec<Option<Weight>> = vec![None; self.states];
        let mut queue = BinaryHeap::from([Reverse(((0, 0), END))]);
        costs[END] = Some((0, 0));
        while let Some(Reverse((cost, state))) = queue.pop() {
            if state == self.start {
                return self.walk(&costs);
            }
            if costs[state] != Some(cost) {
                continue; // a cheaper way has been found since
            }
            for (before, step) in self.steps_into(state) {
                let better = plus(&step, cost);
                if costs[before].is_none_or(|known| better < known) {
                    costs[before] = Some(better);
                    queue.push(Reverse((better, before)));
                }
            }
        }
        None
    }

    /// From the start, each time by the first step that loses nothing.
    fn walk(&self, costs: &[Option<Weight>]) -> Option<Vec<Step>> {
        let (mut steps, mut state) = (Vec::new(), self.start);
        while state != END {
            let here = costs[state];
            let (next, step) = self.steps_from(state).find(|(next, step)| {
                // What has no cost yet is dearer than the start.
                here.is_some() && costs[*next].map(|rest| plus(step, rest)) == here
            })?;
            steps.push(step);
            state = next;
        }
        Some(steps)
    }

    fn steps_from(&self, state: usize) -> impl Iterator<Item = (usize, Step)> {
        let here = self.placements(state);
        self.neighbours(state).filter_map(move |(mesh_dim, next)| {
            self.is_possible(&self.placements(next)).then_some(())?;
            Some((next, self.step(&here, mesh_dim, self.placements(next)[mesh_dim])?))
        })
    }

    fn steps_into(&self, state: usize) -> impl Iterator<Item = (usize, Step)> {
        let here = self.placements(state);
        self.neighbours(state).filter_map(move |(mesh_dim, before)| {
            let placements = self.placements(before);
            self.is_possible(&placements).then_some(())?;
            Some((before, self.step(&placements, mesh_dim, here[mesh_dim])?))
        })
    }

    fn step(&self, placements: &[&Placement], mesh_dim: usize, to: &Placement) -> Option<Step> {
        step(self.shape, self.dtype, self.mesh, placements, mesh_dim, to)
    }

    /// The states that differ on one mesh dimension, and on which.
    fn neighbours(&self, state: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut scale = 1;
        self.candidates.iter().enumerate().flat_map(move |(mesh_dim, all)| {
            let (digit, unit) = (state / scale % all.len(), scale);
            scale *= all.len();
            let others = (0..all.len()).filter(move |&other| other != digit);
            others.map(move |other| (mesh_dim, state - digit * unit + other * unit))
        })
    }

    fn placements(&self, state: usize) -> Vec<&Placement> {
        let mut rest = state;
        self.candidates
            .iter()
            .map(|all| {
                let placement = &all[rest % all.len()];
                rest /= all.len();
                placement
            })
            .collect()
    }

    /// Cuts and sizes that were right for pieces at one end may be wrong for others on the way.
    fn is_possible(&self, placements: &[&Placement]) -> bool {
        let is_free = |p: &&Placement| !matches!(p, Placement::SubSplit { .. } | Placement::Uneven { .. });
        placements.iter().all(is_free)
            || (0..self.shape.len())
                .all(|dim| split::lengths(self.shape, self.mesh, placements, dim, self.mesh.ndim()).is_ok())
    }
}

fn plus(step: &Step, (bytes, steps): Weight) -> Weight {
    (bytes.saturating_add(step.bytes), steps + 1)
}

fn step(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[&Placement],
    mesh_dim: usize,
    to: &Placement,
) -> Option<Step> {
    let op = operation(shape, mesh, placements, mesh_dim, to)?;
    if op == StepOp::Mask && to.reduction().is_some_and(|reduction| !can_begin(reduction, dtype)) {
        return None;
    }
    let elements = traffic::busiest(shape, mesh, placements, mesh_dim, to, op);
    let bytes = elements.saturating_mul(dtype.size() as u64);
    Some(Step { mesh_dim, from: placements[mesh_dim].clone(), to: to.clone(), op, bytes })
}

/// Everything behind the first mesh dimension that differs becomes R, the last one first, and then what it shall be, the first one
/// first: whenever one is changed, all behind it are R, and nothing stands in the way.
fn by_replicating(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    from: &[Placement],
    to: &[Placement],
) -> Option<Vec<Step>> {
    let whole = Placement::Replicate;
    let first = from.iter().zip(to).position(|(a, b)| a != b).unwrap_or(from.len());
    let down = (first..from.len()).rev().map(|at| (at, &whole));
    let up = (first..to.len()).map(|at| (at, &to[at]));
    let mut placements: Vec<&Placement> = from.iter().collect();
    let mut steps = Vec::new();
    for (mesh_dim, next) in down.chain(up) {
        if placements[mesh_dim] == next {
            continue;
        }
        steps.push(step(shape, dtype, mesh, &placements, mesh_dim, next)?);
        placements[mesh_dim] = next;
    }
    Some(steps)
}
