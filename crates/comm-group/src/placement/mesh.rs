//! Devices in a grid.

use std::fmt;

use comm_core::{Error, Result};

/// Devices arranged in a grid of any number of dimensions, row-major: the last coordinate changes fastest.
///
/// A device is known by its id, by its coordinate, and by its rank, which is its position among the ids. There may be
/// no dimension at all, which makes a mesh of one device.
///
/// ```
/// use comm_group::placement::DeviceMesh;
///
/// let mesh = DeviceMesh::new(&[2, 4], (0..8).collect())?;
/// assert_eq!(mesh.coordinate_of(5)?, [1, 1]);
/// assert_eq!(mesh.id_at(&[1, 2])?, 6);
/// assert_eq!(mesh.line(0, 5)?.ids, [1, 5]);
/// assert!(DeviceMesh::new(&[2, 4], vec![0, 1]).is_err());
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct DeviceMesh {
    shape: Vec<usize>,
    ids: Vec<usize>,
    /// The ranks in the order of their ids, to find an id among any number of them.
    by_id: Vec<usize>,
}

/// The devices that differ from one device in one coordinate alone: those that turn a placement on that mesh dimension
/// into another, together.
#[doc(alias = "ThreadGroupInfo")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// Ids of the devices, by ascending coordinate.
    #[doc(alias = "GetAllDeviceIds")]
    pub ids: Vec<usize>,
    /// Which of the lines of its dimension this is. With the mesh seen as `[left, shape[dim], right]` it is
    /// `left index * right + right index`.
    #[doc(alias = "subGroupId")]
    pub index: usize,
    /// Where the device stands among `ids`: its rank in the group, and its coordinate along the dimension.
    pub position: usize,
}

impl DeviceMesh {
    /// A mesh of `shape`, whose devices are `ids` in row-major order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are as many ids as places, at least one, all different.
    pub fn new(shape: &[usize], ids: Vec<usize>) -> Result<DeviceMesh> {
        const OP: &str = "DeviceMesh::new";
        let places = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        if places != Some(ids.len()) {
            let places = places.map_or_else(|| "too many".to_owned(), |places| places.to_string());
            let why = format!("{} ids for a mesh of shape {shape:?}, which has {places} places", ids.len());
            return Err(Error::invalid(OP, why));
        }
        if ids.is_empty() {
            return Err(Error::invalid(OP, format!("a mesh of shape {shape:?} has no device")));
        }
        let mut by_id: Vec<usize> = (0..ids.len()).collect();
        by_id.sort_by_key(|&rank| ids[rank]);
        if let Some(twice) = by_id.windows(2).find(|pair| ids[pair[0]] == ids[pair[1]]) {
            return Err(Error::invalid(OP, format!("device {} is in the mesh twice", ids[twice[0]])));
        }
        Ok(DeviceMesh { shape: shape.to_vec(), ids, by_id })
    }

    /// How many dimensions it has.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// How many devices there are along each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The ids, in row-major order.
    #[doc(alias = "GetMesh")]
    pub fn ids(&self) -> &[usize] {
        &self.ids
    }

    /// How many devices there are; at least one.
    #[doc(alias = "Count")]
    pub fn size(&self) -> usize {
        self.ids.len()
    }

    /// Whether a device is in the mesh.
    pub fn contains(&self, id: usize) -> bool {
        self.find("DeviceMesh::contains", id).is_ok()
    }

    /// The rank of a device: its position among [`DeviceMesh::ids`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is not in the mesh.
    pub fn rank_of(&self, id: usize) -> Result<usize> {
        self.find("DeviceMesh::rank_of", id)
    }

    /// The coordinate of a device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is not in the mesh.
    pub fn coordinate_of(&self, id: usize) -> Result<Vec<usize>> {
        Ok(self.coordinate(self.find("DeviceMesh::coordinate_of", id)?))
    }

