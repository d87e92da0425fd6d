//! The verifier against plans written by hand: what it accepts, and one plan for each fault.

use annulus_plan::verifier::{
    Fault, Limits, Link, Place, Wait, verify, verify_each, verify_exchange,
};
use annulus_plan::{
    Buffer, Collective, DataType, Direction, Exchange, Instruction, Lane, LinkId, Plan, Rank,
    ReduceOp, Span, Transfer,
};

const CHUNK: usize = 8;

fn span(buffer: Buffer, offset: usize, bytes: usize) -> Span {
    Span { buffer, offset, bytes }
}

fn input(offset: usize, bytes: usize) -> Span {
    span(Buffer::Input, offset, bytes)
}

fn output(offset: usize, bytes: usize) -> Span {
    span(Buffer::Output, offset, bytes)
}

fn scratch(offset: usize, bytes: usize) -> Span {
    span(Buffer::Scratch, offset, bytes)
}

fn link(peer: Rank) -> LinkId {
    LinkId { peer, index: 0 }
}

fn send(peer: Rank, src: Span) -> Instruction {
    Instruction::Send { to: link(peer), src }
}

fn recv(peer: Rank, dst: Span) -> Instruction {
    Instruction::Recv { from: link(peer), dst }
}

fn reduce_in(peer: Rank, with: Span, dst: Span, finish: bool) -> Instruction {
    Instruction::RecvReduce { from: link(peer), with, dst, finish }
}

fn copy(src: Span, dst: Span) -> Instruction {
    Instruction::Copy { src, dst }
}

/// One plan per rank, each of some lanes.
fn plans(ranks: Vec<Vec<Vec<Instruction>>>) -> Vec<Plan> {
    let world = ranks.len();
    let lanes = |lanes: Vec<Vec<Instruction>>| {
        lanes.into_iter().map(|instructions| Lane { channel: 0, instructions }).collect()
    };
    let plan = |(rank, it)| Plan {
        rank,
        world,
        lanes: lanes(it),
        scratch_bytes: 64,
        chunk_bytes: CHUNK,
        by_reference: true,
    };
    ranks.into_iter().enumerate().map(plan).collect()
}

fn all_reduce(world: usize, count: usize) -> Collective {
    Collective::all_reduce(world, DataType::U8, ReduceOp::Sum, count).expect("valid")
}

fn broadcast(world: usize, count: usize) -> Collective {
    Collective::broadcast(world, DataType::U8, 0, count).expect("valid")
}

fn prove(call: &Collective, plans: &[Plan]) -> Result<(), Fault> {
    verify(call, plans, &Limits::default()).map(drop)
}

fn fault(call: &Collective, plans: &[Plan]) -> Fault {
    prove(call, plans).expect_err("the plans are wrong")
}

/// Both ranks send their input and reduce what they get.
fn exchange_and_reduce(count: usize) -> Vec<Plan> {
    let rank = |peer| {
        vec![
            vec![send(peer, input(0, count))],
            vec![reduce_in(peer, input(0, count), output(0, count), true)],
        ]
    };
    plans(vec![rank(1), rank(0)])
}

/// Rank 0 broadcasts to 1, which passes it on to 2.
fn chain(count: usize) -> Vec<Plan> {
    let pass = Instruction::RecvCopySend { from: link(0), to: link(2), dst: output(0, count) };
    plans(vec![
        vec![vec![copy(input(0, count), output(0, count)), send(1, input(0, count))]],
        vec![vec![pass]],
        vec![vec![recv(1, output(0, count))]],
    ])
}

/// A reduction goes up a chain of three ranks and comes down again; in the middle, one lane for each way.
fn up_and_down(count: usize) -> Vec<Plan> {
    let (own, all) = (input(0, count), output(0, count));
    let up = |from, to, dst, finish| Instruction::RecvReduceSend {
        from: link(from),
        to: link(to),
        with: own,
        dst,
        finish,
    };
    let down = Instruction::RecvCopySend { from: link(2), to: link(0), dst: all };
    plans(vec![
        vec![vec![send(1, own), recv(1, all)]],
        vec![vec![up(0, 2, None, false)], vec![down]],
        vec![vec![up(1, 1, Some(all), true)]],
    ])
}

/// The same with one lane in the middle, which does not turn round before all has gone up.
fn up_then_down(count: usize) -> Vec<Plan> {
    let mut plans = up_and_down(count);
    let down = plans[1].lanes.remove(1);
    plans[1].lanes[0].instructions.extend(down.instructions);
    plans
}

