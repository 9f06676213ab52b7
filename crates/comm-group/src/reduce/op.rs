//! The operators, and which dtypes each of them takes.

use std::fmt;

use comm_core::tensor::DType;
use comm_core::{Error, Result};

/// How the contributions of all ranks are combined, element by element.
///
/// | operator | bool | u8, i8, u16, i16, u32, i32, u64, i64 | f16, bf16, f32, f64, f8e4m3, f8e5m2 | complex64, complex128 |
/// |---|---|---|---|---|
/// | sum | | yes | yes | yes |
/// | prod | | yes | yes | yes |
/// | min | | yes | yes | |
/// | max | | yes | yes | |
/// | avg | | yes | yes | yes |
/// | premul_sum | | | yes | yes |
/// | bit_and | | yes | | |
/// | bit_or | | yes | | |
/// | bit_xor | | yes | | |
/// | and | yes | | | |
/// | or | yes | | | |
///
/// What is not there, [`check`](ReduceOp::check) says, and every rank that asks for it gets the same error.
///
/// **Order.** From rank 0's value, never from zero, in rank order. The bits depend on the inputs alone.
///
/// **Rounding.** To the nearest, of two to the even one. f32 and f64 are combined as they are, each operation rounded, none
/// fused. f16, bf16 and fp8 are combined in f32 and rounded once, at the end. complex64 goes as two f32, complex128 as two
/// f64. f8e4m3 has no infinities: what is larger than 464 is NaN; f8e5m2 becomes infinite from 61440 on.
///
/// **NaN and zero.** Every NaN that comes out is one: the `NAN` of its type, and of each part of a complex number. For min and
/// max a NaN wins over numbers, and -0.0 is less than 0.0. A sum of -0.0 alone is -0.0.
///
/// **Integers.** Sums and products wrap. An average does not: it is of the exact sum, rounded toward zero.
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_group::ReduceOp;
///
/// assert_eq!(ReduceOp::default(), ReduceOp::Sum);
/// assert!(ReduceOp::Max.check(DType::BF16).is_ok());
/// let why = ReduceOp::Max.check(DType::Complex64).unwrap_err().to_string();
/// assert!(why.contains("max of complex64") && why.contains("f8e5m2"), "{why}");
/// assert_eq!(ReduceOp::premul_sum(0.5).to_string(), "premul_sum(0.5)");
/// ```
#[doc(alias = "ReduceOpType")]
#[doc(alias = "ncclRedOp_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Their sum. Integers wrap.
    #[doc(alias = "kSum")]
    #[doc(alias = "ncclSum")]
    #[default]
    Sum,
    /// Their product. Integers wrap. Complex numbers by the plain formula, (ac - bd) + (ad + bc)i.
    #[doc(alias = "kProd")]
    #[doc(alias = "ncclProd")]
    Prod,
    /// The least of them.
    #[doc(alias = "kMin")]
    #[doc(alias = "ncclMin")]
    Min,
    /// The greatest of them.
    #[doc(alias = "kMax")]
    #[doc(alias = "ncclMax")]
    Max,
    /// Their sum, divided by the number of ranks: floats in the type in which they are summed, integers toward zero.
    #[doc(alias = "kAvg")]
    #[doc(alias = "ncclAvg")]
    Avg,
    /// The sum of their products with one real factor, which is the same on all ranks.
    /// [`premul_sum`](ReduceOp::premul_sum) makes it.
    #[doc(alias = "kPremulSum")]
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    PremulSum(Factor),
    /// The bits that are set in all of them.
    #[doc(alias = "kBitAnd")]
    #[doc(alias = "MPI_BAND")]
    BitAnd,
    /// The bits that are set in any of them.
    #[doc(alias = "kBitOr")]
    #[doc(alias = "MPI_BOR")]
    BitOr,
    /// The bits that are set in an odd number of them.
    #[doc(alias = "kBitXor")]
    #[doc(alias = "MPI_BXOR")]
    BitXor,
    /// Whether all of them are true.
    #[doc(alias = "kAnd")]
    #[doc(alias = "MPI_LAND")]
    And,
    /// Whether any of them is true.
    #[doc(alias = "kOr")]
    #[doc(alias = "MPI_LOR")]
    Or,
}

/// The factor of [`ReduceOp::PremulSum`]: an `f64`, equal to another if all bits are.
///
/// It may be negative, subnormal, or no number at all. Where elements are combined in f32 it is rounded to that first.
///
/// ```
/// use comm_group::Factor;
///
/// assert_eq!(Factor::new(-0.25).get(), -0.25);
/// assert_ne!(Factor::new(0.0), Factor::new(-0.0));
/// assert_eq!(Factor::new(f64::NAN), Factor::new(f64::NAN));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Factor(u64);

impl Factor {
    /// This factor.
    pub const fn new(factor: f64) -> Factor {
        Factor(factor.to_bits())
    }

    /// The factor as a number.
    pub const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for Factor {
    fn from(factor: f64) -> Factor {
        Factor::new(factor)
    }
}

impl fmt::Debug for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Factor({:?})", self.get())
    }
}

