//! What recording adds to a batch of 8-byte all-reduces between two threads: batches with and without it take turns, on the same threads.

use std::time::{Duration, Instant};

use annulus::flight::bench::unrecorded;
use annulus::{Communicator, ReduceOp};

const CALLS: u32 = 2_000;
const BATCHES: usize = 1_000;

fn main() {
    if std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        return; // `cargo test --benches` runs this too
    }
    let recorded = Communicator::local(2).expect("ranks of one process meet");
    let plain = unrecorded(|| Communicator::local(2)).expect("ranks of one process meet");
    let times: Vec<Vec<[Duration; 2]>> = std::thread::scope(|threads| {
        let ranks: Vec<_> = recorded
            .iter()
            .zip(&plain)
            .map(|(recorded, plain)| threads.spawn(move || measure(recorded, plain)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    // The slowest rank's time of each batch, in nanoseconds a call.
    let nanoseconds = |batch: usize, which: usize| {
        let slowest = times.iter().map(|rank| rank[batch][which]).max().unwrap_or_default();
        slowest.as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let batches: Vec<[f64; 2]> =
        (0..BATCHES).map(|batch| [nanoseconds(batch, 0), nanoseconds(batch, 1)]).collect();
    let recorded = median(batches.iter().map(|[recorded, _]| *recorded));
    let plain = median(batches.iter().map(|[_, plain]| *plain));
    let ratio = median(batches.iter().map(|[recorded, plain]| recorded / plain));
    println!("8-byte all-reduce, two threads, {BATCHES} batches of {CALLS} calls of each kind:");
    println!("recorded {recorded:.2} ns a call, not recorded {plain:.2} ns (medians)");
    println!("a batch to the one beside it: {:+.2} % (median)", 100.0 * (ratio - 1.0));
}

/// Each rank's times of batches with and without recording; which of them comes first alternates.
fn measure(recorded: &Communicator, plain: &Communicator) -> Vec<[Duration; 2]> {
    let mut times = vec![[Duration::ZERO; 2]; BATCHES];
    for _ in 0..10 {
        batch(recorded);
        batch(plain);
    }
    for (round, times) in times.iter_mut().enumerate() {
        for which in [round % 2, 1 - round % 2] {
            times[which] = batch([recorded, plain][which]);
        }
    }
    times
}

fn batch(comm: &Communicator) -> Duration {
    let mut buffer = [1_f32; 2];
    comm.barrier().expect("the other rank is here");
    let begun = Instant::now();
    for _ in 0..CALLS {
        comm.all_reduce(&mut buffer, ReduceOp::Max).expect("the other rank is here");
    }
    begun.elapsed()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
