//! How contributions are combined.

use std::fmt;

use crate::DataType;

/// A reduction. `Avg` and `PreMulSum` combine by addition; they differ in what happens before or after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// The sum of all contributions; integers wrap.
    Sum,
    /// The product of all contributions; integers wrap.
    Prod,
    /// The smallest contribution; a NaN loses against a number.
    Min,
    /// The largest contribution; a NaN loses against a number.
    Max,
    /// The sum, divided once by the world size at the end; integers truncate toward zero.
    Avg,
    /// The sum of all contributions, each multiplied beforehand by the scalar that its own rank gave.
    PreMulSum(Scalar),
}

/// The factor of [`ReduceOp::PreMulSum`], in host memory. It must fit the call's data type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// For floating point data; rounded to f32 where the data type is narrower than f64.
    Float(f64),
    /// For integer data; must be representable in the data type.
    Integer(i128),
}

impl ReduceOp {
    /// The operator without its scalar: what all ranks must agree on.
    #[inline]
    pub const fn kind(self) -> ReduceKind {
        match self {
            Self::Sum => ReduceKind::Sum,
            Self::Prod => ReduceKind::Prod,
            Self::Min => ReduceKind::Min,
            Self::Max => ReduceKind::Max,
            Self::Avg => ReduceKind::Avg,
            Self::PreMulSum(_) => ReduceKind::PreMulSum,
        }
    }

    /// Whether the operator is defined for `dtype`; the scalar of `PreMulSum` must be of its kind and range.
    pub fn fits(self, dtype: DataType) -> bool {
        let Self::PreMulSum(scalar) = self else { return true };
        match (scalar, dtype) {
            (Scalar::Float(_), _) => dtype.is_float(),
            (Scalar::Integer(value), DataType::I8) => i8::try_from(value).is_ok(),
            (Scalar::Integer(value), DataType::U8) => u8::try_from(value).is_ok(),
            (Scalar::Integer(value), DataType::I32) => i32::try_from(value).is_ok(),
            (Scalar::Integer(value), DataType::U32) => u32::try_from(value).is_ok(),
            (Scalar::Integer(value), DataType::I64) => i64::try_from(value).is_ok(),
            (Scalar::Integer(value), DataType::U64) => u64::try_from(value).is_ok(),
            (Scalar::Integer(_), _) => false,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PreMulSum(Scalar::Float(value)) => write!(f, "premul-sum({value})"),
            Self::PreMulSum(Scalar::Integer(value)) => write!(f, "premul-sum({value})"),
            other => other.kind().fmt(f),
        }
    }
}

/// A [`ReduceOp`] without its scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceKind {
    /// See [`ReduceOp::Sum`].
    Sum = 0,
    /// See [`ReduceOp::Prod`].
    Prod = 1,
    /// See [`ReduceOp::Max`].
    Max = 2,
    /// See [`ReduceOp::Min`].
    Min = 3,
    /// See [`ReduceOp::Avg`].
    Avg = 4,
    /// See [`ReduceOp::PreMulSum`].
    PreMulSum = 5,
}

impl ReduceKind {
    /// Every kind, by discriminant. The first five are NCCL's `ncclRedOp_t` numbers.
    pub const ALL: [Self; 6] =
        [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulSum];

    /// The kind with this discriminant, as it travels in a [fingerprint](crate::Fingerprint).
    pub const fn from_code(code: u8) -> Option<Self> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }

    /// The name that messages and options use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::PreMulSum => "premul-sum",
        }
    }
}

impl fmt::Display for ReduceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
