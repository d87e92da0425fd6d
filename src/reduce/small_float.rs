//! Floats of 8 and 16 bits: exact widening to f32 and narrowing with one rounding to nearest even.
//!
//! Nothing branches, so that loops over these functions vectorise.

use half::{bf16, f16};

use crate::element::{F8E4M3, F8E5M2};

/// A float that is computed with in f32.
pub(crate) trait SmallFloat: Copy {
    /// The same number; a NaN stays a NaN.
    fn widen(self) -> f32;
    /// The nearest number, ties to even. What lies beyond the range becomes infinity in the 16-bit
    /// formats, and the largest finite number in the 8-bit ones.
    fn narrow(value: f32) -> Self;
    /// Whether the sign bit is set.
    fn is_negative(self) -> bool;
}

impl SmallFloat for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let bits = select(value.is_nan(), bits | 0x0040_0000, rounded);
        Self::from_bits((bits >> 16) as u16)
    }

    #[inline(always)]
    fn is_negative(self) -> bool {
        self.to_bits() >> 15 != 0
    }
}

impl SmallFloat for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        Layout::F16.widen(u32::from(self.to_bits()))
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(Layout::F16.narrow(value) as u16)
    }

    #[inline(always)]
    fn is_negative(self) -> bool {
        self.to_bits() >> 15 != 0
    }
}

impl SmallFloat for F8E5M2 {
    #[inline(always)]
    fn widen(self) -> f32 {
        Layout::F8E5M2.widen(u32::from(self.to_bits()))
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(Layout::F8E5M2.narrow(value) as u8)
    }

    #[inline(always)]
    fn is_negative(self) -> bool {
        self.to_bits() >> 7 != 0
    }
}

impl SmallFloat for F8E4M3 {
    #[inline(always)]
    fn widen(self) -> f32 {
        Layout::F8E4M3.widen(u32::from(self.to_bits()))
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(Layout::F8E4M3.narrow(value) as u8)
    }

    #[inline(always)]
    fn is_negative(self) -> bool {
        self.to_bits() >> 7 != 0
    }
}

/// A binary floating point format: sign, exponent, mantissa, from the top bit down.
struct Layout {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// The smallest magnitude, as bits of the format, that is not a finite number.
    first_special: u32,
    has_infinity: bool,
    /// What magnitudes at or above `limit` (bits of an f32) narrow to.
    overflow: u32,
    limit: u32,
    nan: u32,
}

impl Layout {
    const F16: Self = Self {
        exponent_bits: 5,
        mantissa_bits: 10,
        first_special: 0x7c00,
        has_infinity: true,
        overflow: 0x7c00,
        limit: 65536f32.to_bits(),
        nan: 0x7e00,
    };
    const F8E5M2: Self = Self {
        exponent_bits: 5,
        mantissa_bits: 2,
        first_special: 0x7c,
        has_infinity: true,
        overflow: 0x7b,
        limit: 57344f32.to_bits(),
        nan: 0x7f,
    };
    const F8E4M3: Self = Self {
        exponent_bits: 4,
        mantissa_bits: 3,
        first_special: 0x7f,
        has_infinity: false,
        overflow: 0x7e,
        limit: 448f32.to_bits(),
        nan: 0x7f,
    };

    const fn bias(&self) -> u32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// How far the mantissa must move to the place it has in an f32.
    const fn shift(&self) -> u32 {
        23 - self.mantissa_bits
    }

    #[inline(always)]
    fn widen(&self, bits: u32) -> f32 {
        let sign_at = self.exponent_bits + self.mantissa_bits;
        let sign = (bits >> sign_at) << 31;
        let magnitude = bits & ((1 << sign_at) - 1);
        // The exponent is too small by the difference of the biases; the multiplication, which is
        // exact, corrects it for subnormal numbers too.
        let rebias = f32::from_bits((127 + 127 - self.bias()) << 23);
        let number = (f32::from_bits(magnitude << self.shift()) * rebias).to_bits();
        let special =
            if self.has_infinity { magnitude << self.shift() | 0x7f80_0000 } else { 0x7fc0_0000 };
        f32::from_bits(sign | if magnitude >= self.first_special { special } else { number })
    }

