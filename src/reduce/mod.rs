//! Reductions in host memory: `dst = a ⊕ b` over bytes, at the speed of the memory.
//!
//! A [`Kernel`] is the pass for one data type and operator, resolved once per plan. Whatever instructions it
//! uses, the result has the same bits on every host (but for the payload of a NaN):
//!
//! * Integers wrap; their average truncates toward zero.
//! * The 16-bit and 8-bit floats are combined in f32 and rounded once, to nearest even. Sums, products
//!   and averages beyond the range become infinity in f16 and bf16, and the largest finite number of the
//!   sign in the 8-bit types, as CUDA's saturating conversion has it; this includes infinite sums in E5M2.
//! * `min` and `max` return one of the operands. A NaN loses against a number, and -0 is less than +0, so
//!   that the order of the operands does not matter.
//! * The average of floats is divided before that rounding: (a + b) / n is rounded once in a small float.

mod arithmetic;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[doc(hidden)]
pub mod bench;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only x86-64 has vectors of its own here")
)]
mod halves;
mod identity;
mod isa;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only x86-64 has vectors of its own here")
)]
mod operator;
mod pass;
mod small_float;
#[cfg(test)]
mod tests;

use std::ptr;

use annulus_plan::{DataType, ReduceKind, Scalar};
use annulus_transports::memory::Store;
use half::{bf16, f16};

use crate::element::{F8E4M3, F8E5M2};
use arithmetic::{Arithmetic, Parameter};
use halves::HalfFormat;
use operator::{Maximum, Mean, Minimum, Operator, Product, Scale, Sum};
use pass::{Elementwise, Operands, Pass, Streaming, portable_pass};

pub(crate) use identity::identity;
pub(crate) use isa::Isa;
pub use isa::IsaError;
pub(crate) use small_float::SmallFloat;

/// A reduction of one data type by one operator. Calling it is one indirect call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    combine: Pass,
    /// The last combination of its elements.
    finish: Pass,
    parameter: Parameter,
    element_bytes: usize,
}

impl Kernel {
    /// The kernel for a communicator of `world` ranks, with the instructions of [`Isa::current`].
    pub(crate) fn new(dtype: DataType, op: ReduceKind, world: usize) -> Self {
        Self::with_isa(Isa::current(), dtype, op, world)
    }

    /// The kernel with given instructions. They must be among [`Isa::available`]; if they are not, the
    /// portable ones are taken.
    pub(crate) fn with_isa(isa: Isa, dtype: DataType, op: ReduceKind, world: usize) -> Self {
        let combine = match op {
            ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum => select::<Sum>(isa, dtype),
            ReduceKind::Prod => select::<Product>(isa, dtype),
            ReduceKind::Min => select::<Minimum>(isa, dtype),
            ReduceKind::Max => select::<Maximum>(isa, dtype),
        };
        let finish = match op {
            ReduceKind::Avg => select::<Mean>(isa, dtype),
            _ => combine,
        };
        let divisor = world.max(1);
        let parameter = Parameter { float: divisor as f64, integer: divisor as u64 };
        Self { combine, finish, parameter, element_bytes: dtype.size() }
    }

    /// `dst = a ⊕ b` over `bytes`, a multiple of the element size; 0 is allowed.
    ///
    /// `second`, unless null, receives the result too, in the same pass. `finish` marks the last combination of
    /// these elements: there, the average divides. `store` applies to `dst`, `second_store` to `second`;
    /// streamed stores are fenced before the call returns. They need addresses that are multiples of the element
    /// size; elsewhere, and in blocks that are not whole cache lines, the cache is used.
    ///
    /// # Safety
    /// `a` and `b` must be readable, `dst` and a non-null `second` writable, for `bytes`; no alignment is
    /// needed. `a` and `b` may each equal `dst` or `second` exactly, or else must not overlap them; `dst` and
    /// `second` must not overlap each other. Nobody else may write these bytes meanwhile, nor read the results.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn run(
        &self,
        dst: *mut u8,
        second: *mut u8,
        a: *const u8,
        b: *const u8,
        bytes: usize,
        finish: bool,
        store: Store,
        second_store: Store,
    ) {
        debug_assert!(
            bytes.is_multiple_of(self.element_bytes),
            "{bytes} bytes are no whole elements"
        );
        let pass = if finish { self.finish } else { self.combine };
        // SAFETY: as the caller promised; `select` chose instructions that the CPU has.
        unsafe {
            pass(
                Operands { dst, second, a, b, bytes },
                Streaming::new(store, second_store),
                &self.parameter,
            );
        }
    }
}