/// As short as it can be and still be read back.
impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// The kinds of dtypes, as far as operators tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Integer,
    Float,
    Complex,
    /// One that no operator knows.
    Other,
}

impl Kind {
    pub(super) fn of(dtype: DType) -> Kind {
        match dtype {
            DType::Bool => Kind::Bool,
            DType::U8 | DType::I8 | DType::U16 | DType::I16 => Kind::Integer,
            DType::U32 | DType::I32 | DType::U64 | DType::I64 => Kind::Integer,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Kind::Float,
            DType::F8E4M3 | DType::F8E5M2 => Kind::Float,
            DType::Complex64 | DType::Complex128 => Kind::Complex,
            _ => Kind::Other,
        }
    }
}

impl ReduceOp {
    /// One of each, with a factor of 1.
    pub(crate) const ALL: [ReduceOp; 11] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::PremulSum(Factor::new(1.0)),
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
        ReduceOp::And,
        ReduceOp::Or,
    ];

    /// The sum of the contributions, each multiplied by a real factor first.
    ///
    /// ```
    /// use comm_group::{Factor, ReduceOp};
    ///
    /// assert_eq!(ReduceOp::premul_sum(0.5), ReduceOp::PremulSum(Factor::new(0.5)));
    /// ```
    pub const fn premul_sum(factor: f64) -> ReduceOp {
        ReduceOp::PremulSum(Factor::new(factor))
    }

    /// Says whether elements of `dtype` can be combined so.
    ///
    /// # Errors
    /// [`Error::Unsupported`] says why not, and for which dtypes there is the operator.
    ///
    /// ```
    /// use comm_core::tensor::DType;
    /// use comm_group::ReduceOp;
    ///
    /// assert!(ReduceOp::And.check(DType::Bool).is_ok());
    /// assert!(ReduceOp::And.check(DType::U8).is_err());
    /// ```
    pub fn check(self, dtype: DType) -> Result<()> {
        if self.takes(Kind::of(dtype)) {
            return Ok(());
        }
        let list: Vec<&str> = DType::ALL
            .iter()
            .filter(|dtype| self.takes(Kind::of(**dtype)))
            .map(|dtype| dtype.name())
            .collect();
        let why = format!("{}; there is {} of {}", self.wants(), self.name(), list.join(", "));
        Err(Error::Unsupported { backend: "same-device", op: format!("{self} of {dtype}"), why })
    }

    fn takes(self, kind: Kind) -> bool {
        match self {
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg => {
                matches!(kind, Kind::Integer | Kind::Float | Kind::Complex)
            }
            ReduceOp::Min | ReduceOp::Max => matches!(kind, Kind::Integer | Kind::Float),
            ReduceOp::PremulSum(_) => matches!(kind, Kind::Float | Kind::Complex),
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => kind == Kind::Integer,
            ReduceOp::And | ReduceOp::Or => kind == Kind::Bool,
        }
    }

    /// Whether a contribution that is the only one is the result, too.
    pub(crate) fn keeps_one(self) -> bool {
        !matches!(self, ReduceOp::PremulSum(_))
    }

    /// What it is about a dtype that the operator needs.
    fn wants(self) -> &'static str {
        match self {
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg => "it takes numbers",
            ReduceOp::Min | ReduceOp::Max => "it takes numbers that have an order",
            ReduceOp::PremulSum(_) => "its factor needs floats or complex numbers",
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => "it takes the bits of integers",
            ReduceOp::And | ReduceOp::Or => "it takes truth values",
        }
    }

    /// The name without a factor.
    fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::PremulSum(_) => "premul_sum",
            ReduceOp::BitAnd => "bit_and",
            ReduceOp::BitOr => "bit_or",
            ReduceOp::BitXor => "bit_xor",
            ReduceOp::And => "and",
            ReduceOp::Or => "or",
        }
    }

    /// A number for what ranks tell each other; 0 is none.
    pub(crate) fn code(self) -> u32 {
        match self {
            ReduceOp::Sum => 1,
            ReduceOp::Prod => 2,
            ReduceOp::Min => 3,
            ReduceOp::Max => 4,
            ReduceOp::Avg => 5,
            ReduceOp::PremulSum(_) => 6,
            ReduceOp::BitAnd => 7,
            ReduceOp::BitOr => 8,
            ReduceOp::BitXor => 9,
            ReduceOp::And => 10,
            ReduceOp::Or => 11,
        }
    }

    /// What else ranks must agree about: the bits of the factor, 0 without one.
    pub(crate) fn factor_bits(self) -> u64 {
        match self {
            ReduceOp::PremulSum(Factor(bits)) => bits,
            _ => 0,
        }
    }

    pub(crate) fn name_of(code: u32) -> String {
        let op = ReduceOp::ALL.into_iter().find(|op| op.code() == code);
        op.map_or_else(|| format!("operator {code}"), |op| op.name().to_string())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReduceOp::PremulSum(factor) => write!(f, "{}({factor})", self.name()),
            _ => f.pad(self.name()),
        }
    }
}
