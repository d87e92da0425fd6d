//! Element types and operators by nccl-tests' names, and data whose results are exact.
//!
//! Every input is a small integer, chosen so that each partial sum and product is exact in the type, and the
//! result does not depend on the order of operations. Results are compared bit for bit.

use annulus::{DataType, Element, F8E4M3, F8E5M2, ReduceOp, Scalar};
use half::{bf16, f16};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
    F8E4M3,
    F8E5M2,
}

/// Runs `$body` with `$type` standing for the Rust type of a [`Number`].
macro_rules! with_type {
    ($number:expr, $type:ident => $body:expr) => {
        match $number {
            $crate::perf::number::Number::I8 => {
                type $type = i8;
                $body
            }
            $crate::perf::number::Number::U8 => {
                type $type = u8;
                $body
            }
            $crate::perf::number::Number::I32 => {
                type $type = i32;
                $body
            }
            $crate::perf::number::Number::U32 => {
                type $type = u32;
                $body
            }
            $crate::perf::number::Number::I64 => {
                type $type = i64;
                $body
            }
            $crate::perf::number::Number::U64 => {
                type $type = u64;
                $body
            }
            $crate::perf::number::Number::F16 => {
                type $type = half::f16;
                $body
            }
            $crate::perf::number::Number::F32 => {
                type $type = f32;
                $body
            }
            $crate::perf::number::Number::F64 => {
                type $type = f64;
                $body
            }
            $crate::perf::number::Number::Bf16 => {
                type $type = half::bf16;
                $body
            }
            $crate::perf::number::Number::F8E4M3 => {
                type $type = annulus::F8E4M3;
                $body
            }
            $crate::perf::number::Number::F8E5M2 => {
                type $type = annulus::F8E5M2;
                $body
            }
        }
    };
}
pub(super) use with_type;

impl Number {
    pub(super) const ALL: [Self; 12] = [
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

    /// nccl-tests' name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
            Self::F16 => "half",
            Self::F32 => "float",
            Self::F64 => "double",
            Self::Bf16 => "bfloat16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|number| number.name() == name || number.dtype().name() == name)
    }

    pub(super) fn dtype(self) -> DataType {
        with_type!(self, T => T::DATA_TYPE)
    }
}

/// A reduction by nccl-tests' name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    /// The collective combines nothing.
    None,
    Sum,
    Prod,
    Min,
    Max,
    Avg,
    MulSum,
}

impl Operator {
    pub(super) const ALL: [Self; 6] =
        [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg, Self::MulSum];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::MulSum => "mulsum",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operator| operator.name() == name)
    }

    /// What `rank` passes to the call.
    pub(super) fn op(self, rank: usize, dtype: DataType) -> ReduceOp {
        match self {
            Self::None | Self::Sum => ReduceOp::Sum,
            Self::Prod => ReduceOp::Prod,
            Self::Min => ReduceOp::Min,
            Self::Max => ReduceOp::Max,
            Self::Avg => ReduceOp::Avg,
            Self::MulSum if dtype.is_float() => {
                ReduceOp::PreMulSum(Scalar::Float(factor(rank) as f64))
            }
            Self::MulSum => ReduceOp::PreMulSum(Scalar::Integer(factor(rank).into())),
        }
    }
}

/// Of a premultiplied sum: 1 or 2.
fn factor(rank: usize) -> i64 {
    1 + (rank % 2) as i64
}

/// A type whose values can be made from small integers, exactly, and compared by their bits.
pub(super) trait Exact: Element {
    /// A non-negative integer of at most 16.
    fn of(value: i64) -> Self;

    /// The quotient as `avg` defines it: rounded once, or truncated.
    fn quotient(sum: i64, divisor: usize) -> Self;

    fn same(self, other: Self) -> bool;
}

macro_rules! exact {
    ($($type:ty, $of:expr, $quotient:expr);* $(;)?) => {$(
        impl Exact for $type {
            fn of(value: i64) -> Self {
                ($of)(value)
            }

            fn quotient(sum: i64, divisor: usize) -> Self {
                ($quotient)(sum, divisor)
            }

            fn same(self, other: Self) -> bool {
                self == other
            }
        }
    )*};
}

