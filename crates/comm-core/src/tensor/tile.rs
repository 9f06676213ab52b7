//! Rectangular parts of views: which elements they are, and where those lie.
//!
//! A view is dense: its elements lie one after the other in row-major order. A [`Tile`] of it is a range of indices in
//! each dimension. What moves tiles needs them as runs of neighbouring elements, and one tile's runs cut to fit those
//! of another.

use std::iter;

use super::{MAX_DIMS, TensorError};
use crate::error::{Error, Result};

/// A rectangular part of a dense view. It is inside the view: that was checked when it was made.
///
/// ```
/// use comm_core::tensor::Tile;
///
/// // Columns 1 and 2 of both rows of [[0, 1, 2, 3], [4, 5, 6, 7]].
/// let tile = Tile::new("example", &[2, 4], &[0, 1], &[2, 2])?;
/// assert_eq!(tile.runs().collect::<Vec<_>>(), [(1, 2), (5, 2)]);
/// assert_eq!(Tile::whole("example", &[2, 4])?.runs().collect::<Vec<_>>(), [(0, 8)]);
/// # Ok::<(), comm_core::Error>(())
/// ```
// Beyond `dims` the arrays are all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    dims: usize,
    /// Shape of the view.
    of: [usize; MAX_DIMS],
    offsets: [usize; MAX_DIMS],
    shape: [usize; MAX_DIMS],
}

impl Tile {
    /// The elements of a view of shape `of` from `offsets` on, `shape` of them in each dimension. There may be none;
    /// without dimensions there is one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the three have different numbers of dimensions or more than [`MAX_DIMS`], the tile
    /// is not inside the view, or the view has more elements than there can be.
    pub fn new(op: &'static str, of: &[usize], offsets: &[usize], shape: &[usize]) -> Result<Tile> {
        if of.len() > MAX_DIMS {
            return Err(TensorError::TooManyDims { op, dims: of.len() }.into());
        }
        // Zeros count as one, so that all strides fit as well.
        let volume = of.iter().try_fold(1usize, |all, &size| all.checked_mul(size.max(1)));
        if volume.is_none_or(|volume| isize::try_from(volume).is_err()) {
            return Err(TensorError::Overflow { op, shape: of.into() }.into());
        }
        for (what, given) in [("offsets", offsets), ("extents", shape)] {
            if given.len() != of.len() {
                let why = format!("{} {what} for the {} dimensions of shape {of:?}", given.len(), of.len());
                return Err(Error::invalid(op, why));
            }
        }
        for (dim, ((&offset, &extent), &size)) in offsets.iter().zip(shape).zip(of).enumerate() {
            if offset.checked_add(extent).is_none_or(|end| end > size) {
                let why = format!(
                    "offset {offset} and extent {extent} reach outside dimension {dim} of size {size}, in shape {of:?}"
                );
                return Err(Error::invalid(op, why));
            }
        }
        let padded = |given: &[usize]| {
            let mut all = [0; MAX_DIMS];
            all[..given.len()].copy_from_slice(given);
            all
        };
        Ok(Tile { dims: of.len(), of: padded(of), offsets: padded(offsets), shape: padded(shape) })
    }

    /// All of a view.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there can be no view of that shape.
    pub fn whole(op: &'static str, of: &[usize]) -> Result<Tile> {
        // If there are too many dimensions, `new` says so before it looks at the offsets.
        Tile::new(op, of, &[0; MAX_DIMS][..of.len().min(MAX_DIMS)], of)
    }

