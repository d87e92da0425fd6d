//! Communicators of the survivors.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use annulus::{Communicator, Config, Error, ReduceOp, ShrinkError, Transport};

const TRANSPORTS: [Transport; 3] = [Transport::Proc, Transport::Shm, Transport::Tcp];

fn ranks(world: usize, transport: Transport, timeout: Duration) -> Vec<Communicator> {
    let mut config = Config::default();
    config.transport = transport;
    config.timeout = timeout;
    Communicator::local_with(world, &config).expect("ranks meet")
}

const PATIENT: Duration = Duration::from_secs(60);

/// Runs `work` as every rank, which owns its communicator.
fn each<T: Send>(ranks: Vec<Communicator>, work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    thread::scope(|threads| {
        let work = &work;
        let running: Vec<_> =
            ranks.into_iter().map(|comm| threads.spawn(move || work(comm))).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// The old ranks of the members, in the order of the new ones.
fn members(comm: &Communicator, old: usize) -> Vec<u64> {
    let mut all = vec![0; comm.world_size()];
    comm.all_gather_into(&[old as u64], &mut all).expect("survivors compute");
    all
}

#[test]
fn a_whole_communicator_without_some_ranks() {
    for transport in TRANSPORTS {
        each(ranks(5, transport, PATIENT), |comm| {
            let old = comm.rank();
            if [1, 3].contains(&old) {
                // Still a member of the whole.
                comm.barrier().expect("the whole works");
                return;
            }
            // Lists differ: they are united.
            let exclude: &[usize] = if old == 0 { &[1] } else { &[3] };
            let small = comm.shrink(exclude).expect("shrunk");
            assert_eq!(members(&small, old), [0, 2, 4]);
            comm.barrier().expect("the whole works");
            // A shrunken one shrinks again, and to a single rank.
            let exclude: Vec<usize> = (0..3).filter(|rank| *rank != small.rank()).collect();
            if small.rank() == 2 {
                let alone = small.shrink(&exclude).expect("shrunk to one");
                assert_eq!((alone.rank(), alone.world_size()), (0, 1));
                alone.barrier().expect("alone");
            }
        });
    }
}

#[test]
fn a_rank_that_another_excludes_is_told() {
    for transport in TRANSPORTS {
        let results = each(ranks(3, transport, PATIENT), |comm| {
            let shrunk = comm.shrink(if comm.rank() == 0 { &[2] } else { &[] });
            match &shrunk {
                Ok(small) => assert_eq!(members(small, comm.rank()), [0, 1]),
                Err(error) => assert!(error.to_string().contains("rank 0 excludes"), "{error}"),
            }
            shrunk.is_ok()
        });
        assert_eq!(results, [true, true, false], "{transport:?}");
    }
}

#[test]
fn who_does_not_call_is_named() {
    for transport in TRANSPORTS {
        let ranks = ranks(3, transport, Duration::from_millis(1500));
        thread::scope(|threads| {
            for comm in &ranks[..2] {
                threads.spawn(move || {
                    let error = comm.shrink(&[]).expect_err("one is missing");
                    let Error::Shrink { source, .. } = &error else { panic!("{error}") };
                    let ShrinkError::Missing { missing, .. } = &**source else { panic!("{error}") };
                    assert_eq!(missing.lowest, [2], "{error}");
                    // The second attempt is another agreement.
                    assert_eq!(members(&comm.shrink(&[2]).expect("shrunk"), comm.rank()), [0, 1]);
                });
            }
        });
    }
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    let ranks = ranks(2, Transport::Proc, PATIENT);
    let refusal = |exclude: &[usize]| ranks[0].shrink(exclude).expect_err("refused").to_string();
    assert!(refusal(&[7]).contains("out of range"));
    assert!(refusal(&[0]).contains("exclude itself"));
}

/// Each loss is followed by a smaller communicator, down to one rank; the root's rank is the first to go.
#[test]
fn loss_after_loss() {
    for transport in TRANSPORTS {
        each(ranks(4, transport, PATIENT), |mut comm| {
            let old = comm.rank();
            for round in 0..3 {
                assert_eq!(members(&comm, old), (round..4).collect::<Vec<u64>>());
                if comm.rank() == 0 {
                    comm.shrink(&[0]).expect_err("not itself");
                    return; // leaves
                }
                let error = comm.barrier().expect_err("one has left");
                assert!(matches!(error, Error::RankLost { lost: 0, .. }), "{error}");
                comm = comm.shrink(&[]).expect("shrunk");
                let mut sum = vec![1_i64; 100_000];
                comm.all_reduce(&mut sum, ReduceOp::Sum).expect("survivors compute");
                assert!(sum.iter().all(|&sum| sum == 3 - round as i64));
            }
        });
    }
}

#[test]
fn after_an_abort_all_go_on() {
    for transport in TRANSPORTS {
        each(ranks(3, transport, PATIENT), |comm| {
            if comm.rank() == 2 {
                comm.abort();
            }
            while comm.barrier().is_ok() {}
            let again = comm.shrink(&[]).expect("shrunk to the same");
            assert_eq!(members(&again, comm.rank()), [0, 1, 2]);
        });
    }
}

#[test]
fn a_part_shrinks() {
    for transport in TRANSPORTS {
        each(ranks(5, transport, PATIENT), |comm| {
            // In reverse order, without rank 0.
            let color = (comm.rank() > 0).then_some(1);
            let part = comm.split(color, -(comm.rank() as i64)).expect("split");
            let Some(part) = part else { return };
            assert_eq!(members(&part, comm.rank()), [4, 3, 2, 1]);
            if part.rank() == 1 {
                return;
            }
            let small = part.shrink(&[1]).expect("shrunk");
            assert_eq!(members(&small, comm.rank()), [4, 2, 1]);
        });
    }
}

/// It goes on with a part of the job, so that its process does not say it.
#[test]
fn who_drops_the_communicator_is_not_waited_for() {
    for transport in TRANSPORTS {
        let done = Barrier::new(3);
        each(ranks(3, transport, PATIENT), |comm| {
            let part = comm.split(Some(0), 0).expect("split");
            if comm.rank() == 2 {
                // The others ask before they can know.
                thread::sleep(Duration::from_millis(300));
                drop(comm);
            } else {
                let small = comm.shrink(&[]).expect("shrunk");
                assert_eq!(members(&small, comm.rank()), [0, 1], "{transport:?}");
            }
            done.wait();
            drop(part);
        });
    }
}
