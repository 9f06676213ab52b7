//! Values that name their origin, poison, and random bytes: a wrong element says where it came from.

use comm_core::tensor::DType;

/// SplitMix64: small, fast, and the same everywhere. Not for secrets.
///
/// ```
/// use comm_testkit::values::SplitMix64;
///
/// let mut a = SplitMix64::new(1);
/// let mut b = SplitMix64::new(1);
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert!((0..100).all(|_| a.below(7) < 7));
/// ```
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// From a seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// Another sequence for part `n` of the same job (a rank, a round).
    #[must_use]
    pub fn fork(&self, n: u64) -> SplitMix64 {
        let mut mixed = SplitMix64(self.0 ^ n.wrapping_mul(0xd6e8_feb8_6659_fd93));
        SplitMix64(mixed.next_u64())
    }

    /// 64 random bits (Steele, Lea and Flood, 2014).
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0. Slightly uneven for huge `n`, which no test notices.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64().checked_rem(n).unwrap_or(0)
    }

    /// One of them; `None` of nothing.
    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(usize::try_from(self.below(of.len() as u64)).unwrap_or(0))
    }

    /// Fills a slice with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

/// What rank `rank` contributes to a sum at element `c`: `10^rank * (c + 1)`, so that a decimal digit of the sum
/// says how often that rank was counted (while `c < 9`). Wraps from rank 19 on.
///
/// ```
/// use comm_testkit::values::digit_coded;
///
/// let sum: i64 = (0..4).map(|rank| digit_coded(rank, 1)).sum();
/// assert_eq!(sum, 2222);
/// ```
pub fn digit_coded(rank: usize, c: usize) -> i64 {
    let power = u32::try_from(rank).unwrap_or(u32::MAX);
    10_i64.wrapping_pow(power).wrapping_mul(i64::try_from(c).unwrap_or(i64::MAX).wrapping_add(1))
}

/// Element `j` of what `src` sends to `dst`: `1000 * src + 100 * dst + j`.
///
/// ```
/// assert_eq!(comm_testkit::values::exchange(2, 3, 7), 2307);
/// ```
pub fn exchange(src: usize, dst: usize, j: usize) -> i64 {
    i64::try_from(1000 * src + 100 * dst + j).unwrap_or(i64::MAX)
}

/// What is added to a value in round `round`, so that a value of an earlier round shows: `10_000 * round`.
///
/// ```
/// use comm_testkit::values::{exchange, round_offset};
/// assert_eq!(exchange(1, 0, 5) + round_offset(2), 21_005);
/// ```
pub fn round_offset(round: usize) -> i64 {
    i64::try_from(10_000 * round).unwrap_or(i64::MAX)
}

/// Bytes that nobody would write: what a buffer holds before a test, to show which bytes were touched. Every
/// byte depends on its place, so that a shifted copy shows too.
///
/// ```
/// use comm_testkit::values::{is_poison, poison};
///
/// let mut buffer = poison(8);
/// assert!(is_poison(&buffer));
/// buffer[3] = 0;
/// assert!(!is_poison(&buffer));
/// ```
pub fn poison(len: usize) -> Vec<u8> {
    (0..len).map(poison_byte).collect()
}

/// Whether all bytes are still poison.
pub fn is_poison(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(i, &b)| b == poison_byte(i))
}

/// The places that are no longer poison.
///
/// ```
/// let mut buffer = comm_testkit::values::poison(8);
/// buffer[3] = 0;
/// assert_eq!(comm_testkit::values::touched(&buffer), [3]);
/// ```
pub fn touched(bytes: &[u8]) -> Vec<usize> {
    bytes.iter().enumerate().filter(|(i, b)| **b != poison_byte(*i)).map(|(i, _)| i).collect()
}

fn poison_byte(i: usize) -> u8 {
    // 0xA0..0xAF: as a float it is a tiny negative number, as an integer a large negative one.
    0xA0 | (i % 16) as u8
}

/// Interesting elements of a dtype, as raw little-endian bytes: zeros of both signs, ones, extremes, the smallest
/// subnormal, infinities, and NaNs with payloads, as far as the dtype has them.
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_testkit::values::special_elements;
///
/// let f32s = special_elements(DType::F32);
/// assert!(f32s.contains(&(-0.0_f32).to_le_bytes().to_vec()));
/// ```
pub fn special_elements(dtype: DType) -> Vec<Vec<u8>> {
    let ieee = |size: usize, exponent: u32, mantissa: u32, infinities: bool| {
        let sign = 1_u64 << (exponent + mantissa);
        let infinity = ((1_u64 << exponent) - 1) << mantissa;
        let one = ((1_u64 << (exponent - 1)) - 1) << mantissa;
        let mut bits = vec![0, sign, one, sign | one, 1, sign | 1];
        if infinities {
            let quiet = 1_u64 << (mantissa - 1);
            bits.extend([
                infinity - 1,
                infinity,
                sign | infinity,
                infinity | quiet,
                sign | infinity | quiet | 1,
                infinity | 1,
            ]);
        } else {
            // e4m3fn: all ones is the NaN, one less the largest number.
            bits.extend([sign - 2, sign - 1, sign | (sign - 1)]);
        }
        bits.into_iter().map(|b| b.to_le_bytes()[..size].to_vec()).collect::<Vec<_>>()
    };
    let int = |size: usize| {
        let all = u128::MAX >> (128 - 8 * size);
        [0, 1, all, all >> 1, (all >> 1) + 1].map(|b: u128| b.to_le_bytes()[..size].to_vec()).to_vec()
    };
    let pairs = |parts: Vec<Vec<u8>>| {
        let turned = parts.iter().cycle().skip(1);
        parts.iter().zip(turned).map(|(re, im)| [re.as_slice(), im].concat()).collect()
    };
    match dtype {
        DType::Bool => vec![vec![0], vec![1]],
        DType::F16 => ieee(2, 5, 10, true),
        DType::BF16 => ieee(2, 8, 7, true),
        DType::F32 => ieee(4, 8, 23, true),
        DType::F64 => ieee(8, 11, 52, true),
        DType::F8E4M3 => ieee(1, 4, 3, false),
        DType::F8E5M2 => ieee(1, 5, 2, true),
        DType::Complex64 => pairs(ieee(4, 8, 23, true)),
        DType::Complex128 => pairs(ieee(8, 11, 52, true)),
        whole_number => int(whole_number.size()),
    }
}

