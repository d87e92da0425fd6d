//! What changes nothing when it is combined.

use annulus_plan::{DataType, ReduceKind};
use half::{bf16, f16};

/// The bytes of the identity element of `op` for `dtype`, as many as the type has, first in the array.
///
/// A mean adds zeros, and still divides by the number of all ranks. For the lesser and the greater of floats it is a NaN,
/// which loses against every number.
pub(crate) fn identity(op: ReduceKind, dtype: DataType) -> [u8; 8] {
    let mut bytes = [0; 8];
    let mut put = |element: &[u8]| bytes[..element.len()].copy_from_slice(element);
    match op {
        ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum => {}
        ReduceKind::Prod => match dtype {
            DataType::I8 | DataType::U8 => put(&[1]),
            DataType::I32 | DataType::U32 => put(&1_u32.to_ne_bytes()),
            DataType::I64 | DataType::U64 => put(&1_u64.to_ne_bytes()),
            DataType::F16 => put(&f16::ONE.to_ne_bytes()),
            DataType::Bf16 => put(&bf16::ONE.to_ne_bytes()),
            DataType::F32 => put(&1_f32.to_ne_bytes()),
            DataType::F64 => put(&1_f64.to_ne_bytes()),
            DataType::F8E4M3 => put(&[0x38]),
            DataType::F8E5M2 => put(&[0x3c]),
        },
        ReduceKind::Min | ReduceKind::Max => {
            let least = op == ReduceKind::Max;
            match dtype {
                DataType::I8 => put(&(if least { i8::MIN } else { i8::MAX }).to_ne_bytes()),
                DataType::U8 => put(&[if least { 0 } else { u8::MAX }]),
                DataType::I32 => put(&(if least { i32::MIN } else { i32::MAX }).to_ne_bytes()),
                DataType::U32 => put(&(if least { 0 } else { u32::MAX }).to_ne_bytes()),
                DataType::I64 => put(&(if least { i64::MIN } else { i64::MAX }).to_ne_bytes()),
                DataType::U64 => put(&(if least { 0 } else { u64::MAX }).to_ne_bytes()),
                DataType::F16 => put(&f16::NAN.to_ne_bytes()),
                DataType::Bf16 => put(&bf16::NAN.to_ne_bytes()),
                DataType::F32 => put(&f32::NAN.to_ne_bytes()),
                DataType::F64 => put(&f64::NAN.to_ne_bytes()),
                DataType::F8E4M3 => put(&[0x7f]),
                DataType::F8E5M2 => put(&[0x7e]),
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use annulus_transports::memory::Store;

    use super::*;
    use crate::reduce::Kernel;

    /// Every one-byte and two-byte value, and as many patterns of the longer types, on either side of the identity.
    #[test]
    fn changes_no_element() {
        for dtype in DataType::ALL {
            let size = dtype.size();
            let value = |index: u64| -> [u8; 8] {
                match size {
                    1 | 2 => index.to_le_bytes(),
                    _ => index.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).to_le_bytes(),
                }
            };
            let count = if size == 1 { 256 } else { 1 << 16 };
            let values: Vec<u8> =
                (0..count).flat_map(|index| value(index).into_iter().take(size)).collect();
            for op in [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Min, ReduceKind::Max] {
                let identity = &identity(op, dtype)[..size];
                let identities = identity.repeat(count as usize);
                for (a, b) in [(&values, &identities), (&identities, &values)] {
                    let mut result = vec![0; values.len()];
                    // SAFETY: all three are that long, and the result overlaps no other.
                    unsafe {
                        Kernel::new(dtype, op, 2).run(
                            result.as_mut_ptr(),
                            std::ptr::null_mut(),
                            a.as_ptr(),
                            b.as_ptr(),
                            result.len(),
                            false,
                            Store::Cached,
                            Store::Cached,
                        );
                    }
                    let both = values.chunks_exact(size).zip(result.chunks_exact(size));
                    for (value, result) in both {
                        let same = value == result
                            || is_nan(dtype, value) && is_nan(dtype, result)
                            // Results of the 8-bit types saturate, so that infinity becomes finite.
                            || dtype == DataType::F8E5M2 && value[0] & 0x7f == 0x7c && value[0] - 1 == result[0]
                            // -0 + 0 = +0
                            || op == ReduceKind::Sum && is_zero(dtype, value) && is_zero(dtype, result);
                        assert!(same, "{op} {dtype}: {value:x?} became {result:x?}");
                    }
                }
            }
        }
    }

    /// The bits without the sign, and the least of those that are no number, for floats.
    fn magnitude(dtype: DataType, bytes: &[u8]) -> Option<(u64, u64)> {
        let (mantissa, infinity) = match dtype {
            DataType::F16 => (0x7fff, 0x7c00),
            DataType::Bf16 => (0x7fff, 0x7f80),
            DataType::F32 => (0x7fff_ffff, 0x7f80_0000),
            DataType::F64 => (0x7fff_ffff_ffff_ffff, 0x7ff0_0000_0000_0000),
            DataType::F8E4M3 => (0x7f, 0x7e),
            DataType::F8E5M2 => (0x7f, 0x7c),
            _ => return None,
        };
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        Some((u64::from_le_bytes(wide) & mantissa, infinity))
    }

    fn is_nan(dtype: DataType, bytes: &[u8]) -> bool {
        magnitude(dtype, bytes).is_some_and(|(bits, infinity)| bits > infinity)
    }

    fn is_zero(dtype: DataType, bytes: &[u8]) -> bool {
        magnitude(dtype, bytes).is_some_and(|(bits, _)| bits == 0)
    }
}
