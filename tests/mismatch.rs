//! Every pair of different calls, on two ranks and on five: an error on every rank, of the kind that says what is wrong, and no wrong numbers.
//!
//! A call may end on a rank although another rank makes a different one, where nothing that it needs is missing: the root of a
//! broadcast, a rank that only sends. Then its result is right, and the rank gets the error in a later call: at the
//! latest after it has heard from all ranks, and they from all, since.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use annulus::{Communicator, Config, Error, ReduceOp, Transport};

/// Makes the call; on success says whether its result is what the call means.
type Call = fn(&Communicator) -> Result<bool, Error>;

const CALLS: [(&str, Call); 24] = [
    ("barrier", |comm| comm.barrier().map(|()| true)),
    ("all_reduce f32 sum", |comm| all_reduce(comm, 8, ReduceOp::Sum)),
    ("all_reduce another count", |comm| all_reduce(comm, 9, ReduceOp::Sum)),
    ("all_reduce large", |comm| all_reduce(comm, 100_000, ReduceOp::Sum)),
    ("all_reduce max", |comm| all_reduce(comm, 8, ReduceOp::Max)),
    ("all_reduce i32", |comm| {
        let mut buffer = [own(comm) as i32; 8];
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        Ok(buffer == [sum(comm) as i32; 8])
    }),
    ("reduce to 0", |comm| reduce(comm, 0)),
    ("reduce to 1", |comm| reduce(comm, 1)),
    ("broadcast from 0", |comm| broadcast(comm, 0, 8)),
    ("broadcast from 1", |comm| broadcast(comm, 1, 8)),
    ("broadcast large from 0", |comm| broadcast(comm, 0, 100_000)),
    ("all_gather", |comm| {
        let mut all = vec![0.0; 8 * comm.world_size()];
        comm.all_gather_into(&[own(comm); 8], &mut all)?;
        Ok(is_all(&all))
    }),
    ("reduce_scatter", |comm| {
        let mut part = [0.0; 8];
        comm.reduce_scatter_into(
            &vec![own(comm); 8 * comm.world_size()],
            &mut part,
            ReduceOp::Sum,
        )?;
        Ok(part == [sum(comm); 8])
    }),
    ("all_to_all", |comm| {
        let mut all = vec![0.0; 8 * comm.world_size()];
        comm.all_to_all_into(&vec![own(comm); 8 * comm.world_size()], &mut all)?;
        Ok(is_all(&all))
    }),
    ("gather to 0", |comm| gather(comm, 0)),
    ("gather to 1", |comm| gather(comm, 1)),
    ("scatter from 0", |comm| scatter(comm, 0)),
    ("scatter from 1", |comm| scatter(comm, 1)),
    ("all_to_all_v", |comm| all_to_all_v(comm, 8)),
    ("all_to_all_v nothing", |comm| all_to_all_v(comm, 0)),
    ("send", |comm| comm.send(&[own(comm); 8], next(comm)).map(|()| true)),
    ("recv", |comm| {
        let mut buffer = [0.0_f32; 8];
        comm.recv(&mut buffer, previous(comm))?;
        Ok(buffer == [(previous(comm) + 1) as f32; 8])
    }),
    ("send and recv", |comm| exchange(comm, 1)),
    ("two sends and recvs", |comm| exchange(comm, 2)),
];

const ALL_TO_ALL: usize = 13;

fn own(comm: &Communicator) -> f32 {
    (comm.rank() + 1) as f32
}

fn sum(comm: &Communicator) -> f32 {
    (comm.world_size() * (comm.world_size() + 1) / 2) as f32
}

fn is_all(all: &[f32]) -> bool {
    all.chunks_exact(8).enumerate().all(|(rank, part)| part == [(rank + 1) as f32; 8])
}

fn next(comm: &Communicator) -> usize {
    (comm.rank() + 1) % comm.world_size()
}

fn previous(comm: &Communicator) -> usize {
    (comm.rank() + comm.world_size() - 1) % comm.world_size()
}

fn all_reduce(comm: &Communicator, count: usize, op: ReduceOp) -> Result<bool, Error> {
    let mut buffer = vec![own(comm); count];
    comm.all_reduce(&mut buffer, op)?;
    let expected = if op == ReduceOp::Sum { sum(comm) } else { comm.world_size() as f32 };
    Ok(buffer.iter().all(|&element| element == expected))
}

