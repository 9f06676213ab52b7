//! Inputs that name their origin, what must come of them, and counting what is not so.
//!
//! Inputs repeat after a prime number of elements: so the answers for any size are known from a serial reduction of
//! one period, and yet an element from a wrong place shows, since ranks' shares and blocks are not multiples of it.

use comm_core::tensor::DType;
use comm_testkit::oracle::reduce::{reduce, round};
use comm_testkit::values::SplitMix64;

use super::case::{Origin, Redop};

/// Elements after which inputs repeat.
const PERIOD: usize = 1021;

/// The inputs of all ranks in one round, and their reduction.
pub struct Values {
    size: usize,
    inputs: Vec<Vec<u8>>,
    reduced: Vec<u8>,
}

/// Elements that are not as they should be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wrong {
    pub count: u64,
    /// Where the first is, what it is and what it should be.
    pub first: Option<(usize, Vec<u8>, Vec<u8>)>,
}

impl Values {
    /// Those of a round; other rounds have others, so that an old result is not taken for a new one. The operator need
    /// not be one of the dtype if nothing is reduced.
    pub fn new(dtype: DType, redop: Redop, ranks: usize, round: usize) -> Values {
        let input = |rank| (0..PERIOD).flat_map(|i| element(dtype, rank, i, round)).collect();
        let inputs: Vec<Vec<u8>> = (0..ranks).map(input).collect();
        let reduced = reduce(redop.reduction(), dtype, &inputs).unwrap_or_default();
        Values { size: dtype.size(), inputs, reduced }
    }

    fn period(&self, origin: Origin) -> &[u8] {
        match origin {
            Origin::Rank(rank) => &self.inputs[rank],
            Origin::Reduced => &self.reduced,
        }
    }

    /// Fills a rank's whole input.
    pub fn fill(&self, rank: usize, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(PERIOD * self.size) {
            chunk.copy_from_slice(&self.inputs[rank][..chunk.len()]);
        }
    }

    /// Compares a result with the ranges of inputs, or of the reduction, that it must be made of. Elements that are
    /// missing or too many are wrong, too.
    pub fn compare(&self, seen: &[u8], expected: &[(Origin, std::ops::Range<usize>)]) -> Wrong {
        let size = self.size;
        let mut wrong = Wrong::default();
        let mut at = 0;
        for (origin, range) in expected {
            let period = self.period(*origin);
            let mut next = range.start;
            while next < range.end {
                let start = next % PERIOD;
                let len = (PERIOD - start).min(range.end - next);
                let expected = &period[start * size..(start + len) * size];
                let there = seen.get(at * size..).unwrap_or_default();
                compare_run(&there[..there.len().min(len * size)], expected, size, at, &mut wrong);
                at += len;
                next += len;
            }
        }
        let rest = seen.get(at * size..).unwrap_or_default();
        if !rest.is_empty() {
            wrong.count += rest.len().div_ceil(size) as u64;
            wrong.first.get_or_insert_with(|| (at, rest[..rest.len().min(size)].to_vec(), Vec::new()));
        }
        wrong
    }
}

/// Compares elements that lie one after the other, the first of which is element `at` of the result.
fn compare_run(seen: &[u8], expected: &[u8], size: usize, at: usize, wrong: &mut Wrong) {
    if seen == expected {
        return;
    }
    for (i, expected) in expected.chunks(size).enumerate() {
        let start = (i * size).min(seen.len());
        let seen = &seen[start..(start + size).min(seen.len())];
        if seen != expected {
            wrong.count += 1;
            wrong.first.get_or_insert_with(|| (at + i, seen.to_vec(), expected.to_vec()));
        }
    }
}

