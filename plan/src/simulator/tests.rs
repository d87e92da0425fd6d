use super::*;
use crate::topology::{Cost, Host, LocalTransport, Network, PieceCost};
use crate::{Buffer, Instruction, Lane, Span};

const WORKLOAD: Workload =
    Workload { protocol: Protocol::Simple, dtype: DataType::F32, detail: Detail::Pieces };

fn span(bytes: usize) -> Span {
    Span { buffer: Buffer::Output, offset: 0, bytes }
}

fn link(peer: Rank) -> LinkId {
    LinkId { peer, index: 0 }
}

fn send(to: Rank, bytes: usize) -> Instruction {
    let src = Span { buffer: Buffer::Input, ..span(bytes) };
    Instruction::Send { to: link(to), src }
}

fn recv(from: Rank, bytes: usize) -> Instruction {
    Instruction::Recv { from: link(from), dst: span(bytes) }
}

fn recv_reduce(from: Rank, bytes: usize) -> Instruction {
    let (with, dst) = (span(bytes), span(bytes));
    Instruction::RecvReduce { from: link(from), with, dst, finish: true }
}

fn plan(rank: Rank, world: usize, chunk_bytes: usize, lanes: Vec<Vec<Instruction>>) -> Plan {
    let lanes = lanes.into_iter().map(|instructions| Lane { channel: 0, instructions }).collect();
    Plan { rank, world, lanes, scratch_bytes: 0, chunk_bytes, by_reference: false }
}

fn time(topology: &Topology, plans: &[Plan]) -> Prediction {
    simulate(topology, WORKLOAD, |rank| plans[rank].clone()).expect("plans that fit each other")
}

fn shared_memory(ranks: usize, cores: usize) -> Topology {
    Topology::single_host(ranks, cores, LocalTransport::SharedMemory)
}

/// All-reduce on a ring, a block for each rank, chunk by chunk.
fn ring(rank: Rank, world: usize, bytes: usize, chunk: usize) -> Plan {
    let (from, to) = (link((rank + world - 1) % world), link((rank + 1) % world));
    let block = bytes / world;
    let mut steps = Vec::new();
    for round in 0..block.div_ceil(chunk).max(1) {
        let part = span(chunk.min(block - round * chunk));
        steps.push(Instruction::Send { to, src: part });
        for step in 1..world {
            let finish = step == world - 1;
            let dst = finish.then_some(part);
            steps.push(Instruction::RecvReduceSend { from, to, with: part, dst, finish });
        }
        steps.extend((2..world).map(|_| Instruction::RecvCopySend { from, to, dst: part }));
        steps.push(Instruction::Recv { from, dst: part });
    }
    plan(rank, world, chunk, vec![steps])
}

/// All-reduce on one binary tree, whole messages.
fn tree(rank: Rank, world: usize, bytes: usize, chunk: usize) -> Plan {
    let children: Vec<_> = (2 * rank + 1..=2 * rank + 2).filter(|&child| child < world).collect();
    let mut steps: Vec<_> = children.iter().map(|&child| recv_reduce(child, bytes)).collect();
    if rank > 0 {
        let parent = (rank - 1) / 2;
        steps.push(send(parent, bytes));
        steps.push(recv(parent, bytes));
    }
    steps.extend(children.iter().map(|&child| send(child, bytes)));
    plan(rank, world, chunk, vec![steps])
}

/// All-reduce in which everybody sends everything to everybody.
fn one_shot(rank: Rank, world: usize, bytes: usize, chunk: usize) -> Plan {
    let sends = (1..world).map(|step| send((rank + step) % world, bytes)).collect();
    let receives =
        (1..world).map(|step| recv_reduce((rank + world - step) % world, bytes)).collect();
    plan(rank, world, chunk, vec![sends, receives])
}

#[test]
fn a_single_message_costs_both_ends_and_the_latency() {
    let topology = shared_memory(2, 2);
    let host = topology.host_of(0);
    let bytes = 1000;
    let plans = [
        plan(0, 2, 4096, vec![vec![send(1, bytes)]]),
        plan(1, 2, 4096, vec![vec![recv(0, bytes)]]),
    ];
    let prediction = time(&topology, &plans);

    let PieceCost { send, recv } = host.link.simple;
    let end = |cost: Cost| cost.fixed + bytes as f64 * cost.per_byte + host.instruction_seconds;
    let sent = end(send);
    assert!((prediction.finish[0] - sent).abs() < 1e-15);
    assert!((prediction.seconds - (sent + host.link.latency + end(recv))).abs() < 1e-15);
    assert_eq!((prediction.bytes, prediction.switches), (1000, 0));
}

