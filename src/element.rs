//! The Rust types that a collective can move and reduce.

use std::fmt;

use annulus_plan::DataType;
use half::{bf16, f16};

use crate::reduce::SmallFloat;

/// A type whose values a collective can take as elements.
///
/// Implement it for your own `#[repr(transparent)]` newtypes of the types that have it.
///
/// # Safety
/// The type must have the size of [`DATA_TYPE`](Self::DATA_TYPE), an alignment no greater than that, no
/// padding and no niche: every bit pattern must be a value, because collectives write whatever
/// the other ranks sent.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// How the bits are interpreted by a reduction.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($type:ty => $data_type:ident),* $(,)?) => {$(
        // SAFETY: a plain number of the size of its data type, valid for every bit pattern.
        unsafe impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
        const _: () = assert!(size_of::<$type>() == DataType::$data_type.size());
    )*};
}

elements! {
    i8 => I8,
    u8 => U8,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    f16 => F16,
    f32 => F32,
    f64 => F64,
    bf16 => Bf16,
    F8E4M3 => F8E4M3,
    F8E5M2 => F8E5M2,
}

macro_rules! eight_bit_float {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The number with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// The bits of the number.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest number, ties to even. Beyond the range, infinity included, it is the
            /// largest finite number of that sign. A NaN stays one.
            pub fn from_f32(value: f32) -> Self {
                Self::narrow(value)
            }

            /// The same number; exact.
            pub fn to_f32(self) -> f32 {
                self.widen()
            }
        }

        impl PartialEq for $name {
            /// Compares as numbers: a NaN equals nothing, and the zeros equal each other.
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> Self {
                value.to_bits()
            }
        }
    };
}

eight_bit_float! {
    /// An 8-bit float with 4 exponent and 3 mantissa bits (OCP E4M3): up to ±448, NaN, no infinity.
    F8E4M3
}
eight_bit_float! {
    /// An 8-bit float with 5 exponent and 2 mantissa bits (OCP E5M2): up to ±57344, infinities, NaNs.
    F8E5M2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_behave_as_numbers() {
        assert_eq!(F8E4M3::from_f32(1.0).to_bits(), 0x38);
        assert_eq!(F8E5M2::from_f32(1.0).to_bits(), 0x3c);
        assert_eq!(F8E4M3::from_f32(1e9).to_f32(), 448.0);
        assert_eq!(F8E5M2::from_f32(-1e9).to_f32(), -57344.0);
        assert_eq!(F8E4M3::from_bits(0x80), F8E4M3::from_bits(0));
        assert_ne!(F8E4M3::from_f32(f32::NAN), F8E4M3::from_f32(f32::NAN));
        assert_eq!(format!("{:?}", F8E4M3::from_f32(0.3)), "0.3125");
    }

    #[test]
    fn user_types_can_be_elements() {
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        struct Metres(#[allow(dead_code)] f32);
        // SAFETY: transparent over f32.
        unsafe impl Element for Metres {
            const DATA_TYPE: DataType = f32::DATA_TYPE;
        }
        assert_eq!(Metres::DATA_TYPE.size(), size_of::<Metres>());
    }
}