/// Element `i` of a rank's input. Where the dtype has room for it, it is a whole number that tells the round, the rank and
/// `i`; else a small one that is random but always the same.
fn element(dtype: DType, rank: usize, i: usize, round_: usize) -> Vec<u8> {
    let random = SplitMix64::new(((round_ * 64 + rank) * PERIOD + i) as u64).next_u64();
    let small = 1 + random % 15;
    // Below 2^24, so that it is exact as an f32. The places of ranks are shifted: none has always the least or greatest.
    let place = (7 * i + 389 * rank + 613 * round_) % PERIOD + 1;
    let named = ((round_ << 17) + place * 64 + rank % 64) as u64;
    let float = |dtype, x: u64| round(dtype, x as f32).to_le_bytes()[..dtype.size()].to_vec();
    match dtype {
        DType::Bool => vec![(random & 1) as u8],
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => float(dtype, small),
        DType::F32 => (named as f32).to_le_bytes().to_vec(),
        DType::F64 => (named as f64).to_le_bytes().to_vec(),
        DType::Complex64 => [(named as f32).to_le_bytes(), (small as f32).to_le_bytes()].concat(),
        DType::Complex128 => [(named as f64).to_le_bytes(), (small as f64).to_le_bytes()].concat(),
        integer if integer.size() == 1 => vec![random as u8],
        integer => named.to_le_bytes()[..integer.size()].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(values: &Values, rank: usize, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count * values.size];
        values.fill(rank, &mut bytes);
        bytes
    }

    #[test]
    fn what_was_filled_compares_from_any_start() {
        for &dtype in DType::ALL {
            let values = Values::new(dtype, Redop::Sum, 3, 0);
            let bytes = filled(&values, 2, 5000);
            for range in [0..5000, 1..5000, 1020..1022, 2042..4084, 7..7] {
                let part = &bytes[range.start * dtype.size()..range.end * dtype.size()];
                let wrong = values.compare(part, &[(Origin::Rank(2), range)]);
                assert_eq!(wrong, Wrong::default(), "{dtype}");
            }
        }
    }

    #[test]
    fn every_wrong_element_is_counted_and_the_first_is_named() {
        let values = Values::new(DType::I32, Redop::Sum, 2, 0);
        let mut bytes = filled(&values, 0, 3000);
        for at in [5, 1021, 2999] {
            bytes[4 * at + 3] ^= 0x40;
        }
        let wrong = values.compare(&bytes, &[(Origin::Rank(0), 0..3000)]);
        let (at, seen, expected) = wrong.first.unwrap();
        assert_eq!((wrong.count, at, seen[3] ^ expected[3]), (3, 5, 0x40));
    }

    #[test]
    fn another_rank_place_or_round_is_wrong() {
        let wide = DType::ALL.iter().filter(|d| d.size() >= 4);
        for &dtype in wide {
            let values = Values::new(dtype, Redop::Sum, 4, 0);
            let bytes = filled(&values, 1, 4096);
            let size = dtype.size();
            let other_rank = values.compare(&bytes, &[(Origin::Rank(2), 0..4096)]);
            let shifted = values.compare(&bytes[..1024 * size], &[(Origin::Rank(1), 1024..2048)]);
            let later = Values::new(dtype, Redop::Sum, 4, 1).compare(&bytes, &[(Origin::Rank(1), 0..4096)]);
            assert_eq!((other_rank.count, shifted.count, later.count), (4096, 1024, 4096), "{dtype}");
        }
        // Where there is no room for names, most of them still.
        let values = Values::new(DType::F8E4M3, Redop::Sum, 4, 0);
        let bytes = filled(&values, 1, 4096);
        assert!(values.compare(&bytes, &[(Origin::Rank(2), 0..4096)]).count > 3000);
    }

    #[test]
    fn missing_and_superfluous_elements_are_wrong() {
        let values = Values::new(DType::U16, Redop::Sum, 2, 0);
        let bytes = filled(&values, 0, 10);
        let compare = |bytes: &[u8], n| values.compare(bytes, &[(Origin::Rank(0), 0..n)]).count;
        assert_eq!(compare(&bytes[..14], 10), 3);
        assert_eq!(compare(&bytes[..15], 10), 3);
        assert_eq!(compare(&bytes, 7), 3);
        assert_eq!(compare(&[], 10), 10);
        assert_eq!(values.compare(&bytes, &[]).count, 10);
        assert_eq!(values.compare(&[], &[]).count, 0);
    }

    #[test]
    fn the_reduction_is_that_of_all_ranks() {
        let values = Values::new(DType::U64, Redop::Sum, 3, 1);
        let inputs: Vec<Vec<u8>> = (0..3).map(|rank| filled(&values, rank, 2000)).collect();
        let of = |bytes: &[u8], i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap());
        let sums: Vec<u8> =
            (0..2000).flat_map(|i| inputs.iter().map(|b| of(b, i)).sum::<u64>().to_le_bytes()).collect();
        assert_eq!(values.compare(&sums, &[(Origin::Reduced, 0..2000)]), Wrong::default());
        assert_eq!(values.compare(&sums[8..], &[(Origin::Reduced, 0..1999)]).count, 1999);
    }
}
