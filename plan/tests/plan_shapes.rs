//! The shape of plans: what the speed of small calls and the cost of building depend on, and what
//! is refused.

use annulus_plan::algorithms::{Algorithm, Choice, Protocol, build, exchange};
use annulus_plan::{
    Buffer, Collective, CollectiveKind, DataType, Direction, Exchange, Instruction,
    MAX_CHUNK_PIECES, ReduceOp, Transfer,
};

#[test]
fn two_ranks_take_the_fewest_instructions() {
    let call = call(CollectiveKind::AllReduce, 2, DataType::F32, 0, 32);
    for call in [call, call.with_in_place(true)] {
        let plan = build(&call, &choice(Algorithm::OneShot, 1, 128), 1).expect("known");
        let [lane] = plan.lanes.as_slice() else { panic!("{plan:?}") };
        assert!(matches!(
            lane.instructions[..],
            [Instruction::Send { .. }, Instruction::RecvReduce { finish: true, .. }]
        ));
        assert_eq!(plan.by_reference, !call.in_place());

        let plan = build(&call, &choice(Algorithm::TwoShot, 1, 64), 1).expect("known");
        let lanes: Vec<_> = plan.lanes.iter().map(|lane| &lane.instructions[..]).collect();
        assert!(matches!(
            lanes[..],
            [
                [Instruction::Send { .. }],
                [Instruction::RecvReduceSend { dst: Some(_), finish: true, .. }],
                [Instruction::Recv { .. }]
            ]
        ));
        assert!(plan.by_reference);
    }
}

#[test]
fn refusals_say_why() {
    let call = call(CollectiveKind::AllReduce, 4, DataType::F32, 0, 100);
    let reason = |choice, rank| build(&call, &choice, rank).expect_err("refused").to_string();
    assert_eq!(
        reason(choice(Algorithm::OneShot, 1, 384), 0),
        "one-shot has no plan for all_reduce(count 100, f32, avg): its message of \
         400 bytes does not fit one chunk of 384"
    );
    assert!(build(&call, &choice(Algorithm::OneShot, 2, 384), 0).is_ok());
    assert!(
        reason(choice(Algorithm::Pairwise, 1, 64), 0).ends_with("does not know this collective")
    );
    assert!(reason(choice(Algorithm::Ring, 0, 64), 0).ends_with("needs at least one channel"));
    assert!(reason(choice(Algorithm::Ring, 1, 100), 0).contains("no positive multiple of 64"));
    assert!(reason(choice(Algorithm::Ring, 1, 64), 4).ends_with("rank 4 is not in a world of 4"));
}

#[test]
fn nothing_to_move_is_an_empty_plan() {
    for (algorithm, kind) in
        known().into_iter().filter(|(_, kind)| *kind != CollectiveKind::Barrier)
    {
        let empty = build(&call(kind, 3, DataType::F32, 0, 0), &choice(algorithm, 2, 64), 1);
        assert_eq!(empty.expect("known").lanes, []);
        let alone = call(kind, 1, DataType::F32, 0, 9);
        let copy = build(&alone, &choice(algorithm, 1, 64), 0).expect("known");
        assert!(matches!(copy.lanes[0].instructions[..], [Instruction::Copy { .. }]));
        let nothing = build(&alone.with_in_place(true), &choice(algorithm, 1, 64), 0);
        assert_eq!(nothing.expect("known").lanes, []);
    }
}

#[test]
fn instructions_do_not_exceed_what_the_algorithm_needs() {
    let world = 4096;
    let rank = 1234;
    let one_chunk_for_each = call(CollectiveKind::AllReduce, world, DataType::F32, 0, 16 * world);
    let count = |algorithm, chunk_bytes| {
        let plan = build(&one_chunk_for_each, &choice(algorithm, 1, chunk_bytes), rank);
        let lanes = plan.expect("known").lanes;
        lanes.iter().map(|lane| lane.instructions.len()).sum::<usize>()
    };
    // A block starts, passes n - 2 ranks, ends; and so once more for the result.
    assert_eq!(count(Algorithm::Ring, 64), 2 * world - 1);
    // A contribution to each owner, one from each peer, the result to each and from each.
    assert_eq!(count(Algorithm::TwoShot, 64), 4 * (world - 1) - 1);
    // At most two children in one tree, none in the other; up and down.
    assert!(count(Algorithm::Tree, 64 * world) <= 6);
    // A send and a receive in each of the steps of halving and of doubling.
    assert_eq!(count(Algorithm::HalvingDoubling, 64 * world), 2 * 2 * 12);
    assert_eq!(count(Algorithm::OneShot, 64 * world), 2 * (world - 1) + 1);
}

