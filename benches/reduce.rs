//! Reductions, in GB/s of one buffer, beside `memcpy` of the same size.
//!
//!     cargo bench --bench reduce
//!     cargo bench --bench reduce -- bf16

use annulus::reduce_bench::Reduction;
use annulus_plan::{DataType, ReduceKind};
use annulus_transports::memory::{Store, copy};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// In L1, in L2, in L3, past the caches of most CPUs.
const SIZES: [usize; 4] = [16 << 10, 256 << 10, 1 << 20, 64 << 20];

fn reductions(criterion: &mut Criterion) {
    for dtype in DataType::ALL {
        for op in [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max] {
            let mut group = criterion.benchmark_group(format!("{dtype}/{op}"));
            for bytes in SIZES {
                group.throughput(Throughput::Bytes(bytes as u64));
                for isa in Reduction::available() {
                    let kernel = Reduction::new(Some(isa), dtype, op).expect("an available set");
                    let (mut dst, b) = (ones(dtype, bytes), ones(dtype, bytes));
                    group.bench_function(BenchmarkId::new(isa, bytes), |bencher| {
                        bencher.iter(|| kernel.accumulate(&mut dst, &b, false, Store::Cached));
                    });
                }
            }
        }
    }
}

/// What a message of a few bytes costs.
fn small(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("small");
    for dtype in [DataType::F32, DataType::Bf16] {
        let kernel = Reduction::new(None, dtype, ReduceKind::Sum).expect("ANNULUS_ISA is valid");
        for bytes in [8, 32, 60, 64, 100, 128, 256, 1024] {
            let (mut dst, b) = (ones(dtype, bytes), ones(dtype, bytes));
            group.bench_function(BenchmarkId::new(dtype.name(), bytes), |bencher| {
                bencher.iter(|| kernel.accumulate(&mut dst, &b, false, Store::Cached));
            });
        }
    }
}

/// The last step of a two-shot all-reduce: the output and the peer's slot in one pass.
fn two_outputs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("two outputs");
    let kernel =
        Reduction::new(None, DataType::F32, ReduceKind::Sum).expect("ANNULUS_ISA is valid");
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let (a, b) = (ones(DataType::F32, bytes), ones(DataType::F32, bytes));
        let (mut dst, mut second) = (a.clone(), b.clone());
        for store in [Store::Cached, Store::NonTemporal] {
            group.bench_function(BenchmarkId::new(format!("{store:?}"), bytes), |bencher| {
                bencher.iter(|| kernel.combine(&mut dst, &mut second, &a, &b, store));
            });
        }
    }
}

fn copies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy");
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let src = ones(DataType::F32, bytes);
        let mut dst = src.clone();
        for store in [Store::Cached, Store::NonTemporal] {
            group.bench_function(BenchmarkId::new(format!("{store:?}"), bytes), |bencher| {
                // SAFETY: two buffers of `bytes`.
                bencher.iter(|| unsafe { copy(dst.as_mut_ptr(), src.as_ptr(), bytes, store) });
            });
        }
    }
}

/// Ones: no result becomes a NaN or a subnormal number, however often it is combined.
fn ones(dtype: DataType, bytes: usize) -> Vec<u8> {
    let one: &[u8] = match dtype {
        DataType::I8 | DataType::U8 => &[1],
        DataType::I32 | DataType::U32 => &[1, 0, 0, 0],
        DataType::I64 | DataType::U64 => &[1, 0, 0, 0, 0, 0, 0, 0],
        DataType::F16 => &[0x00, 0x3c],
        DataType::Bf16 => &[0x80, 0x3f],
        DataType::F32 => &[0, 0, 0x80, 0x3f],
        DataType::F64 => &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
        DataType::F8E4M3 => &[0x38],
        DataType::F8E5M2 => &[0x3c],
    };
    one.iter().copied().cycle().take(bytes).collect()
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(300))
        .without_plots();
    targets = copies, small, two_outputs, reductions
}
criterion_main!(benches);
