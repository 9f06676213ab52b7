//! From one rank onto a mesh, and back.
//!
//! Both go line by line. Distributing, the root's line along a mesh dimension gets its parts first, then each of those ranks
//! serves its own line along the next, until all have theirs. Shards come first, in mesh order, as they nest, so that later lines have
//! less to carry; then copies and contributions. Collecting goes the same way back.

use comm_core::device::Device;
use comm_core::tensor::{DType, Tensor};
use comm_core::{Deadline, Error, Result};

use super::Distributed;
use super::consent::Claim;
use super::kind::{List, Placement, can_contribute, check, check_bytes};
use super::pieces;
use super::rank::{Lines, MeshRank};
use super::split;
use crate::group::ThreadGroup;
use crate::reduce::ReduceOp;

/// From one rank onto the mesh, and back.
impl MeshRank<'_> {
    /// Places a tensor that one rank has, the device `root`, on the mesh. The others bring none, and need not know its shape
    /// and dtype.
    ///
    /// Each rank gets its shard or a copy; of [`Placement::Partial`] the first rank of a line gets the value, and the others hold the
    /// operator's [identity](ReduceOp::identity); of an average all get the value.
    ///
    /// # Errors
    /// On every rank, and the groups go on: [`Error::InvalidArgument`] if the placements are impossible for the shape,
    /// [`Error::Unsupported`] if contributions cannot be made for an operator; if the root is not in the mesh or brings no tensor, or
    /// one that is not on the CPU, its own error there and [`Error::Mismatch`] of `arguments` on the others;
    /// [`Error::Mismatch`] if the ranks disagree. Then those of the collectives, and of [`Groups::group`](super::Groups::group).
    pub fn distribute(
        &self,
        tensor: Option<&Tensor>,
        root: usize,
        placements: &[Placement],
        deadline: impl Into<Deadline>,
    ) -> Result<Distributed> {
        const OP: &str = "distribute";
        let deadline = deadline.into();
        let tensor = tensor.filter(|_| self.id == root);
        let found = self.mesh.coordinate_of(root);
        let complaint = match (&found, tensor) {
            (Err(error), _) => Err(error.clone()),
            (_, None) if self.id == root => Err(Error::invalid(OP, "the root must bring a tensor")),
            (_, None) => Ok(()),
            (_, Some(tensor)) => tensor.device().expect(Device::Cpu, OP),
        };
        let note = tensor.map_or(String::new(), |tensor| write_header(tensor.dtype(), tensor.shape()));
        let fields = vec![("root", root.to_string()), ("placements", List(placements).to_string())];
        let notes = self.settle(Claim { op: OP, fields, note }, complaint, deadline)?;
        let header = match self.mesh.size() {
            1 => notes.first(),
            _ => notes.get(self.mesh.rank_of(root)?),
        };
        let header = header.and_then(|note| read_header(note));
        let (dtype, shape) = header.ok_or_else(|| Error::bad_peer("a root that does not say what it has"))?;
        check(OP, &shape, self.mesh, placements)?;
        check_bytes(OP, &shape, dtype)?;
        can_contribute(self.mesh, placements, dtype)?;
        let tour = Tour::new(self, placements, found?);
        let is_needed = |mesh_dim| tour.is_in(mesh_dim);
        let local = self.join_lines(OP, is_needed, deadline, |lines| {
            let (mut held, mut shape) = (tensor.cloned(), shape.clone());
            for &mesh_dim in &tour.order {
                let placement = &placements[mesh_dim];
                if tour.is_in(mesh_dim) {
                    let spread = Spread { group: lines.get(mesh_dim)?, root: tour.root[mesh_dim], deadline };
                    held = Some(spread.hand_out(placement, held.as_ref(), &shape, dtype)?);
                }
                if let Some(size) = placement.sharded_dim().and_then(|dim| shape.get_mut(dim)) {
                    *size =
                        split::piece_len(placement, *size, self.ranks(mesh_dim), self.coordinate[mesh_dim]);
                }
            }
            held.ok_or_else(|| Error::bad_peer("a mesh that leaves this rank without its part"))
        })?;
        Ok(Distributed::new(local, &shape, placements))
    }

    /// Puts a tensor that lies on the mesh together on one rank, the device `root`, which gets it; the others get nothing.
    ///
    /// Contributions are reduced, inner mesh dimensions first.
    ///
    /// # Errors
    /// Those of [`carry_out`](MeshRank::carry_out), if the ranks disagree or a local tensor has a wrong shape;
    /// [`Error::InvalidArgument`] if the root is not in the mesh; [`Error::Unsupported`] if an operator is not there for the dtype.
    pub fn collect(
        &self,
        part: &Distributed,
        root: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Option<Tensor>> {
        const OP: &str = "collect";
        let deadline = deadline.into();
        let (local, placements) = (part.local(), part.placements());
        let found = self.mesh.coordinate_of(root);
        let can_reduce =
            |placement: &Placement| placement.reduction().map_or(Ok(()), |op| op.check(part.dtype()));
        let complaint = (found.as_ref().map(|_| ()).map_err(Error::clone))
            .and_then(|()| self.check(part))
            .and_then(|()| placements.iter().try_for_each(can_reduce))
            .and_then(|()| local.device().expect(Device::Cpu, OP));
        let fields = vec![
            ("root", root.to_string()),
            ("shape", format!("{:?}", part.shape())),
            ("dtype", part.dtype().to_string()),
            ("placements", List(placements).to_string()),
        ];
        self.settle(Claim { op: OP, fields, note: String::new() }, complaint, deadline)?;
        let tour = Tour::new(self, placements, found?);
        let is_needed =
            |mesh_dim: usize| tour.is_in(mesh_dim) && placements[mesh_dim] != Placement::Replicate;
        self.join_lines(OP, is_needed, deadline, |lines| tour.collect(lines, local, deadline))
    }
}