/// `numel` random elements of a dtype as raw bytes: mostly random bits (any bit pattern of a number is a number
/// or a NaN), every eighth one of the [`special_elements`].
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_testkit::values::{SplitMix64, random_elements};
///
/// let bytes = random_elements(&mut SplitMix64::new(3), DType::Bool, 100);
/// assert!(bytes.len() == 100 && bytes.iter().all(|&b| b <= 1));
/// ```
pub fn random_elements(rng: &mut SplitMix64, dtype: DType, numel: usize) -> Vec<u8> {
    let special = special_elements(dtype);
    let mut bytes = vec![0; dtype.size() * numel];
    // A bool has no other bits than the special ones.
    let only_special = dtype == DType::Bool;
    if !only_special {
        rng.fill(&mut bytes);
    }
    for element in bytes.chunks_exact_mut(dtype.size()) {
        if (only_special || rng.below(8) == 0)
            && let Some(value) = rng.choose(&special)
        {
            element.copy_from_slice(value);
        }
    }
    bytes
}

/// A view of some storage: elements reached by strides, as a test case for everything that takes a tensor.
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_testkit::values::{SplitMix64, Strided};
///
/// let mut rng = SplitMix64::new(1);
/// for case in Strided::cases() {
///     let storage = case.random_storage(&mut rng, DType::I16);
///     let dense = case.row_major(&storage, 2);
///     assert_eq!(dense.len(), case.numel() * 2, "{}", case.name);
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strided {
    /// What is special about it.
    pub name: &'static str,
    /// Elements in each dimension.
    pub shape: Vec<usize>,
    /// Distance in elements to the next in each dimension; may be zero or negative.
    pub strides: Vec<isize>,
    /// The storage's element at index 0.
    pub offset: usize,
    /// Elements of the storage.
    pub storage: usize,
}

impl Strided {
    /// One of each kind: dense, a single number, empty, transposed, stepped, flipped, expanded, offset, and all
    /// of it at once.
    pub fn cases() -> Vec<Strided> {
        let case = |name, shape: &[usize], strides: &[isize], offset, storage| Strided {
            name,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            offset,
            storage,
        };
        vec![
            case("dense", &[4, 3], &[3, 1], 0, 12),
            case("number", &[], &[], 0, 1),
            case("empty", &[0], &[1], 0, 0),
            case("empty-inside", &[3, 0, 2], &[2, 2, 1], 0, 0),
            case("transposed", &[3, 4], &[1, 3], 0, 12),
            case("stepped", &[5], &[2], 0, 9),
            case("flipped", &[6], &[-1], 5, 6),
            case("expanded", &[4, 3], &[0, 1], 0, 3),
            case("offset", &[2, 2], &[2, 1], 5, 9),
            case("mixed", &[2, 3, 2], &[1, -4, 0], 9, 11),
        ]
    }

    /// The number of elements of the view.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Random bytes for the storage.
    pub fn random_storage(&self, rng: &mut SplitMix64, dtype: DType) -> Vec<u8> {
        random_elements(rng, dtype, self.storage)
    }

    /// The view's elements one after the other, the last index fastest, from the storage's bytes. Elements
    /// outside of the storage are left out.
    pub fn row_major(&self, storage: &[u8], element_size: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.numel() * element_size);
        for index in crate::oracle::indices(&self.shape) {
            let steps = index.iter().zip(&self.strides).map(|(&i, &s)| i as isize * s).sum::<isize>();
            let at = self.offset.checked_add_signed(steps).and_then(|at| at.checked_mul(element_size));
            bytes.extend(at.and_then(|at| storage.get(at..at + element_size)).unwrap_or(&[]));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_stays_inside_its_storage() {
        for case in Strided::cases() {
            let storage: Vec<u8> = (0..case.storage as u8).collect();
            assert_eq!(case.row_major(&storage, 1).len(), case.numel(), "{}", case.name);
        }
        let flipped = Strided::cases().into_iter().find(|c| c.name == "flipped").unwrap();
        assert_eq!(flipped.row_major(&[0, 1, 2, 3, 4, 5], 1), [5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn special_floats_are_what_they_should_be() {
        let f32s: Vec<f32> = special_elements(DType::F32)
            .iter()
            .map(|b| f32::from_le_bytes(b.as_slice().try_into().unwrap()))
            .collect();
        assert!(f32s.contains(&1.0) && f32s.contains(&f32::MAX) && f32s.contains(&f32::NEG_INFINITY));
        assert_eq!(f32s.iter().filter(|x| x.is_nan()).count(), 3);
        assert!(f32s.contains(&f32::from_bits(1)));
    }

    #[test]
    fn random_elements_are_the_same_for_the_same_seed() {
        for &dtype in DType::ALL {
            let draw = |seed| random_elements(&mut SplitMix64::new(seed), dtype, 64);
            assert_eq!(draw(5), draw(5));
            assert_eq!(draw(5).len(), 64 * dtype.size());
            assert_ne!(draw(5), draw(6), "{dtype}");
        }
    }

    #[test]
    fn known_answer_of_splitmix() {
        let mut rng = SplitMix64::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }
}
