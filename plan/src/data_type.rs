//! The element types that a collective moves and reduces.

use std::fmt;

/// The type of one element. Sizes are in bytes; the names are those that `Display` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// Signed 8-bit integer.
    I8 = 0,
    /// Unsigned 8-bit integer; also what untyped bytes travel as.
    U8 = 1,
    /// Signed 32-bit integer.
    I32 = 2,
    /// Unsigned 32-bit integer.
    U32 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Unsigned 64-bit integer.
    U64 = 5,
    /// IEEE 754 binary16; reduced in f32, rounded once per step.
    F16 = 6,
    /// IEEE 754 binary32.
    F32 = 7,
    /// IEEE 754 binary64.
    F64 = 8,
    /// bfloat16; reduced in f32, rounded once per step.
    Bf16 = 9,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinity (OCP E4M3); reduced in f32.
    F8E4M3 = 10,
    /// 8-bit float, 5 exponent and 2 mantissa bits (OCP E5M2); reduced in f32.
    F8E5M2 = 11,
}

impl DataType {
    /// Every type, in the order of NCCL's `ncclDataType_t`, whose numbers the discriminants equal.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// Size of one element in bytes: 1, 2, 4 or 8.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether elements are floating point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::Bf16 | Self::F8E4M3 | Self::F8E5M2)
    }

    /// The type with this discriminant, as it travels in a [fingerprint](crate::Fingerprint).
    pub const fn from_code(code: u8) -> Option<Self> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }

    /// The name that messages and options use, such as `f32` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for (code, dtype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, code);
            assert_eq!(DataType::from_code(code as u8), Some(dtype));
        }
        assert_eq!(DataType::from_code(12), None);
    }
}
