//! Ranks that leave in good order while others are still at work.

use std::thread;
use std::time::Duration;

use annulus::{Communicator, Config, Transport};

/// The root leaves as soon as its part is done; the other rank's first use of the link comes later.
#[test]
fn what_a_rank_sent_before_it_left_is_received() {
    for transport in [Transport::Proc, Transport::Shm, Transport::Tcp] {
        let mut config = Config::default();
        config.transport = transport;
        config.timeout = Duration::from_secs(60);
        let mut ranks = Communicator::local_with(2, &config).expect("ranks meet");
        let (late, root) = (ranks.pop().expect("rank 1"), ranks.pop().expect("rank 0"));
        let sending = thread::spawn(move || root.broadcast(&mut [7_i32, 8], 0));
        // Over TCP the two have to meet first.
        if transport != Transport::Tcp {
            sending.join().expect("no panic").expect("the link takes it");
            thread::sleep(Duration::from_millis(50));
        }
        let mut received = [0; 2];
        late.broadcast(&mut received, 0).expect("the data is here");
        assert_eq!(received, [7, 8], "over {transport:?}");
    }
}

/// Runs `work` as three ranks, of which the last comes late and each leaves as soon as it is done.
fn with_a_late_rank(
    variables: &[(&str, &str)],
    work: impl Fn(&Communicator) -> Result<(), annulus::Error> + Sync,
) {
    let variable = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let config = Config::from_vars(variable).expect("valid settings");
    let ranks = Communicator::local_with(3, &config).expect("ranks meet");
    thread::scope(|threads| {
        for comm in ranks {
            let work = &work;
            threads.spawn(move || {
                // Longer than a departed rank gets the benefit of the doubt.
                thread::sleep(Duration::from_millis(if comm.rank() == 2 { 1500 } else { 0 }));
                work(&comm).expect("nobody is missing");
            });
        }
    });
}

/// The root hands out references: one peer has read them and left, the other has yet to come.
#[test]
fn a_peer_that_has_read_everything_may_leave() {
    with_a_late_rank(&[("ANNULUS_ALGO", "one-shot")], |comm| {
        comm.broadcast(&mut vec![comm.rank() as i32; 1 << 16], 0)
    });
}

/// The middle of a chain waits for its successor long after its predecessor has left.
#[test]
fn a_predecessor_that_has_sent_everything_may_leave() {
    let ring = [("ANNULUS_ALGO", "ring"), ("ANNULUS_CHANNELS", "1"), ("ANNULUS_TRANSPORT", "shm")];
    with_a_late_rank(&ring, |comm| comm.broadcast(&mut vec![comm.rank() as i32; 400 << 10], 0));
}

/// Whoever fails first frees its buffers at once, while the others are in the middle of reading them.
#[test]
fn an_abort_in_the_midst_leaves_nobody_reading_freed_memory() {
    for round in 0..20 {
        let ranks = Communicator::local_with(3, &Config::default()).expect("ranks meet");
        thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    for _ in 0..100 {
                        let mut buffer = vec![1.0_f32; 200_000];
                        if comm.all_reduce(&mut buffer, annulus::ReduceOp::Sum).is_err() {
                            return;
                        }
                        assert!(buffer.iter().all(|&sum| sum == 3.0));
                    }
                });
            }
            thread::sleep(Duration::from_millis(3 * round));
            ranks[round as usize % 3].abort();
        });
    }
}

/// A communicator that was split off is left without a word on the control connection.
#[test]
fn what_a_rank_sent_before_it_left_a_split_is_received() {
    for transport in [Transport::Proc, Transport::Shm, Transport::Tcp] {
        let mut config = Config::default();
        config.transport = transport;
        config.timeout = Duration::from_secs(60);
        let ranks = Communicator::local_with(2, &config).expect("ranks meet");
        thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    let part = comm.split(Some(0), 0).expect("split").expect("a color");
                    if part.rank() == 0 {
                        thread::sleep(Duration::from_millis(400));
                    }
                    let mut sum = [1_i32; 5];
                    part.reduce(&mut sum, annulus::ReduceOp::Sum, 0).expect("both were there");
                    assert_eq!(sum[4], if part.rank() == 0 { 2 } else { 1 }, "{transport:?}");
                });
            }
        });
    }
}
