//! How long it takes to build one rank's plan: what the first call of its kind pays, before the
//! plan is cached.

use std::hint::black_box;

use annulus_plan::algorithms::{Algorithm, Choice, Protocol, build};
use annulus_plan::{Collective, DataType, ReduceOp};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const CHUNK_BYTES: usize = 128 << 10;

fn all_reduce_of_four_chunks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan_building");
    for algorithm in [Algorithm::Ring, Algorithm::TwoShot, Algorithm::Tree] {
        for world in [2, 8, 64, 4096] {
            let elements = 4 * CHUNK_BYTES / DataType::F32.size();
            let call = Collective::all_reduce(world, DataType::F32, ReduceOp::Sum, elements)
                .expect("a valid call");
            let choice = Choice {
                algorithm,
                protocol: Protocol::Simple,
                channels: 1,
                chunk_bytes: CHUNK_BYTES,
            };
            let rank = world / 2;
            let plan = build(&call, &choice, rank).expect("a supported call");
            let instructions = plan.lanes.iter().map(|lane| lane.instructions.len() as u64).sum();
            group.throughput(Throughput::Elements(instructions));
            group.bench_function(BenchmarkId::new(algorithm.name(), world), |bencher| {
                bencher.iter(|| build(black_box(&call), black_box(&choice), black_box(rank)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, all_reduce_of_four_chunks);
criterion_main!(benches);