exact! {
    i8, |v| v as i8, |s: i64, n| (s / n as i64) as i8;
    u8, |v| v as u8, |s: i64, n| (s / n as i64) as u8;
    i32, |v| v as i32, |s: i64, n| (s / n as i64) as i32;
    u32, |v| v as u32, |s: i64, n| (s / n as i64) as u32;
    i64, |v| v, |s: i64, n| s / n as i64;
    u64, |v| v as u64, |s: i64, n| s as u64 / n as u64;
    f32, |v| v as f32, |s, n| s as f32 / n as f32;
    f64, |v| v as f64, |s, n| s as f64 / n as f64;
    f16, |v| f16::from_f32(v as f32), |s, n| f16::from_f32(s as f32 / n as f32);
    bf16, |v| bf16::from_f32(v as f32), |s, n| bf16::from_f32(s as f32 / n as f32);
    F8E4M3, |v| F8E4M3::from_f32(v as f32), |s, n| F8E4M3::from_f32(s as f32 / n as f32);
    F8E5M2, |v| F8E5M2::from_f32(v as f32), |s, n| F8E5M2::from_f32(s as f32 / n as f32);
}

/// The largest sum: every integer up to it is exact in every type, and two bits of mantissa (E5M2) reach 8.
const MOST: u64 = 8;

/// Element `index` of `rank`'s input.
pub(super) fn input<T: Exact>(operator: Operator, world: usize, rank: usize, index: usize) -> T {
    T::of(integer(operator, world, rank, index))
}

/// Element `index` of the reduction of all inputs.
pub(super) fn reduced<T: Exact>(operator: Operator, world: usize, index: usize) -> T {
    let inputs = || (0..world).map(|rank| integer(operator, world, rank, index));
    match operator {
        Operator::None => unreachable!("only reductions are asked for their result"),
        Operator::Sum => T::of(total(index, MOST)),
        Operator::Avg => T::quotient(total(index, MOST), world),
        Operator::MulSum => {
            T::of(inputs().enumerate().map(|(rank, value)| factor(rank) * value).sum())
        }
        Operator::Prod => T::of(inputs().product()),
        Operator::Min => T::of(inputs().min().unwrap_or(0)),
        Operator::Max => T::of(inputs().max().unwrap_or(0)),
    }
}

fn integer(operator: Operator, world: usize, rank: usize, index: usize) -> i64 {
    match operator {
        // A total that depends on the element, shared out over the ranks.
        Operator::Sum | Operator::Avg => share(total(index, MOST), world, rank, index),
        Operator::MulSum => share(total(index, MOST / 2), world, rank, index),
        // 2 on two ranks that depend on the element (4 where they are the same), 1 elsewhere.
        Operator::Prod => {
            let first = mix(index) as usize % world;
            let second = (mix(index) >> 32) as usize % world;
            1 << (u32::from(rank == first) + u32::from(rank == second))
        }
        Operator::None | Operator::Min | Operator::Max => {
            (mix(index.wrapping_mul(world).wrapping_add(rank)) % (MOST + 1)) as i64
        }
    }
}

fn total(index: usize, most: u64) -> i64 {
    (mix(index) % (most + 1)) as i64
}

/// One rank's share of `total`; which ranks get the remainder depends on the element.
fn share(total: i64, world: usize, rank: usize, index: usize) -> i64 {
    let (total, place) = (total as usize, (rank + index) % world);
    (total / world + usize::from(place < total % world)) as i64
}

/// Scatters the bits of an index (the finalizer of SplitMix64).
fn mix(index: usize) -> u64 {
    let mut bits = (index as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_result() {
        for world in 1..20 {
            for index in 0..200 {
                let sum: i64 =
                    (0..world).map(|rank| integer(Operator::Sum, world, rank, index)).sum();
                assert_eq!(sum, total(index, MOST));
                let weighted: i64 = (0..world)
                    .map(|rank| factor(rank) * integer(Operator::MulSum, world, rank, index))
                    .sum();
                assert!(weighted <= MOST as i64, "exact in every type");
                let product: i64 =
                    (0..world).map(|rank| integer(Operator::Prod, world, rank, index)).product();
                assert_eq!(product, 4);
            }
        }
    }

    #[test]
    fn small_integers_are_exact_in_every_type() {
        for number in Number::ALL {
            with_type!(number, T => {
                for value in 0..=MOST as i64 {
                    let sum = <T as Exact>::quotient(value, 1);
                    assert!(<T as Exact>::of(value).same(sum));
                }
                assert!(!<T as Exact>::of(7).same(<T as Exact>::of(8)));
            });
        }
    }

    #[test]
    fn names_are_unique() {
        for number in Number::ALL {
            assert_eq!(Number::from_name(number.name()), Some(number));
        }
        for operator in Operator::ALL {
            assert_eq!(Operator::from_name(operator.name()), Some(operator));
        }
    }
}
