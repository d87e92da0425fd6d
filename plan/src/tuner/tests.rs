use proptest::prelude::*;

use super::*;
use crate::algorithms::build;
use crate::topology::{Host, LocalTransport, Network};
use crate::{DataType, ReduceOp};

fn shared_memory(ranks: usize, cores: usize) -> Topology {
    Topology::single_host(ranks, cores, LocalTransport::SharedMemory)
}

fn all_reduce(world: usize, bytes: usize) -> Collective {
    Collective::all_reduce(world, DataType::F32, ReduceOp::Sum, bytes / 4).expect("a valid call")
}

fn overrides(variables: &[(&str, &str)]) -> Overrides {
    let read = |name: &str| {
        let set = variables.iter().find(|(variable, _)| *variable == name);
        set.map(|(_, value)| (*value).to_owned())
    };
    Overrides::from_vars(read).expect("valid overrides")
}

fn outline(choice: &Choice) -> (Algorithm, Protocol, usize) {
    (choice.algorithm, choice.protocol, choice.channels)
}

#[test]
fn sockets_get_whole_messages() {
    let topology = Topology::single_host(2, 2, LocalTransport::TcpLoopback);
    let tuner = Tuner::new(topology.with_max_chunk_bytes(1 << 20), Overrides::default());
    for count in [2, 512, 2048, 8192] {
        let call = Collective::all_reduce(2, DataType::F32, ReduceOp::Sum, count).expect("valid");
        assert_eq!(tuner.choose(&call).protocol, Protocol::Simple, "{count} floats");
    }
}

#[test]
fn two_ranks_get_the_measured_recipes() {
    let tuner = Tuner::new(shared_memory(2, 2), Overrides::default());
    for bytes in [4, 8, 64, 100, 128, 1000, 2048, 4096, 5000, 8192] {
        let choice = tuner.choose(&all_reduce(2, bytes));
        let expected = (Algorithm::OneShot, Protocol::LowLatency, 1);
        assert_eq!(outline(&choice), expected, "{bytes} bytes");
    }
    for kib in [16, 32, 100, 128, 512, 1024, 2048, 8192, 128 << 10] {
        let bytes = kib << 10;
        let choice = tuner.choose(&all_reduce(2, bytes));
        assert_eq!(outline(&choice), (Algorithm::TwoShot, Protocol::Simple, 1), "{kib} KiB");
        let most = if kib < 2048 { 128 << 10 } else { 256 << 10 };
        assert_eq!(choice.chunk_bytes, most.min(bytes / 2), "{kib} KiB");
    }
}

#[test]
fn crowded_hosts_get_few_turns() {
    for ranks in [4, 8] {
        let tuner = Tuner::new(shared_memory(ranks, 2), Overrides::default());
        for bytes in [8, 512] {
            let choice = tuner.choose(&all_reduce(ranks, bytes));
            assert_eq!(choice.algorithm, Algorithm::OneShot, "{ranks} ranks, {bytes} bytes");
        }
        for kib in [4, 32, 256, 512] {
            let choice = tuner.choose(&all_reduce(ranks, kib << 10));
            let exchanges = choice.algorithm == Algorithm::TwoShot;
            assert_eq!(exchanges, ranks == 4 && kib == 32, "{ranks} ranks, {kib} KiB: {choice:?}");
        }
    }
}

#[test]
fn sockets_get_large_pieces() {
    let topology = Topology::single_host(2, 2, LocalTransport::TcpLoopback);
    let tuner = Tuner::new(topology, Overrides::default());
    for bytes in [16 << 10, 1 << 20, 64 << 20] {
        let choice = tuner.choose(&all_reduce(2, bytes));
        assert_eq!(choice.protocol, Protocol::Simple);
        assert!(choice.chunk_bytes >= (256 << 10).min(bytes / 2), "{choice:?}");
    }
}

#[test]
fn fast_networks_get_several_channels() {
    let host = Host::new(1, LocalTransport::SharedMemory);
    let network = Network { stream_bandwidth: 1e9, ..Network::ethernet(8e9) };
    let call = all_reduce(4, 64 << 20);
    let choose = |network| {
        let topology = Topology::multi_host(&[0, 1, 2, 3], &host, network);
        Tuner::new(topology, Overrides::default()).choose(&call)
    };
    assert!(choose(network).channels > 1);
    assert_eq!(choose(Network { stream_bandwidth: 8e9, ..network }).channels, 1);
}

