//! Which elements a rank holds.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Range;

use comm_core::{Error, Result};

use super::blocks::Ranges;
use super::kind::{List, Placement, check};
use super::mesh::DeviceMesh;
use super::split;

/// The global indices that a rank holds along each tensor dimension: it holds every element whose indices are all
/// among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// For each tensor dimension ascending ranges with gaps between them, none empty.
    dims: Vec<Vec<Range<usize>>>,
}

impl Extent {
    /// The global indices along a tensor dimension, in the order in which the local tensor has them: ascending ranges, none
    /// empty, with gaps between them. There are several if a sub-split is among the placements, none if the shard is empty,
    /// and `None` is returned if the tensor has no such dimension.
    pub fn ranges(&self, dim: usize) -> Option<&[Range<usize>]> {
        self.dims.get(dim).map(Vec::as_slice)
    }

    /// The ranges of all tensor dimensions.
    pub(super) fn dims(&self) -> &Ranges {
        &self.dims
    }

    /// The shape of the local tensor.
    #[doc(alias = "localShape")]
    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(|ranges| len(ranges)).collect()
    }

    /// How many elements the local tensor has.
    pub fn numel(&self) -> usize {
        self.dims.iter().map(|ranges| len(ranges)).product()
    }

    /// How many elements this and another extent of the same tensor have in common.
    ///
    /// ```
    /// use comm_group::placement::{DeviceMesh, Placement::Shard, extent};
    ///
    /// let mesh = DeviceMesh::new(&[2], vec![0, 1])?;
    /// let rows = extent(&[4, 6], &mesh, &[Shard(0)], &[0])?;
    /// let columns = extent(&[4, 6], &mesh, &[Shard(1)], &[1])?;
    /// assert_eq!(rows.common(&columns), 2 * 3);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn common(&self, other: &Extent) -> usize {
        self.dims.iter().zip(&other.dims).map(|(a, b)| common(a, b)).product()
    }
}

/// What the rank at a coordinate holds. Where the placement is [`Placement::Partial`], these are the elements that it has a
/// contribution to.
///
/// Several mesh dimensions may split one tensor dimension: the first splits it, and each later one splits the pieces.
///
/// ```
/// use comm_group::placement::{DeviceMesh, Placement::{Shard, SubSplit}, extent};
///
/// let mesh = DeviceMesh::new(&[2, 2], (0..4).collect())?;
/// let nested = extent(&[10, 3], &mesh, &[Shard(0), Shard(0)], &[1, 0])?;
/// assert_eq!(nested.ranges(0), Some(&[5..8][..]));
/// assert_eq!(nested.shape(), [3, 3]);
///
/// let balanced = extent(&[8, 3], &mesh, &[SubSplit { dim: 0, cut: 3 }, Shard(1)], &[1, 0])?;
/// assert_eq!(balanced.ranges(0), Some(&[2..4, 6..8][..]));
/// assert_eq!(balanced.shape(), [4, 2]);
/// # Ok::<(), comm_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if the placements are impossible (see [`validate`](super::validate)) or there is no such coordinate.
pub fn extent(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[Placement],
    coordinate: &[usize],
) -> Result<Extent> {
    checked("extent", shape, mesh, placements, coordinate)
}

/// The shape of the local tensor of the rank at a coordinate: that of [`extent`].
///
/// ```
/// use comm_group::placement::{DeviceMesh, Placement::{Replicate, Shard}, local_shape};
///
/// let mesh = DeviceMesh::new(&[3, 2], (0..6).collect())?;
/// assert_eq!(local_shape(&[7, 4], &mesh, &[Shard(0), Replicate], &[0, 1])?, [3, 4]);
/// assert_eq!(local_shape(&[7, 4], &mesh, &[Shard(0), Shard(1)], &[2, 1])?, [2, 2]);
/// # Ok::<(), comm_core::Error>(())
/// ```
///
/// # Errors
/// As [`extent`].
#[doc(alias = "localShape")]
pub fn local_shape(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[Placement],
    coordinate: &[usize],
) -> Result<Vec<usize>> {
    Ok(checked("local_shape", shape, mesh, placements, coordinate)?.shape())
}