#[test]
fn accepts_what_is_right() {
    for count in [1, 7, 8, 9, 40] {
        assert_eq!(prove(&broadcast(3, count), &chain(count)), Ok(()));
        let call = all_reduce(3, count);
        assert_eq!(prove(&call, &up_and_down(count)), Ok(()));
        assert_eq!(prove(&call.with_in_place(true), &up_and_down(count)), Ok(()));
    }
    let report = verify(&all_reduce(2, 40), &exchange_and_reduce(40), &Limits::default());
    let report = report.expect("right");
    assert_eq!((report.messages, report.bytes, report.orderings), (2, 80, 0));
    let nothing = all_reduce(2, 0);
    assert_eq!(prove(&nothing, &plans(vec![vec![], vec![]])), Ok(()));
}

#[test]
fn one_rank_has_nothing_to_finish() {
    let call = all_reduce(1, 4);
    assert_eq!(prove(&call, &plans(vec![vec![vec![copy(input(0, 4), output(0, 4))]]])), Ok(()));
    assert_eq!(prove(&call.with_in_place(true), &plans(vec![vec![]])), Ok(()));
    assert!(matches!(fault(&call, &plans(vec![vec![]])), Fault::Output { rank: 0, .. }));
}

#[test]
fn in_place_buffers_are_the_same_memory() {
    let kind = |call: Result<Collective, _>| call.expect("valid").with_in_place(true);
    let gather = kind(Collective::all_gather(2, DataType::F32, 1));
    let swap = |rank: Rank| {
        vec![vec![send(1 - rank, input(0, 4)), recv(1 - rank, output(4 - 4 * rank, 4))]]
    };
    assert_eq!(prove(&gather, &plans(vec![swap(0), swap(1)])), Ok(()));
    // Out of place, the own block is missing.
    let found = fault(&gather.with_in_place(false), &plans(vec![swap(0), swap(1)]));
    assert_eq!(
        found.to_string(),
        "rank 0: output[0..4] holds undefined bytes where 0 of element 0 belongs"
    );
    // Each rank may say for itself.
    let mut mixed = plans(vec![swap(0), swap(1)]);
    mixed[0].lanes[0].instructions.push(copy(input(0, 4), output(0, 4)));
    let calls = [gather.with_in_place(false), gather];
    assert!(verify_each(&calls, &mixed, &Limits::default()).is_ok());

    let scatter = kind(Collective::scatter(2, DataType::F32, 1, 1));
    let root = vec![vec![send(0, input(0, 4)), copy(input(4, 4), output(0, 4))]];
    assert_eq!(prove(&scatter, &plans(vec![vec![vec![recv(1, output(0, 4))]], root])), Ok(()));

    // In place, the reduction overwrites what is still to be sent.
    let call = all_reduce(2, 40);
    let found = fault(&call.with_in_place(true), &exchange_and_reduce(40));
    assert!(matches!(found, Fault::Race { .. } | Fault::Overwritten { .. }), "{found}");
}

#[test]
fn reductions_take_each_rank_once_in_one_order() {
    let call = all_reduce(2, 8);
    let set = |index: usize, finish| {
        let mut plans = exchange_and_reduce(8);
        let step = &mut plans[index].lanes[1].instructions[0];
        let Instruction::RecvReduce { from, with, dst, .. } = *step else { panic!("{step:?}") };
        *step = Instruction::RecvReduce { from, with, dst, finish };
        plans
    };
    assert!(matches!(fault(&call, &set(1, false)), Fault::Output { rank: 1, .. }));

    // Rank 1 adds its own contribution twice.
    let mut twice = exchange_and_reduce(8);
    twice[1].lanes[1].instructions = vec![
        reduce_in(0, input(0, 8), output(0, 8), false),
        Instruction::Reduce { a: output(0, 8), b: input(0, 8), dst: output(0, 8), finish: true },
    ];
    let found = fault(&call, &twice).to_string();
    assert!(found.ends_with("a contribution would count twice"), "{found}");

    // Three ranks that all add in the order of arrival.
    let rank = |[first, second]: [Rank; 2]| {
        vec![
            vec![send(first, input(0, 8))],
            vec![send(second, input(0, 8))],
            vec![
                reduce_in(first, input(0, 8), output(0, 8), false),
                reduce_in(second, output(0, 8), output(0, 8), true),
            ],
        ]
    };
    let orders = plans(vec![rank([1, 2]), rank([0, 2]), rank([0, 1])]);
    let found = fault(&all_reduce(3, 8), &orders);
    assert!(matches!(found, Fault::OrderDiffers { rank: 2, other: 0, .. }), "{found}");

    // Shifted by one element.
    let mut shifted = exchange_and_reduce(8);
    shifted[1].lanes[1].instructions = vec![
        recv(0, scratch(0, 8)),
        Instruction::Reduce { a: input(0, 7), b: scratch(1, 7), dst: output(0, 7), finish: true },
    ];
    let found = fault(&call, &shifted).to_string();
    assert!(found.ends_with("different elements"), "{found}");
}

