//! Every kernel against a reference in f64 and i128, and the variants against each other.

use std::ptr;

use annulus_plan::{DataType, ReduceKind, Scalar};
use annulus_transports::memory::Store;
use half::{bf16, f16};
use proptest::prelude::*;

use super::{Isa, Kernel, premultiply};
use crate::element::{F8E4M3, F8E5M2};

/// Which buffer the result shares.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Alias {
    None,
    A,
    B,
    /// Both operands and the result are one buffer.
    Both,
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DataType,
    op: ReduceKind,
    world: usize,
    finish: bool,
    elements: usize,
    /// How far each of dst, second, a, b is from a multiple of 64 bytes.
    offsets: [usize; 4],
    alias: Alias,
    second: bool,
    stores: [Store; 2],
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let store = prop_oneof![Just(Store::Cached), Just(Store::NonTemporal)];
    let alias = prop_oneof![Just(Alias::None), Just(Alias::A), Just(Alias::B), Just(Alias::Both)];
    // Offsets are often multiples of 16, where stores are streamed.
    let offset = prop_oneof![0..64usize, (0..4usize).prop_map(|n| 16 * n)];
    (
        (prop::sample::select(&DataType::ALL[..]), prop::sample::select(&ReduceKind::ALL[..])),
        (1..300usize, any::<bool>(), 0..200usize),
        [offset.clone(), offset.clone(), offset.clone(), offset],
        (alias, any::<bool>()),
        [store.clone(), store],
        any::<u64>(),
    )
        .prop_map(
            |((dtype, op), (world, finish, elements), offsets, (alias, second), stores, seed)| {
                Case { dtype, op, world, finish, elements, offsets, alias, second, stores, seed }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn kernels_agree_with_the_reference(case in cases()) {
        check(&case)?;
    }
}

#[test]
fn every_type_and_operator_in_every_variant() {
    let mut seed = 1;
    for dtype in DataType::ALL {
        for op in ReduceKind::ALL {
            for finish in [false, true] {
                for (elements, stores) in [
                    (199, [Store::Cached; 2]),
                    (320, [Store::NonTemporal, Store::Cached]),
                    (257, [Store::NonTemporal; 2]),
                ] {
                    seed += 1;
                    let case = Case {
                        dtype,
                        op,
                        world: 7,
                        finish,
                        elements,
                        offsets: [16, 32, 3, 0],
                        alias: Alias::None,
                        second: finish,
                        stores,
                        seed,
                    };
                    check(&case).unwrap();
                }
            }
        }
    }
}

#[test]
fn every_short_length_in_place() {
    for dtype in DataType::ALL {
        for elements in 0..=200 {
            let case = Case {
                dtype,
                op: ReduceKind::Sum,
                world: 2,
                finish: false,
                elements,
                offsets: [elements % 7, 0, 0, elements % 5],
                alias: if elements % 2 == 0 { Alias::A } else { Alias::B },
                second: elements % 3 == 0,
                stores: [Store::Cached; 2],
                seed: elements as u64,
            };
            check(&case).unwrap();
        }
    }
}

#[test]
fn avx512_is_tested_where_the_cpu_has_it() {
    if !Isa::Avx512.is_available() {
        eprintln!(
            "skipped: this CPU has no AVX-512F and AVX-512BW, so the avx512 kernels did not run"
        );
    }
    assert_eq!(Isa::available().any(|isa| isa == Isa::Avx512), Isa::Avx512.is_available());
}

#[test]
fn min_and_max_do_not_depend_on_the_order_of_operands() {
    for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let a = sample(dtype, 4096, 11);
        let b = sample(dtype, 4096, 12);
        for isa in Isa::available() {
            for op in [ReduceKind::Min, ReduceKind::Max] {
                let kernel = Kernel::with_isa(isa, dtype, op, 2);
                let (mut ab, mut ba) = (vec![0; a.len()], vec![0; a.len()]);
                for (dst, a, b) in [(&mut ab, &a, &b), (&mut ba, &b, &a)] {
                    // SAFETY: three buffers of the same length.
                    unsafe {
                        kernel.run(
                            dst.as_mut_ptr(),
                            ptr::null_mut(),
                            a.as_ptr(),
                            b.as_ptr(),
                            a.len(),
                            true,
                            Store::Cached,
                            Store::Cached,
                        );
                    }
                }
                for (at, (x, y)) in elements(dtype, &ab).zip(elements(dtype, &ba)).enumerate() {
                    assert!(same(dtype, x, y), "{dtype} {op} {isa:?} {at}: {x:x} {y:x}");
                }
            }
        }
    }
}