    /// The device at a coordinate.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the coordinate has another number of dimensions, or lies outside.
    pub fn id_at(&self, coordinate: &[usize]) -> Result<usize> {
        self.check_coordinate("DeviceMesh::id_at", coordinate)?;
        let rank = coordinate.iter().zip(&self.shape).fold(0, |rank, (&at, &size)| rank * size + at);
        Ok(self.ids[rank])
    }

    /// All coordinates, in the order of the ranks.
    ///
    /// ```
    /// use comm_group::placement::DeviceMesh;
    ///
    /// let mesh = DeviceMesh::new(&[1, 3], vec![7, 8, 9])?;
    /// assert_eq!(mesh.coordinates().collect::<Vec<_>>(), [[0, 0], [0, 1], [0, 2]]);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn coordinates(&self) -> impl Iterator<Item = Vec<usize>> {
        (0..self.size()).map(|rank| self.coordinate(rank))
    }

    /// The line through a device along a mesh dimension.
    ///
    /// ```
    /// use comm_group::placement::DeviceMesh;
    ///
    /// let cube = DeviceMesh::new(&[2, 2, 2], (0..8).collect())?;
    /// let line = cube.line(1, 5)?;
    /// assert_eq!((line.ids, line.index, line.position), (vec![5, 7], 3, 0));
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension or device.
    #[doc(alias = "ThreadGroupInfo")]
    #[doc(alias = "diffDim")]
    pub fn line(&self, dim: usize, id: usize) -> Result<Line> {
        const OP: &str = "DeviceMesh::line";
        let Some(&mid) = self.shape.get(dim) else {
            return Err(Error::invalid(OP, format!("dimension {dim} of a mesh of shape {:?}", self.shape)));
        };
        let rank = self.find(OP, id)?;
        let right: usize = self.shape[dim + 1..].iter().product();
        let (left_index, position, right_index) = (rank / right / mid, rank / right % mid, rank % right);
        let first = left_index * mid * right + right_index;
        let ids = (0..mid).map(|at| self.ids[first + at * right]).collect();
        Ok(Line { ids, index: left_index * right + right_index, position })
    }

    pub(super) fn check_coordinate(&self, op: &'static str, coordinate: &[usize]) -> Result<()> {
        let inside =
            coordinate.len() == self.ndim() && coordinate.iter().zip(&self.shape).all(|(at, n)| at < n);
        if inside {
            return Ok(());
        }
        Err(Error::invalid(op, format!("coordinate {coordinate:?} in a mesh of shape {:?}", self.shape)))
    }

    fn find(&self, op: &'static str, id: usize) -> Result<usize> {
        match self.by_id.binary_search_by_key(&id, |&rank| self.ids[rank]) {
            Ok(at) => Ok(self.by_id[at]),
            Err(_) => Err(Error::invalid(op, format!("device {id} is not in the {self}"))),
        }
    }

    fn coordinate(&self, rank: usize) -> Vec<usize> {
        let mut rest = rank;
        let mut coordinate = vec![0; self.ndim()];
        for (at, &size) in coordinate.iter_mut().zip(&self.shape).rev() {
            *at = rest % size;
            rest /= size;
        }
        coordinate
    }
}

/// The shape, and the ids as far as they fit on a line.
impl fmt::Display for DeviceMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        write!(f, "mesh {:?} of devices ", self.shape)?;
        for (i, id) in self.ids.iter().take(SHOWN).enumerate() {
            write!(f, "{}{id}", if i == 0 { "" } else { ", " })?;
        }
        if self.size() > SHOWN { write!(f, ", ... ({} in all)", self.size()) } else { Ok(()) }
    }
}