#[test]
fn other_collectives_cannot_combine() {
    let mut plans = chain(8);
    plans[2].lanes[0].instructions = vec![reduce_in(1, scratch(0, 8), output(0, 8), true)];
    let at = Place { rank: 2, lane: 0, instruction: 0 };
    assert_eq!(fault(&broadcast(3, 8), &plans), Fault::NoOperator { at });
}

#[test]
fn undefined_bytes_are_not_read() {
    let mut plans = chain(8);
    plans[0].lanes[0].instructions[1] = send(1, scratch(0, 8));
    let at = Place { rank: 0, lane: 0, instruction: 1 };
    assert_eq!(fault(&broadcast(3, 8), &plans), Fault::Undefined { at, span: scratch(0, 1) });
}

#[test]
fn a_cycle_of_full_links_is_stuck() {
    // Both send everything before they receive: fits two chunks, no more.
    let rank = |peer, count| {
        vec![vec![
            send(peer, input(0, count)),
            reduce_in(peer, input(0, count), output(0, count), true),
        ]]
    };
    let both = |count| plans(vec![rank(1, count), rank(0, count)]);
    assert_eq!(prove(&all_reduce(2, 2 * CHUNK), &both(2 * CHUNK)), Ok(()));
    let call = all_reduce(2, 2 * CHUNK + 1);
    let Fault::Stuck { blocked } = fault(&call, &both(2 * CHUNK + 1)) else { panic!("not stuck") };
    let room = |from, to| Wait::Room(Link { from, to, index: 0 });
    assert_eq!(blocked.iter().map(|it| it.waits).collect::<Vec<_>>(), [room(0, 1), room(1, 0)]);
    // One lane in the middle of a chain does not drain what comes back.
    assert_eq!(prove(&all_reduce(3, 2 * CHUNK), &up_then_down(2 * CHUNK)), Ok(()));
    let found = fault(&all_reduce(3, 5 * CHUNK), &up_then_down(5 * CHUNK));
    assert!(matches!(found, Fault::Stuck { ref blocked } if blocked.len() == 3), "{found}");
    let deeper = Limits { link_chunks: 3, ..Limits::default() };
    assert!(verify(&call, &both(2 * CHUNK + 1), &deeper).is_ok());
}

#[test]
fn a_missing_message_is_stuck() {
    let mut plans = chain(8);
    plans[0].lanes[0].instructions.pop();
    let found = fault(&broadcast(3, 8), &plans).to_string();
    assert_eq!(
        found,
        "stuck: rank 1, lane 0, instruction 0 waits for a message on link 0→1/0; \
         rank 2, lane 0, instruction 0 waits for a message on link 1→2/0"
    );
}

#[test]
fn messages_match() {
    let call = broadcast(3, 8);
    let mut left_over = chain(8);
    left_over[0].lanes[0].instructions.push(send(2, input(0, 8)));
    assert!(matches!(fault(&call, &left_over), Fault::Unreceived { messages: 1, .. }));
    let mut short = chain(8);
    short[2].lanes[0].instructions = vec![recv(1, output(0, 7))];
    assert!(matches!(fault(&call, &short), Fault::MessageLength { sent: 8, received: 7, .. }));
    let mut empty = chain(8);
    empty[0].lanes[0].instructions.push(send(1, input(0, 0)));
    let at = Place { rank: 0, lane: 0, instruction: 2 };
    assert_eq!(fault(&call, &empty), Fault::EmptyMessage { at });
}

