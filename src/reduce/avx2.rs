//! Passes with AVX2 and F16C.

use std::arch::x86_64::*;

use super::arithmetic::Parameter;
use super::halves::Lanes;
use super::pass::{Combine, Operands, Streaming, pass};

/// The pass, compiled for AVX2 and F16C.
///
/// # Safety
/// As [`pass`]; the CPU must have AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn avx2_pass<C: Combine>(
    operands: Operands,
    streaming: Streaming,
    parameter: &Parameter,
) {
    // SAFETY: as the caller promised.
    unsafe { pass::<C>(operands, streaming, parameter, avx2_pass::<C>) }
}

// SAFETY of all blocks: the caller promises AVX2 and F16C.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for __m256 {
    type Raw = __m256i;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm256_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm256_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { _mm256_div_ps(self, other) }
    }

    // The instruction returns `other` where the operands are equal or one is a NaN.
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe {
            let equal = _mm256_cmp_ps::<_CMP_EQ_OQ>(self, other);
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(other, other);
            let number = _mm256_min_ps(self, other);
            let number = _mm256_blendv_ps(number, _mm256_or_ps(self, other), equal);
            _mm256_blendv_ps(number, self, nan)
        }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe {
            let equal = _mm256_cmp_ps::<_CMP_EQ_OQ>(self, other);
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(other, other);
            let number = _mm256_max_ps(self, other);
            let number = _mm256_blendv_ps(number, _mm256_and_ps(self, other), equal);
            _mm256_blendv_ps(number, self, nan)
        }
    }

    #[inline(always)]
    unsafe fn widen_bf16(raw: Self::Raw) -> [Self; 2] {
        unsafe {
            let even = _mm256_slli_epi32::<16>(raw);
            let odd = _mm256_and_si256(raw, _mm256_set1_epi32(HIGH_HALF));
            [_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn narrow_bf16([even, odd]: [Self; 2]) -> Self::Raw {
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(even, odd);
            let (even, odd) = if _mm256_movemask_ps(nan) == 0 {
                (round_bf16(even), round_bf16(odd))
            } else {
                (quiet_bf16(even), quiet_bf16(odd))
            };
            // 16-bit lanes: the even ones from the upper halves of `even`, the odd ones from `odd`.
            _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(even), odd)
        }
    }

    #[inline(always)]
    unsafe fn widen_f16(raw: Self::Raw) -> [Self; 2] {
        unsafe {
            let lower = _mm256_castsi256_si128(raw);
            let upper = _mm256_extracti128_si256::<1>(raw);
            [_mm256_cvtph_ps(lower), _mm256_cvtph_ps(upper)]
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16([lower, upper]: [Self; 2]) -> Self::Raw {
        unsafe {
            let lower = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lower);
            let upper = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(upper);
            _mm256_set_m128i(upper, lower)
        }
    }
}

/// The upper half of 32 bits.
const HIGH_HALF: i32 = 0xffff_0000_u32 as i32;

/// Each number rounded to a bf16 in its upper half; the lower half is rubbish.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn round_bf16(value: __m256) -> __m256i {
    unsafe {
        let bits = _mm256_castps_si256(value);
        let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last)
    }
}

/// The same where some are NaNs, which rounding could turn into infinities.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2")]
fn quiet_bf16(value: __m256) -> __m256i {
    let bits = _mm256_castps_si256(value);
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
    // SAFETY: this function has AVX2.
    _mm256_blendv_epi8(unsafe { round_bf16(value) }, quiet, nan)
}