    /// How many elements there are in each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.dims]
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        // No product of sizes overflows for the view, and none of these is larger. A zero may come after the others.
        self.shape().iter().product()
    }

    /// Where the elements lie in the view, in row-major order: the first element of each run, and how many follow one
    /// another from there. Runs are as long as can be (a whole view is one) and ascend without touching.
    pub fn runs(&self) -> Runs<'_> {
        let mut strides = [1; MAX_DIMS];
        for dim in (1..self.dims).rev() {
            strides[dim - 1] = strides[dim] * self.of[dim];
        }
        // From the last dimension that is not whole on, everything is neighbours; the dimensions before are counted.
        let inner = (0..self.dims).rev().find(|&dim| self.shape[dim] != self.of[dim]).unwrap_or(0);
        let (counted, run) = self.shape().split_at(inner);
        let numel = self.numel();
        let (start, left) = match numel {
            0 => (0, 0),
            _ => (
                self.offsets.iter().zip(&strides).map(|(i, stride)| i * stride).sum(),
                counted.iter().product(),
            ),
        };
        Runs { counted, strides, index: [0; MAX_DIMS], start, len: run.iter().product(), left }
    }

    /// Two tiles of the same number of elements, side by side in row-major order: where a run starts in the view of
    /// each, and its length. Their shapes may differ.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one has more elements than the other.
    pub fn pair<'a>(
        op: &'static str,
        a: &'a Tile,
        b: &'a Tile,
    ) -> Result<impl Iterator<Item = (usize, usize, usize)> + use<'a>> {
        if a.numel() != b.numel() {
            let why = format!(
                "shape {:?} has {} elements, shape {:?} has {}",
                a.shape(),
                a.numel(),
                b.shape(),
                b.numel()
            );
            return Err(Error::invalid(op, why));
        }
        let (mut runs_a, mut runs_b) = (a.runs(), b.runs());
        let (mut rest_a, mut rest_b) = ((0, 0), (0, 0));
        Ok(iter::from_fn(move || {
            for (rest, runs) in [(&mut rest_a, &mut runs_a), (&mut rest_b, &mut runs_b)] {
                if rest.1 == 0 {
                    *rest = runs.next()?;
                }
            }
            let (start_a, start_b, len) = (rest_a.0, rest_b.0, rest_a.1.min(rest_b.1));
            rest_a = (start_a + len, rest_a.1 - len);
            rest_b = (start_b + len, rest_b.1 - len);
            Some((start_a, start_b, len))
        }))
    }

    /// The tile as bytes of a memory, in which its view starts at byte `base`.
    pub fn at(&self, base: u64, element_size: usize) -> Footprint<'_> {
        Footprint { tile: self, base, element_size }
    }
}

/// See [`Tile::runs`].
pub struct Runs<'a> {
    /// Extents of the dimensions that have a run for each index.
    counted: &'a [usize],
    /// Of all dimensions of the view.
    strides: [usize; MAX_DIMS],
    index: [usize; MAX_DIMS],
    start: usize,
    len: usize,
    left: usize,
}

impl Iterator for Runs<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        self.left = self.left.checked_sub(1)?;
        let run = (self.start, self.len);
        for ((i, &extent), stride) in self.index.iter_mut().zip(self.counted).zip(&self.strides).rev() {
            if *i + 1 < extent {
                *i += 1;
                self.start += stride;
                break;
            }
            // After the last run this goes back to the first, which nobody sees.
            self.start -= *i * stride;
            *i = 0;
        }
        Some(run)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Runs<'_> {}

/// The bytes of a tile, in a memory that other views may lie over as well.
#[derive(Debug, Clone, Copy)]
pub struct Footprint<'a> {
    tile: &'a Tile,
    base: u64,
    element_size: usize,
}