#[test]
fn links_have_two_ends() {
    let call = broadcast(3, 8);
    let at = Place { rank: 0, lane: 0, instruction: 1 };
    let with = |instruction| {
        let mut plans = chain(8);
        plans[0].lanes[0].instructions[1] = instruction;
        plans
    };
    let nobody = fault(&call, &with(send(3, input(0, 8))));
    assert_eq!(nobody, Fault::Peer { at, peer: 3, world: 3 });
    assert_eq!(fault(&call, &with(send(0, input(0, 8)))), Fault::SelfLink { at });

    let mut writers = chain(8);
    writers[0].lanes.push(Lane { channel: 0, instructions: vec![send(1, input(0, 8))] });
    assert!(matches!(fault(&call, &writers), Fault::Writers { .. }));
    let mut readers = chain(8);
    readers[1].lanes.push(Lane { channel: 0, instructions: vec![recv(0, output(0, 8))] });
    assert!(matches!(fault(&call, &readers), Fault::Readers { .. }));
}

#[test]
fn spans_lie_in_their_buffers() {
    let call = Collective::broadcast(2, DataType::F32, 0, 4).expect("valid");
    let with = |src, dst| {
        plans(vec![
            vec![vec![copy(input(0, 16), output(0, 16)), copy(src, dst), send(1, input(0, 16))]],
            vec![vec![recv(0, output(0, 16))]],
        ])
    };
    let at = Place { rank: 0, lane: 0, instruction: 1 };
    assert_eq!(prove(&call, &with(input(4, 8), scratch(56, 8))), Ok(()));
    let beyond = scratch(60, 8);
    let found = fault(&call, &with(input(4, 8), beyond));
    assert_eq!(found, Fault::Bounds { at, span: beyond, available: 64 });
    let member = span(Buffer::Member(0), 0, 8);
    let found = fault(&call, &with(member, scratch(0, 8)));
    assert_eq!(found, Fault::Bounds { at, span: member, available: 0 });
    let huge = input(usize::MAX - 3, 8);
    assert!(matches!(fault(&call, &with(huge, scratch(0, 8))), Fault::Bounds { .. }));
    let odd = input(2, 8);
    assert_eq!(
        fault(&call, &with(odd, scratch(0, 8))),
        Fault::Alignment { at, span: odd, unit: 4 }
    );
    let found = fault(&call, &with(input(0, 8), scratch(0, 4)));
    assert!(matches!(found, Fault::Lengths { .. }));
    let found = fault(&call, &with(output(0, 8), output(4, 8)));
    assert!(matches!(found, Fault::Overlap { .. }));
    assert_eq!(prove(&call, &with(output(0, 8), output(0, 8))), Ok(()));
    let found = fault(&call, &with(output(0, 8), input(8, 8)));
    assert_eq!(found, Fault::ReadOnly { at, span: input(8, 8) });
    let second =
        Instruction::Reduce { a: input(0, 4), b: output(0, 4), dst: output(0, 4), finish: true };
    let found = fault(&all_reduce(1, 4), &plans(vec![vec![vec![second]]]));
    assert!(matches!(found, Fault::Overlap { .. }));
}

#[test]
fn plans_belong_to_their_ranks() {
    let call = broadcast(3, 8);
    assert_eq!(fault(&call, &chain(8)[..2]), Fault::World { plans: 2, world: 3 });
    let mut turned = chain(8);
    turned.swap(0, 1);
    assert_eq!(fault(&call, &turned), Fault::Header { position: 0, rank: 1, world: 3 });
    let mut uneven = chain(8);
    uneven[2].chunk_bytes = 16;
    assert_eq!(fault(&call, &uneven), Fault::ChunkBytes { rank: 2, chunk_bytes: 16, first: 8 });
    let calls = [call, call, broadcast(3, 9)];
    let found = verify_each(&calls, &chain(8), &Limits::default());
    assert!(matches!(found, Err(Fault::Calls { rank: 2, .. })));
}

