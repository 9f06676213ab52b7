//! Operators, and how they go over elements.

use std::fmt;

use comm_core::tensor::{DType, Element};

/// How contributions are combined.
#[doc(alias = "ReduceOpType")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Their sum. Integers wrap.
    #[doc(alias = "kSum")]
    #[default]
    Sum,
}

impl ReduceOp {
    pub(crate) fn code(self) -> u32 {
        match self {
            ReduceOp::Sum => 1,
        }
    }

    pub(crate) fn name_of(code: u32) -> String {
        if code == ReduceOp::Sum.code() { ReduceOp::Sum.to_string() } else { format!("operator {code}") }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "sum",
        })
    }
}

/// A type that can be reduced.
trait Reducible: Element {
    /// `a + b`, wrapping for integers.
    fn sum(a: Self, b: Self) -> Self;
    /// What every NaN comes out as; other values as they are.
    fn canonical(self) -> Self;
}

macro_rules! reducible {
    (float $($t:ty),*) => {$(
        impl Reducible for $t {
            fn sum(a: Self, b: Self) -> Self { a + b }
            fn canonical(self) -> Self { if self.is_nan() { <$t>::NAN } else { self } }
        }
    )*};
    (integer $($t:ty),*) => {$(
        impl Reducible for $t {
            fn sum(a: Self, b: Self) -> Self { a.wrapping_add(b) }
            fn canonical(self) -> Self { self }
        }
    )*};
}
reducible!(float f32, f64);
reducible!(integer i32, i64);

/// Whether a dtype can be reduced here.
pub(crate) fn is_reducible(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64)
}

/// Adds to `into`, element by element, what `from` holds; both are dense elements of `dtype`, of the same length.
///
/// The sum of several contributions is made by calling this for each, in rank order, on rank 0's: IEEE addition, one
/// rounding for each, no fused or reordered operations.
pub(crate) fn accumulate(dtype: DType, into: &mut [u8], from: &[u8]) {
    match dtype {
        DType::F32 => each::<f32, 4>(into, from, f32::from_ne_bytes, f32::to_ne_bytes),
        DType::F64 => each::<f64, 8>(into, from, f64::from_ne_bytes, f64::to_ne_bytes),
        DType::I32 => each::<i32, 4>(into, from, i32::from_ne_bytes, i32::to_ne_bytes),
        DType::I64 => each::<i64, 8>(into, from, i64::from_ne_bytes, i64::to_ne_bytes),
        // `is_reducible` has been asked.
        _ => {}
    }
}

/// Makes every NaN the one canonical NaN: which payload an addition of NaNs keeps is the processor's choice.
pub(crate) fn canonicalise(dtype: DType, bytes: &mut [u8]) {
    match dtype {
        DType::F32 => all::<f32, 4>(bytes, f32::from_ne_bytes, f32::to_ne_bytes),
        DType::F64 => all::<f64, 8>(bytes, f64::from_ne_bytes, f64::to_ne_bytes),
        _ => {}
    }
}

fn each<T: Reducible, const N: usize>(
    into: &mut [u8],
    from: &[u8],
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
) {
    let (into, _) = into.as_chunks_mut::<N>();
    let (from, _) = from.as_chunks::<N>();
    for (a, b) in into.iter_mut().zip(from) {
        *a = write(T::sum(read(*a), read(*b)));
    }
}

fn all<T: Reducible, const N: usize>(
    bytes: &mut [u8],
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
) {
    for a in bytes.as_chunks_mut::<N>().0 {
        *a = write(read(*a).canonical());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::tensor::{Tensor, TensorBuf};

    fn sum<T: Element>(contributions: &[&[T]]) -> Vec<T> {
        let shape = [contributions[0].len()];
        let mut into = TensorBuf::from_slice(&shape, contributions[0]).unwrap();
        for more in &contributions[1..] {
            let more = Tensor::from_slice(&shape, more).unwrap();
            accumulate(T::DTYPE, into.bytes_mut().unwrap(), more.bytes().unwrap());
        }
        canonicalise(T::DTYPE, into.bytes_mut().unwrap());
        into.as_slice::<T>().unwrap().to_vec()
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(sum(&[&[i32::MAX, 1], &[1, 2]]), [i32::MIN, 3]);
        assert_eq!(sum(&[&[i64::MIN], &[-1]]), [i64::MAX]);
    }

    #[test]
    fn floats_go_in_order_and_keep_the_sign_of_zero() {
        assert_eq!(sum(&[&[1e8f32], &[1.0], &[-1e8]]), [0.0], "the 1 is rounded away first");
        assert_eq!(sum(&[&[1e8f32], &[-1e8], &[1.0]]), [1.0]);
        assert!(sum(&[&[-0.0f64], &[-0.0]])[0].is_sign_negative());
        assert!(sum(&[&[-0.0f64], &[0.0]])[0].is_sign_positive());
        assert_eq!(sum(&[&[f32::INFINITY, f32::MAX], &[1.0, f32::MAX]]), [f32::INFINITY; 2]);
    }

    #[test]
    fn every_nan_comes_out_the_same() {
        let odd = f32::from_bits(0xffc0_1234);
        let out = sum(&[&[odd, 1.0, f32::INFINITY], &[1.0, odd, f32::NEG_INFINITY]]);
        assert!(out.iter().all(|x| x.to_bits() == f32::NAN.to_bits()));
        assert_eq!(sum(&[&[f64::from_bits(0x7ff0_0000_0000_0001)]])[0].to_bits(), f64::NAN.to_bits());
    }
}