#[test]
fn hundreds_of_ranks_are_compared_too() {
    let hosts: Vec<_> = (0..256).map(|rank| rank / 8).collect();
    let host = Host::new(8, LocalTransport::SharedMemory);
    let topology = Topology::multi_host(&hosts, &host, Network::ethernet(12.5e9));
    let tuner = Tuner::new(topology, Overrides::default());
    let explanation = tuner.explain(&all_reduce(256, 1024));
    assert_ne!(explanation.choice.algorithm, Algorithm::Ring, "{explanation}");
    let is_timed = |candidate: &Candidate| {
        candidate.algorithm == Algorithm::Ring
            && matches!(candidate.verdict, Verdict::Slower { .. })
    };
    assert!(explanation.candidates.iter().any(is_timed), "{explanation}");
}

#[test]
fn overrides_are_obeyed() {
    let call = all_reduce(4, 1 << 20);
    let tuner = |variables: &[(&str, &str)]| Tuner::new(shared_memory(4, 4), overrides(variables));
    for algorithm in
        [Algorithm::Ring, Algorithm::Tree, Algorithm::HalvingDoubling, Algorithm::TwoShot]
    {
        let choice = tuner(&[("ANNULUS_ALGO", algorithm.name())]).choose(&call);
        assert_eq!(choice.algorithm, algorithm);
    }
    let variables =
        [("ANNULUS_PROTO", "low-latency"), ("ANNULUS_CHANNELS", "3"), ("ANNULUS_CHUNK", "4K")];
    let choice = tuner(&variables).choose(&call);
    let asked = (Protocol::LowLatency, 3, 4096);
    assert_eq!((choice.protocol, choice.channels, choice.chunk_bytes), asked);
    let choice = tuner(&[("NCCL_MIN_NCHANNELS", "2"), ("NCCL_BUFFSIZE", "262144")]).choose(&call);
    assert_eq!((choice.channels, choice.chunk_bytes), (2, 32 << 10));
    // The links take no more.
    let choice = tuner(&[("ANNULUS_CHUNK", "1G"), ("ANNULUS_ALGO", "ring")]).choose(&call);
    assert_eq!(choice.chunk_bytes, crate::topology::DEFAULT_MAX_CHUNK_BYTES);
    // One function only.
    let tuner = tuner(&[("NCCL_ALGO", "broadcast:ring")]);
    let broadcast = Collective::broadcast(4, DataType::U8, 1, 100).expect("a valid call");
    assert_eq!(tuner.choose(&broadcast).algorithm, Algorithm::Ring);
    assert_eq!(tuner.choose(&call).algorithm, Algorithm::TwoShot);
}

#[test]
fn overrides_that_leave_nothing_are_ignored_with_a_note() {
    let free = Tuner::new(shared_memory(4, 4), Overrides::default());
    let all_to_all = Collective::all_to_all(4, DataType::F32, 100).expect("a valid call");
    let huge = all_reduce(4, 64 << 20);
    let why = "(one-shot: its message of 67108864 bytes does not fit one chunk of 262144)";
    for (value, call, why) in [("ring", all_to_all, "ignored"), ("one-shot", huge, why)] {
        let tuner = Tuner::new(shared_memory(4, 4), overrides(&[("ANNULUS_ALGO", value)]));
        assert_eq!(tuner.choose(&call), free.choose(&call));
        let explanation = tuner.explain(&call);
        let note = format!("ANNULUS_ALGO={value} leaves nothing");
        let tells = |text: &String| text.starts_with(&note) && text.ends_with(why);
        assert!(explanation.notes.iter().any(tells), "{explanation}");
    }
}

#[test]
fn explanations_account_for_every_algorithm() {
    let tuner = Tuner::new(shared_memory(4, 4), overrides(&[("NCCL_ALGO", "^Ring,NVLS")]));
    let call = all_reduce(4, 1 << 20);
    let explanation = tuner.explain(&call);
    for algorithm in Algorithm::ALL {
        assert!(explanation.candidates.iter().any(|candidate| candidate.algorithm == algorithm));
    }
    let chosen = &explanation.candidates[0];
    assert!(matches!(chosen.verdict, Verdict::Chosen { seconds: Some(_) }));
    assert_eq!(explanation.choice, tuner.choose(&call));

    let text = explanation.to_string();
    for expected in [
        "all_reduce(count 262144, f32, sum), 1048576 bytes, 4 ranks",
        "excluded by NCCL_ALGO=^Ring,NVLS",
        "slower by",
        "unsupported: it does not know this collective",
        "not simulated: two-shot moves as much",
        "note: NCCL_ALGO=^Ring,NVLS: NVLS is ignored",
    ] {
        assert!(text.contains(expected), "{expected:?} is missing:\n{text}");
    }
}