/// Checks that a local tensor has the shape that the placements give the rank at a coordinate.
///
/// A tensor that is shared out in other sizes than by the rule is not [`Placement::Shard`]; [`Placement::Uneven`] says its sizes.
///
/// ```
/// use comm_group::placement::{DeviceMesh, Placement::{Shard, Uneven}, check_local_shape};
///
/// let mesh = DeviceMesh::new(&[2], vec![0, 1])?;
/// assert!(check_local_shape(&[5, 4], &mesh, &[Shard(0)], &[0], &[3, 4]).is_ok());
///
/// let wrong = check_local_shape(&[5, 4], &mesh, &[Shard(0)], &[0], &[1, 4]).unwrap_err();
/// assert!(wrong.to_string().contains("is [3, 4], not [1, 4]"));
/// let uneven = Uneven { dim: 0, sizes: vec![1, 4] };
/// assert!(check_local_shape(&[5, 4], &mesh, &[uneven], &[0], &[1, 4]).is_ok());
/// # Ok::<(), comm_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`], which says what the shape should be; and as [`extent`].
pub fn check_local_shape(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[Placement],
    coordinate: &[usize],
    local: &[usize],
) -> Result<()> {
    const OP: &str = "check_local_shape";
    let right = checked(OP, shape, mesh, placements, coordinate)?.shape();
    if right == local {
        return Ok(());
    }
    let placed = List(placements);
    let differs = |placement: &Placement| match placement.sharded_dim() {
        Some(dim) => right.len() != local.len() || right[dim] != local[dim],
        None => false,
    };
    let hint =
        if placements.iter().any(differs) { "; sizes of one's own are a placement Uneven" } else { "" };
    let what = format!("the shard of {shape:?} at {coordinate:?} under {placed}");
    Err(Error::invalid(OP, format!("{what} is {right:?}, not {local:?}{hint}")))
}

fn checked(
    op: &'static str,
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[Placement],
    coordinate: &[usize],
) -> Result<Extent> {
    check(op, shape, mesh, placements)?;
    mesh.check_coordinate(op, coordinate)?;
    Ok(held(shape, mesh, placements, coordinate))
}

/// The extent at a coordinate, of placements that have been checked.
pub(super) fn held<P: Borrow<Placement>>(
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[P],
    coordinate: &[usize],
) -> Extent {
    let mut dims: Vec<Vec<Range<usize>>> =
        shape.iter().map(|&n| Vec::from_iter((n > 0).then_some(0..n))).collect();
    for ((placement, &ranks), &index) in placements.iter().map(P::borrow).zip(mesh.shape()).zip(coordinate) {
        let Some(dim) = placement.sharded_dim() else { continue };
        let runs = split::piece(placement, len(&dims[dim]), ranks, index);
        dims[dim] = runs.iter().fold(Vec::new(), |picked, run| pick(picked, &dims[dim], run));
    }
    Extent { dims }
}

/// Appends to `picked` what stands in `ranges` at the positions of `run`.
fn pick(mut picked: Vec<Range<usize>>, ranges: &[Range<usize>], run: &Range<usize>) -> Vec<Range<usize>> {
    let mut passed = 0;
    for range in ranges {
        let from = run.start.clamp(passed, passed + range.len()) - passed;
        let to = run.end.clamp(passed, passed + range.len()) - passed;
        passed += range.len();
        if from >= to {
            continue;
        }
        let (from, to) = (range.start + from, range.start + to);
        match picked.last_mut() {
            Some(last) if last.end == from => last.end = to,
            _ => picked.push(from..to),
        }
    }
    picked
}

fn len(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(Range::len).sum()
}

/// How many indices two ascending lists of ranges have in common.
fn common(a: &[Range<usize>], b: &[Range<usize>]) -> usize {
    let (mut i, mut j, mut sum) = (0, 0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        sum += x.end.min(y.end).saturating_sub(x.start.max(y.start));
        if x.end <= y.end { i += 1 } else { j += 1 }
    }
    sum
}

