//! Serial answers: slow, obvious, and computed by index, so that they share no idea with what they check.

use std::ops::Range;

pub mod collective;
mod exact;
pub mod reduce;

/// The sizes of `n` split in `parts`: `n / parts` each, the first `n % parts` one more. With `n < parts` the last
/// ones are empty. No parts, no sizes.
///
/// ```
/// use comm_testkit::oracle::shard_sizes;
///
/// assert_eq!(shard_sizes(10, 4), [3, 3, 2, 2]);
/// assert_eq!(shard_sizes(2, 3), [1, 1, 0]);
/// ```
pub fn shard_sizes(n: usize, parts: usize) -> Vec<usize> {
    // Dealt out one at a time, like cards; nothing here is shared with the formula of the library.
    let mut sizes = vec![0; parts];
    for i in 0..if parts == 0 { 0 } else { n } {
        sizes[i % parts] += 1;
    }
    sizes
}

/// The indices that part `index` of `parts` gets of `0..n`.
///
/// ```
/// assert_eq!(comm_testkit::oracle::shard_range(10, 4, 1), 3..6);
/// ```
pub fn shard_range(n: usize, parts: usize, index: usize) -> Range<usize> {
    let sizes = shard_sizes(n, parts);
    let start = sizes.iter().take(index).sum();
    start..start + sizes.get(index).copied().unwrap_or(0)
}

/// The indices that each rank gets of `0..n` under a sub-split at `cut`: `0..=cut` and the rest are each split
/// over the ranks, and a rank gets its part of the first followed by its part of the second. `None` where that
/// is not allowed: `cut` must be between 1 and `n - 1`.
///
/// ```
/// use comm_testkit::oracle::sub_split;
///
/// let ranks = sub_split(9, 2, 4).unwrap();
/// assert_eq!(ranks, [vec![0, 1, 2, 5, 6], vec![3, 4, 7, 8]]);
/// assert!(sub_split(9, 2, 0).is_none() && sub_split(9, 2, 9).is_none());
/// ```
pub fn sub_split(n: usize, world: usize, cut: usize) -> Option<Vec<Vec<usize>>> {
    if cut == 0 || cut >= n {
        return None;
    }
    let (front, back) = (cut + 1, n - cut - 1);
    let ranks = (0..world).map(|rank| {
        let mut mine: Vec<usize> = shard_range(front, world, rank).collect();
        mine.extend(shard_range(back, world, rank).map(|i| front + i));
        mine
    });
    Some(ranks.collect())
}

/// A dense row-major array.
///
/// ```
/// use comm_testkit::oracle::Dense;
///
/// let whole = Dense::from_fn(&[2, 3], |index| 10 * index[0] + index[1]);
/// let parts = [whole.narrow(1, 0..2), whole.narrow(1, 2..3)];
/// assert_eq!(parts[1].data, [2, 12]);
/// assert_eq!(Dense::concat(&parts, 1), Some(whole));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Dense<T> {
    /// Elements in each dimension; empty for a single number.
    pub shape: Vec<usize>,
    /// The elements, the last index fastest.
    pub data: Vec<T>,
}

impl<T: Clone> Dense<T> {
    /// From the value at each index.
    pub fn from_fn(shape: &[usize], value: impl FnMut(&[usize]) -> T) -> Dense<T> {
        Dense { shape: shape.to_vec(), data: indices(shape).iter().map(Vec::as_slice).map(value).collect() }
    }

    /// The value at an index; `None` outside.
    pub fn get(&self, index: &[usize]) -> Option<&T> {
        if index.len() != self.shape.len() || index.iter().zip(&self.shape).any(|(i, n)| i >= n) {
            return None;
        }
        self.data.get(index.iter().zip(&self.shape).fold(0, |at, (i, n)| at * n + i))
    }

    /// Only these indices of one dimension. Indices past the end are left out.
    pub fn narrow(&self, dim: usize, range: Range<usize>) -> Dense<T> {
        self.select(dim, &range.collect::<Vec<_>>())
    }

    /// These indices of one dimension, in this order. Indices past the end are left out.
    pub fn select(&self, dim: usize, which: &[usize]) -> Dense<T> {
        let mut shape = self.shape.clone();
        let size = shape.get(dim).copied().unwrap_or(0);
        let which: Vec<usize> = which.iter().copied().filter(|&i| i < size).collect();
        if let Some(n) = shape.get_mut(dim) {
            *n = which.len();
        }
        let from = |index: &Vec<usize>| {
            let mut source = index.clone();
            if let Some(i) = source.get_mut(dim) {
                *i = which[*i];
            }
            self.get(&source).cloned()
        };
        let data = indices(&shape).iter().filter_map(from).collect();
        Dense { shape, data }
    }

