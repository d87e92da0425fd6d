//! What recording adds to a batch of 8-byte all-reduces between two threads: batches with and without it take turns, on the same threads.

use std::time::{Duration, Instant};

use annulus::flight::bench::unrecorded;
use annulus::{Communicator, ReduceOp};

const CALLS: u32 = 2_000;
const BATCHES: usize = 100;
/// Each pair of communicators lies elsewhere in memory, which alone may change a call by some percent.
const PAIRS: usize = 40;

fn main() {
    if std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        return; // `cargo test --benches` runs this too
    }
    println!(
        "8-byte all-reduce, two threads, {PAIRS} times {BATCHES} batches of {CALLS} calls of each kind:"
    );
    let pairs: Vec<Vec<[f64; 2]>> = (0..PAIRS).map(pair).collect();
    let batches = pairs.concat();
    let recorded = median(batches.iter().map(|[recorded, _]| *recorded));
    let plain = median(batches.iter().map(|[_, plain]| *plain));
    println!("recorded {recorded:.2} ns a call, not recorded {plain:.2} ns (medians)");
    let middle = median(pairs.iter().map(|pair| percent_more(pair)));
    println!(
        "a batch to the one beside it: {:+.2} % (median), {middle:+.2} % (median of the pairs' medians)",
        percent_more(&batches)
    );
}

/// Batches of one pair of communicators: nanoseconds a call of the slowest rank, recorded and not.
fn pair(number: usize) -> Vec<[f64; 2]> {
    let local = || Communicator::local(2).expect("ranks of one process meet");
    let (recorded, plain) = if number.is_multiple_of(2) {
        (local(), unrecorded(local))
    } else {
        let plain = unrecorded(local);
        (local(), plain)
    };
    let times: Vec<Vec<[Duration; 2]>> = std::thread::scope(|threads| {
        let ranks: Vec<_> = recorded
            .iter()
            .zip(&plain)
            .map(|(recorded, plain)| threads.spawn(move || measure(recorded, plain)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    let nanoseconds = |batch: usize, which: usize| {
        let slowest = times.iter().map(|rank| rank[batch][which]).max().unwrap_or_default();
        slowest.as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..BATCHES).map(|batch| [nanoseconds(batch, 0), nanoseconds(batch, 1)]).collect()
}

fn percent_more(batches: &[[f64; 2]]) -> f64 {
    100.0 * (median(batches.iter().map(|[recorded, plain]| recorded / plain)) - 1.0)
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