fn reduce(comm: &Communicator, root: usize) -> Result<bool, Error> {
    let mut buffer = [own(comm); 8];
    comm.reduce(&mut buffer, ReduceOp::Sum, root)?;
    Ok(buffer == [if comm.rank() == root { sum(comm) } else { own(comm) }; 8])
}

fn broadcast(comm: &Communicator, root: usize, count: usize) -> Result<bool, Error> {
    let mut buffer = vec![own(comm); count];
    comm.broadcast(&mut buffer, root)?;
    Ok(buffer.iter().all(|&element| element == (root + 1) as f32))
}

fn gather(comm: &Communicator, root: usize) -> Result<bool, Error> {
    let mut all = vec![0.0; 8 * comm.world_size()];
    let output = (comm.rank() == root).then_some(&mut all[..]);
    comm.gather_into(&[own(comm); 8], output, root)?;
    Ok(comm.rank() != root || is_all(&all))
}

fn scatter(comm: &Communicator, root: usize) -> Result<bool, Error> {
    let all = vec![own(comm); 8 * comm.world_size()];
    let mut part = [0.0; 8];
    comm.scatter_into((comm.rank() == root).then_some(&all[..]), &mut part, root)?;
    Ok(part == [(root + 1) as f32; 8])
}

fn all_to_all_v(comm: &Communicator, count: usize) -> Result<bool, Error> {
    let world = comm.world_size();
    // To oneself always as much as from oneself.
    let counts: Vec<usize> = (0..world).map(|_| count).collect();
    let places: Vec<usize> = (0..world).map(|rank| rank * count).collect();
    let mut all = vec![0.0; world * count];
    comm.all_to_all_v(
        &vec![own(comm); world * count],
        &counts,
        &places,
        &mut all,
        &counts,
        &places,
    )?;
    Ok(is_all(&all))
}

fn exchange(comm: &Communicator, messages: usize) -> Result<bool, Error> {
    let mine = [own(comm); 8];
    let mut theirs = vec![[0.0; 8]; messages];
    comm.group(|group| {
        for buffer in &mut theirs {
            group.send(&mine, next(comm))?;
            group.recv(buffer, previous(comm))?;
        }
        Ok(())
    })?;
    Ok(theirs.iter().all(|buffer| *buffer == [(previous(comm) + 1) as f32; 8]))
}

/// Whether a pair is no mistake: what the one rank sends, the other receives.
fn fits(world: usize, one: &str, other: &str) -> bool {
    world == 2 && matches!((one, other), ("send", "recv") | ("recv", "send"))
}

struct Slowest {
    time: Duration,
    pair: String,
}

/// The last rank makes the call `other`, all others make `one`.
fn pair(
    transport: Transport,
    world: usize,
    one: usize,
    other: usize,
    warm: bool,
    slowest: &Mutex<Slowest>,
) {
    let mut config = Config::default();
    config.transport = transport;
    config.timeout = Duration::from_secs(60);
    let ranks = Communicator::local_with(world, &config).expect("ranks meet");
    let name = format!("{} and {}, {transport:?}, {world} ranks", CALLS[one].0, CALLS[other].0);
    if warm {
        thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(|| CALLS[ALL_TO_ALL].1(comm).expect("all are here"));
            }
        });
    }
    let begin = Instant::now();
    thread::scope(|threads| {
        for comm in &ranks {
            let name = &name;
            threads.spawn(move || {
                let call = if comm.rank() + 1 == world { other } else { one };
                let outcome = match CALLS[call].1(comm) {
                    Ok(right) => {
                        assert!(right, "{name}: rank {} has wrong numbers", comm.rank());
                        // Whoever needs nothing that is missing may come through a few more calls, but not past one after all
                        // have heard from all.
                        let all_to_all = || CALLS[ALL_TO_ALL].1(comm).map(|_| ());
                        comm.barrier().and_then(|()| all_to_all()).and_then(|()| comm.barrier())
                    }
                    Err(error) => Err(error),
                };
                let rank = comm.rank();
                let error = outcome.expect_err(&format!("{name}: rank {rank} noticed nothing"));
                let text = error.to_string();
                let typed = matches!(error, Error::Mismatch { .. } | Error::Deadlock { .. });
                assert!(typed, "{name}: rank {rank}: {text}");
                assert!(text.contains("all ranks must make the same calls"), "{name}: {text}");
                assert!(comm.error().is_some(), "{name}: rank {rank} is not broken");
                assert!(comm.barrier().is_err(), "{name}: rank {rank} goes on");
            });
        }
    });
    let time = begin.elapsed();
    let mut slowest = slowest.lock().expect("no panic");
    if time > slowest.time {
        *slowest = Slowest { time, pair: name };
    }
}