#[test]
fn pieces_overlap_and_taken_together_they_do_not() {
    let topology = shared_memory(2, 2);
    let bytes = 1 << 20;
    let plans = [
        plan(0, 2, 64 << 10, vec![vec![send(1, bytes)]]),
        plan(1, 2, 64 << 10, vec![vec![recv(0, bytes)]]),
    ];
    let whole = {
        let detail = Detail::AtMost(NonZeroUsize::MIN);
        simulate(&topology, Workload { detail, ..WORKLOAD }, |rank| plans[rank].clone())
    };
    let (pieces, whole) = (time(&topology, &plans), whole.expect("the same plans"));
    // 16 pieces: the receiver is one piece behind, in place of the whole message.
    let (fine, coarse) = (pieces.seconds / pieces.finish[0], whole.seconds / whole.finish[0]);
    assert!(fine < 1.1 && coarse > 1.9, "{fine} and {coarse}");
    assert!(
        (pieces.finish[0] / whole.finish[0] - 1.0).abs() < 1e-9,
        "the sender's work is the same"
    );
}

#[test]
fn a_sender_waits_for_room() {
    let mut topology = shared_memory(2, 2).with_max_chunk_bytes(64);
    let host = &mut topology.hosts_mut()[0];
    host.link.buffer_bytes = 0;
    host.link.simple.recv.fixed = 1e-3;
    let chunk = 64;
    let receiver = plan(1, 2, chunk, vec![vec![recv(0, 10 * chunk)]]);
    let prediction =
        time(&topology, &[plan(0, 2, chunk, vec![vec![send(1, 10 * chunk)]]), receiver]);
    // The last two pieces still lie in the link when the sender is through.
    assert!(prediction.finish[0] > 7.9e-3 && prediction.finish[0] < 8.1e-3, "{prediction:?}");
    assert!(prediction.seconds > 10e-3);
}

#[test]
fn lanes_of_a_rank_share_its_core() {
    let topology = shared_memory(2, 2);
    let cost = |lanes: usize| {
        let to = |index| Instruction::Send { to: LinkId { peer: 1, index }, src: span(1 << 20) };
        let from =
            |index| Instruction::Recv { from: LinkId { peer: 0, index }, dst: span(1 << 20) };
        let sender = plan(0, 2, 4096, (0..lanes).map(|index| vec![to(index)]).collect());
        let receiver = plan(1, 2, 4096, (0..lanes).map(|index| vec![from(index)]).collect());
        time(&topology, &[sender, receiver]).seconds
    };
    let ratio = cost(4) / cost(1);
    assert!(ratio > 3.9 && ratio < 4.1, "{ratio}");
}

#[test]
fn ranks_that_share_a_core_pay_for_turns() {
    let plans: Vec<_> = (0..8).map(|rank| one_shot(rank, 8, 8, 1024)).collect();
    let roomy = time(&shared_memory(8, 8), &plans);
    let crowded_topology = shared_memory(8, 2);
    let crowded = time(&crowded_topology, &plans);
    assert_eq!(roomy.switches, 0);
    let switch = crowded_topology.host_of(0).switch_seconds;
    // Each rank runs at least once, four of them on each core.
    assert!(crowded.switches >= 8);
    assert!(crowded.seconds > 4.0 * switch && crowded.seconds > roomy.seconds, "{crowded:?}");
    let rings: Vec<_> = (0..8).map(|rank| ring(rank, 8, 64, 1024)).collect();
    let rings = time(&crowded_topology, &rings);
    assert!(rings.seconds > crowded.seconds, "more rounds, more turns");
}

#[test]
fn large_calls_share_the_memory_of_a_host() {
    let mut topology = shared_memory(4, 4);
    topology.hosts_mut()[0].memory_bandwidth = 1e9;
    let bytes = 64 << 20;
    let pair = |a, b| {
        [
            plan(a, 4, 1 << 18, vec![vec![send(b, bytes)]]),
            plan(b, 4, 1 << 18, vec![vec![recv(a, bytes)]]),
        ]
    };
    let both = time(&topology, &[pair(0, 1), pair(2, 3)].concat()).seconds;
    // Two reads and two writes.
    let limit = 4.0 * bytes as f64 / 1e9;
    assert!((both / limit - 1.0).abs() < 0.01, "{both} against {limit}");
}

