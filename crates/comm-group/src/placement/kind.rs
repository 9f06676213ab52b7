//! What one mesh dimension does with a tensor.

use std::borrow::Borrow;
use std::fmt;

use comm_core::tensor::{DType, Layout, MAX_DIMS};
use comm_core::{Error, Result};

use super::mesh::DeviceMesh;
use super::split;
use crate::reduce::ReduceOp;

/// How a tensor lies along one dimension of a mesh. A tensor has one for each mesh dimension.
///
/// ```
/// use comm_group::{ReduceOp, placement::Placement};
///
/// let all = [
///     Placement::Replicate,
///     Placement::Shard(0),
///     Placement::SubSplit { dim: 0, cut: 3 },
///     Placement::Uneven { dim: 0, sizes: vec![2, 3, 4] },
///     Placement::Partial(ReduceOp::Sum),
/// ];
/// assert_eq!(all.map(|p| p.to_string()), ["R", "S(0)", "S(0, cut 3)", "S(0; 2,3,4)", "P(sum)"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// All ranks of the line hold the same.
    Replicate,
    /// The ranks of the line share out this tensor dimension: `n / W` elements each, the first `n % W` ranks one more. With
    /// fewer elements than ranks the last shards are empty. See [`shard_sizes`](crate::shard_sizes).
    Shard(usize),
    /// The tensor dimension is cut behind index `cut`, both parts are shared out as by [`Placement::Shard`], and a rank holds its
    /// piece of the front followed by its piece of the back. See [`replicate_to_shard`](crate::replicate_to_shard).
    #[doc(alias = "subSplitCoordinates")]
    SubSplit {
        /// The tensor dimension.
        dim: usize,
        /// The last index of the front, so that both parts are there: `0 < cut < n`. The back is empty if it is `n - 1`.
        cut: usize,
    },
    /// The ranks of the line share out the tensor dimension in sizes of the user's choice.
    Uneven {
        /// The tensor dimension.
        dim: usize,
        /// How many elements each rank of the line gets, 0 or more; their sum is what there is.
        sizes: Vec<usize>,
    },
    /// Each rank of the line holds a contribution, of which the operator makes the values.
    Partial(ReduceOp),
}

impl Placement {
    /// The tensor dimension that is shared out, if one is.
    pub fn sharded_dim(&self) -> Option<usize> {
        match *self {
            Placement::Shard(dim) | Placement::SubSplit { dim, .. } | Placement::Uneven { dim, .. } => {
                Some(dim)
            }
            Placement::Replicate | Placement::Partial(_) => None,
        }
    }

    /// The operator that makes values of contributions, if they are contributions.
    pub fn reduction(&self) -> Option<ReduceOp> {
        match *self {
            Placement::Partial(op) => Some(op),
            _ => None,
        }
    }

    /// Whether a line of so many ranks has nothing to do for it: what its only rank holds is the value, whatever it is called.
    /// One contribution to a premultiplied sum is not that sum.
    pub(super) fn is_only_a_name(&self, ranks: usize) -> bool {
        ranks == 1 && self.reduction().is_none_or(ReduceOp::keeps_one)
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Replicate => f.write_str("R"),
            Placement::Shard(dim) => write!(f, "S({dim})"),
            Placement::SubSplit { dim, cut } => write!(f, "S({dim}, cut {cut})"),
            Placement::Uneven { dim, sizes } => {
                write!(f, "S({dim}; ")?;
                for (i, size) in sizes.iter().enumerate() {
                    write!(f, "{}{size}", if i == 0 { "" } else { "," })?;
                }
                f.write_str(")")
            }
            Placement::Partial(op) => write!(f, "P({op})"),
        }
    }
}

/// Placements as a list: `[S(0), R]`.
pub(super) struct List<'a, P>(pub &'a [P]);

impl<P: Borrow<Placement>> fmt::Display for List<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, placement) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, placement.borrow())?;
        }
        f.write_str("]")
    }
}