#[test]
fn lanes_share_bytes_only_in_order() {
    let call = broadcast(2, 16);
    let two_lanes = |second: Vec<Instruction>| {
        plans(vec![
            vec![
                vec![copy(input(0, 16), output(0, 16)), send(1, input(0, 16))],
                vec![Instruction::Recv { from: LinkId { peer: 1, index: 7 }, dst: scratch(0, 1) }],
            ],
            vec![vec![recv(0, output(0, 16))], second],
        ])
    };
    let back = |src| Instruction::Send { to: LinkId { peer: 0, index: 7 }, src };
    // The second lane reads what the first writes, and nothing makes it wait.
    let found = fault(&call, &two_lanes(vec![back(output(15, 1))]));
    assert!(matches!(found, Fault::Race { .. } | Fault::Undefined { .. }), "{found}");
    // Rank 0 tells the second lane that rank 1's first lane has it.
    let told = plans(vec![
        vec![
            vec![copy(input(0, 16), output(0, 16)), send(1, input(0, 16))],
            vec![
                Instruction::Recv { from: LinkId { peer: 1, index: 1 }, dst: scratch(0, 1) },
                Instruction::Send { to: LinkId { peer: 1, index: 2 }, src: scratch(0, 1) },
            ],
            vec![Instruction::Recv { from: LinkId { peer: 1, index: 7 }, dst: scratch(8, 1) }],
        ],
        vec![
            vec![
                recv(0, output(0, 16)),
                Instruction::Send { to: LinkId { peer: 0, index: 1 }, src: output(0, 1) },
            ],
            vec![
                Instruction::Recv { from: LinkId { peer: 0, index: 2 }, dst: scratch(0, 1) },
                back(output(15, 1)),
            ],
        ],
    ]);
    let report = verify(&call, &told, &Limits::default()).expect("ordered");
    assert_eq!(report.orderings, 1);
}

#[test]
fn pieces_arrive_before_the_message_is_sent() {
    // Rank 1 passes each piece back at once, while rank 0 still sends the next.
    let call = broadcast(2, 16);
    let echo = |dst| {
        let pass = Instruction::RecvCopySend { from: link(0), to: link(0), dst: output(0, 16) };
        let root = vec![
            copy(input(0, 16), output(0, 16)),
            copy(input(0, 16), scratch(0, 16)),
            send(1, scratch(0, 16)),
        ];
        let mut plans = plans(vec![vec![root, vec![recv(1, dst)]], vec![vec![pass]]]);
        plans[0].by_reference = false;
        plans
    };
    assert_eq!(prove(&call, &echo(scratch(0, 16))), Ok(()));
    let found = fault(&call, &echo(scratch(8, 16)));
    assert!(matches!(found, Fault::Race { span: Span { offset: 8, .. }, .. }), "{found}");
}

#[test]
fn back_pressure_is_no_order() {
    // A link of two chunks lets the third leave only when the first is received; a longer one does not.
    let call = broadcast(2, 24);
    let chunks = [0, 8, 16];
    let mut root = vec![copy(input(0, 24), output(0, 24)), copy(input(0, 24), scratch(0, 24))];
    root.extend(chunks.map(|offset| send(1, scratch(offset, 8))));
    root.push(copy(input(0, 8), scratch(0, 8)));
    let leaf = chunks.map(|offset| recv(0, output(offset, 8))).to_vec();
    let found = fault(&call, &plans(vec![vec![root], vec![leaf]]));
    let [send, write] = [2, 5].map(|instruction| Place { rank: 0, lane: 0, instruction });
    assert_eq!(found, Fault::Overwritten { send, write, span: scratch(0, 1) });
}

#[test]
fn references_last_until_received() {
    // Rank 0 reuses the bytes that it has just sent.
    let call = broadcast(2, 8);
    let reuse = |answer: bool| {
        let mut root = vec![copy(input(0, 8), scratch(0, 8)), send(1, scratch(0, 8))];
        let mut leaf = vec![recv(0, output(0, 8))];
        if answer {
            root.push(recv(1, scratch(8, 1)));
            leaf.push(send(0, output(0, 1)));
        }
        root.extend([copy(input(0, 8), output(0, 8)), copy(output(0, 8), scratch(0, 8))]);
        plans(vec![vec![root], vec![leaf]])
    };
    let found = fault(&call, &reuse(false));
    let send = Place { rank: 0, lane: 0, instruction: 1 };
    let write = Place { rank: 0, lane: 0, instruction: 3 };
    assert_eq!(found, Fault::Overwritten { send, write, span: scratch(0, 1) });
    assert_eq!(prove(&call, &reuse(true)), Ok(()));
    let mut copies = reuse(false);
    copies[0].by_reference = false;
    assert_eq!(prove(&call, &copies), Ok(()));
    let limits = Limits { references: false, ..Limits::default() };
    assert!(verify(&call, &reuse(false), &limits).is_ok());
}

