//! What ranks get when others do something else, or nothing.

use std::thread;
use std::time::{Duration, Instant};

use annulus::{Communicator, Config, Error, ReduceOp, Transport};

fn ranks(world: usize, timeout: Duration) -> Vec<Communicator> {
    let mut config = Config::default();
    config.timeout = timeout;
    Communicator::local_with(world, &config).expect("ranks meet")
}

/// Runs `work` as every rank and returns the errors.
fn errors(
    ranks: &[Communicator],
    work: impl Fn(&Communicator) -> Result<(), Error> + Sync,
) -> Vec<Error> {
    thread::scope(|threads| {
        let running: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| work(comm))).collect();
        running
            .into_iter()
            .map(|rank| rank.join().expect("no panic").expect_err("must fail"))
            .collect()
    })
}

#[test]
fn different_calls_are_an_error_that_prints_both() {
    let ranks = ranks(2, Duration::from_secs(60));
    let found = errors(&ranks, |comm| {
        let mut buffer = [1.0_f32; 8];
        let op = if comm.rank() == 0 { ReduceOp::Sum } else { ReduceOp::Max };
        comm.all_reduce(&mut buffer, op)
    });
    for error in &found {
        let text = error.to_string();
        assert!(matches!(error, Error::Mismatch { .. }), "{text}");
        assert!(text.contains("all_reduce(count 8, f32, sum) as operation 1"), "{text}");
        assert!(text.contains("all_reduce(count 8, f32, max) as operation 1"), "{text}");
    }
    let later = errors(&ranks, Communicator::barrier);
    assert!(later.iter().all(|error| matches!(error, Error::Mismatch { .. })), "{later:?}");
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let ranks = ranks(3, Duration::from_secs(2));
    thread::scope(|threads| {
        for comm in &ranks {
            threads.spawn(|| comm.barrier().expect("all come to the first"));
        }
    });
    let found = errors(&ranks[..2], |comm| comm.all_reduce(&mut [0_u8; 5], ReduceOp::Max));
    assert!(
        found.iter().any(|error| {
            let text = error.to_string();
            matches!(error, Error::Timeout { .. })
                && text.contains("rank 2 (pid ")
                && text.contains("last seen in barrier")
                && text.contains("all_reduce(count 5, u8, max) as operation 2")
        }),
        "{found:?}"
    );
}

#[test]
fn all_ranks_are_asked_at_a_deadline() {
    for transport in [Transport::Proc, Transport::Shm] {
        let mut config = Config::default();
        config.transport = transport;
        let ranks = Communicator::local_with(4, &config).expect("ranks meet");
        let errors = thread::scope(|threads| {
            let waiting: Vec<_> = ranks[..3]
                .iter()
                .map(|comm| {
                    threads.spawn(move || {
                        comm.barrier().expect("all come to the first");
                        let impatient = comm.with_timeout(Duration::from_secs(1));
                        impatient
                            .all_reduce(&mut [1.0_f32; 3], ReduceOp::Sum)
                            .expect_err("one is missing")
                    })
                })
                .collect();
            ranks[3].barrier().expect("all come to the first");
            ranks[3].broadcast(&mut [1_u8], 7).expect_err("no such root");
            waiting.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Vec<_>>()
        });
        let asked = errors.iter().find_map(|error| match error {
            Error::Timeout { ranks, .. } => Some((error.to_string(), ranks)),
            _ => None,
        });
        let (text, states) = asked.expect("one is the first");
        let arrived: Vec<_> = states.iter().map(|state| state.arrived).collect();
        assert_eq!(arrived, [Some(true), Some(true), Some(true), Some(false)], "{text}");
        assert_eq!(states[3].status.as_ref().expect("an answer").completed, 1, "{text}");
        for part in [
            "\n  rank 3 (pid ",
            "not arrived; last completed barrier(count 0, u8) as operation 1",
            "its last call was refused: rank 3: root 7 is out of range",
            "in all_reduce(count 3, f32, sum) as operation 2, for ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let last = text.lines().last().expect("some");
        assert!(last.starts_with("  ranks 0..2: arrived; last completed"), "{text}");
    }
}

#[test]
fn a_call_with_a_timeout_of_its_own_leaves_the_others_alone() {
    let ranks = ranks(2, Duration::from_secs(600));
    thread::scope(|threads| {
        for comm in &ranks {
            threads.spawn(move || {
                let impatient = comm.with_timeout(Duration::from_secs(60));
                impatient.barrier().expect("both come");
                comm.barrier().expect("both come");
                let mut sums = [1_i32; 2];
                impatient
                    .scope(|scope| {
                        scope.all_reduce_async(&mut sums, ReduceOp::Sum)?.wait().map(|_| ())
                    })
                    .expect("both come")
                    .expect("both come");
                assert_eq!(sums, [2; 2]);
            });
        }
    });
    let begin = Instant::now();
    let error = ranks[0]
        .with_timeout(Duration::from_millis(50))
        .group(|group| group.send(&[1_u8; 1 << 24], 1))
        .expect_err("nobody takes it");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(300), "long before the other deadline");
    assert!(ranks[1].barrier().is_err(), "it is broken");
}

#[test]
fn a_rank_that_has_left_is_not_waited_for() {
    let mut ranks = ranks(2, Duration::from_secs(600));
    drop(ranks.pop());
    let begin = Instant::now();
    let error = ranks[0].all_reduce(&mut [1.0_f64], ReduceOp::Sum).expect_err("nobody there");
    assert!(matches!(error, Error::RankLost { lost: 1, .. }), "{error}");
    assert!(error.to_string().contains("left the communicator"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(60), "long before the deadline");
}

#[test]
fn abort_ends_pending_calls() {
    let ranks = ranks(2, Duration::from_secs(600));
    thread::scope(|threads| {
        let pending =
            threads.spawn(|| ranks[0].all_reduce(&mut vec![1_u32; 1 << 20], ReduceOp::Sum));
        thread::sleep(Duration::from_millis(20));
        ranks[1].abort();
        ranks[1].abort();
        let error = pending.join().expect("no panic").expect_err("aborted");
        assert!(matches!(error, Error::Aborted { rank: 1 }), "{error}");
    });
}

#[test]
fn abort_ends_a_call_that_opens_links() {
    for aborting in [0, 1] {
        let mut config = Config::default();
        config.transport = Transport::Tcp;
        let ranks = Communicator::local_with(2, &config).expect("ranks meet");
        let begin = Instant::now();
        let error = thread::scope(|threads| {
            // The higher rank waits for the lower one's connection, which does not come.
            let pending = threads.spawn(|| ranks[1].all_reduce(&mut [1_i32], ReduceOp::Sum));
            thread::sleep(Duration::from_millis(100));
            ranks[aborting].abort();
            pending.join().expect("no panic").expect_err("aborted")
        });
        assert!(matches!(error, Error::Aborted { rank } if rank == aborting), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(300), "long before the deadline");
    }
}

#[test]
fn a_receive_of_another_length_is_an_error() {
    let ranks = ranks(2, Duration::from_secs(60));
    let found = thread::scope(|threads| {
        let send = threads.spawn(|| ranks[0].send(&[1.0_f32; 5], 1));
        let error = ranks[1].recv(&mut [0.0_f32; 7], 0).expect_err("lengths differ");
        // The sender may have been through already: its message fitted the link.
        let _ = send.join().expect("no panic");
        error
    });
    let text = found.to_string();
    assert!(text.contains("count 5") && text.contains("count 7"), "{text}");
}
