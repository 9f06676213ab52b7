//! What can go wrong with a tensor.

use std::fmt;

use super::{DType, MAX_DIMS};
use crate::device::Device;

/// A tensor operation was asked for something that does not exist. Nothing has changed.
///
/// Every variant names the operation; Display adds the sizes that were seen and wanted. Converts into
/// [`Error`](crate::Error): out of memory, a wrong device, or an invalid argument.
///
/// ```
/// use comm_core::tensor::{Tensor, TensorError};
///
/// let t = Tensor::from_slice(&[2, 3], &[1, 2, 3, 4, 5, 6])?;
/// let e = t.narrow(1, 2, 2).unwrap_err();
/// assert!(matches!(e, TensorError::OutOfBounds { dim: 1, size: 3, .. }));
/// assert_eq!(e.to_string(), "narrow: 2..4 is outside dimension 1 of size 3");
/// # Ok::<(), TensorError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorError {
    /// More than [`MAX_DIMS`] dimensions.
    TooManyDims {
        /// The call.
        op: &'static str,
        /// How many dimensions there would be.
        dims: usize,
    },
    /// A size, stride or offset does not fit into 63 bits.
    Overflow {
        /// The call.
        op: &'static str,
        /// The shape that was asked for.
        shape: Box<[usize]>,
    },
    /// There is no such dimension.
    NoSuchDim {
        /// The call.
        op: &'static str,
        /// The dimension asked for.
        dim: usize,
        /// How many dimensions there are.
        dims: usize,
    },
    /// A range or index reaches outside a dimension.
    OutOfBounds {
        /// The call.
        op: &'static str,
        /// The dimension.
        dim: usize,
        /// First index asked for.
        start: usize,
        /// Number of indices asked for.
        len: usize,
        /// Size of the dimension.
        size: usize,
    },
    /// A shape is not the one that is needed.
    Shape {
        /// The call.
        op: &'static str,
        /// The shape that was given.
        seen: Box<[usize]>,
        /// The shape, or what is needed of it.
        expected: Box<[usize]>,
    },
    /// The number of elements or bytes is not the one that is needed.
    Length {
        /// The call.
        op: &'static str,
        /// What is counted.
        unit: &'static str,
        /// The number that was given.
        seen: usize,
        /// The number that is needed.
        expected: usize,
    },
    /// The elements are of another type.
    DType {
        /// The call.
        op: &'static str,
        /// The type that was seen.
        seen: DType,
        /// The type that is needed.
        expected: DType,
    },
    /// The tensor's elements do not lie one after the other; make it contiguous first.
    NotContiguous {
        /// The call.
        op: &'static str,
        /// Its shape.
        shape: Box<[usize]>,
        /// Its strides, in elements.
        strides: Box<[isize]>,
    },
    /// No strides give the new shape over the same memory; make the tensor contiguous first.
    NoView {
        /// The call.
        op: &'static str,
        /// The shape that the tensor has.
        from: Box<[usize]>,
        /// The shape that was asked for.
        to: Box<[usize]>,
    },
    /// A layout reaches outside the memory it is laid over.
    OutsideStorage {
        /// The call.
        op: &'static str,
        /// Bytes that the layout reaches to.
        needs: u64,
        /// Bytes that there are.
        has: usize,
    },
    /// The first element is not aligned for its type.
    Misaligned {
        /// The call.
        op: &'static str,
        /// Bytes by which it should be aligned.
        align: usize,
    },
    /// A byte of a [`DType::Bool`] tensor is neither 0 nor 1.
    InvalidBool {
        /// The call.
        op: &'static str,
        /// Which element, counted in row-major order.
        index: usize,
        /// Its byte.
        value: u8,
    },
    /// The memory is on another device than the call works on.
    Device {
        /// The call.
        op: &'static str,
        /// Where the memory is.
        seen: Device,
        /// Where it should be.
        expected: Device,
    },
    /// Another process can write the memory, so there are no references to it; copy its bytes.
    NotOurs {
        /// The call.
        op: &'static str,
    },
    /// The allocator has no more memory.
    OutOfMemory {
        /// The call.
        op: &'static str,
        /// Bytes asked for.
        asked: usize,
    },
    /// Anything else that is wrong with an argument.
    Invalid {
        /// The call.
        op: &'static str,
        /// What is wrong, and what would be right.
        why: String,
    },
}

use TensorError as E;

