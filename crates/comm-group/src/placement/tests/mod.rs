//! Plans held against a simulator that knows nothing of how they are made.

mod conversions;
mod optimal;
mod properties;
mod simulator;

use super::{DeviceMesh, Placement};
use crate::ReduceOp;

/// The operators that contributions are tried with; the simulator knows what they do by their names.
const OPS: &[ReduceOp] = &[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Prod];

fn mesh(shape: &[usize]) -> DeviceMesh {
    // Ids that are no ranks.
    DeviceMesh::new(shape, (0..shape.iter().product::<usize>()).map(|id| 5000 - 7 * id).collect()).unwrap()
}

/// All lists with one of `choices` for each of `n`.
fn lists(choices: &[Placement], n: usize) -> Vec<Vec<Placement>> {
    (0..n).fold(vec![vec![]], |lists, _| {
        let longer = |list: &Vec<Placement>| -> Vec<Vec<Placement>> {
            choices.iter().map(|choice| [&list[..], std::slice::from_ref(choice)].concat()).collect()
        };
        lists.iter().flat_map(longer).collect()
    })
}

/// R, S of each tensor dimension, and P of two operators, which is as many as can differ.
fn plain(ndim: usize) -> Vec<Placement> {
    let mut all = vec![Placement::Replicate];
    all.extend((0..ndim).map(Placement::Shard));
    all.extend(OPS.iter().take(2).map(|&op| Placement::Partial(op)));
    all
}
