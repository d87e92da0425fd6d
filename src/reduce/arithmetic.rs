//! What the operators mean for one element of each type. Every faster variant must give the same bits.

use half::{bf16, f16};

use super::small_float::{SmallFloat, select};
use crate::element::{F8E4M3, F8E5M2};

/// The number that a pass needs besides its operands: the divisor of a mean, or a scale.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parameter {
    /// For floats.
    pub(super) float: f64,
    /// For integers, in two's complement.
    pub(super) integer: u64,
}

/// An element that can be combined.
pub(super) trait Arithmetic: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    /// A NaN loses against a number; -0 is less than +0.
    fn minimum(self, other: Self) -> Self;
    /// A NaN loses against a number; +0 is greater than -0.
    fn maximum(self, other: Self) -> Self;
    /// `(self + other) / divisor`, rounded once, or truncated for integers.
    fn mean(self, other: Self, divisor: &Parameter) -> Self;
    /// `self · factor`.
    fn scaled(self, factor: &Parameter) -> Self;
}

/// `$quotient` divides a sum by the parameter, toward zero.
macro_rules! integer {
    ($type:ty, |$sum:ident, $divisor:ident| $quotient:expr) => {
        impl Arithmetic for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn mean(self, other: Self, $divisor: &Parameter) -> Self {
                let $sum = self.wrapping_add(other);
                $quotient
            }

            #[inline(always)]
            fn scaled(self, factor: &Parameter) -> Self {
                self.wrapping_mul(factor.integer as Self)
            }
        }
    };
}

// A quotient in f32 (8 bits) or f64 (32 bits) truncates exactly: one that is not whole differs from the
// next whole number by more than half of its last place. Unlike an integer division it vectorises.
// SAFETY of the conversions: the divisor is at least 1, so the quotient fits the type of the sum.
#[allow(clippy::undocumented_unsafe_blocks)]
mod quotients {
    use super::{Arithmetic, Parameter};
    integer!(i8, |sum, divisor| unsafe {
        (f32::from(sum) / divisor.float as f32).to_int_unchecked::<i32>() as Self
    });
    integer!(u8, |sum, divisor| unsafe {
        (f32::from(sum) / divisor.float as f32).to_int_unchecked::<i32>() as Self
    });
    integer!(i32, |sum, divisor| unsafe {
        (f64::from(sum) / divisor.float).to_int_unchecked::<i32>()
    });
    integer!(u32, |sum, divisor| unsafe {
        (f64::from(sum) / divisor.float).to_int_unchecked::<u32>()
    });
}
integer!(i64, |sum, divisor| sum.wrapping_div(divisor.integer.max(1) as Self));
integer!(u64, |sum, divisor| sum / divisor.integer.max(1));

macro_rules! float {
    ($type:ty) => {
        impl Arithmetic for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                // Equal numbers differ at most in the sign of zero.
                let equal = Self::from_bits(self.to_bits() | other.to_bits());
                let ordered = if self < other { self } else { other };
                let number = if self == other { equal } else { ordered };
                if other.is_nan() { self } else { number }
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() & other.to_bits());
                let ordered = if self > other { self } else { other };
                let number = if self == other { equal } else { ordered };
                if other.is_nan() { self } else { number }
            }

            #[inline(always)]
            fn mean(self, other: Self, divisor: &Parameter) -> Self {
                (self + other) / divisor.float as Self
            }

            #[inline(always)]
            fn scaled(self, factor: &Parameter) -> Self {
                self * factor.float as Self
            }
        }
    };
}

float!(f32);
float!(f64);

macro_rules! small_float {
    ($type:ty) => {
        impl Arithmetic for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                Self::narrow(self.widen() + other.widen())
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                Self::narrow(self.widen() * other.widen())
            }

            // One of the operands, so that an infinity is never narrowed.
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                let (a, b) = (self.widen(), other.widen());
                let first = (a < b) | ((a == b) & self.is_negative()) | b.is_nan();
                Self::from_bits(select(first, self.to_bits().into(), other.to_bits().into()) as _)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                let (a, b) = (self.widen(), other.widen());
                let first = (a > b) | ((a == b) & !self.is_negative()) | b.is_nan();
                Self::from_bits(select(first, self.to_bits().into(), other.to_bits().into()) as _)
            }

            #[inline(always)]
            fn mean(self, other: Self, divisor: &Parameter) -> Self {
                Self::narrow((self.widen() + other.widen()) / divisor.float as f32)
            }

            #[inline(always)]
            fn scaled(self, factor: &Parameter) -> Self {
                Self::narrow(self.widen() * factor.float as f32)
            }
        }
    };
}

small_float!(f16);
small_float!(bf16);
small_float!(F8E4M3);
small_float!(F8E5M2);
