//! Every algorithm's plans are proved: any number of ranks, any root, ragged counts, any channels, tiny chunks.

use annulus_plan::algorithms::{self, Algorithm, Choice, Protocol, build};
use annulus_plan::verifier::{Limits, verify_each, verify_exchange};
use annulus_plan::{
    Buffer, Collective, CollectiveKind, DataType, Direction, Exchange, MIN_LINK_CHUNKS, Plan, Rank,
    ReduceOp, Transfer,
};
use proptest::prelude::*;

/// One call, and how each rank makes it.
#[derive(Clone, Copy, Debug)]
struct Case {
    call: Collective,
    choice: Choice,
    /// Which ranks are in place, as bits.
    in_place: u64,
}

impl Case {
    /// Builds and proves the plans. `false`: there is none for this call.
    fn prove(&self) -> Result<bool, String> {
        let Self { call, choice, in_place } = *self;
        let rank_call = |rank: Rank| call.with_in_place(in_place >> rank & 1 != 0);
        let calls: Vec<Collective> = (0..call.world()).map(rank_call).collect();
        let plans: Vec<_> =
            calls.iter().enumerate().map(|(rank, call)| build(call, &choice, rank)).collect();
        if plans.iter().all(Result::is_err) {
            return Ok(false);
        }
        let plans: Vec<Plan> =
            plans.into_iter().collect::<Result<_, _>>().map_err(|it| it.to_string())?;
        let proof = verify_each(&calls, &plans, &limits(&choice));
        proof.map(|_| true).map_err(|fault| format!("{self:?}: {fault}"))
    }
}

/// Links are made for chunks of `choice`, which the low-latency protocol cuts into shorter pieces.
fn limits(choice: &Choice) -> Limits {
    let pieces = match choice.protocol {
        Protocol::Simple => 1,
        Protocol::LowLatency => choice.chunk_bytes.div_ceil(1024),
    };
    Limits { link_chunks: MIN_LINK_CHUNKS * pieces, ..Limits::default() }
}

fn collective(
    kind: CollectiveKind,
    world: usize,
    dtype: DataType,
    root: Rank,
    count: usize,
) -> Option<Collective> {
    let op = ReduceOp::Avg;
    let call = match kind {
        CollectiveKind::AllReduce => Collective::all_reduce(world, dtype, op, count),
        CollectiveKind::Reduce => Collective::reduce(world, dtype, op, root, count),
        CollectiveKind::Broadcast => Collective::broadcast(world, dtype, root, count),
        CollectiveKind::AllGather => Collective::all_gather(world, dtype, count),
        CollectiveKind::ReduceScatter => Collective::reduce_scatter(world, dtype, op, count),
        CollectiveKind::AllToAll => Collective::all_to_all(world, dtype, count),
        CollectiveKind::Gather => Collective::gather(world, dtype, root, count),
        CollectiveKind::Scatter => Collective::scatter(world, dtype, root, count),
        CollectiveKind::Barrier => Ok(Collective::barrier(world)),
        CollectiveKind::AllToAllV | CollectiveKind::PointToPoint => return None,
    };
    Some(call.expect("valid"))
}

/// Every algorithm with every collective that it knows, but for exchanges.
fn pairs() -> Vec<(Algorithm, CollectiveKind)> {
    let kinds = |algorithm: Algorithm| {
        let collective = |kind: &CollectiveKind| {
            !matches!(kind, CollectiveKind::AllToAllV | CollectiveKind::PointToPoint)
        };
        let known = move |kind: &CollectiveKind| algorithm.supports(*kind);
        let kinds = CollectiveKind::ALL.into_iter().filter(collective).filter(known);
        kinds.map(move |kind| (algorithm, kind))
    };
    Algorithm::ALL.into_iter().flat_map(kinds).collect()
}

prop_compose! {
    fn choices(algorithm: Algorithm)(
        channels in 1_usize..=8,
        chunk in 1_usize..=3,
    ) -> Choice {
        Choice { algorithm, protocol: Protocol::Simple, channels, chunk_bytes: 64 * chunk }
    }
}