impl fmt::Debug for DeviceMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMesh").field("shape", &self.shape).field("ids", &self.ids).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(mesh: &DeviceMesh, dim: usize, id: usize) -> (usize, Vec<usize>) {
        let line = mesh.line(dim, id).unwrap();
        assert_eq!(line.ids[line.position], id);
        assert_eq!(line.position, mesh.coordinate_of(id).unwrap()[dim]);
        (line.index, line.ids)
    }

    #[test]
    fn lines_are_numbered_as_in_dtorch() {
        let mesh = DeviceMesh::new(&[2, 4], (0..8).collect()).unwrap();
        assert_eq!(line(&mesh, 0, 5), (1, vec![1, 5]));
        assert_eq!(line(&mesh, 0, 0), (0, vec![0, 4]));
        assert_eq!(line(&mesh, 1, 5), (1, vec![4, 5, 6, 7]));
        let cube = DeviceMesh::new(&[2, 2, 2], (0..8).collect()).unwrap();
        assert_eq!(line(&cube, 0, 5), (1, vec![1, 5]));
        assert_eq!(line(&cube, 1, 5), (3, vec![5, 7]));
        assert_eq!(line(&cube, 2, 5), (2, vec![4, 5]));
        let row = DeviceMesh::new(&[3], vec![9, 4, 6]).unwrap();
        assert_eq!(line(&row, 0, 6), (0, vec![9, 4, 6]));
    }

    #[test]
    fn the_lines_of_a_dimension_split_the_mesh() {
        let mesh = DeviceMesh::new(&[2, 3, 4], (100..124).rev().collect()).unwrap();
        for dim in 0..3 {
            let lines = mesh.size() / mesh.shape()[dim];
            let mut seen = vec![Vec::new(); lines];
            for &id in mesh.ids() {
                let (index, ids) = line(&mesh, dim, id);
                if seen[index].is_empty() {
                    seen[index].clone_from(&ids);
                }
                assert_eq!(seen[index], ids, "one number, one line");
            }
            let mut all: Vec<usize> = seen.concat();
            all.sort_unstable();
            assert_eq!(all, (100..124).collect::<Vec<_>>());
        }
    }

    #[test]
    fn ids_ranks_and_coordinates_agree() {
        let mesh = DeviceMesh::new(&[2, 1, 3], vec![5, 3, 8, 0, usize::MAX, 7]).unwrap();
        for (rank, coordinate) in mesh.coordinates().enumerate() {
            let id = mesh.id_at(&coordinate).unwrap();
            assert_eq!(id, mesh.ids()[rank]);
            assert_eq!(mesh.rank_of(id).unwrap(), rank);
            assert_eq!(mesh.coordinate_of(id).unwrap(), coordinate);
        }
        let large = DeviceMesh::new(&[100, 1000], (0..100_000).rev().collect()).unwrap();
        assert_eq!(large.coordinate_of(99_999).unwrap(), [0, 0]);
        assert_eq!(large.line(0, 1).unwrap().ids.len(), 100);
        let single = DeviceMesh::new(&[], vec![3]).unwrap();
        assert_eq!((single.size(), single.id_at(&[]).unwrap()), (1, 3));
    }

    #[test]
    fn what_is_not_a_mesh_or_not_in_it_is_refused() {
        let bad: [(&[usize], Vec<usize>); 6] = [
            (&[2, 2], vec![0, 1, 2]),
            (&[0], vec![]),
            (&[2, 0], vec![]),
            (&[], vec![]),
            (&[3], vec![4, 1, 4]),
            (&[1 << 40, 1 << 40], vec![1]),
        ];
        for (shape, ids) in bad {
            assert!(matches!(DeviceMesh::new(shape, ids), Err(Error::InvalidArgument { .. })), "{shape:?}");
        }
        let mesh = DeviceMesh::new(&[2, 2], vec![0, 1, 2, 9]).unwrap();
        assert!(matches!(mesh.line(2, 0), Err(Error::InvalidArgument { .. })));
        assert!(matches!(mesh.line(0, 3), Err(Error::InvalidArgument { .. })));
        assert!(mesh.rank_of(3).unwrap_err().to_string().contains("device 3 is not in the mesh [2, 2]"));
        assert!(mesh.coordinate_of(4).is_err());
        assert!(mesh.contains(9) && !mesh.contains(4));
        assert!(mesh.id_at(&[0, 2]).is_err());
        assert!(mesh.id_at(&[0]).is_err());
    }
}
