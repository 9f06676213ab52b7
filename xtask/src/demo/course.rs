//! Which way tensors go: the meshes that all ranks make, and on each a chain of placements.

use std::fmt;

use comm_core::Result;
use comm_group::placement::Placement::{self, Partial, Replicate, Shard};
use comm_group::{DeviceMesh, ReduceOp};

use super::weights::Spec;

const SUM: Placement = Partial(ReduceOp::Sum);

/// The chain on one mesh dimension. Every placement comes from another one by another operation.
const LINE: [[Placement; 1]; 8] =
    [[Replicate], [Shard(0)], [Shard(1)], [Replicate], [SUM], [Shard(0)], [Replicate], [Shard(1)]];

/// The chain on two: nested shards turned round, two dimensions of the mesh on one of the tensor, sums of sums.
const GRID: [[Placement; 2]; 8] = [
    [Shard(0), Shard(1)],
    [Shard(1), Shard(0)],
    [Shard(0), Shard(0)],
    [Replicate, Replicate],
    [Replicate, SUM],
    [SUM, Shard(0)],
    [SUM, SUM],
    [Replicate, Shard(0)],
];

/// A mesh of all ranks, and what tensors go through on it.
#[derive(Debug)]
pub struct Course {
    /// The mesh.
    pub mesh: DeviceMesh,
    /// Every step that some tensor takes, in the order of the table.
    pub steps: Vec<Step>,
}

/// What is done to a tensor at once. The lists have a placement for each dimension of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// One rank has it, and it comes to lie on the mesh like this.
    Distribute(Vec<Placement>),
    /// It comes to lie otherwise.
    Convert(Vec<Placement>, Vec<Placement>),
    /// It lies like this, and one rank gets the whole.
    Collect(Vec<Placement>),
}

/// What a chain asks of a tensor: which of its dimensions are cut, and whether it is summed.
#[derive(Debug, Clone, Copy)]
struct Kind {
    dims: usize,
    is_reducible: bool,
}

/// Whether there are sums of the tensor's dtype, and so contributions to one.
pub fn is_reducible(spec: &Spec) -> bool {
    ReduceOp::Sum.check(spec.dtype).is_ok()
}

/// All meshes of so many ranks: a line, and a grid if their number is a product.
///
/// # Errors
/// What the library said.
pub fn courses(ranks: usize) -> Result<Vec<Course>> {
    let mut shapes = vec![vec![ranks]];
    shapes.extend(grid(ranks).map(|grid| grid.to_vec()));
    shapes.iter().map(|shape| Course::new(shape)).collect()
}

/// The grid of so many ranks that is nearest to a square, with the longer side first.
pub fn grid(ranks: usize) -> Option<[usize; 2]> {
    let columns = (2..).take_while(|n| n * n <= ranks).filter(|n| ranks.is_multiple_of(*n)).last()?;
    Some([ranks / columns, columns])
}

impl Course {
    fn new(shape: &[usize]) -> Result<Course> {
        let ids = 0..shape.iter().product::<usize>();
        let mut course = Course { mesh: DeviceMesh::new(shape, ids.collect())?, steps: Vec::new() };
        // Those of a tensor that takes all come first, so that the table tells the chain.
        for dims in [2, 1, 0] {
            for is_reducible in [true, false] {
                for step in course.walk(Kind { dims, is_reducible }) {
                    if !course.steps.contains(&step) {
                        course.steps.push(step);
                    }
                }
            }
        }
        course.steps.sort_by_key(|step| match step {
            Step::Distribute(_) => 0,
            Step::Convert(..) => 1,
            Step::Collect(_) => 2,
        });
        Ok(course)
    }

    /// The mesh in words: `4`, `2x2`.
    pub fn name(&self) -> String {
        self.mesh.shape().iter().map(usize::to_string).collect::<Vec<_>>().join("x")
    }

    /// The steps of one tensor, each beginning where the last one ended.
    pub fn steps_of(&self, spec: &Spec) -> Vec<Step> {
        self.walk(Kind { dims: spec.shape.len(), is_reducible: is_reducible(spec) })
    }

    fn walk(&self, kind: Kind) -> Vec<Step> {
        let chain = if self.mesh.ndim() == 1 { kind.chain(&LINE) } else { kind.chain(&GRID) };
        let (first, last) = (chain.first().cloned(), chain.last().cloned());
        let converted = chain.windows(2).map(|pair| Step::Convert(pair[0].clone(), pair[1].clone()));
        let distributed = first.map(Step::Distribute).into_iter();
        distributed.chain(converted).chain(last.map(Step::Collect)).collect()
    }
}

impl Kind {
    /// What is left of a chain when all that cannot be is left out.
    fn chain<const N: usize>(self, all: &[[Placement; N]]) -> Vec<Vec<Placement>> {
        let can_be = |placement: &Placement| match placement {
            Partial(_) => self.is_reducible,
            other => other.sharded_dim().is_none_or(|dim| dim < self.dims),
        };
        let possible = all.iter().filter(|placements| placements.iter().all(can_be));
        let mut chain: Vec<Vec<Placement>> = possible.map(|placements| placements.to_vec()).collect();
        chain.dedup();
        chain
    }
}