prop_compose! {
    fn cases()((algorithm, kind) in proptest::sample::select(pairs()), world in 1_usize..=40)(
        choice in choices(algorithm),
        root in 0..world,
        dtype in proptest::sample::select(vec![DataType::U8, DataType::F32]),
        // Less than one element for each rank and channel, up to several chunks for each.
        bytes in prop_oneof![
            0_usize..100,
            0_usize..=if matches!(kind, CollectiveKind::AllReduce) { 8000 } else { 1200 },
        ],
        in_place in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        kind in Just(kind),
        world in Just(world),
    ) -> Case {
        // All-to-all is never in place.
        let in_place = if kind == CollectiveKind::AllToAll { 0 } else { in_place };
        let call = collective(kind, world, dtype, root, bytes / dtype.size());
        Case { call: call.expect("a collective"), choice, in_place }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_calls(case in cases()) {
        let proved = case.prove();
        prop_assert!(proved.is_ok(), "{}", proved.unwrap_err());
    }
}

#[test]
fn every_root_of_few_ranks() {
    for (algorithm, kind) in pairs() {
        for world in (1..=9).chain([13, 16]) {
            let roots = if kind.rooted() { world } else { 1 };
            for (root, bytes) in (0..roots).flat_map(|root| [(root, 1), (root, 67), (root, 333)]) {
                for (channels, in_place) in [(1, 0), (2, u64::MAX)] {
                    let protocol = Protocol::Simple;
                    let choice = Choice { algorithm, protocol, channels, chunk_bytes: 64 };
                    let in_place = if kind == CollectiveKind::AllToAll { 0 } else { in_place };
                    let call = collective(kind, world, DataType::U8, root, bytes);
                    let case = Case { call: call.expect("a collective"), choice, in_place };
                    let proved = case.prove().unwrap_or_else(|fault| panic!("{fault}"));
                    let too_long = algorithm == Algorithm::OneShot
                        && kind == CollectiveKind::AllReduce
                        && bytes > 64;
                    assert!(proved || too_long, "no plan: {case:?}");
                }
            }
        }
    }
}

#[test]
fn short_pieces_of_long_chunks() {
    for (algorithm, kind) in pairs() {
        for world in [2, 3, 4, 7] {
            let choice = Choice {
                algorithm,
                protocol: Protocol::LowLatency,
                channels: 1,
                chunk_bytes: 2240,
            };
            let call = collective(kind, world, DataType::F32, world - 1, 1400);
            let case = Case { call: call.expect("a collective"), choice, in_place: 0b0110 };
            case.prove().unwrap_or_else(|fault| panic!("{fault}"));
        }
    }
}

prop_compose! {
    /// Bytes that each rank sends to each, in up to three messages, and how each rank's calls are ordered.
    fn groups()(world in 1_usize..=12)(
        messages in proptest::collection::vec(
            (0..world, 0..world, prop_oneof![0_usize..20, 0_usize..700]),
            0..40,
        ),
        turns in proptest::collection::vec(0_usize..40, world),
        choice in choices(Algorithm::Pairwise),
        world in Just(world),
    ) -> (Vec<Exchange>, Choice) {
        let mut transfers: Vec<Vec<Transfer>> = vec![Vec::new(); world];
        for &(from, to, bytes) in &messages {
            for (rank, peer, direction) in
                [(from, to, Direction::Send), (to, from, Direction::Receive)]
            {
                let buffer = Buffer::Member(transfers[rank].len());
                transfers[rank].push(Transfer { peer, direction, buffer, offset: 0, bytes });
            }
        }
        let group = |(rank, (mut transfers, turn)): (Rank, (Vec<Transfer>, usize))| {
            // Any order between peers and directions, the given one within.
            transfers.sort_by_key(|it| {
                (it.peer + turn) % world + if it.direction == Direction::Send { turn } else { 3 }
            });
            Exchange::group(world, rank, transfers).expect("valid")
        };
        let exchanges = transfers.into_iter().zip(turns).enumerate().map(group).collect();
        (exchanges, choice)
    }
}

prop_compose! {
    /// Counts for each pair, and gaps between what goes to or comes from one rank and the next.
    fn ragged()(world in 1_usize..=12)(
        counts in proptest::collection::vec(prop_oneof![Just(0), 0_usize..150], world * world),
        gaps in proptest::collection::vec(0_usize..5, world),
        choice in choices(Algorithm::Pairwise),
        world in Just(world),
    ) -> (Vec<Exchange>, Choice) {
        let displacements = |counts: &[usize], gap: usize| -> Vec<usize> {
            let ends = counts.iter().scan(0, |end, count| {
                let start = *end + gap;
                *end = start + count;
                Some(start)
            });
            ends.collect()
        };
        let exchange = |rank: Rank| {
            let send: Vec<usize> = (0..world).map(|to| counts[rank * world + to]).collect();
            let recv: Vec<usize> = (0..world).map(|from| counts[from * world + rank]).collect();
            let at = displacements(&send, gaps[rank]);
            let to = displacements(&recv, gaps[rank]);
            Exchange::all_to_all_v(rank, DataType::F32, &send, &at, &recv, &to).expect("valid")
        };
        ((0..world).map(exchange).collect(), choice)
    }
}

fn prove_exchange((exchanges, choice): &(Vec<Exchange>, Choice)) -> Result<(), String> {
    let plans: Result<Vec<Plan>, _> =
        exchanges.iter().map(|exchange| algorithms::exchange(exchange, choice)).collect();
    let plans = plans.map_err(|it| it.to_string())?;
    verify_exchange(exchanges, &plans, &limits(choice)).map(drop).map_err(|it| it.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn groups_of_sends_and_receives(case in groups()) {
        prop_assert_eq!(prove_exchange(&case), Ok(()));
    }

    #[test]
    fn all_to_all_of_ragged_counts(case in ragged()) {
        prop_assert_eq!(prove_exchange(&case), Ok(()));
    }
}
