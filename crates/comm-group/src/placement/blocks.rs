//! Which elements of a part are which of a whole, block by block: the one way in which tensors are cut and joined.
//!
//! A part is told by the ranges of indices that it has along each dimension of the whole, in the order in which it has them.
//! Wherever a range meets a range of the other dimensions, a block of the one is a block of the other.

use std::ops::Range;

use comm_core::Result;
use comm_core::shm::Arena;
use comm_core::tensor::{DType, Tensor, TensorBuf};

/// The ranges of each dimension, none empty.
pub(super) type Ranges = [Vec<Range<usize>>];

/// The part of a whole that has these ranges: a view if it is in one piece, else a copy, in a `room` that peers reach if
/// there is one.
pub(super) fn cut(whole: &Tensor, ranges: &Ranges, room: Option<&Arena>) -> Result<Tensor> {
    let mut blocks = Blocks::new(ranges);
    let shape = blocks.shape();
    if blocks.are_one() {
        let start = blocks.next().map_or(vec![0; shape.len()], |block| block.at_whole);
        return narrow(whole, &start, &shape);
    }
    let mut part = buffer(&shape, whole.dtype(), room)?;
    for Block { at_part, at_whole, shape } in blocks {
        part.write_at(&at_part, &narrow(whole, &at_whole, &shape)?)?;
    }
    Ok(part.freeze())
}

/// The whole of these parts, which together are all of it: a part itself if it is the whole already, else a copy.
pub(super) fn join(shape: &[usize], dtype: DType, parts: &[(&Ranges, &Tensor)]) -> Result<Tensor> {
    let is_whole = |ranges: &Ranges, part: &Tensor| part.shape() == shape && Blocks::new(ranges).are_one();
    if let Some((_, part)) = parts.iter().find(|(ranges, part)| is_whole(ranges, part)) {
        return Ok((*part).clone());
    }
    let mut whole = buffer(shape, dtype, None)?;
    for &(ranges, part) in parts {
        for Block { at_part, at_whole, shape } in Blocks::new(ranges) {
            whole.write_at(&at_whole, &narrow(part, &at_part, &shape)?)?;
        }
    }
    Ok(whole.freeze())
}

/// Zeros, on the heap or in a room.
pub(super) fn buffer(shape: &[usize], dtype: DType, room: Option<&Arena>) -> Result<TensorBuf> {
    match room {
        Some(room) => TensorBuf::zeros_in(room, shape, dtype),
        None => Ok(TensorBuf::zeros(shape, dtype)?),
    }
}

fn narrow(tensor: &Tensor, start: &[usize], shape: &[usize]) -> Result<Tensor> {
    let dims = start.iter().zip(shape).enumerate();
    let cut = |tensor: Tensor, (dim, (&start, &len))| Ok(tensor.narrow(dim, start, len)?);
    dims.filter(|&(dim, (_, &len))| len < tensor.shape()[dim]).try_fold(tensor.clone(), cut)
}

/// Elements that lie together in the part and in the whole.
struct Block {
    at_part: Vec<usize>,
    at_whole: Vec<usize>,
    shape: Vec<usize>,
}

/// The blocks of a part.
struct Blocks {
    /// Where in the part each range of each dimension begins, and the range.
    dims: Vec<Vec<(usize, Range<usize>)>>,
    /// Which range of each dimension the next block has.
    next: Option<Vec<usize>>,
}

impl Blocks {
    fn new(ranges: &Ranges) -> Blocks {
        let placed = |of: &Vec<Range<usize>>| {
            let place = |at: &mut usize, range: &Range<usize>| {
                let begun = *at;
                *at += range.len();
                Some((begun, range.clone()))
            };
            of.iter().scan(0, place).collect()
        };
        let dims: Vec<Vec<_>> = ranges.iter().map(placed).collect();
        let next = dims.iter().all(|of| !of.is_empty()).then(|| vec![0; dims.len()]);
        Blocks { dims, next }
    }

    /// Whether there is one block, or none.
    fn are_one(&self) -> bool {
        self.dims.iter().all(|of| of.len() <= 1) || self.next.is_none()
    }

    /// The shape of the part.
    fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(|of| of.iter().map(|(_, range)| range.len()).sum()).collect()
    }
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let chosen = self.next.take()?;
        let ranges = || self.dims.iter().zip(&chosen).map(|(of, &i)| &of[i]);
        let block = Block {
            at_part: ranges().map(|&(at, _)| at).collect(),
            at_whole: ranges().map(|(_, range)| range.start).collect(),
            shape: ranges().map(|(_, range)| range.len()).collect(),
        };
        // As a number is counted up whose digits are the choices.
        let mut next = chosen;
        for dim in (0..next.len()).rev() {
            next[dim] += 1;
            if next[dim] < self.dims[dim].len() {
                self.next = Some(next);
                break;
            }
            next[dim] = 0;
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "a dimension has a list of ranges, if only of one")]

    use super::*;

    fn numbers(shape: &[usize]) -> Tensor {
        let all: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
        Tensor::from_slice(shape, &all).unwrap()
    }

    #[test]
    fn blocks_of_several_ranges_are_cut_and_joined() {
        let whole = numbers(&[4, 6]);
        let corners = [vec![0..1, 3..4], vec![0..2, 5..6]];
        let part = cut(&whole, &corners, None).unwrap();
        assert_eq!(part.shape(), [2, 3]);
        assert_eq!(part.as_slice::<i32>().unwrap(), [0, 1, 5, 18, 19, 23]);

        let others =
            [[vec![0..1, 3..4], vec![2..5]], [vec![1..3], vec![0..2, 5..6]], [vec![1..3], vec![2..5]]];
        let all: Vec<_> = [corners].into_iter().chain(others).collect();
        let parts: Vec<Tensor> = all.iter().map(|ranges| cut(&whole, ranges, None).unwrap()).collect();
        let told: Vec<_> = all.iter().map(|ranges| &ranges[..]).zip(&parts).collect();
        assert!(join(&[4, 6], DType::I32, &told).unwrap().bytes_equal(&whole).unwrap());
        // A part that is left out is missing.
        assert!(!join(&[4, 6], DType::I32, &told[1..]).unwrap().bytes_equal(&whole).unwrap());
    }

    #[test]
    fn ranges_come_in_any_order() {
        let (whole, turned) = (numbers(&[5]), [vec![3..5, 0..3]]);
        let part = cut(&whole, &turned, None).unwrap();
        assert_eq!(part.as_slice::<i32>().unwrap(), [3, 4, 0, 1, 2]);
        assert!(join(&[5], DType::I32, &[(&turned, &part)]).unwrap().bytes_equal(&whole).unwrap());
    }

    #[test]
    fn what_is_in_one_piece_is_not_copied() {
        let whole = numbers(&[4, 6]);
        let [middle, all] = [[vec![1..3], vec![2..6]], [vec![0..4], vec![0..6]]];
        assert!(cut(&whole, &middle, None).unwrap().shares_storage(&whole));
        let none = cut(&whole, &[vec![], vec![0..2, 4..6]], None).unwrap();
        assert!(none.shares_storage(&whole) && none.shape() == [0, 4]);
        let nothing = [vec![], vec![0..6]];
        let told = [(&nothing[..], &none), (&all[..], &whole)];
        assert!(join(&[4, 6], DType::I32, &told).unwrap().shares_storage(&whole));
        // A scalar has one block, without dimensions.
        let scalar = numbers(&[]);
        assert!(cut(&scalar, &[], None).unwrap().shares_storage(&scalar));
        assert!(join(&[], DType::I32, &[(&[], &scalar)]).unwrap().shares_storage(&scalar));
    }
}
