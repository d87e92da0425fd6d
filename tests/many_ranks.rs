//! Many ranks in one process: 256 of them start, and meet, in one test.

use std::thread;
use std::time::Instant;

use annulus::{Communicator, ReduceOp};

const RANKS: usize = 256;

#[test]
fn ranks_by_the_hundreds_meet_in_one_process() {
    let begin = Instant::now();
    let ranks = Communicator::local(RANKS).expect("memory");
    let created = begin.elapsed();
    let sums: Vec<f64> = thread::scope(|threads| {
        let started: Vec<_> = ranks
            .iter()
            .map(|comm| {
                threads.spawn(move || {
                    comm.barrier().expect("all come");
                    let met = begin.elapsed();
                    let mut sum = [comm.rank() as f64];
                    comm.all_reduce(&mut sum, ReduceOp::Sum).expect("all come");
                    if comm.rank() == 0 {
                        println!("{RANKS} ranks: created in {created:.1?}, first barrier at {met:.1?}, first all-reduce at {:.1?}", begin.elapsed());
                    }
                    sum[0]
                })
            })
            .collect();
        started.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    let expected = (0..RANKS).sum::<usize>() as f64;
    assert!(sums.iter().all(|&sum| sum == expected), "{sums:?}");
}