/// The ranges of each dimension: `[0..3, 4..6] x [0..8]`.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dims.is_empty() {
            return f.write_str("[]");
        }
        for (i, ranges) in self.dims.iter().enumerate() {
            write!(f, "{}{ranges:?}", if i == 0 { "" } else { " x " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;
    use Placement::{Partial, Replicate, Shard, SubSplit, Uneven};

    fn mesh(shape: &[usize]) -> DeviceMesh {
        DeviceMesh::new(shape, (0..shape.iter().product::<usize>()).collect()).unwrap()
    }

    fn rows(n: usize, shape: &[usize], placements: &[Placement]) -> Vec<String> {
        let mesh = mesh(shape);
        let show = |at: Vec<usize>| extent(&[n], &mesh, placements, &at).unwrap().to_string();
        mesh.coordinates().map(show).collect()
    }

    #[test]
    fn sub_splits_hold_two_ranges() {
        let cut = |cut| [SubSplit { dim: 0, cut }];
        assert_eq!(rows(8, &[2], &cut(3)), ["[0..2, 4..6]", "[2..4, 6..8]"]);
        assert_eq!(rows(9, &[2], &cut(4)), ["[0..3, 5..7]", "[3..5, 7..9]"]);
        assert_eq!(rows(10, &[3], &cut(5)), ["[0..2, 6..8]", "[2..4, 8..9]", "[4..6, 9..10]"]);
        assert_eq!(rows(4, &[2], &cut(3)), ["[0..2]", "[2..4]"]);
        assert_eq!(rows(5, &[1], &cut(2)), ["[0..5]"], "one rank holds one range");
    }

    #[test]
    fn later_mesh_dimensions_split_pieces() {
        assert_eq!(rows(5, &[2, 2], &[Shard(0), Shard(0)]), ["[0..2]", "[2..3]", "[3..4]", "[4..5]"]);
        let cut_first = [SubSplit { dim: 0, cut: 3 }, Shard(0)];
        assert_eq!(rows(8, &[2, 2], &cut_first), ["[0..2]", "[4..6]", "[2..4]", "[6..8]"]);
        let cut_last = [Shard(0), SubSplit { dim: 0, cut: 1 }];
        assert_eq!(
            rows(8, &[2, 2], &cut_last),
            ["[0..1, 2..3]", "[1..2, 3..4]", "[4..5, 6..7]", "[5..6, 7..8]"]
        );
        let three = [SubSplit { dim: 0, cut: 3 }, SubSplit { dim: 0, cut: 2 }];
        assert_eq!(rows(8, &[2, 2], &three), ["[0..2, 5..6]", "[4..5]", "[2..4, 7..8]", "[6..7]"]);
    }

    #[test]
    fn placements_that_share_nothing_out_hold_all() {
        let all = [Replicate, Partial(ReduceOp::Sum)];
        assert_eq!(rows(5, &[1, 2], &all), ["[0..5]", "[0..5]"]);
        assert_eq!(rows(0, &[1, 2], &all), ["[]", "[]"]);
        assert_eq!(rows(1, &[3], &[Shard(0)]), ["[0..1]", "[]", "[]"]);
        assert_eq!(rows(9, &[3], &[Uneven { dim: 0, sizes: vec![4, 0, 5] }]), ["[0..4]", "[]", "[4..9]"]);
        let scalar = extent(&[], &mesh(&[2]), &[Replicate], &[1]).unwrap();
        assert_eq!((scalar.numel(), scalar.to_string(), scalar.ranges(0)), (1, "[]".into(), None));
    }

    #[test]
    fn common_elements_are_counted() {
        let list = |ranges: &[(usize, usize)]| ranges.iter().map(|&(a, b)| a..b).collect::<Vec<_>>();
        let (a, b) = (list(&[(0, 3), (5, 9), (10, 11)]), list(&[(2, 6), (8, 20)]));
        assert_eq!(common(&a, &b), 1 + 1 + 1 + 1);
        assert_eq!(common(&b, &a), 4);
        assert_eq!(common(&a, &[]), 0);
        assert_eq!(common(&a, &a), 8);
    }

    #[test]
    fn a_shape_off_the_rule_is_refused_and_told_how() {
        let mesh = mesh(&[2, 2]);
        let why = |placements: &[Placement], local: &[usize]| {
            check_local_shape(&[5, 4], &mesh, placements, &[0, 1], local).unwrap_err().to_string()
        };
        let text = why(&[Shard(0), Replicate], &[2, 4]);
        assert!(
            text.contains("the shard of [5, 4] at [0, 1] under [S(0), R] is [3, 4], not [2, 4]"),
            "{text}"
        );
        assert!(text.contains("Uneven"), "{text}");
        assert!(!why(&[Shard(0), Replicate], &[3, 3]).contains("Uneven"), "it would not help");
        assert!(why(&[Shard(0), Replicate], &[3]).contains("not [3]"));
        assert!(check_local_shape(&[5, 4], &mesh, &[Shard(0), Replicate], &[2, 0], &[3, 4]).is_err());
        assert!(local_shape(&[5, 4], &mesh, &[Shard(2), Replicate], &[0, 0]).is_err());
    }
}
