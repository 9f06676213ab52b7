//! Reductions, slowly: integers are exact numbers, floats are exact numbers that are rounded where the library must
//! round. There is no float arithmetic here but to find fp8 numbers, all of which are looked through.

use comm_core::tensor::DType;

use super::exact::{self, Exact, Format};

/// How contributions are combined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reduction {
    /// Their sum; of integers the low bits.
    Sum,
    /// Their product; of integers the low bits.
    Prod,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The sum divided by their number.
    Avg,
    /// The sum of their products with this.
    PremulSum(f64),
    /// Bits set in all.
    BitAnd,
    /// Bits set in any.
    BitOr,
    /// Bits set in an odd number.
    BitXor,
    /// Whether all are true.
    And,
    /// Whether any is.
    Or,
}

impl Reduction {
    /// One of each.
    pub const ALL: [Reduction; 11] = [
        Reduction::Sum,
        Reduction::Prod,
        Reduction::Min,
        Reduction::Max,
        Reduction::Avg,
        Reduction::PremulSum(-0.3),
        Reduction::BitAnd,
        Reduction::BitOr,
        Reduction::BitXor,
        Reduction::And,
        Reduction::Or,
    ];
}

/// What all ranks must get: from rank 0's elements, then rank by rank. `None` where there is no such operator for the
/// dtype, and without ranks. Elements that some rank does not have are left out.
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_testkit::oracle::reduce::{Reduction, reduce};
///
/// let ranks = [7i16, -12, 1].map(|x| x.to_ne_bytes().to_vec());
/// assert_eq!(reduce(Reduction::Avg, DType::I16, &ranks), Some((-1i16).to_ne_bytes().to_vec()));
/// let ranks = [1e8f32, 1.0, -1e8].map(|x| x.to_ne_bytes().to_vec());
/// assert_eq!(reduce(Reduction::Sum, DType::F32, &ranks), Some(0f32.to_ne_bytes().to_vec()));
/// assert_eq!(reduce(Reduction::Min, DType::Bool, &[vec![1]]), None);
/// ```
pub fn reduce(op: Reduction, dtype: DType, ranks: &[Vec<u8>]) -> Option<Vec<u8>> {
    let size = dtype.size();
    let elements = ranks.iter().map(|rank| rank.len() / size).min()?;
    let mut out = Vec::with_capacity(elements * size);
    // Even of no elements there must be the operator.
    element(op, dtype, &vec![vec![0; size]; ranks.len()])?;
    for i in 0..elements {
        let column: Vec<Vec<u8>> = ranks.iter().map(|rank| rank[i * size..(i + 1) * size].to_vec()).collect();
        out.extend(element(op, dtype, &column)?);
    }
    Some(out)
}

fn element(op: Reduction, dtype: DType, column: &[Vec<u8>]) -> Option<Vec<u8>> {
    let size = dtype.size();
    let bits = |bytes: &[u8]| {
        let mut wide = [0; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        u128::from_le_bytes(wide)
    };
    let bytes = |bits: u128, size: usize| bits.to_le_bytes()[..size].to_vec();
    let all: Vec<u128> = column.iter().map(|element| bits(element)).collect();
    Some(match dtype {
        DType::Bool => {
            let truths = all.iter().map(|&bits| bits != 0);
            vec![u8::from(match op {
                Reduction::And => truths.filter(|truth| !truth).count() == 0,
                Reduction::Or => truths.filter(|truth| *truth).count() > 0,
                _ => return None,
            })]
        }
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => bytes(integer(op, size, false, &all)?, size),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => bytes(integer(op, size, true, &all)?, size),
        DType::Complex64 | DType::Complex128 => {
            let (half, part) = match dtype {
                DType::Complex64 => (4, DType::F32),
                _ => (8, DType::F64),
            };
            let low = |x: u128| x & (u128::MAX >> (128 - 8 * half));
            let pairs: Vec<[u128; 2]> = all.iter().map(|&x| [low(x), low(x >> (8 * half))]).collect();
            match op {
                Reduction::Sum | Reduction::Avg | Reduction::PremulSum(_) => [0, 1]
                    .iter()
                    .map(|&i| float(op, part, &pairs.iter().map(|pair| pair[i]).collect::<Vec<_>>()))
                    .collect::<Option<Vec<_>>>()?
                    .iter()
                    .flat_map(|&bits| bytes(bits, half))
                    .collect(),
                Reduction::Prod => {
                    complex_product(part, &pairs)?.iter().flat_map(|&b| bytes(b, half)).collect()
                }
                _ => return None,
            }
        }
        _ => bytes(float(op, dtype, &all)?, size),
    })
}

/// By the exact numbers; the result's low bits are the element.
fn integer(op: Reduction, size: usize, signed: bool, all: &[u128]) -> Option<u128> {
    let width = 8 * size;
    let negative = |x: u128| signed && x >> (width - 1) == 1;
    let value = |x: u128| if negative(x) { x as i128 - (1 << width) } else { x as i128 };
    let values: Vec<i128> = all.iter().map(|&x| value(x)).collect();
    let by_bit = |set: &dyn Fn(usize) -> bool| -> u128 {
        (0..width)
            .filter(|&bit| set(all.iter().filter(|&&x| x >> bit & 1 == 1).count()))
            .map(|bit| 1u128 << bit)
            .sum()
    };
    let sum = values.iter().sum::<i128>();
    Some(match op {
        Reduction::Sum => sum as u128,
        // Low bits of a product depend on low bits alone.
        Reduction::Prod => values.iter().fold(1i128, |product, &x| product.wrapping_mul(x)) as u128,
        Reduction::Min => *values.iter().min()? as u128,
        Reduction::Max => *values.iter().max()? as u128,
        Reduction::Avg => {
            let magnitude = sum.unsigned_abs() / all.len() as u128;
            if sum < 0 { magnitude.wrapping_neg() } else { magnitude }
        }
        Reduction::BitAnd => by_bit(&|n| n == all.len()),
        Reduction::BitOr => by_bit(&|n| n > 0),
        Reduction::BitXor => by_bit(&|n| n % 2 == 1),
        Reduction::PremulSum(_) | Reduction::And | Reduction::Or => return None,
    })
}

/// In which format a float is combined.
fn accumulator(dtype: DType) -> &'static Format {
    if dtype == DType::F64 { &exact::F64 } else { &exact::F32 }
}

