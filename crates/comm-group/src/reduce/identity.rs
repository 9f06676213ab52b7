//! The element that changes nothing.

use comm_core::Result;
use comm_core::tensor::{DType, Element};

use super::op::{Kind, ReduceOp};

impl ReduceOp {
    /// The bytes of an element that changes no other: rank 0 may contribute a value, and all others this, and the value comes
    /// out (a NaN as the one NaN).
    ///
    /// | operator | integers | floats | complex |
    /// |---|---|---|---|
    /// | sum | 0 | -0.0 | -0.0 - 0.0i |
    /// | prod | 1 | 1 | 1 + 0i |
    /// | min | the largest | infinity; f8e4m3: 448 | |
    /// | max | the smallest | -infinity; f8e4m3: -448 | |
    /// | bit_and | all bits set | | |
    /// | bit_or, bit_xor | 0 | | |
    ///
    /// Of bools, it is true for and, false for or. There is none for avg, where every rank may keep the value instead, and
    /// none for premul_sum, which changes the value itself. One times a complex number is that number but for the signs
    /// of its zeros, and for infinities, of which the plain formula makes NaN.
    ///
    /// # Errors
    /// Those of [`check`](ReduceOp::check).
    ///
    /// ```
    /// use comm_core::tensor::DType;
    /// use comm_group::ReduceOp;
    ///
    /// assert_eq!(ReduceOp::Sum.identity(DType::F32)?, Some((-0.0f32).to_ne_bytes().to_vec()));
    /// assert_eq!(ReduceOp::BitAnd.identity(DType::U16)?, Some(vec![0xff; 2]));
    /// assert_eq!(ReduceOp::Avg.identity(DType::F32)?, None);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn identity(self, dtype: DType) -> Result<Option<Vec<u8>>> {
        self.check(dtype)?;
        Ok(match self {
            ReduceOp::Sum if Kind::of(dtype) != Kind::Integer => limits(dtype).map(|l| l.minus_zero),
            ReduceOp::Sum | ReduceOp::BitOr | ReduceOp::BitXor | ReduceOp::Or => Some(vec![0; dtype.size()]),
            ReduceOp::Prod | ReduceOp::And => limits(dtype).map(|l| l.one),
            ReduceOp::Min => limits(dtype).map(|l| l.most),
            ReduceOp::Max => limits(dtype).map(|l| l.least),
            ReduceOp::BitAnd => Some(vec![0xff; dtype.size()]),
            ReduceOp::Avg | ReduceOp::PremulSum(_) => None,
        })
    }
}

/// Elements of a dtype. Complex numbers have no least and no most: there these are of no use.
struct Limits {
    minus_zero: Vec<u8>,
    one: Vec<u8>,
    least: Vec<u8>,
    most: Vec<u8>,
}

fn of<T: Element>(minus_zero: T, one: T, least: T, most: T) -> Option<Limits> {
    let bytes = |value: T| T::bytes_of(&[value]).to_vec();
    Some(Limits { minus_zero: bytes(minus_zero), one: bytes(one), least: bytes(least), most: bytes(most) })
}

fn limits(dtype: DType) -> Option<Limits> {
    let pair = |part: DType| {
        let Limits { minus_zero, one, least, most } = limits(part)?;
        let zero = vec![0; part.size()];
        Some(Limits { minus_zero: minus_zero.repeat(2), one: [one, zero].concat(), least, most })
    };
    match dtype {
        DType::Bool => of(false, true, false, true),
        DType::U8 => of(0, 1, u8::MIN, u8::MAX),
        DType::I8 => of(0, 1, i8::MIN, i8::MAX),
        DType::U16 => of(0, 1, u16::MIN, u16::MAX),
        DType::I16 => of(0, 1, i16::MIN, i16::MAX),
        DType::U32 => of(0, 1, u32::MIN, u32::MAX),
        DType::I32 => of(0, 1, i32::MIN, i32::MAX),
        DType::U64 => of(0, 1, u64::MIN, u64::MAX),
        DType::I64 => of(0, 1, i64::MIN, i64::MAX),
        // The bits of -0, 1, and infinities of both signs.
        DType::F16 => of(0x8000u16, 0x3c00, 0xfc00, 0x7c00),
        DType::BF16 => of(0x8000u16, 0x3f80, 0xff80, 0x7f80),
        DType::F8E5M2 => of(0x80u8, 0x3c, 0xfc, 0x7c),
        // Without infinities: the largest numbers.
        DType::F8E4M3 => of(0x80u8, 0x38, 0xfe, 0x7e),
        DType::F32 => of(-0.0, 1.0, f32::NEG_INFINITY, f32::INFINITY),
        DType::F64 => of(-0.0, 1.0, f64::NEG_INFINITY, f64::INFINITY),
        DType::Complex64 => pair(DType::F32),
        DType::Complex128 => pair(DType::F64),
        _ => None,
    }
}
