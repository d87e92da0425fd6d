//! What the C interface costs over the Rust API, for the smallest all-reduce: one f32, in place, on one rank and between two
//! threads.
//!
//! The two take turns in blocks of calls, so that a change of the machine's pace meets both. Ranks of the C interface are
//! joined by `ncclCommInitAll`, those of the Rust API by `Communicator::local`, which it calls.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use annulus::{Communicator, ReduceOp};
// Its functions are called by name, as a program in C calls them.
use nccl as _;

unsafe extern "C" {
    fn ncclCommInitAll(comms: *mut usize, count: c_int, devices: *const c_int) -> c_int;
    fn ncclAllReduce(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        dtype: c_int,
        op: c_int,
        comm: usize,
        stream: *mut c_void,
    ) -> c_int;
}

const FLOAT32: c_int = 7;
const SUM: c_int = 0;
const BLOCKS: usize = 300;
const CALLS: u32 = 2000;

fn main() {
    for world in [1, 2] {
        let (rust, c) = compare(world);
        println!("{world} rank(s): Rust {rust:.1} ns, C {c:.1} ns, {:+.1} ns", c - rust);
    }
}

/// Nanoseconds of a call through Rust and through C: medians of the blocks.
fn compare(world: usize) -> (f64, f64) {
    let ranks = Communicator::local(world).expect("ranks");
    let mut handles = vec![0; world];
    // SAFETY: there is room for all handles.
    let code = unsafe { ncclCommInitAll(handles.as_mut_ptr(), world as c_int, ptr::null()) };
    assert_eq!(code, 0);
    let barrier = Barrier::new(world);
    let measured = thread::scope(|threads| {
        let ranks: Vec<_> = ranks
            .iter()
            .zip(&handles)
            .map(|(comm, handle)| threads.spawn(|| take_turns(comm, *handle, &barrier)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).next().expect("a rank")
    });
    let [mut rust, mut c] = measured;
    (median(&mut rust), median(&mut c))
}

fn take_turns(comm: &Communicator, handle: usize, barrier: &Barrier) -> [Vec<f64>; 2] {
    let mut value = [0.0_f32];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..BLOCKS {
        barrier.wait();
        times[0].push(per_call(|| {
            comm.all_reduce(black_box(&mut value), ReduceOp::Sum).expect("all-reduce");
        }));
        barrier.wait();
        times[1].push(per_call(|| {
            let buffer: *mut c_void = black_box(&mut value).as_mut_ptr().cast();
            // SAFETY: the buffer holds the one element.
            let code =
                unsafe { ncclAllReduce(buffer, buffer, 1, FLOAT32, SUM, handle, ptr::null_mut()) };
            assert_eq!(code, 0);
        }));
    }
    times
}

fn per_call(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
