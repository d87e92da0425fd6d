//! A rank that waits leaves its core to others.

use std::thread;
use std::time::{Duration, Instant};

use annulus::{Communicator, Config, Transport};
use rustix::time::{ClockId, clock_gettime};

/// What the calling thread has used of a core so far.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A tenth of this is common; spinning or a sleep of microseconds at a time uses ten times as much and more.
const MOST: f64 = 0.02;

#[test]
fn a_waiting_rank_uses_less_than_a_fiftieth_of_a_core() {
    for transport in [Transport::Proc, Transport::Shm, Transport::Tcp] {
        let mut config = Config::default();
        config.transport = transport;
        let ranks = Communicator::local_with(2, &config).expect("ranks meet");
        thread::scope(|threads| {
            threads.spawn(|| {
                ranks[1].barrier().expect("the first call opens the links");
                thread::sleep(Duration::from_secs(2));
                ranks[1].barrier().expect("both come");
            });
            ranks[0].barrier().expect("the first call opens the links");
            let (begin, before) = (Instant::now(), used());
            ranks[0].barrier().expect("both come");
            let (waited, share) =
                (begin.elapsed(), (used() - before).as_secs_f64() / begin.elapsed().as_secs_f64());
            println!("{transport:?}: waited {waited:.2?}, used {:.2} % of a core", 100.0 * share);
            assert!(share < MOST, "{transport:?}: {:.2} % of a core", 100.0 * share);
        });
    }
}
