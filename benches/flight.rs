//! What recording adds to a small call that repeats the last one: the time of 1,000 of them.

use std::hint::black_box;

use annulus::flight::bench::Repetitions;
use criterion::{Criterion, criterion_group, criterion_main};

fn repetitions(criterion: &mut Criterion) {
    let mut calls = Repetitions::begin();
    criterion.bench_function("1000 repetitions", |bencher| {
        bencher.iter(|| (0..1000).for_each(|_| black_box(&mut calls).repeat()));
    });
}

criterion_group!(benches, repetitions);
criterion_main!(benches);