/// Checks that a tensor of a global shape can lie on a mesh like this.
///
/// ```
/// use comm_group::placement::{DeviceMesh, Placement::{Replicate, Shard, Uneven}, validate};
///
/// let mesh = DeviceMesh::new(&[2, 3], (0..6).collect())?;
/// validate(&[4, 9], &mesh, &[Shard(1), Replicate])?;
/// validate(&[4, 9], &mesh, &[Shard(0), Shard(0)])?; // two elements on three ranks
///
/// let why = validate(&[4, 9], &mesh, &[Replicate, Uneven { dim: 1, sizes: vec![2, 3, 5] }]).unwrap_err();
/// assert!(why.to_string().contains("the sizes sum to 10, and there are 9 elements"));
/// # Ok::<(), comm_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if there is not one placement for each mesh dimension; if one names a tensor dimension that is not
/// there; if a cut does not lie inside what it cuts; if uneven sizes are not one for each rank of a line or do not sum to what
/// they share out; if the tensor itself is impossible (more than 16 dimensions, sizes beyond 63 bits). A tensor dimension that an
/// earlier mesh dimension has split is judged piece by piece: a cut or sizes must be right for all of them.
pub fn validate(shape: &[usize], mesh: &DeviceMesh, placements: &[Placement]) -> Result<()> {
    check("validate", shape, mesh, placements)
}