    #[inline(always)]
    fn narrow(&self, value: f32) -> u32 {
        let bits = value.to_bits();
        let sign = (bits >> 31) << (self.exponent_bits + self.mantissa_bits);
        let magnitude = bits & 0x7fff_ffff;
        // Below the smallest normal number, adding a number whose last place is worth the smallest
        // subnormal one leaves the rounded mantissa in the low bits.
        let anchor = (127 + 1 - self.bias() + self.shift()) << 23;
        let subnormal =
            (f32::from_bits(magnitude) + f32::from_bits(anchor)).to_bits().wrapping_sub(anchor);
        let half = (1 << (self.shift() - 1)) - 1;
        let normal = magnitude
            .wrapping_sub((127 - self.bias()) << 23)
            .wrapping_add(half + ((magnitude >> self.shift()) & 1))
            >> self.shift();
        let smallest_normal = (127 + 1 - self.bias()) << 23;
        let finite = select(magnitude < smallest_normal, subnormal, normal);
        let clamped = select(magnitude >= self.limit, self.overflow, finite);
        sign | select(magnitude > 0x7f80_0000, self.nan, clamped)
    }
}

/// `if condition { yes } else { no }` by masks: a branch would keep loops from being vectorised.
#[inline(always)]
pub(super) fn select(condition: bool, yes: u32, no: u32) -> u32 {
    let mask = u32::from(condition).wrapping_neg();
    yes & mask | no & !mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_formats_agree_with_half() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) =
                (f16::from_bits(bits).widen(), f16::from_bits(bits).to_f32_const());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:x}"
            );
            let (ours, theirs) = (bf16::from_bits(bits).widen(), bf16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:x}"
            );
        }
        // Every exponent, with mantissas about each point where rounding turns.
        for high in 0..=u16::MAX {
            for low in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let (ours, theirs) = (f16::narrow(value), f16::from_f32_const(value));
                assert!(ours.to_bits() == theirs.to_bits() || value.is_nan(), "f16 of {value:e}");
                assert_eq!(ours.is_nan(), value.is_nan());
                let (ours, theirs) = (bf16::narrow(value), bf16::from_f32(value));
                assert!(ours.to_bits() == theirs.to_bits() || value.is_nan(), "bf16 of {value:e}");
                assert_eq!(ours.is_nan(), value.is_nan());
            }
        }
    }

    /// The values of the finite non-negative codes of an 8-bit format, by its definition.
    fn table(exponent_bits: u32, mantissa_bits: u32, last: u32) -> Vec<f64> {
        let bias = (1 << (exponent_bits - 1)) - 1;
        let value = |code: u32| {
            let exponent = (code >> mantissa_bits) as i32;
            let mantissa =
                f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
            if exponent == 0 {
                mantissa * f64::from(1 - bias).exp2()
            } else {
                (1.0 + mantissa) * f64::from(exponent - bias).exp2()
            }
        };
        (0..=last).map(value).collect()
    }

    fn check_narrowing<T: SmallFloat + Into<u8>>(table: &[f64]) {
        let code = |value: f64| T::narrow(value as f32).into();
        for (below, pair) in table.windows(2).enumerate() {
            let middle = (pair[0] + pair[1]) / 2.0;
            let even = if below % 2 == 0 { below } else { below + 1 };
            for (value, expected) in [
                (pair[0], below),
                (middle, even),
                (middle * (1.0 - 1e-6), below),
                (middle * (1.0 + 1e-6), below + 1),
            ] {
                assert_eq!(usize::from(code(value)), expected, "{value}");
                assert_eq!(usize::from(code(-value)), expected | 0x80, "-{value}");
            }
        }
        let last = table.len() - 1;
        for value in [table[last], table[last] * 1.01, table[last] * 2.0, 1e30, f64::INFINITY] {
            assert_eq!(usize::from(code(value)), last, "{value} saturates");
        }
        assert!(T::narrow(f32::NAN).widen().is_nan());
    }

    #[test]
    fn eight_bit_formats_follow_their_definition() {
        let e4m3 = table(4, 3, 0x7e);
        let e5m2 = table(5, 2, 0x7b);
        for (code, &value) in e4m3.iter().enumerate() {
            assert_eq!(f64::from(F8E4M3::from_bits(code as u8).widen()), value);
            assert_eq!(f64::from(F8E4M3::from_bits(code as u8 | 0x80).widen()), -value);
        }
        for (code, &value) in e5m2.iter().enumerate() {
            assert_eq!(f64::from(F8E5M2::from_bits(code as u8).widen()), value);
        }
        assert_eq!((e4m3[0x7e], e5m2[0x7b]), (448.0, 57344.0));
        assert!(F8E4M3::from_bits(0xff).widen().is_nan());
        assert_eq!(F8E5M2::from_bits(0xfc).widen(), f32::NEG_INFINITY);
        assert!((0x7d..0x80).all(|code| F8E5M2::from_bits(code).widen().is_nan()));
        check_narrowing::<F8E4M3>(&e4m3);
        check_narrowing::<F8E5M2>(&e5m2);
    }
}
