//! Ranks that run out of input at different times.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use annulus::{Communicator, Config, Error, Joined, ReduceOp, Transport};
use annulus_plan::tuner::Overrides;

const TRANSPORTS: [Transport; 3] = [Transport::Proc, Transport::Shm, Transport::Tcp];

fn on_ranks<R: Send>(
    world: usize,
    transport: Transport,
    work: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let mut config = Config::default();
    config.transport = transport;
    config.timeout = Duration::from_secs(60);
    let ranks = Communicator::local_with(world, &config).expect("ranks meet");
    thread::scope(|threads| {
        let running: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| work(comm))).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// The ranks that are still there in round `round`.
fn active(rounds: &[usize], round: usize) -> Vec<usize> {
    (0..rounds.len()).filter(|&rank| rounds[rank] > round).collect()
}

/// One round of mixed calls by a rank that is still there, with all results checked.
fn round(comm: &Communicator, rounds: &[usize], round: usize) -> Result<(), Error> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let here = active(rounds, round);
    let root = here[round % here.len()];
    let count = [1, 3, 1000, 40_000][round % 4];
    let mine = |rank: usize| (rank + 1) as f32;
    let sum: f32 = here.iter().map(|&rank| mine(rank)).sum();

    let mut total = vec![mine(rank); count];
    comm.all_reduce(&mut total, ReduceOp::Sum)?;
    assert!(total.iter().all(|&element| element == sum), "sum of {here:?}: {}", total[0]);
    let mut mean = vec![mine(rank); count];
    comm.all_reduce(&mut mean, ReduceOp::Avg)?;
    assert!((mean[count - 1] - sum / world as f32).abs() < 1e-5, "mean {}", mean[0]);
    let mut scaled = vec![mine(rank); count];
    comm.all_reduce(&mut scaled, ReduceOp::PreMulSum(annulus::Scalar::Float(2.0)))?;
    assert_eq!(scaled[0], 2.0 * sum);
    let mut product = vec![2_i64; count];
    comm.all_reduce(&mut product, ReduceOp::Prod)?;
    assert_eq!(product, vec![1 << here.len(); count]);
    let mut greatest = vec![-mine(rank); count];
    comm.all_reduce(&mut greatest, ReduceOp::Max)?;
    assert_eq!(greatest[0], -mine(here[0]));
    let mut least = vec![100 + rank as u8; count];
    comm.reduce(&mut least, ReduceOp::Min, root)?;
    assert_eq!(least[0], 100 + if rank == root { here[0] } else { rank } as u8);

    let mut sent = vec![if rank == root { round as i32 } else { -1 }; count];
    comm.broadcast(&mut sent, root)?;
    assert_eq!(sent, vec![round as i32; count]);
    let mut gathered = vec![-1; world * count];
    comm.all_gather_into(&vec![rank as i32 + 1; count], &mut gathered)?;
    for (peer, part) in gathered.chunks_exact(count).enumerate() {
        let expected = if here.contains(&peer) { peer as i32 + 1 } else { 0 };
        assert!(part.iter().all(|&element| element == expected), "part {peer}: {}", part[0]);
    }
    let mut part = vec![0.0; count];
    comm.reduce_scatter_into(&vec![mine(rank); world * count], &mut part, ReduceOp::Sum)?;
    assert_eq!(part[0], sum);
    let mut exchanged = vec![-1; world * count];
    comm.all_to_all_into(&vec![rank as i32 + 1; world * count], &mut exchanged)?;
    for (peer, part) in exchanged.chunks_exact(count).enumerate() {
        assert_eq!(part[0], if here.contains(&peer) { peer as i32 + 1 } else { 0 });
    }
    let mut scattered = vec![-1; count];
    let source = vec![7; world * count];
    comm.scatter_into((rank == root).then_some(&source[..]), &mut scattered, root)?;
    assert_eq!(scattered, vec![7; count]);
    comm.all_reduce::<f32>(&mut [], ReduceOp::Sum)?;
    comm.barrier()
}

/// Everything as before: what ranks with unequal sequence numbers would not survive.
fn whole(comm: &Communicator) {
    let mut sum = [1_u64];
    comm.all_reduce(&mut sum, ReduceOp::Sum).expect("usable");
    assert_eq!(sum, [comm.world_size() as u64]);
    comm.barrier().expect("usable");
}