/// All pairs, on four threads: most of the time is spent waiting.
fn matrix(transport: Transport, world: usize, every: usize, warm: bool) {
    let slowest = Mutex::new(Slowest { time: Duration::ZERO, pair: String::new() });
    let pairs: Vec<(usize, usize)> = (0..CALLS.len())
        .flat_map(|one| (0..CALLS.len()).map(move |other| (one, other)))
        .filter(|&(one, other)| one != other && !fits(world, CALLS[one].0, CALLS[other].0))
        .step_by(every)
        .collect();
    let next = Mutex::new(pairs.iter());
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                loop {
                    let taken = next.lock().expect("no panic").next();
                    let Some(&(one, other)) = taken else { return };
                    pair(transport, world, one, other, warm, &slowest);
                }
            });
        }
    });
    let Slowest { time, pair } = slowest.into_inner().expect("no panic");
    println!("{} pairs; the slowest took {time:.1?}: {pair}", pairs.len());
}

#[test]
fn two_threads() {
    matrix(Transport::Proc, 2, 1, false);
}

#[test]
fn five_threads() {
    matrix(Transport::Proc, 5, 1, false);
}

#[test]
fn two_ranks_over_shared_memory() {
    matrix(Transport::Shm, 2, 1, false);
}

#[test]
fn five_ranks_over_shared_memory() {
    matrix(Transport::Shm, 5, 3, false);
}

#[test]
fn two_ranks_over_tcp() {
    matrix(Transport::Tcp, 2, 5, true);
}

#[test]
fn five_ranks_over_tcp() {
    matrix(Transport::Tcp, 5, 23, true);
}

/// A rank that is late, or computes for long, is no mistake.
#[test]
fn late_ranks_are_waited_for() {
    for transport in [Transport::Proc, Transport::Shm] {
        let mut config = Config::default();
        config.transport = transport;
        let ranks = Communicator::local_with(3, &config).expect("ranks meet");
        thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    for round in 0..3 {
                        thread::sleep(Duration::from_millis(
                            150 * (comm.rank() as u64 + round) % 400,
                        ));
                        assert!(all_reduce(comm, 8, ReduceOp::Sum).expect("they come"));
                        assert!(exchange(comm, 2).expect("they come"));
                        assert!(broadcast(comm, 1, 8).expect("they come"));
                        if comm.rank() == 0 {
                            thread::sleep(Duration::from_millis(200));
                            comm.send(&[1.0_f32; 8], 2).expect("it comes");
                        }
                        if comm.rank() == 2 {
                            comm.recv(&mut [0.0_f32; 8], 0).expect("it comes");
                        }
                        assert!(gather(comm, 2).expect("they come"));
                    }
                });
            }
        });
    }
}

/// Who waits with a long message for a rank that owes it a short one is not in another call.
#[test]
fn uneven_exchanges_wait_for_late_ranks() {
    for transport in [Transport::Proc, Transport::Shm] {
        let mut config = Config::default();
        config.transport = transport;
        let ranks = Communicator::local_with(3, &config).expect("ranks meet");
        thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    thread::sleep(Duration::from_millis(200 * comm.rank() as u64));
                    // As much as the receiver's number says, more from rank 0.
                    let count = |from: usize, to: usize| if from == 0 { 1 << 20 } else { 1 + to };
                    let (rank, world) = (comm.rank(), comm.world_size());
                    let sends: Vec<usize> = (0..world).map(|to| count(rank, to)).collect();
                    let receives: Vec<usize> = (0..world).map(|from| count(from, rank)).collect();
                    let places = |counts: &[usize]| -> Vec<usize> {
                        (0..world).map(|rank| counts[..rank].iter().sum()).collect()
                    };
                    let mut output = vec![0.0; receives.iter().sum()];
                    comm.all_to_all_v(
                        &vec![own(comm); sends.iter().sum()],
                        &sends,
                        &places(&sends),
                        &mut output,
                        &receives,
                        &places(&receives),
                    )
                    .expect("they come");
                    for (from, place) in places(&receives).into_iter().enumerate() {
                        let part = &output[place..][..receives[from]];
                        assert!(part.iter().all(|&element| element == (from + 1) as f32));
                    }
                });
            }
        });
    }
}
