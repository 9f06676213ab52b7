//! What collectives make of the tensors of all ranks: by index, from the whole, element by element.

use super::{Dense, indices};

/// Parts of such sizes along one dimension, one after the other.
///
/// ```
/// use comm_testkit::oracle::{Dense, collective::cut};
///
/// let whole = Dense::from_fn(&[3], |i| i[0]);
/// let parts = cut(&whole, 0, &[0, 2, 1]);
/// assert_eq!(parts.map(|all| all.into_iter().map(|p| p.data).collect::<Vec<_>>()), Some(vec![vec![], vec![0, 1], vec![2]]));
/// ```
///
/// `None` if there is no such dimension, or the sizes are not all of it.
pub fn cut<T: Clone>(whole: &Dense<T>, dim: usize, sizes: &[usize]) -> Option<Vec<Dense<T>>> {
    let n = *whole.shape.get(dim)?;
    // Which part each index of the dimension is in.
    let part_of: Vec<usize> =
        sizes.iter().enumerate().flat_map(|(part, &size)| std::iter::repeat_n(part, size)).collect();
    if part_of.len() != n {
        return None;
    }
    let indices_of = |part: usize| (0..n).filter(|&i| part_of[i] == part).collect::<Vec<_>>();
    Some((0..sizes.len()).map(|part| whole.select(dim, &indices_of(part))).collect())
}

/// From shards along `from` to shards of such sizes along `to`: what each rank gets.
///
/// ```
/// use comm_testkit::oracle::{Dense, collective::all_to_all};
///
/// // The columns of [[0, 1], [2, 3]] become its rows.
/// let columns = [0, 1].map(|c| Dense::from_fn(&[2, 1], |i| 2 * i[0] + c));
/// let rows = all_to_all(&columns, 1, 0, &[1, 1]).unwrap_or_default();
/// assert_eq!(rows.into_iter().map(|r| r.data).collect::<Vec<_>>(), [[0, 1], [2, 3]]);
/// ```
///
/// `None` if the shards do not fit together, or the sizes not the whole.
pub fn all_to_all<T: Clone>(
    shards: &[Dense<T>],
    from: usize,
    to: usize,
    sizes: &[usize],
) -> Option<Vec<Dense<T>>> {
    cut(&Dense::concat(shards, from)?, to, sizes)
}

/// What each rank gets if rank `r` sends `send[r][p]` rows to rank `p`, the first to rank 0, and so on; in rank order.
///
/// ```
/// use comm_testkit::oracle::{Dense, collective::rows};
///
/// let mine = |r: usize, n: usize| Dense::from_fn(&[n], |i| 10 * r + i[0]);
/// let got = rows(&[mine(0, 3), mine(1, 1)], &[vec![1, 2], vec![1, 0]]).unwrap_or_default();
/// assert_eq!(got.into_iter().map(|d| d.data).collect::<Vec<_>>(), [[0, 10], [1, 2]]);
/// ```
///
/// `None` if the numbers are not all rows of each rank, or the other dimensions differ.
pub fn rows<T: Clone>(inputs: &[Dense<T>], send: &[Vec<usize>]) -> Option<Vec<Dense<T>>> {
    let tail = inputs.first()?.shape.get(1..)?.to_vec();
    let mut got = vec![Vec::new(); send.len()];
    for (input, counts) in inputs.iter().zip(send) {
        let (&n, rest) = input.shape.split_first()?;
        if rest != tail || counts.len() != send.len() || counts.iter().sum::<usize>() != n {
            return None;
        }
        let mut row = 0;
        for (to, &count) in got.iter_mut().zip(counts) {
            for _ in 0..count {
                for index in indices(&tail) {
                    to.push(input.get(&[&[row], &index[..]].concat())?.clone());
                }
                row += 1;
            }
        }
    }
    let come = |to: usize| send.iter().map(|counts| counts[to]).sum::<usize>();
    let dense = |(to, data)| Dense { shape: [&[come(to)], &tail[..]].concat(), data };
    Some(got.into_iter().enumerate().map(dense).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::shard_sizes;

    #[test]
    fn exchanging_back_gives_the_shards() {
        let whole = Dense::from_fn(&[5, 4, 3], |i| 100 * i[0] + 10 * i[1] + i[2]);
        for (from, to) in (0..3).flat_map(|a| (0..3).map(move |b| (a, b))) {
            for world in 1..5 {
                let even = |dim: usize| shard_sizes(whole.shape[dim], world);
                let shards = cut(&whole, from, &even(from)).unwrap();
                let turned = all_to_all(&shards, from, to, &even(to)).unwrap();
                assert_eq!(Dense::concat(&turned, to).as_ref(), Some(&whole));
                assert_eq!(all_to_all(&turned, to, from, &even(from)), Some(shards));
            }
        }
    }

    #[test]
    fn what_does_not_fit() {
        let whole = Dense::from_fn(&[5], |i| i[0]);
        assert!(cut(&whole, 1, &[5]).is_none());
        assert!(cut(&whole, 0, &[2, 2]).is_none() && cut(&whole, 0, &[6]).is_none());
        let scalar = Dense { shape: vec![], data: vec![1] };
        assert!(rows(&[scalar], &[vec![1]]).is_none());
        assert!(rows(std::slice::from_ref(&whole), &[vec![4]]).is_none());
        assert!(rows::<u8>(&[], &[]).is_none());
    }

    #[test]
    fn rows_of_rows_and_of_nothing() {
        let of =
            |r: usize, n: usize, width: usize| Dense::from_fn(&[n, width], |i| 100 * r + 10 * i[0] + i[1]);
        let got = rows(&[of(0, 2, 2), of(1, 1, 2)], &[vec![0, 2], vec![0, 1]]).unwrap();
        assert_eq!((&got[0].shape[..], got[0].data.len()), (&[0, 2][..], 0));
        assert_eq!((&got[1].shape[..], &got[1].data[..]), (&[3, 2][..], &[0, 1, 10, 11, 100, 101][..]));
        let empty = rows(&[of(0, 2, 0)], &[vec![2]]).unwrap();
        assert_eq!((&empty[0].shape[..], empty[0].data.len()), (&[2, 0][..], 0));
    }
}