/// Which lines a rank takes part in, on the way from the root or to it.
struct Tour<'a> {
    coordinate: &'a [usize],
    placements: &'a [Placement],
    /// The root's coordinate.
    root: Vec<usize>,
    /// Mesh dimensions where there is something to do, as they come on the way from the root.
    order: Vec<usize>,
}

impl<'a> Tour<'a> {
    fn new(rank: &'a MeshRank<'_>, placements: &'a [Placement], root: Vec<usize>) -> Tour<'a> {
        let (mut order, others): (Vec<usize>, Vec<usize>) = (0..placements.len())
            .filter(|&mesh_dim| !placements[mesh_dim].is_only_a_name(rank.ranks(mesh_dim)))
            .partition(|&mesh_dim| placements[mesh_dim].sharded_dim().is_some());
        order.extend(others);
        Tour { coordinate: &rank.coordinate, placements, root, order }
    }

    /// Whether this rank is in a line along a mesh dimension through which the tensor goes: lines along dimensions that come later
    /// have not been served yet, so there only the root's coordinate counts.
    fn is_in(&self, mesh_dim: usize) -> bool {
        let Some(at) = self.order.iter().position(|&d| d == mesh_dim) else { return false };
        self.order[at + 1..].iter().all(|&later| self.coordinate[later] == self.root[later])
    }

    /// Takes this rank's part along the way to the root.
    fn collect(&self, lines: &Lines, local: &Tensor, deadline: Deadline) -> Result<Option<Tensor>> {
        let mut held = local.clone();
        for &mesh_dim in self.order.iter().rev() {
            let root = self.root[mesh_dim];
            let gathered = match &self.placements[mesh_dim] {
                Placement::Replicate => (self.coordinate[mesh_dim] == root).then_some(held),
                Placement::Partial(op) => lines.get(mesh_dim)?.reduce(&held, *op, root, deadline)?,
                placement => {
                    let (group, dim) = (lines.get(mesh_dim)?, placement.sharded_dim().unwrap_or_default());
                    let dealt = group.gather(&held, dim, root, deadline)?;
                    dealt.map(|dealt| pieces::undeal(&dealt, placement, group.size())).transpose()?
                }
            };
            match gathered {
                Some(gathered) => held = gathered,
                None => return Ok(None),
            }
        }
        Ok(Some(held))
    }
}

/// One rank of a line that has something, and the line.
struct Spread<'a> {
    group: &'a ThreadGroup,
    root: usize,
    deadline: Deadline,
}

impl Spread<'_> {
    /// What this rank gets of the root's tensor, which all know to have a shape.
    fn hand_out(
        &self,
        placement: &Placement,
        held: Option<&Tensor>,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Tensor> {
        let Spread { group, root, deadline } = *self;
        match placement {
            Placement::Replicate | Placement::Partial(ReduceOp::Avg) => group.broadcast(held, root, deadline),
            Placement::Partial(op) => self.mask(*op, held, shape, dtype),
            placement => {
                let (ranks, dim) = (group.size(), placement.sharded_dim().unwrap_or_default());
                let n = shape.get(dim).copied().unwrap_or_default();
                let sizes: Vec<usize> =
                    (0..ranks).map(|index| split::piece_len(placement, n, ranks, index)).collect();
                let dealt = held.map(|held| pieces::deal(held, placement, ranks)).transpose()?;
                group.scatter_sizes(dealt.as_ref().map(|(dealt, _)| dealt), dim, root, &sizes, deadline)
            }
        }
    }

    /// The value to the first rank of the line; what changes nothing is everybody's own to make.
    fn mask(&self, op: ReduceOp, held: Option<&Tensor>, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let Spread { group, root, deadline } = *self;
        let identities = || pieces::identities(op, shape, dtype, None);
        if root == 0 {
            let missing = || Error::bad_peer("a line whose first rank has not got the value");
            return if group.rank() == 0 { held.cloned().ok_or_else(missing) } else { identities() };
        }
        let numel = shape.iter().product();
        let flat = held.map(|held| held.contiguous()?.reshape(&[numel])).transpose()?;
        let mut sizes = vec![0; group.size()];
        sizes[0] = numel;
        let value = group.scatter_sizes(flat.as_ref(), 0, root, &sizes, deadline)?;
        if group.rank() == 0 { Ok(value.reshape(shape)?) } else { identities() }
    }
}

/// A dtype and a shape, for those who do not know them.
fn write_header(dtype: DType, shape: &[usize]) -> String {
    let sizes = shape.iter().map(|size| format!(" {size}"));
    format!("{}{}", dtype.code(), sizes.collect::<String>())
}

fn read_header(text: &str) -> Option<(DType, Vec<usize>)> {
    let mut words = text.split(' ');
    let dtype = DType::from_code(words.next()?.parse().ok()?)?;
    Some((dtype, words.map(|word| word.parse().ok()).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written() {
        for &dtype in DType::ALL {
            for shape in [&[][..], &[0], &[3, 1 << 60, 7]] {
                assert_eq!(read_header(&write_header(dtype, shape)), Some((dtype, shape.to_vec())));
            }
        }
        for text in ["", "x", "200", "1 ", "1 -3", "1 99999999999999999999999", "1  2"] {
            assert_eq!(read_header(text), None, "{text:?}");
        }
    }
}
