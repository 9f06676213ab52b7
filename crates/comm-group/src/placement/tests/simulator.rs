//! All ranks of a mesh in one place, each with a list of the global indices that it holds along each tensor dimension, and its values
//! by global index. Operations are done by their definition, on what the ranks have; what they should have is computed from the
//! definition of placements. Nothing of the library is used but names.

use std::collections::BTreeMap;

use crate::placement::{Placement, Plan, StepOp};

pub struct World {
    shape: Vec<usize>,
    mesh: Vec<usize>,
    pub placements: Vec<Placement>,
    ranks: Vec<Rank>,
}

#[derive(Clone)]
struct Rank {
    at: Vec<usize>,
    indices: Vec<Vec<usize>>,
    values: BTreeMap<usize, i64>,
}

/// What rank `index` of `ranks` gets of a list.
fn deal(placement: &Placement, list: &[usize], ranks: usize, index: usize) -> Vec<usize> {
    let by_sizes = |list: &[usize], sizes: &[usize]| {
        assert_eq!(sizes.iter().sum::<usize>(), list.len());
        let before: usize = sizes[..index].iter().sum();
        list[before..before + sizes[index]].to_vec()
    };
    let by_rule = |list: &[usize]| by_sizes(list, &rule(list.len(), ranks));
    match placement {
        Placement::Replicate | Placement::Partial(_) => list.to_vec(),
        Placement::Shard(_) => by_rule(list),
        Placement::Uneven { sizes, .. } => by_sizes(list, sizes),
        Placement::SubSplit { cut, .. } => {
            let (front, back) = list.split_at(cut + 1);
            [by_rule(front), by_rule(back)].concat()
        }
    }
}

/// One after the other, round and round.
fn rule(n: usize, ranks: usize) -> Vec<usize> {
    let mut sizes = vec![0; ranks];
    (0..n).for_each(|i| sizes[i % ranks] += 1);
    sizes
}

/// The list whose deal these are.
fn undeal(placement: &Placement, dealt: &[&Vec<usize>]) -> Vec<usize> {
    let Placement::SubSplit { cut, .. } = placement else {
        return dealt.iter().flat_map(|part| part.iter().copied()).collect();
    };
    let fronts = rule(cut + 1, dealt.len());
    let parts = || dealt.iter().zip(&fronts);
    let mut list: Vec<usize> = parts().flat_map(|(part, &front)| part[..front].iter().copied()).collect();
    list.extend(parts().flat_map(|(part, &front)| part[front..].iter().copied()));
    list
}

pub fn indices(shape: &[usize], mesh: &[usize], placements: &[Placement], at: &[usize]) -> Vec<Vec<usize>> {
    let mut indices: Vec<Vec<usize>> = shape.iter().map(|&n| (0..n).collect()).collect();
    for (d, placement) in placements.iter().enumerate() {
        if let Some(dim) = dim_of(placement) {
            indices[dim] = deal(placement, &indices[dim], mesh[d], at[d]);
        }
    }
    indices
}

pub fn dim_of(placement: &Placement) -> Option<usize> {
    match placement {
        Placement::Shard(dim) | Placement::SubSplit { dim, .. } | Placement::Uneven { dim, .. } => Some(*dim),
        _ => None,
    }
}

/// Global positions of the elements whose indices these are, in local order.
pub fn elements(shape: &[usize], indices: &[Vec<usize>]) -> Vec<usize> {
    shape.iter().zip(indices).fold(vec![0], |all, (&n, list)| {
        all.iter().flat_map(|&element| list.iter().map(move |&index| element * n + index)).collect()
    })
}

pub fn coordinates(mesh: &[usize]) -> Vec<Vec<usize>> {
    mesh.iter().fold(vec![vec![]], |all, &n| {
        all.iter().flat_map(|at| (0..n).map(move |i| [&at[..], &[i]].concat())).collect()
    })
}