impl Step {
    /// Whether there are contributions to a sum before it, and so values afterwards that have been added up.
    pub fn sums_up(&self) -> bool {
        match self {
            Step::Distribute(_) => false,
            Step::Convert(from, _) | Step::Collect(from) => is_partial(from),
        }
    }

    /// Whether there are contributions to a sum before it or after it.
    pub fn has_sums(&self) -> bool {
        match self {
            Step::Distribute(to) | Step::Convert(_, to) if is_partial(to) => true,
            step => step.sums_up(),
        }
    }
}

fn is_partial(placements: &[Placement]) -> bool {
    placements.iter().any(|placement| placement.reduction().is_some())
}

/// `R -> S(0)`, `distribute -> [S(0), S(1)]`, `[R, S(0)] -> collect`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |placements: &[Placement]| match placements {
            [one] => one.to_string(),
            several => {
                format!("[{}]", several.iter().map(Placement::to_string).collect::<Vec<_>>().join(", "))
            }
        };
        match self {
            Step::Distribute(to) => write!(f, "distribute -> {}", list(to)),
            Step::Convert(from, to) => write!(f, "{} -> {}", list(from), list(to)),
            Step::Collect(from) => write!(f, "{} -> collect", list(from)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::tensor::DType;

    fn walks(ranks: usize, dtype: DType, shape: &[usize]) -> Vec<String> {
        let spec = Spec { name: "w".into(), dtype, shape: shape.to_vec(), bytes: 0 };
        let walk = |course: &Course| {
            let steps = course.steps_of(&spec);
            assert!(steps.iter().all(|step| course.steps.contains(step)));
            let ends: Vec<String> = steps.iter().map(Step::to_string).collect();
            ends.join("; ")
        };
        courses(ranks).unwrap().iter().map(walk).collect()
    }

    #[test]
    fn a_matrix_goes_all_the_way() {
        let [line, grid] = &walks(4, DType::F32, &[3, 5, 1])[..] else { panic!() };
        assert_eq!(
            line,
            "distribute -> R; R -> S(0); S(0) -> S(1); S(1) -> R; R -> P(sum); P(sum) -> S(0); S(0) -> R; R -> S(1); \
             S(1) -> collect"
        );
        assert_eq!(
            grid,
            "distribute -> [S(0), S(1)]; [S(0), S(1)] -> [S(1), S(0)]; [S(1), S(0)] -> [S(0), S(0)]; \
             [S(0), S(0)] -> [R, R]; [R, R] -> [R, P(sum)]; [R, P(sum)] -> [P(sum), S(0)]; \
             [P(sum), S(0)] -> [P(sum), P(sum)]; [P(sum), P(sum)] -> [R, S(0)]; [R, S(0)] -> collect"
        );
    }

    #[test]
    fn others_take_fewer_steps() {
        let line = |dtype, shape: &[usize]| walks(3, dtype, shape).concat();
        assert_eq!(
            line(DType::I8, &[0]),
            "distribute -> R; R -> S(0); S(0) -> R; R -> P(sum); P(sum) -> S(0); S(0) -> R; R -> collect"
        );
        assert_eq!(
            line(DType::Bool, &[3, 0]),
            "distribute -> R; R -> S(0); S(0) -> S(1); S(1) -> R; R -> S(0); S(0) -> R; R -> S(1); S(1) -> collect"
        );
        assert_eq!(line(DType::Complex64, &[]), "distribute -> R; R -> P(sum); P(sum) -> R; R -> collect");
        assert_eq!(line(DType::Bool, &[]), "distribute -> R; R -> collect");
        let grid = |dtype, shape: &[usize]| walks(6, dtype, shape).remove(1);
        assert!(grid(DType::F16, &[9]).starts_with("distribute -> [S(0), S(0)]; [S(0), S(0)] -> [R, R]; "));
        assert!(
            grid(DType::F16, &[]).ends_with("[R, P(sum)] -> [P(sum), P(sum)]; [P(sum), P(sum)] -> collect")
        );
        assert_eq!(grid(DType::Bool, &[]), "distribute -> [R, R]; [R, R] -> collect");
    }

    #[test]
    fn grids_are_near_to_squares() {
        for (ranks, expected) in
            [(4, [2, 2]), (6, [3, 2]), (8, [4, 2]), (12, [4, 3]), (62, [31, 2]), (64, [8, 8])]
        {
            assert_eq!(grid(ranks), Some(expected));
        }
        for ranks in [1, 2, 3, 5, 61] {
            assert_eq!(grid(ranks), None);
            assert_eq!(courses(ranks).unwrap().len(), 1);
        }
        let names: Vec<String> = courses(6).unwrap().iter().map(Course::name).collect();
        assert_eq!(names, ["6", "3x2"]);
    }

    #[test]
    fn the_table_begins_with_the_whole_chain_and_ends_with_collecting() {
        for course in courses(4).unwrap() {
            let whole = course.walk(Kind { dims: 2, is_reducible: true });
            let firsts: Vec<&Step> = course.steps.iter().filter(|step| whole.contains(step)).collect();
            assert_eq!(firsts, whole.iter().collect::<Vec<_>>());
            let is_collect = |step: &Step| matches!(step, Step::Collect(_));
            let first = course.steps.iter().position(is_collect).unwrap();
            assert!(course.steps[first..].iter().all(is_collect));
            assert!(course.steps.iter().any(Step::has_sums) && !course.steps[0].has_sums());
        }
    }
}