/// `dst = src · scalar` over `bytes`, a multiple of the element size: the contribution to a premul-sum.
///
/// The scalar must fit the type ([`ReduceOp::fits`](annulus_plan::ReduceOp::fits)). For floats narrower than f64
/// it is rounded to f32, and the product is rounded once; integers wrap.
///
/// # Safety
/// `src` must be readable and `dst` writable for `bytes`. They may be equal, or else must not overlap. Nobody
/// else may write these bytes meanwhile, nor read the result.
pub(crate) unsafe fn premultiply(
    dtype: DataType,
    scalar: Scalar,
    dst: *mut u8,
    src: *const u8,
    bytes: usize,
) {
    let parameter = match scalar {
        Scalar::Float(value) => Parameter { float: value, integer: value as i64 as u64 },
        Scalar::Integer(value) => Parameter { float: value as f64, integer: value as u64 },
    };
    let pass = select::<Scale>(Isa::current(), dtype);
    let operands = Operands { dst, second: ptr::null_mut(), a: src, b: src, bytes };
    // SAFETY: as the caller promised; `select` chose instructions that the CPU has.
    unsafe { pass(operands, Streaming::NONE, &parameter) }
}

/// The pass for a data type: element by element in the surrounding instruction set, except for the
/// 16-bit floats, which have vector code of their own.
fn select<O: Operator + 'static>(isa: Isa, dtype: DataType) -> Pass {
    let isa = if isa.is_available() { isa } else { Isa::Portable };
    match dtype {
        DataType::I8 => elementwise::<i8, O>(isa),
        DataType::U8 => elementwise::<u8, O>(isa),
        DataType::I32 => elementwise::<i32, O>(isa),
        DataType::U32 => elementwise::<u32, O>(isa),
        DataType::I64 => elementwise::<i64, O>(isa),
        DataType::U64 => elementwise::<u64, O>(isa),
        DataType::F32 => elementwise::<f32, O>(isa),
        DataType::F64 => elementwise::<f64, O>(isa),
        DataType::F8E4M3 => elementwise::<F8E4M3, O>(isa),
        DataType::F8E5M2 => elementwise::<F8E5M2, O>(isa),
        DataType::F16 => halves::<f16, O>(isa),
        DataType::Bf16 => halves::<bf16, O>(isa),
    }
}

fn elementwise<T: Arithmetic, O: Operator>(isa: Isa) -> Pass {
    match isa {
        Isa::Portable => portable_pass::<Elementwise<T, O>>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => avx2::avx2_pass::<Elementwise<T, O>>,
        #[cfg(not(target_arch = "x86_64"))]
        _ => portable_pass::<Elementwise<T, O>>,
    }
}

fn halves<T: HalfFormat, O: Operator>(isa: Isa) -> Pass {
    match isa {
        Isa::Portable => portable_pass::<Elementwise<T, O>>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::avx2_pass::<halves::Halves<std::arch::x86_64::__m256, T, O>>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::avx512_pass::<halves::Halves<std::arch::x86_64::__m512, T, O>>,
        #[cfg(not(target_arch = "x86_64"))]
        _ => portable_pass::<Elementwise<T, O>>,
    }
}