fn format(dtype: DType) -> Option<&'static Format> {
    Some(match dtype {
        DType::F16 => &exact::F16,
        DType::BF16 => &exact::BF16,
        DType::F32 => &exact::F32,
        DType::F64 => &exact::F64,
        DType::F8E5M2 => &exact::F8E5M2,
        DType::F8E4M3 => &exact::F8E4M3,
        _ => return None,
    })
}

fn float(op: Reduction, dtype: DType, all: &[u128]) -> Option<u128> {
    let (own, acc) = (format(dtype)?, accumulator(dtype));
    let values: Vec<Exact> = all.iter().map(|&bits| own.decode(bits as u64)).collect();
    let fold = |each: &dyn Fn(Exact, Exact) -> Exact, values: &[Exact]| {
        values.iter().copied().reduce(|a, b| acc.rounded(each(a, b)))
    };
    let add = |a: Exact, b: Exact| a.plus(b);
    let result = match op {
        Reduction::Sum => fold(&add, &values)?,
        Reduction::Prod => fold(&|a, b| a.times(b), &values)?,
        Reduction::Min => fold(&|a, b| a.least(b), &values)?,
        Reduction::Max => fold(&|a, b| a.least_of_negatives(b), &values)?,
        Reduction::Avg => acc.rounded(fold(&add, &values)?.divided(all.len() as u64)),
        Reduction::PremulSum(factor) => {
            let factor = acc.rounded(exact::F64.decode(factor.to_bits()));
            fold(&add, &values.iter().map(|&x| acc.rounded(x.times(factor))).collect::<Vec<_>>())?
        }
        _ => return None,
    };
    Some(u128::from(encode(dtype, result)?))
}

/// (ac - bd) + (ad + bc)i, each operation rounded.
fn complex_product(part: DType, pairs: &[[u128; 2]]) -> Option<[u128; 2]> {
    let f = format(part)?;
    let values: Vec<[Exact; 2]> = pairs.iter().map(|pair| pair.map(|bits| f.decode(bits as u64))).collect();
    let [re, im] = values.into_iter().reduce(|[a, b], [c, d]| {
        let times = |x: Exact, y: Exact| f.rounded(x.times(y));
        [f.rounded(times(a, c).plus(times(b, d).negated())), f.rounded(times(a, d).plus(times(b, c)))]
    })?;
    Some([u128::from(f.encode(re)), u128::from(f.encode(im))])
}

/// The bits of a number that has been combined, in the dtype; fp8 by looking through all that there are.
fn encode(dtype: DType, x: Exact) -> Option<u64> {
    Some(match dtype {
        DType::F8E4M3 | DType::F8E5M2 => round(dtype, f32::from_bits(exact::F32.encode(x) as u32)),
        _ => format(dtype)?.encode(x),
    })
}

