//! Element types.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::TensorError;

macro_rules! dtypes {
    ($($variant:ident = $code:literal, $name:literal, $size:literal, $doc:literal;)*) => {
        /// The type of a tensor's elements.
        ///
        /// ```
        /// use comm_core::tensor::DType;
        ///
        /// let dtype: DType = "bf16".parse()?;
        /// assert_eq!(dtype, DType::BF16);
        /// assert_eq!((dtype.size(), dtype.name()), (2, "bf16"));
        /// assert_eq!(DType::from_code(dtype.code()), Some(dtype));
        /// # Ok::<(), comm_core::tensor::TensorError>(())
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DType {
            $(#[doc = $doc] $variant = $code,)*
        }

        impl DType {
            /// Every element type, in the order of [`DType::code`].
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// Size of one element in bytes.
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => $size,)* }
            }

            /// Size of so many elements in bytes; `None` if no tensor can have so many, for its bytes are at most `isize::MAX`.
            ///
            /// ```
            /// use comm_core::tensor::DType;
            ///
            /// assert_eq!(DType::F32.bytes_of(6), Some(24));
            /// assert_eq!(DType::F32.bytes_of(usize::MAX / 4), None);
            /// ```
            pub fn bytes_of(self, elements: usize) -> Option<usize> {
                elements.checked_mul(self.size()).filter(|&bytes| isize::try_from(bytes).is_ok())
            }

            /// The short name, as [`FromStr`] reads it: `"f32"`, `"bf16"`, `"f8e4m3"`, `"complex64"`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }
        }
    };
}

dtypes! {
    Bool = 0, "bool", 1, "`bool`: one byte, 0 or 1.";
    U8 = 1, "u8", 1, "`u8`.";
    I8 = 2, "i8", 1, "`i8`.";
    U16 = 3, "u16", 2, "`u16`.";
    I16 = 4, "i16", 2, "`i16`.";
    U32 = 5, "u32", 4, "`u32`.";
    I32 = 6, "i32", 4, "`i32`.";
    U64 = 7, "u64", 8, "`u64`.";
    I64 = 8, "i64", 8, "`i64`.";
    F16 = 9, "f16", 2, "IEEE half precision ([`half::f16`]).";
    BF16 = 10, "bf16", 2, "bfloat16 ([`half::bf16`]).";
    F32 = 11, "f32", 4, "`f32`.";
    F64 = 12, "f64", 8, "`f64`.";
    F8E4M3 = 13, "f8e4m3", 1, "8-bit float, 4 exponent bits, no infinities, one NaN per sign (`e4m3fn`; [`float8::F8E4M3`]).";
    F8E5M2 = 14, "f8e5m2", 1, "8-bit float, 5 exponent bits, with infinities ([`float8::F8E5M2`]).";
    Complex64 = 15, "complex64", 8, "Two `f32`, real part first ([`num_complex::Complex`]).";
    Complex128 = 16, "complex128", 16, "Two `f64`, real part first ([`num_complex::Complex`]).";
}

impl DType {
    /// A number for headers that processes share. Stable within a layout version.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The element type of a [`code`](DType::code), if there is one.
    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = TensorError;

    fn from_str(name: &str) -> Result<DType, TensorError> {
        DType::ALL.iter().copied().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let known: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            TensorError::Invalid {
                op: "DType::from_str",
                why: format!("no dtype is called {name:?}; there are {}", known.join(", ")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_names_and_order_agree() {
        assert_eq!(DType::ALL.len(), 17);
        for (i, &dtype) in DType::ALL.iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), i);
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
            assert_eq!(dtype.to_string(), dtype.name());
            let bytes = crate::wire::encode(&dtype).unwrap();
            assert_eq!(crate::wire::decode::<DType>(&bytes).unwrap(), dtype);
        }
        assert_eq!(DType::from_code(17), None);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let text = "float".parse::<DType>().unwrap_err().to_string();
        assert!(text.contains("float") && text.contains("bf16"), "{text}");
    }
}