pub(super) fn check(
    op: &'static str,
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<()> {
    if shape.len() > MAX_DIMS {
        return Err(Error::invalid(op, format!("{} dimensions; a tensor has up to {MAX_DIMS}", shape.len())));
    }
    if Layout::contiguous(shape).is_err() {
        return Err(Error::invalid(op, format!("a tensor of shape {shape:?} does not fit into 63 bits")));
    }
    if placements.len() != mesh.ndim() {
        let (n, dims) = (placements.len(), mesh.ndim());
        return Err(Error::invalid(op, format!("{n} placements, and the mesh has {dims} dimensions")));
    }
    for (at, placement) in placements.iter().enumerate() {
        if placement.sharded_dim().is_some_and(|dim| dim >= shape.len()) {
            let why = format!("a tensor of shape {shape:?} has no such dimension");
            return Err(Error::invalid(op, format!("{placement} on mesh dimension {at}: {why}")));
        }
    }
    for dim in 0..shape.len() {
        split::lengths(shape, mesh, placements, dim, mesh.ndim()).map_err(|why| Error::invalid(op, why))?;
    }
    Ok(())
}

/// Checks that all bytes of a tensor can be counted.
pub(super) fn check_bytes(op: &'static str, shape: &[usize], dtype: DType) -> Result<()> {
    let mut sizes = shape.to_vec();
    sizes.push(dtype.size());
    let bytes =
        sizes.iter().filter(|&&n| n > 0).try_fold(1isize, |all, &n| all.checked_mul(n.try_into().ok()?));
    match bytes {
        Some(_) => Ok(()),
        None => Err(Error::invalid(
            op,
            format!("the bytes of {shape:?} elements of {dtype} do not fit into 63 bits"),
        )),
    }
}

/// Whether contributions to a reduction can be made of a value: one rank keeps it and the others hold what changes nothing, or
/// all keep it.
pub(super) fn can_begin(op: ReduceOp, dtype: DType) -> bool {
    match op {
        ReduceOp::Avg => op.check(dtype).is_ok(),
        _ => matches!(op.identity(dtype), Ok(Some(_))),
    }
}

/// Checks that contributions can be made of values, where these placements ask for some of several ranks.
pub(super) fn can_contribute(mesh: &DeviceMesh, placements: &[Placement], dtype: DType) -> Result<()> {
    for (placement, &ranks) in placements.iter().zip(mesh.shape()) {
        let Some(op) = placement.reduction() else { continue };
        op.check(dtype)?;
        if !placement.is_only_a_name(ranks) && !can_begin(op, dtype) {
            let why = format!("{op} of {dtype} has no element that changes nothing");
            return Err(Error::Unsupported {
                backend: "the planner",
                op: format!("{placement} of a value"),
                why,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Placement::{Partial, Replicate, Shard, SubSplit, Uneven};

    fn why(shape: &[usize], mesh: &[usize], placements: &[Placement]) -> String {
        let mesh = DeviceMesh::new(mesh, (0..mesh.iter().product::<usize>()).collect()).unwrap();
        match validate(shape, &mesh, placements) {
            Ok(()) => String::new(),
            Err(Error::InvalidArgument { op: "validate", why }) => why,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_fits_is_taken() {
        let uneven = |sizes: &[usize]| Uneven { dim: 0, sizes: sizes.to_vec() };
        assert_eq!(why(&[], &[2], &[Replicate]), "");
        assert_eq!(why(&[], &[], &[]), "");
        assert_eq!(why(&[0, 3], &[2, 2], &[Shard(0), Shard(1)]), "");
        assert_eq!(why(&[5], &[2, 2], &[Partial(ReduceOp::Sum), Shard(0)]), "");
        assert_eq!(why(&[9], &[3], &[uneven(&[0, 9, 0])]), "");
        assert_eq!(why(&[8], &[2, 2], &[Shard(0), uneven(&[1, 3])]), "", "all pieces have 4");
        assert_eq!(why(&[7], &[2, 2], &[Shard(0), SubSplit { dim: 0, cut: 2 }]), "", "pieces of 4 and 3");
        assert_eq!(why(&[4], &[2], &[SubSplit { dim: 0, cut: 3 }]), "", "the back may be empty");
    }

    #[test]
    fn what_does_not_fit_says_why() {
        let uneven = |sizes: &[usize]| Uneven { dim: 0, sizes: sizes.to_vec() };
        type Case<'a> = (&'a [usize], &'a [usize], Vec<Placement>, &'a str);
        let cases: [Case; 11] = [
            (&[4], &[2], vec![], "0 placements, and the mesh has 1 dimensions"),
            (&[4], &[2], vec![Shard(0), Shard(0)], "2 placements"),
            (&[4], &[2], vec![Shard(1)], "S(1) on mesh dimension 0: a tensor of shape [4] has no such"),
            (&[], &[2], vec![Shard(0)], "no such dimension"),
            (&[4], &[2], vec![SubSplit { dim: 0, cut: 0 }], "S(0, cut 0) on mesh dimension 0"),
            (&[4], &[2], vec![SubSplit { dim: 0, cut: 4 }], "0 < cut < 4"),
            (&[0], &[2], vec![SubSplit { dim: 0, cut: 1 }], "there is nothing to cut"),
            (&[7], &[2, 2], vec![Shard(0), SubSplit { dim: 0, cut: 3 }], "0 < cut < 3"),
            (&[4], &[3], vec![uneven(&[1, 3])], "2 sizes for 3 ranks"),
            (&[7], &[2, 2], vec![Shard(0), uneven(&[1, 3])], "the sizes sum to 4, and there are 3 elements"),
            (&[usize::MAX], &[1], vec![Replicate], "63 bits"),
        ];
        for (shape, mesh, placements, expected) in cases {
            let why = why(shape, mesh, &placements);
            assert!(why.contains(expected), "{shape:?} {placements:?}: {why:?}");
        }
        assert!(why(&[1; 17], &[1], &[Replicate]).contains("16"));
        let sizes = [usize::MAX, 5];
        assert!(why(&[4], &[2], &[uneven(&sizes)]).contains("the sizes sum to more than"));
    }

    #[test]
    fn bytes_are_counted_with_care() {
        assert!(check_bytes("plan", &[1 << 61], DType::U8).is_ok());
        assert!(check_bytes("plan", &[1 << 61], DType::F32).is_err());
        assert!(check_bytes("plan", &[0, 1 << 62], DType::F64).is_err(), "as tensors do, zero sizes or not");
    }
}
