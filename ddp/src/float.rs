//! The element types of gradients.

use annulus::{DataType, Element};
use bytemuck::Pod;
use half::{bf16, f16};

/// A type whose values gradients consist of: `f16`, `bf16`, `f32`, `f64`.
///
/// Small floats are computed with in f32 and rounded once per operation.
pub trait Float: Element + Pod + Default + PartialEq + sealed::Sealed {
    /// `self + other`.
    fn plus(self, other: Self) -> Self;
    /// `self * factor`.
    fn times(self, factor: f64) -> Self;
    /// `self / divisor`.
    fn over(self, divisor: f64) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// The nearest f32.
    fn to_f32(self) -> f32;
    /// The nearest value.
    fn from_f32(value: f32) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! native {
    ($($type:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Float for $type {
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn times(self, factor: f64) -> Self {
                self * factor as $type
            }
            fn over(self, divisor: f64) -> Self {
                self / divisor as $type
            }
            fn is_finite(self) -> bool {
                self.is_finite()
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn from_f32(value: f32) -> Self {
                value as $type
            }
        }
    )*};
}

macro_rules! small {
    ($($type:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Float for $type {
            fn plus(self, other: Self) -> Self {
                Self::from_f32(self.to_f32() + other.to_f32())
            }
            fn times(self, factor: f64) -> Self {
                Self::from_f32(self.to_f32() * factor as f32)
            }
            fn over(self, divisor: f64) -> Self {
                Self::from_f32(self.to_f32() / divisor as f32)
            }
            fn is_finite(self) -> bool {
                self.is_finite()
            }
            fn to_f32(self) -> f32 {
                self.to_f32()
            }
            fn from_f32(value: f32) -> Self {
                Self::from_f32(value)
            }
        }
    )*};
}

native!(f32, f64);
small!(f16, bf16);

/// Runs an expression with `$type` as the Rust type of a gradient's data type; [`is_float`] must hold.
macro_rules! with_float {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            annulus::DataType::F16 => {
                type $type = half::f16;
                $body
            }
            annulus::DataType::Bf16 => {
                type $type = half::bf16;
                $body
            }
            annulus::DataType::F64 => {
                type $type = f64;
                $body
            }
            _ => {
                type $type = f32;
                $body
            }
        }
    };
}
pub(crate) use with_float;

/// Whether gradients may have this type.
pub(crate) fn is_float(dtype: DataType) -> bool {
    matches!(dtype, DataType::F16 | DataType::Bf16 | DataType::F32 | DataType::F64)
}

/// `to[i] += from[i]`.
pub(crate) fn add<T: Float>(to: &mut [T], from: &[T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.plus(*from);
    }
}

/// `to[i] += factor * from[i]`.
pub(crate) fn add_scaled<T: Float>(to: &mut [T], from: &[T], factor: f64) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.plus(from.times(factor));
    }
}

/// The sum of the squares of `values`.
pub(crate) fn square<T: Float>(values: &[T]) -> f64 {
    values.iter().map(|value| f64::from(value.to_f32()).powi(2)).sum()
}

/// `values[i] *= factor`.
pub(crate) fn scale<T: Float>(values: &mut [T], factor: f64) {
    for value in values {
        *value = value.times(factor);
    }
}

/// `values[i] /= divisor`.
pub(crate) fn divide<T: Float>(values: &mut [T], divisor: f64) {
    for value in values {
        *value = value.over(divisor);
    }
}

/// Whether all values are finite. Looks at all of them, so that the loop has no early exit and vectorizes.
pub(crate) fn all_finite<T: Float>(values: &[T]) -> bool {
    values
        .chunks(4096)
        .all(|chunk| chunk.iter().fold(true, |finite, value| finite & value.is_finite()))
}
