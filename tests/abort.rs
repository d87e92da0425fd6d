//! Aborting a communicator ends its calls, all of them, and nobody else's.

use std::thread;
use std::time::Duration;

use annulus::{Communicator, Config, Error, ReduceOp, Transport};

const TRANSPORTS: [Transport; 3] = [Transport::Proc, Transport::Shm, Transport::Tcp];

fn ranks(world: usize, transport: Transport) -> Vec<Communicator> {
    let mut config = Config::default();
    config.transport = transport;
    // Whatever is not ended by the abort hangs the test.
    config.timeout = Duration::from_secs(3600);
    Communicator::local_with(world, &config).expect("ranks meet")
}

#[test]
fn queued_calls_end() {
    for transport in TRANSPORTS {
        let ranks = ranks(2, transport);
        thread::scope(|threads| {
            threads.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                // Of a rank that is in no call, several times over.
                ranks[1].abort();
                ranks[1].abort();
            });
            let (mut first, mut second) = (vec![1.0_f32; 1 << 20], [1_i32; 3]);
            let error = ranks[0]
                .scope(|scope| {
                    let first = scope.all_reduce_async(&mut first, ReduceOp::Sum)?;
                    let second = scope.all_reduce_async(&mut second, ReduceOp::Sum)?;
                    first.wait().map(drop).expect_err("aborted");
                    second.wait().map(drop)
                })
                .expect_err("aborted");
            assert!(matches!(error, Error::Aborted { rank: 1 }), "{transport:?}: {error}");
        });
    }
}

#[test]
fn any_thread_may_abort_its_own_rank() {
    for transport in TRANSPORTS {
        let ranks = ranks(2, transport);
        thread::scope(|threads| {
            // A call to which the other rank owes its part, so that neither call can end before the news.
            let waits = |rank: usize| ranks[rank].recv(&mut [0_u8], 1 - rank);
            let pending = threads.spawn(move || waits(0).expect_err("aborted"));
            thread::sleep(Duration::from_millis(50));
            ranks[0].abort();
            let error = pending.join().expect("no panic");
            assert!(matches!(error, Error::Aborted { rank: 0 }), "{transport:?}: {error}");
            let error = waits(1).expect_err("told");
            assert!(matches!(error, Error::Aborted { rank: 0 }), "{transport:?}: {error}");
        });
    }
}

#[test]
fn other_communicators_go_on() {
    for transport in TRANSPORTS {
        let ranks = ranks(3, transport);
        thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    let part = comm.split(Some(0), 0).expect("split").expect("a color");
                    let other = comm.split(Some(0), 0).expect("split").expect("a color");
                    if comm.rank() == 1 {
                        part.abort();
                    }
                    // At last a call finds it aborted.
                    let error = loop {
                        if let Err(error) = part.barrier() {
                            break error;
                        }
                    };
                    assert!(matches!(error, Error::Aborted { rank: 1 }), "{transport:?}: {error}");
                    for whole in [comm, &other] {
                        let mut sum = [1_i32];
                        whole.all_reduce(&mut sum, ReduceOp::Sum).expect("whole");
                        assert_eq!(sum, [3]);
                    }
                });
            }
        });
    }
}
