//! The Rust types behind the element types.

use std::fmt;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use num_complex::Complex;

use super::{DType, TensorError};

mod sealed {
    /// # Safety
    /// The type has no padding, all-zero bytes are a value of it, and unless `CHECKED` any bytes are.
    pub unsafe trait Sealed {
        /// Only bytes that [`super::check`] has accepted are values.
        const CHECKED: bool = false;
    }
}

/// A Rust type that a tensor's elements can be read and written as. Sealed: one for each [`DType`].
///
/// ```
/// use comm_core::tensor::{DType, Element};
///
/// fn name<T: Element>() -> &'static str {
///     T::DTYPE.name()
/// }
/// assert_eq!(name::<f32>(), "f32");
/// assert_eq!(<half::bf16 as Element>::DTYPE, DType::BF16);
/// ```
pub trait Element: sealed::Sealed + Copy + PartialEq + fmt::Debug + Default + Send + Sync + 'static {
    /// The element type that this Rust type stands for.
    const DTYPE: DType;

    /// The bytes of values, in this machine's byte order.
    fn bytes_of(values: &[Self]) -> &[u8] {
        as_bytes(values)
    }

    /// The value that these bytes are.
    ///
    /// # Errors
    /// Another number of bytes than one element has; a bool that is neither 0 nor 1.
    ///
    /// ```
    /// use comm_core::tensor::Element;
    ///
    /// assert_eq!(f32::value_of(&1.5f32.to_ne_bytes())?, 1.5);
    /// assert!(bool::value_of(&[2]).is_err() && u16::value_of(&[0]).is_err());
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    fn value_of(bytes: &[u8]) -> Result<Self, TensorError> {
        const OP: &str = "Element::value_of";
        let expected = size_of::<Self>();
        if bytes.len() != expected {
            return Err(TensorError::Length { op: OP, unit: "bytes", seen: bytes.len(), expected });
        }
        check::<Self>(OP, bytes)?;
        // SAFETY: as many bytes as the type has, and such as it has values of, both just checked; without padding every
        // one of them counts. They need not be aligned.
        Ok(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        // SAFETY: a primitive number, a transparent wrapper of one, or a `repr(C)` pair of equal floats: no
        // padding, and every bit pattern is a value.
        unsafe impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
        }
        const _: () = assert!(size_of::<$ty>() == DType::$dtype.size());
    )*};
}

elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, F8E4M3 => F8E4M3, F8E5M2 => F8E5M2,
    Complex<f32> => Complex64, Complex<f64> => Complex128,
}

// SAFETY: one byte without padding; zero is `false`; `check` lets only 0 and 1 through.
unsafe impl sealed::Sealed for bool {
    const CHECKED: bool = true;
}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
}
const _: () = assert!(size_of::<bool>() == 1);

/// The bytes of a slice of elements.
pub(super) fn as_bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, so all their bytes are initialised; the borrow keeps them unchanged.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Says whether the bytes of whole elements are values of `T`.
pub(super) fn check<T: Element>(op: &'static str, bytes: &[u8]) -> Result<(), TensorError> {
    if !T::CHECKED {
        return Ok(());
    }
    // A fold over all bytes vectorises; the position is looked for only on failure.
    if bytes.iter().fold(0, |all, b| all | b) <= 1 {
        return Ok(());
    }
    let at = bytes.iter().position(|&b| b > 1).unwrap_or(0);
    Err(TensorError::InvalidBool { op, index: at, value: bytes.get(at).copied().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bools_are_checked_and_nothing_else_is() {
        assert!(check::<bool>("t", &[0, 1, 1, 0]).is_ok());
        assert!(check::<bool>("t", &[]).is_ok());
        assert_eq!(
            check::<bool>("t", &[0, 1, 2, 255]).unwrap_err(),
            TensorError::InvalidBool { op: "t", index: 2, value: 2 }
        );
        assert!(check::<u8>("t", &[0, 255]).is_ok());
        assert!(check::<f32>("t", &[255; 8]).is_ok());
    }

    #[test]
    fn bytes_are_those_of_the_elements() {
        assert_eq!(as_bytes(&[1u16, 0x0203]), [1u16.to_ne_bytes(), 0x0203u16.to_ne_bytes()].concat());
        assert_eq!(as_bytes(&[true, false]), [1, 0]);
        assert!(as_bytes::<f64>(&[]).is_empty());
    }
}