impl TensorError {
    /// The call that was refused.
    pub fn op(&self) -> &'static str {
        match self {
            E::TooManyDims { op, .. }
            | E::Overflow { op, .. }
            | E::NoSuchDim { op, .. }
            | E::OutOfBounds { op, .. }
            | E::Shape { op, .. }
            | E::Length { op, .. }
            | E::DType { op, .. }
            | E::NotContiguous { op, .. }
            | E::NoView { op, .. }
            | E::OutsideStorage { op, .. }
            | E::Misaligned { op, .. }
            | E::InvalidBool { op, .. }
            | E::Device { op, .. }
            | E::NotOurs { op }
            | E::OutOfMemory { op, .. }
            | E::Invalid { op, .. } => op,
        }
    }

    pub(super) fn overflow(op: &'static str, shape: &[usize]) -> TensorError {
        E::Overflow { op, shape: shape.into() }
    }

    pub(super) fn invalid(op: &'static str, why: impl Into<String>) -> TensorError {
        E::Invalid { op, why: why.into() }
    }

    fn reason(&self) -> Reason<'_> {
        Reason(self)
    }
}

/// The text without the operation, which [`Error`](crate::Error) prints itself.
struct Reason<'a>(&'a TensorError);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            E::TooManyDims { dims, .. } => write!(f, "{dims} dimensions, at most {MAX_DIMS} are possible"),
            E::Overflow { shape, .. } => write!(f, "sizes for shape {shape:?} do not fit into 63 bits"),
            E::NoSuchDim { dim, dims, .. } => write!(f, "no dimension {dim}, there are {dims}"),
            E::OutOfBounds { dim, start, len: 1, size, .. } => {
                write!(f, "{start} is outside dimension {dim} of size {size}")
            }
            E::OutOfBounds { dim, start, len, size, .. } => {
                // Both may be as large as they like: the sum is only printed.
                let end = *start as u128 + *len as u128;
                write!(f, "{start}..{end} is outside dimension {dim} of size {size}")
            }
            E::Shape { seen, expected, .. } => write!(f, "shape {seen:?}, expected {expected:?}"),
            E::Length { unit, seen, expected, .. } => write!(f, "{seen} {unit}, expected {expected}"),
            E::DType { seen, expected, .. } => write!(f, "dtype {seen}, expected {expected}"),
            E::NotContiguous { shape, strides, .. } => {
                write!(
                    f,
                    "shape {shape:?} with strides {strides:?} is not contiguous; call contiguous() first"
                )
            }
            E::NoView { from, to, .. } => {
                write!(f, "the strides of shape {from:?} allow no view as {to:?}; call contiguous() first")
            }
            E::OutsideStorage { needs, has, .. } => {
                write!(f, "the layout needs {needs} bytes, there are {has}")
            }
            E::Misaligned { align, .. } => write!(f, "the first element is not aligned to {align} bytes"),
            E::InvalidBool { index, value, .. } => write!(f, "element {index} is {value}, not a bool"),
            E::Device { seen, expected, .. } => write!(f, "tensor is on {seen}, expected {expected}"),
            E::NotOurs { .. } => {
                f.write_str(
                    "another process can write this memory, so its bytes can only be copied: by to_vec, copy_bytes_to or to_buf",
                )
            }
            E::OutOfMemory { asked, .. } => write!(f, "out of memory: asked for {asked} bytes"),
            E::Invalid { why, .. } => f.write_str(why),
        }
    }
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.op(), self.reason())
    }
}

impl std::error::Error for TensorError {}

impl From<TensorError> for crate::Error {
    fn from(e: TensorError) -> Self {
        match e {
            E::OutOfMemory { op, asked } => crate::Error::OutOfMemory {
                asked: asked as u64,
                limit: isize::MAX as u64,
                what: format!("the process's allocator refused, in {op}"),
            },
            E::Device { op, seen, expected } => {
                crate::Error::DeviceMismatch { op, seen: seen.to_string(), expected: expected.to_string() }
            }
            other => crate::Error::InvalidArgument { op: other.op(), why: other.reason().to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn the_error_is_small() {
        assert!(size_of::<TensorError>() <= 64, "{}", size_of::<TensorError>());
    }

    #[test]
    fn conversion_keeps_the_text_and_says_the_operation_once() {
        let e: Error =
            TensorError::OutOfBounds { op: "narrow", dim: 1, start: usize::MAX, len: 2, size: 3 }.into();
        let text = e.to_string();
        assert_eq!(text.matches("narrow").count(), 1, "{text}");
        assert!(text.contains("18446744073709551615..18446744073709551617"), "{text}");
        assert!(text.contains("dimension 1 of size 3"), "{text}");

        let e: Error = TensorError::OutOfMemory { op: "zeros", asked: 1 << 60 }.into();
        assert!(matches!(e, Error::OutOfMemory { asked, .. } if asked == 1 << 60));

        let e: Error =
            TensorError::Device { op: "as_slice", seen: Device::Sim(2), expected: Device::Cpu }.into();
        assert_eq!(e.to_string(), "as_slice: tensor is on sim:2, expected cpu");
    }
}
