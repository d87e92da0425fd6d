//! The 16-bit floats on vectors: widen to two vectors of f32, combine, round once.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::arithmetic::{Arithmetic, Parameter};
use super::operator::Operator;
use super::pass::Combine;

/// A vector register of f32 of one instruction set.
///
/// # Safety of the methods
/// The CPU must have the instruction set.
pub(super) trait Lanes: Copy {
    /// A register of the same width, holding twice as many 16-bit floats.
    type Raw: Copy;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// As [`Arithmetic::minimum`] on each lane.
    unsafe fn min(self, other: Self) -> Self;
    /// As [`Arithmetic::maximum`] on each lane.
    unsafe fn max(self, other: Self) -> Self;

    /// The even and the odd elements: no permutation is needed either way.
    unsafe fn widen_bf16(raw: Self::Raw) -> [Self; 2];
    unsafe fn narrow_bf16(parts: [Self; 2]) -> Self::Raw;
    /// The lower and the upper elements.
    unsafe fn widen_f16(raw: Self::Raw) -> [Self; 2];
    unsafe fn narrow_f16(parts: [Self; 2]) -> Self::Raw;
}

/// A 16-bit float that [`Lanes`] can convert.
pub(super) trait HalfFormat: Arithmetic {
    /// # Safety
    /// The CPU must have the instructions of `L`.
    unsafe fn widen_lanes<L: Lanes>(raw: L::Raw) -> [L; 2];
    /// # Safety
    /// The CPU must have the instructions of `L`.
    unsafe fn narrow_lanes<L: Lanes>(parts: [L; 2]) -> L::Raw;
}

impl HalfFormat for bf16 {
    #[inline(always)]
    unsafe fn widen_lanes<L: Lanes>(raw: L::Raw) -> [L; 2] {
        // SAFETY: as the caller promised.
        unsafe { L::widen_bf16(raw) }
    }

    #[inline(always)]
    unsafe fn narrow_lanes<L: Lanes>(parts: [L; 2]) -> L::Raw {
        // SAFETY: as the caller promised.
        unsafe { L::narrow_bf16(parts) }
    }
}

impl HalfFormat for f16 {
    #[inline(always)]
    unsafe fn widen_lanes<L: Lanes>(raw: L::Raw) -> [L; 2] {
        // SAFETY: as the caller promised.
        unsafe { L::widen_f16(raw) }
    }

    #[inline(always)]
    unsafe fn narrow_lanes<L: Lanes>(parts: [L; 2]) -> L::Raw {
        // SAFETY: as the caller promised.
        unsafe { L::narrow_f16(parts) }
    }
}

/// Combines 16-bit floats `T` with `O` in vectors `L`.
pub(super) struct Halves<L, T, O>(PhantomData<(L, T, O)>);

impl<L: Lanes, T: HalfFormat, O: Operator> Halves<L, T, O> {
    #[inline(always)]
    unsafe fn register(a: L::Raw, b: L::Raw, parameter: &Parameter) -> L::Raw {
        // SAFETY: as the caller promised.
        unsafe {
            let [a0, a1] = T::widen_lanes::<L>(a);
            let [b0, b1] = T::widen_lanes::<L>(b);
            T::narrow_lanes([O::apply_lanes(a0, b0, parameter), O::apply_lanes(a1, b1, parameter)])
        }
    }
}

impl<L: Lanes, T: HalfFormat, O: Operator> Combine for Halves<L, T, O> {
    type Element = T;

    #[inline(always)]
    unsafe fn combine<const N: usize>(a: [u8; N], b: [u8; N], parameter: &Parameter) -> [u8; N] {
        const WIDEST: usize = 64;
        let width = size_of::<L::Raw>();
        if N < width {
            // Less than a register: the rest of one is zeros.
            let (mut wide_a, mut wide_b) = ([0; WIDEST], [0; WIDEST]);
            wide_a[..N].copy_from_slice(&a);
            wide_b[..N].copy_from_slice(&b);
            // SAFETY: no register is wider than `WIDEST`; unaligned reads; the result holds at least
            // `N` bytes; the caller vouches for the instructions.
            return unsafe {
                let a = wide_a.as_ptr().cast::<L::Raw>().read_unaligned();
                let b = wide_b.as_ptr().cast::<L::Raw>().read_unaligned();
                let r = Self::register(a, b, parameter);
                std::ptr::from_ref(&r).cast::<[u8; N]>().read()
            };
        }
        let mut result = [0; N];
        let mut at = 0;
        while at + width <= N {
            // SAFETY: the register lies within the arrays; the reads and the write need no alignment;
            // the caller vouches for the instructions.
            unsafe {
                let a = a.as_ptr().add(at).cast::<L::Raw>().read_unaligned();
                let b = b.as_ptr().add(at).cast::<L::Raw>().read_unaligned();
                let r = Self::register(a, b, parameter);
                result.as_mut_ptr().add(at).cast::<L::Raw>().write_unaligned(r);
            }
            at += width;
        }
        result
    }
}