#[test]
fn a_barrier_waits_for_all() {
    let call = Collective::barrier(3);
    let nothing = output(0, 0);
    let rank = |own: Rank, rounds: usize| {
        let round = |it: usize| {
            let step = 1 << it;
            [send((own + step) % 3, nothing), recv((own + 3 - step) % 3, nothing)]
        };
        vec![(0..rounds).flat_map(round).collect::<Vec<_>>()]
    };
    let barrier = |rounds| plans((0..3).map(|own| rank(own, rounds)).collect());
    assert_eq!(prove(&call, &barrier(2)), Ok(()));
    assert_eq!(fault(&call, &barrier(1)), Fault::Barrier { early: 0, late: 1 });
    assert_eq!(prove(&Collective::barrier(1), &plans(vec![vec![]])), Ok(()));
}

#[test]
fn contributions_are_read_from_the_input() {
    let call = all_reduce(2, 8).with_in_place(true);
    let rank = |peer, src, with| vec![vec![send(peer, src), recv(peer, scratch(0, 8)), with]];
    let add = |a| Instruction::Reduce { a, b: scratch(0, 8), dst: output(0, 8), finish: true };
    let both = |src, with| {
        let mut plans =
            plans(vec![rank(1, src, add(with)), rank(0, input(0, 8), add(input(0, 8)))]);
        plans.iter_mut().for_each(|plan| plan.by_reference = false);
        plans
    };
    let at = |instruction| Place { rank: 0, lane: 0, instruction };
    let span = output(0, 1);
    assert_eq!(prove(&call, &both(input(0, 8), input(0, 8))), Ok(()));
    let found = fault(&call, &both(output(0, 8), input(0, 8)));
    assert_eq!(found, Fault::NotFromInput { at: at(0), span });
    let found = fault(&call, &both(input(0, 8), output(0, 8)));
    assert_eq!(found, Fault::NotFromInput { at: at(2), span });
    let mut again = both(input(0, 8), input(0, 8));
    again[0].lanes[0].instructions.push(copy(input(0, 8), scratch(8, 8)));
    assert_eq!(fault(&call, &again), Fault::NoContribution { at: at(3), span });
}

#[test]
fn exchanges_move_what_they_say() {
    let member = |n, offset, bytes| span(Buffer::Member(n), offset, bytes);
    let transfer = |peer, direction, data: Span| {
        let Span { buffer, offset, bytes } = data;
        Transfer { peer, direction, buffer, offset, bytes }
    };
    let exchange = |rank: Rank, receives| {
        let transfers = vec![
            transfer(1 - rank, Direction::Send, member(0, 0, 12)),
            transfer(1 - rank, Direction::Receive, member(1, 4, receives)),
            transfer(rank, Direction::Send, member(2, 0, 2)),
            transfer(rank, Direction::Receive, member(1, 18, 2)),
        ];
        Exchange::group(2, rank, transfers).expect("valid")
    };
    let exchanges = [exchange(0, 12), exchange(1, 12)];
    let rank = |peer, dst| {
        let own = copy(member(2, 0, 2), member(1, 18, 2));
        vec![vec![send(peer, member(0, 0, 12))], vec![recv(peer, dst)], vec![own]]
    };
    let both = |dst| plans(vec![rank(1, member(1, 4, 12)), rank(0, dst)]);
    let prove = |plans: &[Plan]| verify_exchange(&exchanges, plans, &Limits::default()).map(drop);
    let right = both(member(1, 4, 12));
    assert_eq!(prove(&right), Ok(()));
    let misplaced = prove(&both(member(1, 0, 12)));
    assert!(matches!(misplaced, Err(Fault::Output { rank: 1, .. })), "{misplaced:?}");
    let mut more = right.clone();
    more[0].lanes[1].instructions.push(copy(member(0, 0, 4), member(1, 0, 4)));
    assert_eq!(prove(&more), Err(Fault::Touched { rank: 0, span: member(1, 0, 1) }));
    let short = [exchange(0, 12), exchange(1, 11)];
    let found = verify_exchange(&short, &right, &Limits::default());
    assert_eq!(found, Err(Fault::Unpaired { rank: 1, peer: 0, span: member(1, 4, 11) }));
    let turned = [exchange(1, 12), exchange(0, 12)];
    let found = verify_exchange(&turned, &right, &Limits::default());
    assert!(matches!(found, Err(Fault::Header { .. })));
}
