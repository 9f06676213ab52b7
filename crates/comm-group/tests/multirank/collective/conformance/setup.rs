//! What a combination calls: the operation with its arguments, and which cells each rank brings.
//!
//! An input is made of cells, and a cell of one element or of many, next to each other but for a last dimension. What an
//! operation does to cells is worked out once for inputs of all sizes and dtypes.

use comm_testkit::oracle::Dense;
use comm_testkit::values::SplitMix64;

use super::factors::{Combination, Dim, Root, Split, View};
use super::operation::{Operation, Subject};
use crate::call::{Call, Operator};
use crate::support::Any;

/// A cell, by who brings it and where it lies there; or, for all that is combined, [`ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub rank: usize,
    pub index: usize,
}

/// The rank of a cell that is combined from those of all.
pub const ALL: usize = usize::MAX;

/// What a combination calls, whatever elements are.
pub struct Setup {
    /// With cells of one element, and of several, which are a second dimension.
    call: Call,
    spread: Call,
    /// What each rank brings.
    pub inputs: Vec<Dense<Cell>>,
    /// What each rank must get.
    pub expected: Vec<Vec<Dense<Cell>>>,
}

impl Setup {
    pub fn of(c: &Combination, world: usize, rng: &mut SplitMix64) -> Any<Setup> {
        let plan = Plan::of(c, world, rng);
        let cell = |rank: usize| {
            let shape = &plan.shapes[rank];
            let repeated = repeated(c.view, shape.len());
            // Replicas are the same on all ranks.
            let rank = if c.subject.operation == Operation::Shard { 0 } else { rank };
            Dense::from_fn(shape, |index| {
                let place = |at, (dim, n): (usize, &usize)| {
                    at * n + if repeated == Some(dim) { 0 } else { index[dim] }
                };
                Cell { rank, index: shape.iter().enumerate().fold(0, place) }
            })
        };
        let inputs: Vec<Dense<Cell>> = (0..world).map(cell).collect();
        let last = c.view.dims().saturating_sub(1);
        let call = plan.call(c, world, last);
        let expected = call.expected_by(&inputs, |_: Operator| {
            let all = inputs[0].data.iter().map(|cell| Cell { rank: ALL, ..*cell }).collect();
            Ok(Dense { shape: inputs[0].shape.clone(), data: all })
        })?;
        let spread = plan.call(c, world, if last == 0 { 0 } else { last + 1 });
        Ok(Setup { call, spread, inputs, expected })
    }

    /// The call, where cells are of one element, or of several.
    pub fn call(&self, several: bool) -> &Call {
        if several { &self.spread } else { &self.call }
    }

    /// The most cells that a rank brings.
    pub fn most(&self) -> usize {
        self.inputs.iter().map(|input| input.data.len()).max().unwrap_or(0)
    }
}

/// The dimension of a view along which all is the same.
pub fn repeated(view: View, dims: usize) -> Option<usize> {
    match view {
        View::Expanded => Some(0),
        View::Mixed => dims.checked_sub(1),
        _ => None,
    }
}

/// Shapes in cells, and sizes.
struct Plan {
    shapes: Vec<Vec<usize>>,
    /// Of the shards that come out.
    sizes: Option<Vec<usize>>,
    sub_split: Option<usize>,
    /// `rows[from][to]`
    rows: Vec<Vec<usize>>,
}