/// Ranks make as many rounds as `rounds` says, then join.
fn uneven(transport: Transport, rounds: &[usize]) {
    let joined: Vec<Joined> = on_ranks(rounds.len(), transport, |comm| {
        for index in 0..rounds[comm.rank()] {
            round(comm, rounds, index).expect("answered");
        }
        let joined = comm.join().expect("all join");
        let mut model = [comm.rank()].map(|rank| rank as i32);
        comm.broadcast(&mut model, joined.last).expect("usable");
        assert_eq!(model, [joined.last as i32]);
        whole(comm);
        joined
    });
    let most = rounds.iter().max().expect("ranks");
    for (rank, one) in joined.iter().enumerate() {
        assert_eq!((one.last, &one.order), (joined[0].last, &joined[0].order), "rank {rank}");
        let answered = (most - rounds[rank]) as u64 * 13;
        assert_eq!(one.answered, answered, "rank {rank} of {rounds:?}");
    }
    assert_eq!(rounds[joined[0].last], *most, "{rounds:?}");
    assert_eq!(joined[0].order.len(), rounds.len());
}

#[test]
fn uneven_inputs_end_together_in_any_order_of_joins() {
    for transport in TRANSPORTS {
        for rounds in [[1, 0], [0, 1]] {
            uneven(transport, &rounds);
        }
        for rounds in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            uneven(transport, &rounds);
        }
    }
}

#[test]
fn more_ranks_with_equal_and_unequal_inputs() {
    for transport in TRANSPORTS {
        uneven(transport, &[2, 2, 2, 2]);
        uneven(transport, &[4, 1, 0, 1, 2]);
        uneven(transport, &[0, 3, 3, 0]);
    }
}

#[test]
fn all_join_at_once_again_and_again() {
    for transport in TRANSPORTS {
        for world in [1, 2, 4] {
            let joined = on_ranks(world, transport, |comm| {
                (0..20).map(|_| comm.join().expect("all join")).collect::<Vec<_>>()
            });
            assert!(joined.iter().all(|one| *one == joined[0]), "{joined:?}");
        }
    }
}

#[test]
fn one_epoch_after_another() {
    for transport in TRANSPORTS {
        on_ranks(3, transport, |comm| {
            for epoch in 0..3 {
                let rounds: Vec<usize> = (0..3).map(|rank| (rank + epoch) % 3).collect();
                for index in 0..rounds[comm.rank()] {
                    round(comm, &rounds, index).expect("answered");
                }
                let joined = comm.join().expect("all join");
                assert_eq!(rounds[joined.last], 2);
            }
            whole(comm);
        });
    }
}

/// A rank that broadcasts need not wait for the others, and may be far ahead when one of them joins.
#[test]
fn a_rank_that_is_ahead_tells_of_the_calls_that_it_has_made() {
    for transport in TRANSPORTS {
        let joined = on_ranks(2, transport, |comm| {
            if comm.rank() == 0 {
                for value in 0..40_i32 {
                    comm.broadcast(&mut [value], 0).expect("answered");
                    comm.broadcast::<i32>(&mut [], 0).expect("empty");
                }
            } else {
                thread::sleep(Duration::from_millis(20));
            }
            let joined = comm.join().expect("all join");
            whole(comm);
            joined
        });
        assert_eq!((joined[0].answered, joined[1].answered), (0, 80));
    }
}

/// A broadcast along a ring passes the rank that joins, while its root has returned from it and makes no other call.
#[test]
fn a_rank_that_is_in_no_call_tells_of_those_that_it_has_made() {
    for transport in TRANSPORTS {
        let mut config = Config::default();
        config.transport = transport;
        config.timeout = Duration::from_secs(60);
        let ring = |name: &str| (name == "ANNULUS_ALGO").then(|| "ring".to_owned());
        config.tuning = Overrides::from_vars(ring).expect("valid");
        let ranks = Communicator::local_with(3, &config).expect("ranks meet");
        let [first, second, third] = &ranks[..] else { panic!("three ranks") };
        let ((sent, is_sent), (received, is_received)) = (channel(), channel());
        let broadcast = |comm: &Communicator, mut value: [i32; 1]| {
            comm.broadcast(&mut value, 0).expect("answered");
            assert_eq!(value, [7]);
        };
        let end = |comm: &Communicator| {
            comm.join().expect("all join");
            whole(comm);
        };
        thread::scope(|threads| {
            threads.spawn(move || {
                broadcast(first, [7]);
                sent.send(()).expect("the second waits");
                is_received.recv().expect("the third has it");
                end(first);
            });
            threads.spawn(move || {
                is_sent.recv().expect("the first has sent it");
                end(second);
            });
            threads.spawn(move || {
                broadcast(third, [0]);
                received.send(()).expect("the first waits");
                end(third);
            });
        });
    }
}