impl Footprint<'_> {
    /// Whether there is a byte in both. Exact: tiles that interleave without sharing a byte do not overlap. Takes time
    /// in proportion to the number of runs of the two, and no memory.
    pub fn overlaps(self, other: Footprint<'_>) -> bool {
        let (mut ours, mut theirs) = (self.bytes(), other.bytes());
        let (mut a, mut b) = (ours.next(), theirs.next());
        // Both ascend: of two runs that do not overlap, the one in front meets nothing that comes later either.
        while let (Some((a_start, a_end)), Some((b_start, b_end))) = (a, b) {
            if a_end <= b_start {
                a = ours.next();
            } else if b_end <= a_start {
                b = theirs.next();
            } else {
                return true;
            }
        }
        false
    }

    /// First byte of each run and the one after its last. In 128 bits no sum or product overflows.
    fn bytes(&self) -> impl Iterator<Item = (u128, u128)> {
        let byte = |element: usize| u128::from(self.base) + element as u128 * self.element_size as u128;
        self.tile.runs().map(move |(start, len)| (byte(start), byte(start + len)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const OP: &str = "test";

    fn tile(of: &[usize], offsets: &[usize], shape: &[usize]) -> Tile {
        Tile::new(OP, of, offsets, shape).unwrap()
    }

    fn refused<T: std::fmt::Debug>(outcome: Result<T>) -> String {
        match outcome {
            Err(Error::InvalidArgument { op: OP, why }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn assert_says(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "no {part:?} in {text:?}");
        }
    }

    /// Positions of a tile's elements in its view, index by index.
    fn naive(tile: &Tile) -> Vec<usize> {
        let mut all = vec![0];
        for dim in 0..tile.dims {
            let indices = tile.offsets[dim]..tile.offsets[dim] + tile.shape[dim];
            all = all
                .iter()
                .flat_map(|before| indices.clone().map(move |i| before * tile.of[dim] + i))
                .collect();
        }
        all
    }

    fn elements(runs: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
        runs.flat_map(|(start, len)| start..start + len).collect()
    }

    fn any_tile() -> impl Strategy<Value = Tile> {
        let dim = (prop_oneof![1 => Just(0usize), 2 => Just(1), 8 => 2usize..6], any::<u8>(), any::<u8>());
        prop::collection::vec(dim, 0..=4).prop_map(|dims| {
            let (mut of, mut offsets, mut shape) = (vec![], vec![], vec![]);
            for (size, offset, extent) in dims {
                // One in four is whole, so that dimensions are merged often.
                let offset = if extent % 4 == 0 { 0 } else { usize::from(offset) % (size + 1) };
                let room = size - offset;
                shape.push(if extent % 4 == 0 { room } else { usize::from(extent / 4) % (room + 1) });
                offsets.push(offset);
                of.push(size);
            }
            tile(&of, &offsets, &shape)
        })
    }

    /// Another tile of as many elements: those of `tile` as a line, or its shape somewhere in a larger view.
    fn partner(tile: &Tile, kind: u8, room: usize) -> Tile {
        let shape = tile.shape();
        match kind % 3 {
            0 => super::tests::tile(&[tile.numel() + room], &[room], &[tile.numel()]),
            1 => {
                let of: Vec<usize> = shape.iter().map(|n| n + room).collect();
                super::tests::tile(&of, &vec![room; of.len()], shape)
            }
            _ => {
                let turned: Vec<usize> = shape.iter().rev().copied().collect();
                let of: Vec<usize> = turned.iter().map(|n| n + room % 2).collect();
                super::tests::tile(&of, &vec![0; of.len()], &turned)
            }
        }
    }

    proptest! {
        #[test]
        fn runs_are_the_elements_in_order_and_as_long_as_can_be(tile in any_tile()) {
            let expected = naive(&tile);
            prop_assert_eq!(tile.numel(), expected.len());
            let runs: Vec<_> = tile.runs().collect();
            prop_assert_eq!(tile.runs().len(), runs.len());
            prop_assert!(runs.iter().all(|run| run.1 > 0));
            prop_assert!(runs.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0), "{:?}", runs);
            prop_assert_eq!(elements(runs.into_iter()), expected);
        }

        #[test]
        fn pairs_are_the_elements_of_both_side_by_side(a in any_tile(), kind: u8, room in 0usize..4, swap: bool) {
            let b = partner(&a, kind, room);
            let (a, b) = if swap { (b, a) } else { (a, b) };
            let pairs: Vec<_> = Tile::pair(OP, &a, &b).unwrap().collect();
            prop_assert_eq!(elements(pairs.iter().map(|&(start, _, len)| (start, len))), naive(&a));
            prop_assert_eq!(elements(pairs.iter().map(|&(_, start, len)| (start, len))), naive(&b));
            let cut = |w: &[(usize, usize, usize)]| w[0].0 + w[0].2 != w[1].0 || w[0].1 + w[0].2 != w[1].1;
            prop_assert!(pairs.windows(2).all(cut), "could be longer: {:?}", pairs);
            prop_assert!(pairs.iter().all(|pair| pair.2 > 0));
        }

        #[test]
        fn overlap_is_a_byte_in_both(
            a in any_tile(), b in any_tile(), bases in (0u64..300, 0u64..300), sizes in (0u32..5, 0u32..5),
        ) {
            let (size_a, size_b) = (1usize << sizes.0, 1usize << sizes.1);
            let bytes = |tile: &Tile, base: u64, size: usize| -> BTreeSet<usize> {
                naive(tile).iter().flat_map(|i| (0..size).map(move |k| base as usize + i * size + k)).collect()
            };
            let expected = !bytes(&a, bases.0, size_a).is_disjoint(&bytes(&b, bases.1, size_b));
            let (a, b) = (a.at(bases.0, size_a), b.at(bases.1, size_b));
            prop_assert_eq!(a.overlaps(b), expected);
            prop_assert_eq!(b.overlaps(a), expected);
        }
    }

    #[test]
    fn runs_of_a_few_tiles() {
        let runs = |of: &[usize], offsets: &[usize], shape: &[usize]| {
            tile(of, offsets, shape).runs().collect::<Vec<_>>()
        };
        assert_eq!(runs(&[4, 6], &[1, 2], &[2, 3]), [(8, 3), (14, 3)]);
        assert_eq!(runs(&[4, 6], &[1, 0], &[2, 6]), [(6, 12)], "whole rows");
        assert_eq!(runs(&[2, 3, 4], &[0, 1, 0], &[2, 2, 4]), [(4, 8), (16, 8)]);
        assert_eq!(runs(&[5, 1], &[1, 0], &[3, 1]), [(1, 3)], "a column of a view of one column");
        assert_eq!(runs(&[], &[], &[]), [(0, 1)]);
        assert_eq!(runs(&[3, 0], &[1, 0], &[2, 0]), []);
        assert_eq!(runs(&[3], &[3], &[0]), []);
        assert_eq!(Tile::whole(OP, &[3, 5, 7]).unwrap().runs().collect::<Vec<_>>(), [(0, 105)]);
        assert_eq!(Tile::whole(OP, &[]).unwrap().numel(), 1);
        let most = [2; MAX_DIMS];
        assert_eq!(Tile::whole(OP, &most).unwrap().runs().collect::<Vec<_>>(), [(0, 1 << MAX_DIMS)]);
        let ends = tile(&most, &[1; MAX_DIMS], &[1; MAX_DIMS]);
        assert_eq!(ends.runs().collect::<Vec<_>>(), [((1 << MAX_DIMS) - 1, 1)]);
    }

    #[test]
    fn what_is_not_inside_is_refused() {
        let new =
            |of: &[usize], offsets: &[usize], shape: &[usize]| refused(Tile::new(OP, of, offsets, shape));
        let why = new(&[8, 16], &[0, 10], &[8, 7]);
        assert_says(&why, &["offset 10", "extent 7", "dimension 1", "size 16"]);
        assert_says(&new(&[8], &[usize::MAX], &[2]), &["18446744073709551615", "dimension 0"]);
        assert_says(&new(&[8], &[1], &[usize::MAX]), &["18446744073709551615", "size 8"]);
        assert_says(&new(&[8], &[9], &[0]), &["offset 9", "extent 0"]);
        assert_says(&new(&[8, 8], &[0], &[1, 1]), &["1 offsets", "2 dimensions"]);
        assert_says(&new(&[8], &[0], &[]), &["0 extents", "1 dimensions"]);
        let deep = [1; MAX_DIMS + 1];
        assert_says(&new(&deep, &deep, &deep), &["17 dimensions", "16"]);
        assert_says(&refused(Tile::whole(OP, &deep)), &["17 dimensions", "16"]);
        assert_says(&refused(Tile::whole(OP, &[1 << 32, 1 << 31])), &["63 bits"]);
        assert!(Tile::whole(OP, &[1 << 32, 1 << 30]).is_ok());
        let (four, three) = (tile(&[2, 2], &[0, 0], &[2, 2]), tile(&[4], &[1], &[3]));
        let why = refused(Tile::pair(OP, &four, &three).map(|pairs| pairs.count()));
        assert_says(&why, &["[2, 2]", "4 elements", "[3]", "has 3"]);
    }

    #[test]
    fn tiles_that_interleave_do_not_overlap() {
        let column = |i| tile(&[1000, 4], &[0, i], &[1000, 1]);
        assert!(!column(0).at(64, 4).overlaps(column(1).at(64, 4)));
        assert!(column(0).at(64, 4).overlaps(column(1).at(61, 4)));
        let huge = Tile::whole(OP, &[1 << 62]).unwrap();
        assert!(huge.at(u64::MAX, 16).overlaps(huge.at(u64::MAX - 1, 16)), "and nothing wraps");
        assert!(!huge.at(u64::MAX, 1).overlaps(huge.at(0, 1)));
    }
}