#[test]
fn premultiply_scales_each_element() {
    for dtype in DataType::ALL {
        let scalar = if dtype.is_float() { Scalar::Float(-0.3) } else { Scalar::Integer(113) };
        for count in [0, 1, 5, 64, 133] {
            let src = sample(dtype, count, 5);
            let mut dst = vec![0; src.len()];
            let mut in_place = src.clone();
            // SAFETY: buffers of the same length, apart or equal.
            unsafe {
                premultiply(dtype, scalar, dst.as_mut_ptr(), src.as_ptr(), src.len());
                let place = in_place.as_mut_ptr();
                premultiply(dtype, scalar, place, place, src.len());
            }
            for (at, (x, y)) in elements(dtype, &src).zip(elements(dtype, &dst)).enumerate() {
                let expected = match scalar {
                    Scalar::Float(by) if dtype == DataType::F64 => {
                        (f64::from_bits(x) * by).to_bits()
                    }
                    Scalar::Float(by) => {
                        encode(dtype, (decode(dtype, x) * f64::from(by as f32)) as f32)
                    }
                    Scalar::Integer(by) => wrap(dtype, signed(dtype, x) * by),
                };
                assert!(
                    same(dtype, y, expected),
                    "{dtype} {at}: {x:x} gives {y:x}, not {expected:x}"
                );
            }
            assert!(
                elements(dtype, &dst)
                    .zip(elements(dtype, &in_place))
                    .all(|(x, y)| same(dtype, x, y))
            );
        }
    }
}

/// Runs the case in every variant, and compares all bytes of the buffers with what they should hold.
fn check(case: &Case) -> Result<(), TestCaseError> {
    let Case { dtype, op, world, finish, .. } = *case;
    let bytes = case.elements * dtype.size();
    let mut a = sample(dtype, case.elements, case.seed);
    let b = sample(dtype, case.elements, case.seed ^ 0x5555);
    if case.alias == Alias::Both {
        a.clone_from(&b);
    }
    let expected: Vec<u64> = elements(dtype, &a)
        .zip(elements(dtype, &b))
        .map(|(a, b)| reference(dtype, op, world, finish, a, b))
        .collect();

    for isa in Isa::available() {
        let mut dst = Guarded::new(case.offsets[0], bytes);
        let mut second = Guarded::new(case.offsets[1], bytes);
        let mut a_buffer = Guarded::new(case.offsets[2], bytes);
        let mut b_buffer = Guarded::new(case.offsets[3], bytes);
        a_buffer.fill(&a);
        b_buffer.fill(&b);
        let (in_a, in_b) = match case.alias {
            Alias::None => (a_buffer.pointer(), b_buffer.pointer()),
            Alias::A => {
                dst.fill(&a);
                (dst.pointer(), b_buffer.pointer())
            }
            Alias::B => {
                dst.fill(&b);
                (a_buffer.pointer(), dst.pointer())
            }
            Alias::Both => {
                dst.fill(&b);
                (dst.pointer(), dst.pointer())
            }
        };
        let second_pointer = if case.second { second.pointer() } else { ptr::null_mut() };
        let kernel = Kernel::with_isa(isa, dtype, op, world);
        // SAFETY: four buffers of `bytes`; the operands are apart from the results or equal to one.
        unsafe {
            kernel.run(
                dst.pointer(),
                second_pointer,
                in_a,
                in_b,
                bytes,
                finish,
                case.stores[0],
                case.stores[1],
            );
        }
        let results = [Some(&dst), case.second.then_some(&second)];
        for result in results.into_iter().flatten() {
            for (at, (got, want)) in elements(dtype, result.bytes()).zip(&expected).enumerate() {
                prop_assert!(
                    same(dtype, got, *want),
                    "{isa:?}, element {at}: got {got:#x}, expected {want:#x}, {case:?}"
                );
            }
        }
        for buffer in [&dst, &second, &a_buffer, &b_buffer] {
            prop_assert!(buffer.is_intact(), "{isa:?} wrote outside its buffer, {case:?}");
        }
        prop_assert!(case.second || second.is_untouched());
    }
    Ok(())
}