#[test]
fn only_one_shot_in_place_needs_copies_of_what_it_sends() {
    for (algorithm, kind) in known() {
        for in_place in [false, kind != CollectiveKind::AllToAll] {
            let call = call(kind, 4, DataType::F32, 0, 16).with_in_place(in_place);
            let plan = build(&call, &choice(algorithm, 1, 64), 0).expect("known");
            let overwrites = algorithm == Algorithm::OneShot && kind == CollectiveKind::AllReduce;
            assert_eq!(plan.by_reference, !(overwrites && in_place), "{algorithm}: {call}");
        }
    }
}

#[test]
fn low_latency_cuts_pieces_but_not_messages() {
    for (algorithm, kind) in known() {
        let call = call(kind, 5, DataType::F64, 3, 100);
        let simple = build(&call, &choice(algorithm, 2, 4096), 1).expect("known");
        let choice = Choice { protocol: Protocol::LowLatency, ..choice(algorithm, 2, 4096) };
        let low_latency = build(&call, &choice, 1).expect("known");
        assert_eq!((simple.chunk_bytes, low_latency.chunk_bytes), (4096, 1024));
        assert_eq!(simple.lanes, low_latency.lanes);
    }
    let large = call(CollectiveKind::AllReduce, 2, DataType::F32, 0, 100);
    for chunk_bytes in [64, 1024, 1088, 16 << 10, 20 << 10, (1 << 20) + 64] {
        let choice =
            Choice { protocol: Protocol::LowLatency, ..choice(Algorithm::Ring, 1, chunk_bytes) };
        let piece = build(&large, &choice, 0).expect("known").chunk_bytes;
        assert!(piece.is_multiple_of(64) && piece <= chunk_bytes);
        assert!(chunk_bytes.div_ceil(piece) <= MAX_CHUNK_PIECES);
    }
}

#[test]
fn a_rank_alone_exchanges_with_itself_by_copies() {
    let transfer = |direction, offset| Transfer {
        peer: 0,
        direction,
        buffer: Buffer::Member(0),
        offset,
        bytes: 8,
    };
    let group = vec![transfer(Direction::Receive, 8), transfer(Direction::Send, 0)];
    let group = Exchange::group(1, 0, group).expect("valid");
    let plan = exchange(&group, &choice(Algorithm::Pairwise, 3, 64)).expect("known");
    assert_eq!(plan.lanes.len(), 1);
    let refused = exchange(&group, &choice(Algorithm::Ring, 3, 64)).expect_err("not pairwise");
    assert_eq!(
        refused.to_string(),
        "ring has no plan for send/recv (2 transfers): it does not know this collective"
    );
}

fn choice(algorithm: Algorithm, channels: usize, chunk_bytes: usize) -> Choice {
    Choice { algorithm, protocol: Protocol::Simple, channels, chunk_bytes }
}

fn call(
    kind: CollectiveKind,
    world: usize,
    dtype: DataType,
    root: usize,
    count: usize,
) -> Collective {
    let op = ReduceOp::Avg;
    match kind {
        CollectiveKind::AllReduce => Collective::all_reduce(world, dtype, op, count),
        CollectiveKind::Reduce => Collective::reduce(world, dtype, op, root, count),
        CollectiveKind::Broadcast => Collective::broadcast(world, dtype, root, count),
        CollectiveKind::AllGather => Collective::all_gather(world, dtype, count),
        CollectiveKind::ReduceScatter => Collective::reduce_scatter(world, dtype, op, count),
        CollectiveKind::AllToAll => Collective::all_to_all(world, dtype, count),
        CollectiveKind::Gather => Collective::gather(world, dtype, root, count),
        CollectiveKind::Scatter => Collective::scatter(world, dtype, root, count),
        _ => Ok(Collective::barrier(world)),
    }
    .expect("a valid call")
}

/// Pairs of an algorithm and a collective that it knows.
fn known() -> Vec<(Algorithm, CollectiveKind)> {
    let exchanges = [CollectiveKind::AllToAllV, CollectiveKind::PointToPoint];
    Algorithm::ALL
        .into_iter()
        .flat_map(|algorithm| CollectiveKind::ALL.map(|kind| (algorithm, kind)))
        .filter(|(algorithm, kind)| algorithm.supports(*kind) && !exchanges.contains(kind))
        .collect()
}
