//! The operators as types, so that each pass is compiled for one of them.

use super::arithmetic::{Arithmetic, Parameter};
use super::halves::Lanes;

/// An operator, on elements and on vectors of f32.
pub(super) trait Operator {
    fn apply<T: Arithmetic>(a: T, b: T, parameter: &Parameter) -> T;

    /// The same on each f32 of a vector.
    ///
    /// # Safety
    /// The CPU must have the instructions of `L`.
    unsafe fn apply_lanes<L: Lanes>(a: L, b: L, parameter: &Parameter) -> L;
}

macro_rules! operator {
    ($(#[$doc:meta])* $name:ident, |$a:ident, $b:ident, $parameter:ident| $scalar:expr, $lanes:expr) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Operator for $name {
            #[inline(always)]
            fn apply<T: Arithmetic>($a: T, $b: T, $parameter: &Parameter) -> T {
                $scalar
            }

            #[inline(always)]
            unsafe fn apply_lanes<L: Lanes>($a: L, $b: L, $parameter: &Parameter) -> L {
                // SAFETY: as the caller promised.
                unsafe { $lanes }
            }
        }
    };
}

operator!(
    /// `a + b`
    Sum, |a, b, _parameter| a.sum(b), a.add(b)
);
operator!(
    /// `a · b`
    Product, |a, b, _parameter| a.product(b), a.mul(b)
);
operator!(
    /// The lesser.
    Minimum, |a, b, _parameter| a.minimum(b), a.min(b)
);
operator!(
    /// The greater.
    Maximum, |a, b, _parameter| a.maximum(b), a.max(b)
);
operator!(
    /// `(a + b) / parameter`
    Mean, |a, b, parameter| a.mean(b, parameter), a.add(b).div(L::splat(parameter.float as f32))
);
operator!(
    /// `a · parameter`; ignores `b`.
    Scale, |a, _b, parameter| a.scaled(parameter), a.mul(L::splat(parameter.float as f32))
);