fn hash(words: &[usize]) -> i64 {
    let mut h = 0x9e37_79b9_7f4a_7c15u64;
    for &word in words {
        h = (h ^ word as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h ^= h >> 29;
    }
    // So that averages of averages stay whole, in whatever order they are taken.
    ((h % 2001) as i64 - 1000) * 1728
}

fn reduce(op: &str, values: &[i64]) -> i64 {
    let values = values.iter().copied();
    match op {
        "sum" => values.fold(0, i64::wrapping_add),
        "prod" => values.fold(1, i64::wrapping_mul),
        "max" => values.max().unwrap(),
        "min" => values.min().unwrap(),
        "avg" => {
            let n = values.len() as i64;
            values.fold(0, i64::wrapping_add) / n
        }
        "premul_sum(-1.0)" => -values.fold(0, i64::wrapping_add),
        _ => panic!("operator {op}"),
    }
}

fn identity(op: &str) -> i64 {
    match op {
        "sum" => 0,
        "prod" => 1,
        "max" => i64::MIN,
        "min" => i64::MAX,
        _ => panic!("operator {op} has none"),
    }
}

/// Contributions that make a value.
fn contributions(op: &str, value: i64, ranks: usize, seed: &[usize]) -> Vec<i64> {
    let any = |i: usize| hash(&[seed, &[i]].concat());
    let mut all: Vec<i64> = (0..ranks).map(any).collect();
    let home = (any(ranks) / 1728).unsigned_abs() as usize % ranks;
    match op {
        "sum" | "avg" | "premul_sum(-1.0)" => {
            all[home] = 0;
            let total = match op {
                "avg" => value * ranks as i64,
                "sum" => value,
                _ => -value,
            };
            all[home] = total - all.iter().sum::<i64>();
        }
        "prod" => {
            // Signs alone, so that no product is too large for the other operators.
            all.iter_mut().for_each(|x| *x = if *x < 0 { -1 } else { 1 });
            all[home] = 1;
            all[home] = value * all.iter().product::<i64>();
        }
        "max" => {
            all.iter_mut().for_each(|x| *x = value.saturating_sub(x.abs()));
            all[home] = value;
        }
        "min" => {
            all.iter_mut().for_each(|x| *x = value.saturating_add(x.abs()));
            all[home] = value;
        }
        _ => panic!("operator {op}"),
    }
    all
}

impl World {
    pub fn new(shape: &[usize], mesh: &[usize], placements: &[Placement]) -> World {
        let rank = |at: Vec<usize>| {
            let indices = indices(shape, mesh, placements, &at);
            let value = |element: usize| {
                let mut value = truth(element);
                let mut seed = vec![element];
                for (d, placement) in placements.iter().enumerate() {
                    if let Placement::Partial(op) = placement {
                        seed.push(d);
                        value = contributions(&op.to_string(), value, mesh[d], &seed)[at[d]];
                        seed.push(at[d]);
                    }
                }
                (element, value)
            };
            let values = elements(shape, &indices).into_iter().map(value).collect();
            Rank { at, indices, values }
        };
        let ranks = coordinates(mesh).into_iter().map(rank).collect();
        let world =
            World { shape: shape.to_vec(), mesh: mesh.to_vec(), placements: placements.to_vec(), ranks };
        world.check().unwrap();
        world
    }

    fn rank(&self, at: &[usize]) -> &Rank {
        &self.ranks[at.iter().zip(&self.mesh).fold(0, |rank, (&i, &n)| rank * n + i)]
    }

    fn line(&self, rank: &Rank, d: usize) -> Vec<&Rank> {
        let at = |i| rank.at.iter().enumerate().map(|(e, &j)| if e == d { i } else { j }).collect::<Vec<_>>();
        (0..self.mesh[d]).map(|i| self.rank(&at(i))).collect()
    }

    /// Whether all ranks hold what the placements say.
    pub fn check(&self) -> Result<(), String> {
        for rank in &self.ranks {
            let (at, right) = (&rank.at, indices(&self.shape, &self.mesh, &self.placements, &rank.at));
            if rank.indices != right {
                return Err(format!("{at:?} holds {:?} and should hold {right:?}", rank.indices));
            }
            let elements = elements(&self.shape, &right);
            if !rank.values.keys().eq(std::collections::BTreeSet::from_iter(&elements)) {
                return Err(format!("{at:?} has values of other elements"));
            }
            for (d, placement) in self.placements.iter().enumerate() {
                let is_same = || self.line(rank, d).iter().all(|other| other.values == rank.values);
                if *placement == Placement::Replicate && !is_same() {
                    return Err(format!("{at:?} differs from its replicas along {d}"));
                }
            }
            for &element in &elements {
                let value = self.reduced(&mut at.clone(), element, 0);
                if value != truth(element) {
                    return Err(format!("{at:?} has {value} and not {} at {element}", truth(element)));
                }
            }
        }
        Ok(())
    }

    /// The value of an element, by reducing over mesh dimensions from `d` on, the innermost first.
    fn reduced(&self, at: &mut [usize], element: usize, d: usize) -> i64 {
        match self.placements.get(d) {
            None => self.rank(at).values[&element],
            Some(Placement::Partial(op)) => {
                let here = at[d];
                let mut values = Vec::new();
                for i in 0..self.mesh[d] {
                    at[d] = i;
                    values.push(self.reduced(at, element, d + 1));
                }
                at[d] = here;
                reduce(&op.to_string(), &values)
            }
            Some(_) => self.reduced(at, element, d + 1),
        }
    }

    /// Does an operation in every line along `d`, and checks what came of it. Returns how many elements each rank had from others.
    pub fn step(&mut self, d: usize, to: &Placement, op: StepOp) -> Result<Vec<usize>, String> {
        let done: Result<Vec<(Rank, usize)>, String> =
            self.ranks.iter().map(|rank| self.operate(rank, d, to, op)).collect();
        let (ranks, moved): (Vec<Rank>, Vec<usize>) = done?.into_iter().unzip();
        self.ranks = ranks;
        self.placements[d] = to.clone();
        self.check()?;
        Ok(moved)
    }

    fn operate(&self, rank: &Rank, d: usize, to: &Placement, op: StepOp) -> Result<(Rank, usize), String> {
        let from = &self.placements[d];
        let line = self.line(rank, d);
        let (ranks, index) = (line.len(), rank.at[d]);
        let mut new = rank.clone();
        let mut moved = 0;
        let joined = |dim: usize| undeal(from, &line.iter().map(|r| &r.indices[dim]).collect::<Vec<_>>());
        let reduced = |element: usize| {
            let values: Option<Vec<i64>> = line.iter().map(|r| r.values.get(&element).copied()).collect();
            let values = values.ok_or_else(|| format!("not everybody contributes to {element}"))?;
            let Placement::Partial(op) = from else { return Err(format!("{from} is not reduced")) };
            Ok((element, reduce(&op.to_string(), &values)))
        };
        match op {
            StepOp::Nothing => {}
            StepOp::ReplicateToShard => {
                let dim = dim_of(to).unwrap();
                new.indices[dim] = deal(to, &rank.indices[dim], ranks, index);
                let kept = elements(&self.shape, &new.indices);
                new.values.retain(|element, _| kept.contains(element));
            }
            StepOp::AllGather | StepOp::AllToAll => {
                let dim = dim_of(from).unwrap();
                new.indices[dim] = joined(dim);
                if let Some(dim) = dim_of(to) {
                    new.indices[dim] = deal(to, &new.indices[dim], ranks, index);
                }
                new.values.clear();
                for element in elements(&self.shape, &new.indices) {
                    let holder = line.iter().find(|r| r.values.contains_key(&element));
                    let value =
                        holder.ok_or_else(|| format!("nobody in the line has {element}"))?.values[&element];
                    moved += usize::from(!rank.values.contains_key(&element));
                    new.values.insert(element, value);
                }
            }
            StepOp::ReduceScatter | StepOp::AllReduce => {
                if let Some(dim) = dim_of(to) {
                    new.indices[dim] = deal(to, &rank.indices[dim], ranks, index);
                }
                let all = elements(&self.shape, &new.indices);
                new.values = all.iter().map(|&element| reduced(element)).collect::<Result<_, String>>()?;
                let own = if op == StepOp::AllReduce { rule(all.len(), ranks)[index] } else { all.len() };
                moved = (ranks - 1) * own + (all.len() - own);
            }
            StepOp::Mask => {
                let Placement::Partial(op) = to else { return Err(format!("{to} is no mask")) };
                if index > 0 && op.to_string() != "avg" {
                    new.values.values_mut().for_each(|value| *value = identity(&op.to_string()));
                }
            }
        }
        Ok((new, moved))
    }

    /// Carries out a plan, whose steps and costs must be right in every state.
    pub fn run(&mut self, plan: &Plan, bytes_each: u64) -> Result<(), String> {
        let coordinates = coordinates(&self.mesh);
        let foretold: Vec<Vec<u64>> = coordinates.iter().map(|at| plan.bytes_in_place(at).unwrap()).collect();
        for (i, step) in plan.steps().iter().enumerate() {
            if step.from != self.placements[step.mesh_dim] {
                return Err(format!("{step}: starts elsewhere"));
            }
            let moved =
                self.step(step.mesh_dim, &step.to, step.op).map_err(|why| format!("{step}: {why}"))?;
            let moved: Vec<u64> = moved.iter().map(|&elements| elements as u64 * bytes_each).collect();
            let expected: Vec<u64> = foretold.iter().map(|steps| steps[i]).collect();
            if moved != expected || moved.iter().max() != Some(&step.bytes) {
                return Err(format!("{step}: ranks copied {moved:?}, and {expected:?} was foretold"));
            }
            if plan.states()[i + 1] != self.placements {
                return Err(format!("{step}: the plan is at {:?}", plan.states()[i + 1]));
            }
        }
        Ok(())
    }
}

fn truth(element: usize) -> i64 {
    hash(&[element])
}