    /// All parts after each other along one dimension; `None` if their other dimensions differ.
    pub fn concat(parts: &[Dense<T>], dim: usize) -> Option<Dense<T>> {
        let first = parts.first()?;
        let mut shape = first.shape.clone();
        *shape.get_mut(dim)? = parts.iter().map(|p| p.shape.get(dim).copied()).sum::<Option<usize>>()?;
        let others = |shape: &[usize]| {
            shape.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, n)| *n).collect::<Vec<_>>()
        };
        if parts.iter().any(|p| p.shape.len() != shape.len() || others(&p.shape) != others(&shape)) {
            return None;
        }
        let from = |index: &Vec<usize>| {
            let mut index = index.clone();
            for part in parts {
                if index[dim] < part.shape[dim] {
                    return part.get(&index).cloned();
                }
                index[dim] -= part.shape[dim];
            }
            None
        };
        let data = indices(&shape).iter().map(from).collect::<Option<Vec<T>>>()?;
        Some(Dense { shape, data })
    }
}

/// All indices of a shape, the last one fastest.
///
/// ```
/// assert_eq!(comm_testkit::oracle::indices(&[2, 2]), [[0, 0], [0, 1], [1, 0], [1, 1]]);
/// assert_eq!(comm_testkit::oracle::indices(&[]).len(), 1);
/// ```
pub fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &n in shape {
        all = all.iter().flat_map(|head| (0..n).map(move |i| [head.as_slice(), &[i]].concat())).collect();
    }
    all
}

/// Numbers that the serial sum knows.
pub trait Summand: Copy {
    /// `self + other`, as the library must do it: IEEE for floats, wrapping for integers.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

macro_rules! summand {
    ($($t:ty: |$a:ident, $b:ident| $sum:expr;)*) => {
        $(impl Summand for $t {
            fn plus(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $sum
            }
        })*
    };
}

summand! {
    f32: |a, b| a + b;
    f64: |a, b| a + b;
    i32: |a, b| a.wrapping_add(b);
    i64: |a, b| a.wrapping_add(b);
}

/// The sum over ranks, element by element: from rank 0's value, then rank by rank. Elements that some rank does
/// not have are left out; no ranks give no elements.
///
/// ```
/// use comm_testkit::oracle::sum;
///
/// assert_eq!(sum(&[vec![1, i32::MAX], vec![10, 1]]), [11, i32::MIN]);
/// // The order shows: 1e8 swallows a 1 that comes alone, but not the sum of many.
/// assert_eq!(sum(&[vec![1e8_f32], vec![-1e8], vec![1.0]]), [1.0]);
/// assert_eq!(sum(&[vec![1e8_f32], vec![1.0], vec![-1e8]]), [0.0]);
/// ```
pub fn sum<T: Summand>(ranks: &[Vec<T>]) -> Vec<T> {
    let Some((first, others)) = ranks.split_first() else { return Vec::new() };
    let shortest = ranks.iter().map(Vec::len).min().unwrap_or(0);
    (0..shortest).map(|i| others.iter().fold(first[i], |sum, rank| sum.plus(rank[i]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_sub_splits() {
        assert_eq!(sub_split(8, 2, 3).unwrap(), [vec![0, 1, 4, 5], vec![2, 3, 6, 7]]);
        assert_eq!(sub_split(10, 3, 5).unwrap(), [vec![0, 1, 6, 7], vec![2, 3, 8], vec![4, 5, 9]]);
        for (n, world) in [(2, 2), (7, 3), (9, 4), (12, 5)] {
            for cut in 1..n {
                let mut all = sub_split(n, world, cut).unwrap().concat();
                all.sort();
                assert_eq!(all, (0..n).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn shards_cover_and_are_even() {
        for n in 0..20 {
            for parts in 1..8 {
                let sizes = shard_sizes(n, parts);
                assert_eq!(sizes.iter().sum::<usize>(), n);
                assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] - sizes[parts - 1] <= 1);
            }
        }
        assert!(shard_sizes(3, 0).is_empty());
    }

    #[test]
    fn concat_of_shards_is_the_whole() {
        for shape in [vec![5], vec![4, 3], vec![2, 5, 3], vec![3, 0, 2]] {
            let mut next = 0;
            let whole = Dense::from_fn(&shape, |_| {
                next += 1;
                next
            });
            for dim in 0..shape.len() {
                for world in 1..5 {
                    let parts: Vec<_> =
                        (0..world).map(|r| whole.narrow(dim, shard_range(shape[dim], world, r))).collect();
                    assert_eq!(Dense::concat(&parts, dim).as_ref(), Some(&whole), "{shape:?} {dim} {world}");
                }
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit() {
        let (a, b) = (Dense::from_fn(&[2, 2], |_| 0), Dense::from_fn(&[2, 3], |_| 0));
        assert!(Dense::concat(&[a.clone(), b.clone()], 0).is_none());
        assert_eq!(Dense::concat(&[a.clone(), b], 1).unwrap().shape, [2, 5]);
        assert!(Dense::concat(&[a], 2).is_none());
        assert!(Dense::<u8>::concat(&[], 0).is_none());
    }

    #[test]
    fn negative_zero_survives_a_sum() {
        assert!(sum(&[vec![-0.0_f32], vec![-0.0]])[0].is_sign_negative());
        assert!(sum(&[vec![-0.0_f64]])[0].is_sign_negative());
    }
}