/// What number these bits of a real float are.
///
/// ```
/// use comm_core::tensor::DType;
///
/// assert_eq!(comm_testkit::oracle::reduce::value(DType::F8E4M3, 0x7e), 448.0);
/// ```
pub fn value(dtype: DType, bits: u64) -> f64 {
    format(dtype).map_or(f64::NAN, |f| f64::from_bits(exact::F64.encode(f.decode(bits))))
}

/// The bits of the float nearest to `x`; of two equally near ones the one whose bits are even.
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_testkit::oracle::reduce::round;
///
/// assert_eq!(round(DType::F8E4M3, 464.0), 0x7e);
/// assert_eq!(round(DType::F8E4M3, 465.0), 0x7f);
/// assert_eq!(round(DType::BF16, f32::MAX), 0x7f80);
/// ```
pub fn round(dtype: DType, x: f32) -> u64 {
    let too_large = match dtype {
        // What the next numbers would be, and what stands for them.
        DType::F8E4M3 => (480.0, 0x7f),
        DType::F8E5M2 => (65536.0, 0x7c),
        _ => return format(dtype).map_or(0, |f| f.encode(exact::F32.decode(x.to_bits().into()))),
    };
    let nan = if dtype == DType::F8E4M3 { 0x7f } else { 0x7e };
    if x.is_nan() {
        return nan;
    }
    let magnitude = f64::from(x.abs()).min(too_large.0);
    let mut all: Vec<(f64, u64)> = (0..0x80).map(|bits| (value(dtype, bits), bits)).collect();
    all.retain(|(value, _)| value.is_finite());
    all.push(too_large);
    let distance = |value: f64| (value - magnitude).abs();
    let nearest = all.iter().map(|(value, _)| distance(*value)).fold(f64::INFINITY, f64::min);
    let near: Vec<u64> =
        all.iter().filter(|(value, _)| distance(*value) == nearest).map(|(_, bits)| *bits).collect();
    let found = near.iter().copied().find(|bits| near.len() == 1 || bits % 2 == 0).unwrap_or(nan);
    if found == nan || x.is_sign_positive() { found } else { 0x80 | found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(op: Reduction, values: &[f32]) -> f32 {
        let ranks: Vec<_> = values.iter().map(|x| x.to_le_bytes().to_vec()).collect();
        f32::from_le_bytes(reduce(op, DType::F32, &ranks).unwrap().try_into().unwrap())
    }

    #[test]
    fn floats_by_hand() {
        assert_eq!(f32s(Reduction::Sum, &[0.1, 0.2, 0.3]), 0.1 + 0.2 + 0.3);
        assert_eq!(f32s(Reduction::Prod, &[1e30, -1e10]), f32::NEG_INFINITY);
        assert_eq!(f32s(Reduction::Avg, &[1.0, 1.0, 0.0]), 2.0 / 3.0);
        assert_eq!(f32s(Reduction::PremulSum(0.1), &[3.0, 7.0]), 3.0 * 0.1 + 7.0 * 0.1);
        assert!(f32s(Reduction::Min, &[0.0, -0.0]).is_sign_negative());
        assert!(f32s(Reduction::Max, &[-0.0, 0.0]).is_sign_positive());
        assert!(f32s(Reduction::Max, &[5.0, f32::NAN, 6.0]).is_nan());
    }

    #[test]
    fn integers_by_hand() {
        let i8s = |op, values: &[i8]| {
            let ranks: Vec<_> = values.iter().map(|x| x.to_le_bytes().to_vec()).collect();
            reduce(op, DType::I8, &ranks).unwrap()[0] as i8
        };
        assert_eq!(i8s(Reduction::Sum, &[127, 1]), -128);
        assert_eq!(i8s(Reduction::Prod, &[-128, -1]), -128);
        assert_eq!([i8s(Reduction::Min, &[-1, 1]), i8s(Reduction::Max, &[-1, 1])], [-1, 1]);
        assert_eq!([i8s(Reduction::Avg, &[-128, -128]), i8s(Reduction::Avg, &[-3, 0])], [-128, -1]);
        assert_eq!(i8s(Reduction::BitXor, &[6, 3, 1]), 4);
    }

    #[test]
    fn what_there_is_not() {
        let there = |op, dtype: DType| reduce(op, dtype, &[vec![0; dtype.size()]]).is_some();
        let count = |op| DType::ALL.iter().filter(|dtype| there(op, **dtype)).count();
        assert_eq!(Reduction::ALL.map(count), [16, 16, 14, 14, 16, 8, 8, 8, 8, 1, 1]);
        assert_eq!(reduce(Reduction::Sum, DType::F32, &[]), None);
    }
}