#[test]
fn queued_calls_run_before_the_join() {
    for transport in TRANSPORTS {
        on_ranks(2, transport, |comm| {
            let mut buffers = vec![[1.0_f32; 100]; 5 * (comm.rank() + 1)];
            comm.scope(|scope| {
                let started = buffers
                    .iter_mut()
                    .map(|buffer| scope.all_reduce_async(buffer, ReduceOp::Sum))
                    .collect::<Result<Vec<_>, _>>()?;
                let joined = comm.join()?;
                assert_eq!(joined.answered, 5 * (1 - comm.rank() as u64));
                started.into_iter().try_for_each(|call| call.wait().map(|_| ()))
            })
            .expect("answered")
            .expect("answered");
            let sums: Vec<f32> = buffers.iter().map(|buffer| buffer[99]).collect();
            assert_eq!(sums[..5], [2.0; 5]);
            assert!(sums[5..].iter().all(|&sum| sum == 1.0), "{sums:?}");
        });
    }
}

/// Rank 0 joins; rank 1 then makes a call that needs it.
fn misuse(
    transport: Transport,
    call: impl Fn(&Communicator) -> Result<(), Error> + Sync,
) -> String {
    let errors = on_ranks(3, transport, |comm| {
        if comm.rank() != 0 {
            // Answered, so that everybody knows by now.
            comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).expect("answered");
            // The other rank may be through, and misuse the communicator before this one has looked.
            let outcome = comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum);
            let outcome = outcome.and_then(|()| call(comm)).and_then(|()| comm.barrier());
            return outcome.expect_err("rank 0 has joined");
        }
        comm.join().expect_err("misused")
    });
    assert!(
        errors[1..].iter().any(|error| matches!(error, Error::RankJoined { joined: 0, .. })),
        "{errors:?}"
    );
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("rank 0") && text.contains("joined"), "{text}");
    }
    errors[1].to_string()
}

#[test]
fn calls_that_need_a_joined_rank_fail_on_all_ranks() {
    for transport in TRANSPORTS {
        misuse(transport, |comm| comm.broadcast(&mut [1], 0));
        misuse(transport, |comm| comm.scatter(&mut [1, 2, 3], 0));
        misuse(transport, |comm| comm.split(Some(0), 0).map(|_| ()));
        misuse(transport, |comm| comm.send(&[1], 0));
        misuse(transport, |comm| comm.recv(&mut [1], 0));
        misuse(transport, |comm| {
            comm.all_to_all_v(&[1; 3], &[1; 3], &[0, 1, 2], &mut [0; 3], &[1; 3], &[0, 1, 2])
        });
    }
}

/// As the first call of all: links to the joined rank are still to be opened.
#[test]
fn a_receive_that_waits_for_a_joined_rank_ends() {
    for transport in TRANSPORTS {
        for receiver in [0, 1] {
            let errors = on_ranks(2, transport, |comm| {
                if comm.rank() == receiver {
                    return comm.recv(&mut [0_u8; 4], 1 - receiver).expect_err("nobody sends");
                }
                thread::sleep(Duration::from_millis(30));
                comm.join().expect_err("misused")
            });
            for error in errors {
                let text = error.to_string();
                assert!(text.contains("joined"), "{transport:?}: {text}");
            }
        }
    }
}

#[test]
fn ranks_that_have_joined_hear_of_aborts_and_departures() {
    for transport in TRANSPORTS {
        let errors = on_ranks(3, transport, |comm| match comm.rank() {
            2 => {
                comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).expect("answered");
                comm.abort();
                comm.barrier().expect_err("aborted")
            }
            _ => comm.join().expect_err("aborted"),
        });
        for error in errors {
            assert!(matches!(error, Error::Aborted { rank: 2 }), "{error}");
        }
    }
}

#[test]
fn a_rank_that_leaves_without_joining_is_missed() {
    for transport in TRANSPORTS {
        let mut config = Config::default();
        config.transport = transport;
        let mut ranks = Communicator::local_with(3, &config).expect("ranks meet");
        let leaves = ranks.pop().expect("three");
        let errors: Vec<Error> = thread::scope(|threads| {
            let joins: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| comm.join())).collect();
            threads.spawn(move || {
                leaves.all_reduce(&mut [1.0_f32], ReduceOp::Sum).expect("answered");
                drop(leaves);
            });
            let ended = joins.into_iter().map(|rank| rank.join().expect("no panic"));
            ended.map(|outcome| outcome.expect_err("rank 2 never joins")).collect()
        });
        for error in errors {
            assert!(matches!(error, Error::RankLost { lost: 2, .. }), "{error}");
        }
    }
}