#[test]
fn exchanges_have_a_choice_of_their_own() {
    let tuner = Tuner::new(shared_memory(3, 3), Overrides::default());
    let choice = tuner.choose_exchange();
    assert_eq!(outline(&choice), (Algorithm::Pairwise, Protocol::Simple, 1));
    let variables = [("ANNULUS_PROTO", "sendrecv:LL"), ("ANNULUS_CHANNELS", "2")];
    let choice = Tuner::new(shared_memory(3, 3), overrides(&variables)).choose_exchange();
    assert_eq!(outline(&choice), (Algorithm::Pairwise, Protocol::LowLatency, 2));
}

#[test]
fn a_topology_of_another_world_still_gives_a_plan() {
    let tuner = Tuner::new(shared_memory(2, 2), Overrides::default());
    let call = all_reduce(5, 1 << 20);
    assert!(build(&call, &tuner.choose(&call), 4).is_ok());
    assert_eq!(tuner.explain(&call).choice, tuner.choose(&call));
}

#[test]
fn sizes_without_limit_are_one_class() {
    let tuner = Tuner::new(shared_memory(3, 3), overrides(&[("ANNULUS_CHUNK", "64")]));
    let large = tuner.explain(&all_reduce(3, 1 << 40));
    assert_eq!(large.candidates, tuner.explain(&all_reduce(3, 1 << 30)).candidates);
    let empty = tuner.choose(&all_reduce(3, 0));
    assert_eq!(empty, tuner.choose(&all_reduce(3, 4)));
}

/// Any call that [`Collective`] can make.
fn calls(world: usize) -> impl Strategy<Value = Collective> {
    let size = (0u32..21, 0usize..1 << 20);
    let dtype = proptest::sample::select(DataType::ALL.to_vec());
    (0usize..9, size, dtype, 0..world).prop_map(move |(kind, (log2, low), dtype, root)| {
        let count = ((1 << log2) >> 1) + low % (1 << log2);
        let op = ReduceOp::Max;
        match kind {
            0 => Collective::all_reduce(world, dtype, op, count),
            1 => Collective::reduce(world, dtype, op, root, count),
            2 => Collective::broadcast(world, dtype, root, count),
            3 => Collective::all_gather(world, dtype, count),
            4 => Collective::reduce_scatter(world, dtype, op, count),
            5 => Collective::all_to_all(world, dtype, count),
            6 => Collective::gather(world, dtype, root, count),
            7 => Collective::scatter(world, dtype, root, count),
            _ => Ok(Collective::barrier(world)),
        }
        .expect("a valid call")
    })
}

fn topologies() -> impl Strategy<Value = Topology> {
    use LocalTransport::{Process, SharedMemory, TcpLoopback};
    let transport = proptest::sample::select(vec![Process, SharedMemory, TcpLoopback]);
    let hosts = proptest::collection::vec(0usize..4, 1..=40);
    (hosts, 1usize..9, transport, 14usize..22).prop_map(|(hosts, cores, transport, log2_chunk)| {
        Topology::multi_host(&hosts, &Host::new(cores, transport), Network::ethernet(12.5e9))
            .with_max_chunk_bytes(1 << log2_chunk)
    })
}

fn restrictions() -> impl Strategy<Value = Overrides> {
    let algorithm = proptest::sample::select(vec!["", "one-shot", "^ring", "tree", "NVLS"]);
    let protocol = proptest::sample::select(vec!["", "LL", "simple"]);
    let channels = proptest::sample::select(vec!["", "1", "5"]);
    let chunk = proptest::sample::select(vec!["", "", "16K", "1M"]);
    (algorithm, protocol, channels, chunk).prop_map(|(algorithm, protocol, channels, chunk)| {
        overrides(&[
            ("ANNULUS_ALGO", algorithm),
            ("NCCL_PROTO", protocol),
            ("ANNULUS_CHANNELS", channels),
            ("ANNULUS_CHUNK", chunk),
        ])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_call_gets_a_plan_and_the_same_choice_everywhere(
        (topology, call, other) in topologies().prop_flat_map(|topology| {
            let world = topology.world();
            (Just(topology), calls(world), calls(world))
        }),
        overrides in restrictions(),
    ) {
        let here = Tuner::new(topology.clone(), overrides.clone());
        let choice = here.choose(&call);
        prop_assert!(choice.channels > 0 && choice.chunk_bytes > 0);
        prop_assert!(choice.chunk_bytes.is_multiple_of(64));
        prop_assert!(choice.chunk_bytes <= topology.max_chunk_bytes());
        for rank in [0, call.world() / 2, call.world() - 1] {
            let plan = build(&call.with_in_place(rank % 2 == 1), &choice, rank);
            prop_assert!(plan.is_ok(), "{:?}", plan.err());
        }
        // Another rank, which has made another call before.
        let there = Tuner::new(topology, overrides);
        there.choose(&other);
        prop_assert_eq!(there.choose(&call.with_in_place(true)), choice);
        prop_assert_eq!(there.choose(&call), choice);
    }
}
