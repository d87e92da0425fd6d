//! One workload over every transport: the results must not depend on how the bytes travel.

use std::thread;

use annulus::{Communicator, Config, ReduceOp, Transport};

fn on_ranks<R: Send>(
    world: usize,
    transport: Transport,
    work: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let mut config = Config::default();
    config.transport = transport;
    let ranks = Communicator::local_with(world, &config).expect("ranks meet");
    thread::scope(|threads| {
        let running: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| work(comm))).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Every collective in small and large, and everything that came out.
fn workload(comm: &Communicator) -> Vec<f32> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let next = (rank + 1) % world;
    let previous = (rank + world - 1) % world;
    let mut results = Vec::new();
    for count in [1, 100, 5000, 100_000] {
        let value = |index: usize| ((rank * 31 + index * 7) % 101) as f32 * 0.37;
        let source: Vec<f32> = (0..count).map(value).collect();
        let mut all = source.clone();
        comm.all_reduce(&mut all, ReduceOp::Sum).expect("all-reduce");
        let mut broadcast = source.clone();
        comm.broadcast(&mut broadcast, world - 1).expect("broadcast");
        let mut gathered = vec![0.0; count * world];
        comm.all_gather_into(&source, &mut gathered).expect("all-gather");
        let mut part = vec![0.0; count];
        comm.reduce_scatter_into(&gathered, &mut part, ReduceOp::Max).expect("reduce-scatter");
        let mut exchanged = vec![0.0; count * world];
        comm.all_to_all_into(&gathered, &mut exchanged).expect("all-to-all");
        let mut passed = vec![0.0; count];
        comm.group(|group| {
            group.send(&source, next)?;
            group.recv(&mut passed, previous)
        })
        .expect("round the ring");
        comm.barrier().expect("barrier");
        let part_of = comm.split(Some((rank % 2) as u32), 0).expect("split").expect("member");
        let mut among_some = source;
        part_of.reduce(&mut among_some, ReduceOp::Avg, 0).expect("reduce");
        for result in [all, broadcast, gathered, part, exchanged, passed, among_some] {
            results.extend(result);
        }
    }
    results
}

#[test]
fn results_do_not_depend_on_the_transport() {
    for world in [1, 2, 3] {
        let expected = on_ranks(world, Transport::Proc, workload);
        for transport in [Transport::Shm, Transport::Tcp, Transport::Auto] {
            let got = on_ranks(world, transport, workload);
            assert!(got == expected, "{transport:?} with {world} ranks");
        }
    }
}

#[test]
fn allocated_memory_gives_the_same_results() {
    for transport in [Transport::Proc, Transport::Shm, Transport::Tcp] {
        let results = on_ranks(3, transport, |comm| {
            let count = 200_000;
            let mut input = comm.alloc::<i32>(count).expect("memory");
            let mut output = comm.alloc::<i32>(count).expect("memory");
            let mut sums = Vec::new();
            for round in 0..4 {
                for (index, element) in input.iter_mut().enumerate() {
                    *element = (index % 1000 + comm.rank() + round) as i32;
                }
                comm.all_reduce_into(&input, &mut output, ReduceOp::Sum).expect("all-reduce");
                comm.all_reduce(&mut input, ReduceOp::Sum).expect("in place");
                assert!(input[..] == output[..]);
                let right =
                    |(index, &got): (usize, &i32)| got == (3 * (index % 1000 + round) + 3) as i32;
                sums.push(output.iter().enumerate().all(right));
            }
            sums
        });
        assert!(results.concat().into_iter().all(|right| right), "{transport:?}");
    }
}

#[test]
fn many_ranks_in_one_process() {
    let sums = on_ranks(64, Transport::Proc, |comm| {
        let mut sum = [comm.rank() as u64; 100];
        comm.all_reduce(&mut sum, ReduceOp::Sum).expect("all-reduce");
        sum[99]
    });
    assert!(sums.into_iter().all(|sum| sum == 63 * 32));
}