/// A buffer at a chosen offset from a cache line, between bytes that must not change.
struct Guarded {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Guarded {
    const FILL: u8 = 0xa5;

    fn new(offset: usize, length: usize) -> Self {
        let memory = vec![Self::FILL; length + 256];
        let start = memory.as_ptr().align_offset(64) + 64 + offset;
        Self { memory, start, length }
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.memory[self.start..][..self.length].copy_from_slice(bytes);
    }

    fn pointer(&mut self) -> *mut u8 {
        self.memory[self.start..][..self.length].as_mut_ptr()
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }

    fn is_intact(&self) -> bool {
        let (before, rest) = self.memory.split_at(self.start);
        before.iter().chain(&rest[self.length..]).all(|&byte| byte == Self::FILL)
    }

    fn is_untouched(&self) -> bool {
        self.memory.iter().all(|&byte| byte == Self::FILL)
    }
}

/// Elements of all kinds: zeros, extremes, NaNs, numbers of like magnitude, arbitrary bits.
fn sample(dtype: DataType, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) ^ (state << 17)
    };
    let bits = 8 * dtype.size() as u32;
    let top = 1u64 << (bits - 1);
    let one = match dtype {
        DataType::F16 => u64::from(f16::ONE.to_bits()),
        DataType::Bf16 => u64::from(bf16::ONE.to_bits()),
        DataType::F32 => u64::from(1f32.to_bits()),
        DataType::F64 => 1f64.to_bits(),
        DataType::F8E4M3 => 0x38,
        DataType::F8E5M2 => 0x3c,
        _ => 1,
    };
    let infinity = match dtype {
        DataType::F16 => u64::from(f16::INFINITY.to_bits()),
        DataType::Bf16 => u64::from(bf16::INFINITY.to_bits()),
        DataType::F32 => u64::from(f32::INFINITY.to_bits()),
        DataType::F64 => f64::INFINITY.to_bits(),
        DataType::F8E5M2 => 0x7c,
        _ => top - 1,
    };
    let special = [0, 1, top, top | 1, top - 1, infinity, infinity | top, infinity - 1, !0];
    (0..count)
        .flat_map(|_| {
            let element = match random() % 4 {
                0 => special[random() as usize % special.len()],
                1 => random() << 40 ^ random(),
                _ => one ^ (random() % (one | 0xff)) & (top - 1) >> 4 ^ (random() & top),
            };
            element.to_le_bytes().into_iter().take(dtype.size())
        })
        .collect()
}