impl Plan {
    fn of(c: &Combination, world: usize, rng: &mut SplitMix64) -> Plan {
        let shape = match c.view {
            View::Empty => vec![0],
            View::EmptyInside => vec![3, 0, 3],
            view => vec![3; view.dims()],
        };
        let mut plan = Plan { shapes: vec![shape; world], sizes: None, sub_split: None, rows: Vec::new() };
        if c.view == View::Empty {
            plan.rows = vec![vec![0; world]; world];
            return plan;
        }
        let dims: Vec<usize> = c.dims.iter().map(|&dim| at(dim, c.view.dims() - 1)).collect();
        match (c.subject.operation, &dims[..]) {
            (Operation::AllGather | Operation::Gather, &[dim]) => plan.join(dim, c.split, rng),
            (Operation::AllGatherVec, _) if c.view.dims() > 0 => plan.join(0, c.split, rng),
            (Operation::Shard, &[dim]) if c.split == Split::Given => {
                plan.shapes.iter_mut().for_each(|shape| shape[dim] = world + 2);
                plan.sub_split = Some(1 + rng.below(world as u64 + 1) as usize);
            }
            (Operation::ReduceScatter | Operation::Scatter | Operation::Shard, &[dim]) => {
                plan.cut(dim, c.split, rng);
            }
            (Operation::AllToAll, &[from, to]) if from == to => {
                plan.join(from, c.split, rng);
                let total = plan.shapes.iter().map(|shape| shape[from]).sum();
                plan.sizes = (c.split == Split::Given).then(|| turned(total, world));
            }
            (Operation::AllToAll, &[from, to]) => {
                plan.cut(to, c.split, rng);
                plan.join(from, c.split, rng);
            }
            (Operation::Rows, _) if c.split == Split::Even => {
                plan.rows = vec![vec![1; world]; world];
                plan.shapes.iter_mut().for_each(|shape| shape[0] = world);
            }
            (Operation::Rows, _) => {
                plan.rows = (0..world).map(|_| uneven(world, rng)).collect();
                for (shape, row) in plan.shapes.iter_mut().zip(&plan.rows) {
                    shape[0] = row.iter().sum();
                }
            }
            _ => {}
        }
        plan
    }

    /// Inputs that are shards along a dimension.
    fn join(&mut self, dim: usize, split: Split, rng: &mut SplitMix64) {
        let world = self.shapes.len();
        let sizes = match split {
            Split::Given => uneven(world, rng),
            // One more than the others where the rule would not have it.
            Split::Rule => (0..world).map(|rank| 1 + usize::from(rank + 1 == world)).collect(),
            Split::None | Split::Even => vec![1; world],
        };
        self.shapes.iter_mut().zip(sizes).for_each(|(shape, size)| shape[dim] = size);
    }

    /// Results that are shards along a dimension.
    fn cut(&mut self, dim: usize, split: Split, rng: &mut SplitMix64) {
        let world = self.shapes.len();
        let total = match split {
            Split::Given => {
                let sizes = uneven(world, rng);
                let total = sizes.iter().sum();
                self.sizes = Some(sizes);
                total
            }
            Split::Rule => world + 1,
            Split::None | Split::Even => world,
        };
        self.shapes.iter_mut().for_each(|shape| shape[dim] = total);
    }

    /// The call, where the last dimension has this number.
    fn call(&self, c: &Combination, world: usize, last: usize) -> Call {
        let root = if c.root == Root::Last { world - 1 } else { 0 };
        let dim = |i: usize| c.dims.get(i).map_or(0, |&dim| at(dim, last));
        let sizes = self.sizes.clone();
        let Subject { operation, operator } = c.subject;
        let op = operator.unwrap_or(crate::call::SUM);
        match operation {
            Operation::Barrier => Call::Barrier,
            Operation::AllReduce => Call::AllReduce(op),
            Operation::Reduce => Call::Reduce(op, root),
            Operation::ReduceScatter => Call::ReduceScatter(op, dim(0), sizes),
            Operation::AllGather => Call::AllGather(dim(0)),
            Operation::AllGatherEqual => Call::AllGatherEqual,
            Operation::AllGatherVec => Call::AllGatherVec,
            Operation::Gather => Call::Gather(dim(0), root),
            Operation::Broadcast => Call::Broadcast(root),
            Operation::Scatter => Call::Scatter(dim(0), root, sizes),
            Operation::AllToAll => Call::AllToAll(dim(0), dim(1), sizes),
            Operation::Rows => Call::Rows(self.rows.clone()),
            Operation::Shard => Call::Shard(dim(0), self.sub_split),
            Operation::Send => Call::Send(root, (root + 1) % world),
            Operation::Exchange => Call::Exchange,
        }
    }
}

fn at(dim: Dim, last: usize) -> usize {
    if dim == Dim::First { 0 } else { last }
}

/// Nothing, two and one by turns; something for one alone.
fn uneven(world: usize, rng: &mut SplitMix64) -> Vec<usize> {
    let first = if world == 1 { 1 } else { rng.below(3) as usize };
    (0..world).map(|rank| [0, 2, 1][(first + rank) % 3]).collect()
}

/// All of it for the last but what goes to the first.
fn turned(total: usize, world: usize) -> Vec<usize> {
    let mut sizes = vec![0; world];
    sizes[0] = total / 3;
    sizes[world - 1] += total - total / 3;
    sizes
}
