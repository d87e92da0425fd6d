//! Passes over the 16-bit floats with AVX-512.
//!
//! The same steps as in [`avx2`](super::avx2), twice as wide. Its authors had no CPU with AVX-512 to run it
//! on; the tests compare it with the other variants wherever the CPU has it.

use std::arch::x86_64::*;

use super::arithmetic::Parameter;
use super::halves::Lanes;
use super::pass::{Combine, Operands, Streaming, pass};

/// The pass, compiled for AVX-512.
///
/// # Safety
/// As [`pass`]; the CPU must have AVX-512F and AVX-512BW, AVX2 and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx2,f16c")]
pub(super) unsafe fn avx512_pass<C: Combine>(
    operands: Operands,
    streaming: Streaming,
    parameter: &Parameter,
) {
    // SAFETY: as the caller promised.
    unsafe { pass::<C>(operands, streaming, parameter, avx512_pass::<C>) }
}

// SAFETY of all blocks: the caller promises AVX-512F and AVX-512BW.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for __m512 {
    type Raw = __m512i;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm512_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { _mm512_div_ps(self, other) }
    }

    // The instruction returns `other` where the operands are equal or one is a NaN.
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe {
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self, other);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(other, other);
            let zero = _mm512_or_si512(_mm512_castps_si512(self), _mm512_castps_si512(other));
            let number = _mm512_min_ps(self, other);
            let number = _mm512_mask_blend_ps(equal, number, _mm512_castsi512_ps(zero));
            _mm512_mask_blend_ps(nan, number, self)
        }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe {
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self, other);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(other, other);
            let zero = _mm512_and_si512(_mm512_castps_si512(self), _mm512_castps_si512(other));
            let number = _mm512_max_ps(self, other);
            let number = _mm512_mask_blend_ps(equal, number, _mm512_castsi512_ps(zero));
            _mm512_mask_blend_ps(nan, number, self)
        }
    }

    #[inline(always)]
    unsafe fn widen_bf16(raw: Self::Raw) -> [Self; 2] {
        unsafe {
            let even = _mm512_slli_epi32::<16>(raw);
            let odd = _mm512_and_si512(raw, _mm512_set1_epi32(HIGH_HALF));
            [_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn narrow_bf16([even, odd]: [Self; 2]) -> Self::Raw {
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(even, odd);
            let (even, odd) = if nan == 0 {
                (round_bf16(even), round_bf16(odd))
            } else {
                (quiet_bf16(even), quiet_bf16(odd))
            };
            // 16-bit lanes: the even ones from the upper halves of `even`, the odd ones from `odd`.
            _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), odd)
        }
    }

    #[inline(always)]
    unsafe fn widen_f16(raw: Self::Raw) -> [Self; 2] {
        unsafe {
            let lower = _mm512_castsi512_si256(raw);
            let upper = _mm512_extracti64x4_epi64::<1>(raw);
            [_mm512_cvtph_ps(lower), _mm512_cvtph_ps(upper)]
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16([lower, upper]: [Self; 2]) -> Self::Raw {
        unsafe {
            let lower = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lower);
            let upper = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(upper);
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lower), upper)
        }
    }
}

/// The upper half of 32 bits.
const HIGH_HALF: i32 = 0xffff_0000_u32 as i32;

/// Each number rounded to a bf16 in its upper half; the lower half is rubbish.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn round_bf16(value: __m512) -> __m512i {
    unsafe {
        let bits = _mm512_castps_si512(value);
        let last = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last)
    }
}

/// The same where some are NaNs, which rounding could turn into infinities.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn quiet_bf16(value: __m512) -> __m512i {
    let bits = _mm512_castps_si512(value);
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
    // SAFETY: this function has AVX-512F.
    _mm512_mask_blend_epi32(nan, unsafe { round_bf16(value) }, quiet)
}