#[test]
fn ranks_of_a_host_share_its_interface() {
    let host = Host::new(4, LocalTransport::SharedMemory);
    let network = Network { stream_bandwidth: 1e9, ..Network::ethernet(1e9) };
    let topology = Topology::multi_host(&[0, 0, 1, 1], &host, network);
    let bytes = 16 << 20;
    let sender = |rank, to| plan(rank, 4, 1 << 18, vec![vec![send(to, bytes)]]);
    let receiver = |rank, from| plan(rank, 4, 1 << 18, vec![vec![recv(from, bytes)]]);
    let crossing = [sender(0, 2), sender(1, 3), receiver(2, 0), receiver(3, 1)];
    let limit = 2.0 * bytes as f64 / 1e9;
    let seconds = time(&topology, &crossing).seconds;
    assert!((seconds / limit - 1.0).abs() < 0.02, "{seconds} against {limit}");
    // One each way share nothing.
    let both_ways = [sender(0, 2), receiver(1, 3), receiver(2, 0), sender(3, 1)];
    let seconds = time(&topology, &both_ways).seconds;
    assert!((seconds / limit - 0.5).abs() < 0.02, "{seconds} against {limit}");
}

#[test]
fn times_grow_with_bytes() {
    let topology = shared_memory(6, 6);
    for build in [ring, tree, one_shot] {
        let mut before = 0.0;
        for size in [0, 6 << 3, 6 << 8, 6 << 12, 6 << 16, 6 << 20] {
            let prediction = simulate(&topology, WORKLOAD, |rank| build(rank, 6, size, 1 << 18));
            let seconds = prediction.expect("plans that fit each other").seconds;
            assert!(seconds > before, "{size} bytes: {seconds} after {before}");
            before = seconds;
        }
    }
}

#[test]
fn rings_win_where_bytes_count() {
    let topology = shared_memory(16, 16);
    let seconds = |build: fn(Rank, usize, usize, usize) -> Plan, bytes| {
        let prediction = simulate(&topology, WORKLOAD, |rank| build(rank, 16, bytes, 1 << 18));
        prediction.expect("plans that fit each other").seconds
    };
    assert!(seconds(ring, 16 << 20) < seconds(one_shot, 16 << 20));
    assert!(seconds(one_shot, 16) < seconds(ring, 16));
}

/// The ring has 33 million instructions, too many for a build without optimisation.
#[test]
fn thousands_of_ranks() {
    let world = if cfg!(debug_assertions) { 512 } else { 4096 };
    let hosts: Vec<_> = (0..world).map(|rank| rank / 8).collect();
    let host = Host::new(8, LocalTransport::SharedMemory);
    let topology = Topology::multi_host(&hosts, &host, Network::ethernet(12.5e9));
    let workload = Workload { detail: Detail::AtMost(NonZeroUsize::MIN), ..WORKLOAD };
    let seconds = |build: fn(Rank, usize, usize, usize) -> Plan, bytes: usize| {
        let prediction = simulate(&topology, workload, |rank| build(rank, world, bytes, 1 << 18));
        prediction.expect("plans that fit each other").seconds
    };
    let block = 4 * world;
    assert!(seconds(tree, block) < seconds(ring, block), "a tree has fewer rounds");
}

#[test]
fn equal_input_gives_equal_times() {
    let topology = shared_memory(5, 2);
    let plans: Vec<_> = (0..5).map(|rank| one_shot(rank, 5, 9000, 1024)).collect();
    let forward = time(&topology, &plans);
    let mut simulation = Simulation::new(&topology, WORKLOAD);
    for plan in &plans {
        simulation.add(plan).expect("a plan of this world");
    }
    assert_eq!(simulation.run(), Ok(forward));
}

#[test]
fn plans_that_do_not_fit_are_refused() {
    let topology = shared_memory(2, 2);
    let run = |plans: &[Plan]| {
        let mut simulation = Simulation::new(&topology, WORKLOAD);
        plans.iter().try_for_each(|plan| simulation.add(plan))?;
        simulation.run()
    };
    let idle = |rank| plan(rank, 2, 64, Vec::new());
    let waits = |rank, peer| plan(rank, 2, 64, vec![vec![], vec![recv(peer, 8), send(peer, 8)]]);

    assert_eq!(run(&[idle(0)]), Err(SimulationError::Missing { rank: 1 }));
    assert_eq!(run(&[idle(0), idle(0)]), Err(SimulationError::Twice { rank: 0 }));
    let foreign = plan(0, 3, 64, Vec::new());
    assert_eq!(run(&[foreign]), Err(SimulationError::World { rank: 0, plan: 3, topology: 2 }));
    let stranger = plan(1, 2, 64, vec![vec![send(2, 8)]]);
    let no_such = SimulationError::NoSuchRank { rank: 1, named: 2, world: 2 };
    assert_eq!(run(&[stranger]), Err(no_such));
    let stuck = SimulationError::Stuck { rank: 0, lane: 1, instruction: 0 };
    assert_eq!(run(&[waits(0, 1), waits(1, 0)]), Err(stuck));
    let short = [plan(0, 2, 64, vec![vec![send(1, 16)]]), plan(1, 2, 64, vec![vec![recv(0, 8)]])];
    let length = SimulationError::Length { rank: 1, link: link(0), expected: 8 };
    assert_eq!(run(&short), Err(length));
}