fn elements(dtype: DataType, bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(dtype.size()).map(|chunk| {
        let mut element = [0; 8];
        element[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(element)
    })
}

/// Equal bits, or two NaNs.
fn same(dtype: DataType, a: u64, b: u64) -> bool {
    a == b || dtype.is_float() && decode(dtype, a).is_nan() && decode(dtype, b).is_nan()
}

fn reference(dtype: DataType, op: ReduceKind, world: usize, finish: bool, a: u64, b: u64) -> u64 {
    if !dtype.is_float() {
        let (a, b) = (signed(dtype, a), signed(dtype, b));
        return match op {
            ReduceKind::Sum | ReduceKind::PreMulSum => wrap(dtype, a + b),
            ReduceKind::Prod => wrap(dtype, a.wrapping_mul(b)),
            ReduceKind::Min => wrap(dtype, a.min(b)),
            ReduceKind::Max => wrap(dtype, a.max(b)),
            ReduceKind::Avg => {
                let sum = wrap(dtype, a + b);
                if finish { wrap(dtype, signed(dtype, sum) / world as i128) } else { sum }
            }
        };
    }
    let (x, y) = (decode(dtype, a), decode(dtype, b));
    if matches!(op, ReduceKind::Min | ReduceKind::Max) {
        if x.is_nan() || y.is_nan() {
            return if x.is_nan() { b } else { a };
        }
        // The total order of numbers, which puts -0 before +0.
        return if x.total_cmp(&y).is_lt() == (op == ReduceKind::Min) { a } else { b };
    }
    if dtype == DataType::F64 {
        let result = match op {
            ReduceKind::Prod => x * y,
            ReduceKind::Avg if finish => (x + y) / world as f64,
            _ => x + y,
        };
        return result.to_bits();
    }
    // An f64 holds enough digits that rounding its result to f32 is rounding the exact one.
    let result = match op {
        ReduceKind::Prod => (x * y) as f32,
        ReduceKind::Avg if finish => (f64::from((x + y) as f32) / world as f64) as f32,
        _ => (x + y) as f32,
    };
    encode(dtype, result)
}

fn decode(dtype: DataType, bits: u64) -> f64 {
    match dtype {
        DataType::F16 => f16::from_bits(bits as u16).to_f64(),
        DataType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
        DataType::F32 => f64::from(f32::from_bits(bits as u32)),
        DataType::F64 => f64::from_bits(bits),
        DataType::F8E4M3 => f64::from(F8E4M3::from_bits(bits as u8).to_f32()),
        DataType::F8E5M2 => f64::from(F8E5M2::from_bits(bits as u8).to_f32()),
        _ => unreachable!("{dtype} is no float"),
    }
}

fn encode(dtype: DataType, value: f32) -> u64 {
    match dtype {
        DataType::F16 => f16::from_f32_const(value).to_bits().into(),
        DataType::Bf16 => bf16::from_f32(value).to_bits().into(),
        DataType::F32 => value.to_bits().into(),
        DataType::F8E4M3 => nearest(dtype, 0x7e, value),
        DataType::F8E5M2 => nearest(dtype, 0x7b, value),
        _ => unreachable!("{dtype} is not rounded from f32"),
    }
}

/// The code of the nearest 8-bit float, by search; of two equally near the even one.
fn nearest(dtype: DataType, largest: u64, value: f32) -> u64 {
    if value.is_nan() {
        return 0x7f;
    }
    let magnitude = f64::from(value.abs()).min(1e9);
    let distance = |code: u64| (decode(dtype, code) - magnitude).abs();
    let code = (0..=largest)
        .min_by(|&x, &y| distance(x).total_cmp(&distance(y)).then((x % 2).cmp(&(y % 2))));
    code.unwrap_or(0) | if value.is_sign_negative() { 0x80 } else { 0 }
}

fn signed(dtype: DataType, bits: u64) -> i128 {
    match dtype {
        DataType::I8 => (bits as i8).into(),
        DataType::U8 => (bits as u8).into(),
        DataType::I32 => (bits as i32).into(),
        DataType::U32 => (bits as u32).into(),
        DataType::I64 => (bits as i64).into(),
        DataType::U64 => bits.into(),
        _ => unreachable!("{dtype} is no integer"),
    }
}

/// The bits of `value` modulo the width of the type.
fn wrap(dtype: DataType, value: i128) -> u64 {
    value as u64 & (u64::MAX >> (64 - 8 * dtype.size()))
}
