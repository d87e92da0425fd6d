//! The ways to break a plan.

use annulus_plan::verifier::Place;
use annulus_plan::{Buffer, Instruction, LinkId, Plan, Span};

use crate::UNIT;
use crate::memory::spans;

/// A way to break a plan in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An instruction is left out.
    Drop,
    /// A message is left out at both ends.
    DropMessage,
    /// An instruction is done twice.
    Duplicate,
    /// A message is sent and received once more, at the end of both lanes.
    RepeatMessage,
    /// Two neighbours in a lane change places.
    SwapNeighbours,
    /// Two instructions of different lanes change places.
    SwapLanes,
    /// An instruction moves to the end of another lane.
    MoveLane,
    /// A span begins an element earlier or later.
    Offset,
    /// One span is an element shorter or longer.
    Length,
    /// A message is an element shorter at both ends.
    ShortenMessage,
    /// A span lies in another buffer.
    Buffer,
    /// A link leads to another rank.
    Peer,
    /// A link has another number.
    Index,
    /// The last combination is not marked, or another is.
    Finish,
    /// A result is not kept, or is where it was not.
    Dst,
    /// What is received replaces what it should be combined with, or is not passed on.
    Weaken,
    /// A sender claims, or no longer claims, that references are safe.
    ByReference,
    /// Messages are cut shorter on one rank.
    Chunk,
}

impl Kind {
    pub(crate) const ALL: [Self; 18] = [
        Self::Drop,
        Self::DropMessage,
        Self::Duplicate,
        Self::RepeatMessage,
        Self::SwapNeighbours,
        Self::SwapLanes,
        Self::MoveLane,
        Self::Offset,
        Self::Length,
        Self::ShortenMessage,
        Self::Buffer,
        Self::Peer,
        Self::Index,
        Self::Finish,
        Self::Dst,
        Self::Weaken,
        Self::ByReference,
        Self::Chunk,
    ];
}

/// Calls `visit` with every mutant that differs from `plans`.
pub(crate) fn each(plans: &[Plan], mut visit: impl FnMut(Kind, Place, &[Plan])) {
    let mut mutant = plans.to_vec();
    for (rank, plan) in plans.iter().enumerate() {
        let mut try_plan = |kind, place, change: &dyn Fn(&mut Plan)| {
            change(&mut mutant[rank]);
            if mutant[rank] != *plan {
                visit(kind, place, &mutant);
                mutant[rank] = plan.clone();
            }
        };
        let whole = Place { rank, lane: 0, instruction: 0 };
        try_plan(Kind::ByReference, whole, &|plan| plan.by_reference = !plan.by_reference);
        try_plan(Kind::Chunk, whole, &|plan| plan.chunk_bytes /= 2);
        for (lane, it) in plan.lanes.iter().enumerate() {
            for instruction in 0..it.instructions.len() {
                let place = Place { rank, lane, instruction };
                move_about(plan, place, &mut try_plan);
                for (kind, changed) in changes(plan, &it.instructions[instruction]) {
                    try_plan(kind, place, &|plan| {
                        plan.lanes[lane].instructions[instruction] = changed;
                    });
                }
            }
        }
    }
    change_messages(plans, &mut visit);
}

/// Mutants that leave the instruction as it is.
fn move_about(
    plan: &Plan,
    Place { lane, instruction: at, rank }: Place,
    try_plan: &mut impl FnMut(Kind, Place, &dyn Fn(&mut Plan)),
) {
    let place = Place { lane, instruction: at, rank };
    let list = &plan.lanes[lane].instructions;
    try_plan(Kind::Drop, place, &|plan| {
        plan.lanes[lane].instructions.remove(at);
    });
    try_plan(Kind::Duplicate, place, &|plan| plan.lanes[lane].instructions.insert(at, list[at]));
    if at + 1 < list.len() {
        try_plan(Kind::SwapNeighbours, place, &|plan| {
            plan.lanes[lane].instructions.swap(at, at + 1);
        });
    }
    for other in 0..plan.lanes.len() {
        let theirs = &plan.lanes[other].instructions;
        if other > lane {
            let there = at.min(theirs.len() - 1);
            try_plan(Kind::SwapLanes, place, &|plan| {
                plan.lanes[lane].instructions[at] = theirs[there];
                plan.lanes[other].instructions[there] = list[at];
            });
        }
        if other != lane {
            try_plan(Kind::MoveLane, place, &|plan| {
                let moved = plan.lanes[lane].instructions.remove(at);
                plan.lanes[other].instructions.push(moved);
            });
        }
    }
}

/// Everything that one instruction can be mistaken for.
fn changes(plan: &Plan, instruction: &Instruction) -> Vec<(Kind, Instruction)> {
    let mut found = Vec::new();
    let spans = spans(&mut instruction.clone()).len();
    for index in 0..spans {
        let mut with = |kind, change: &dyn Fn(&mut Span)| {
            let mut changed = *instruction;
            change(spans_of(&mut changed, index));
            found.push((kind, changed));
        };
        with(Kind::Offset, &|span| span.offset += UNIT);
        with(Kind::Offset, &|span| span.offset = span.offset.saturating_sub(UNIT));
        with(Kind::Length, &|span| span.bytes += UNIT);
        with(Kind::Length, &|span| span.bytes = span.bytes.saturating_sub(UNIT));
        for buffer in [Buffer::Input, Buffer::Output, Buffer::Scratch] {
            with(Kind::Buffer, &|span| span.buffer = buffer);
        }
    }
    let links = links(&mut instruction.clone()).len();
    for index in 0..links {
        let mut with = |kind, change: &dyn Fn(&mut LinkId)| {
            let mut changed = *instruction;
            if let Some(link) = links_of(&mut changed, index) {
                change(link);
            }
            found.push((kind, changed));
        };
        for other in 1..plan.world {
            with(Kind::Peer, &|link| link.peer = (link.peer + other) % plan.world);
        }
        with(Kind::Index, &|link| link.index += 1);
        with(Kind::Index, &|link| link.index = link.index.saturating_sub(1));
    }
    match *instruction {
        Instruction::Send { .. } | Instruction::Recv { .. } | Instruction::Copy { .. } => {}
        Instruction::RecvReduce { from, with, dst, finish } => {
            let flipped = Instruction::RecvReduce { from, with, dst, finish: !finish };
            found.push((Kind::Finish, flipped));
            found.push((Kind::Weaken, Instruction::Recv { from, dst }));
        }
        Instruction::RecvReduceSend { from, to, with, dst, finish } => {
            let flipped = Instruction::RecvReduceSend { from, to, with, dst, finish: !finish };
            found.push((Kind::Finish, flipped));
            let other = if dst.is_some() { None } else { Some(with) };
            let kept = Instruction::RecvReduceSend { from, to, with, dst: other, finish };
            found.push((Kind::Dst, kept));
            let output = Some(Span { buffer: Buffer::Output, ..with });
            let kept = Instruction::RecvReduceSend { from, to, with, dst: output, finish };
            found.push((Kind::Dst, kept));
            let dst = dst.unwrap_or(with);
            found.push((Kind::Weaken, Instruction::RecvCopySend { from, to, dst }));
            found.push((Kind::Weaken, Instruction::RecvReduce { from, with, dst, finish }));
        }
        Instruction::RecvCopySend { from, dst, .. } => {
            found.push((Kind::Weaken, Instruction::Recv { from, dst }));
        }
        Instruction::Reduce { a, b, dst, finish } => {
            found.push((Kind::Finish, Instruction::Reduce { a, b, dst, finish: !finish }));
            found.push((Kind::Dst, Instruction::Reduce { a: b, b: a, dst, finish }));
            found.push((Kind::Weaken, Instruction::Copy { src: a, dst }));
            found.push((Kind::Weaken, Instruction::Copy { src: b, dst }));
        }
    }
    found
}

/// Mutants of both ends of a message that is sent and received and no more.
fn change_messages(plans: &[Plan], visit: &mut impl FnMut(Kind, Place, &[Plan])) {
    for (rank, plan) in plans.iter().enumerate() {
        for (lane, it) in plan.lanes.iter().enumerate() {
            for (at, sent) in it.instructions.iter().enumerate() {
                let Instruction::Send { to, src } = *sent else { continue };
                let earlier = it.instructions[..at].iter().filter(|it| it.to() == Some(to)).count();
                let from = LinkId { peer: rank, index: to.index };
                let Some(there) = message(&plans[to.peer], from, earlier) else { continue };
                let list = &plans[to.peer].lanes[there.lane].instructions;
                let Instruction::Recv { dst, .. } = list[there.instruction] else { continue };
                let here = Place { rank, lane, instruction: at };
                let mut with =
                    |kind, change: &dyn Fn(&mut Vec<Instruction>, usize, Instruction)| {
                        let mut mutant = plans.to_vec();
                        let shorter =
                            |span: Span| Span { bytes: span.bytes - UNIT.min(span.bytes), ..span };
                        let recv = Instruction::Recv { from, dst: shorter(dst) };
                        let send = Instruction::Send { to, src: shorter(src) };
                        for (place, short) in [(here, send), (there, recv)] {
                            let lane = &mut mutant[place.rank].lanes[place.lane];
                            change(&mut lane.instructions, place.instruction, short);
                        }
                        if mutant != plans {
                            visit(kind, here, &mutant);
                        }
                    };
                with(Kind::DropMessage, &|list, at, _| {
                    list.remove(at);
                });
                with(Kind::RepeatMessage, &|list, at, _| list.push(list[at]));
                with(Kind::ShortenMessage, &|list, at, short| list[at] = short);
            }
        }
    }
}

/// The instruction that receives the `number`-th message of a link.
fn message(plan: &Plan, link: LinkId, number: usize) -> Option<Place> {
    let lanes = plan.lanes.iter().enumerate();
    let mut places = lanes.flat_map(|(lane, it)| {
        let numbered = it.instructions.iter().enumerate();
        let receives = numbered.filter(|(_, it)| it.from() == Some(link));
        receives.map(move |(instruction, _)| Place { rank: plan.rank, lane, instruction })
    });
    places.nth(number)
}

fn spans_of(instruction: &mut Instruction, index: usize) -> &mut Span {
    spans(instruction).swap_remove(index)
}

fn links(instruction: &mut Instruction) -> Vec<&mut LinkId> {
    match instruction {
        Instruction::Send { to, .. } => vec![to],
        Instruction::Recv { from, .. } | Instruction::RecvReduce { from, .. } => vec![from],
        Instruction::RecvReduceSend { from, to, .. }
        | Instruction::RecvCopySend { from, to, .. } => vec![from, to],
        Instruction::Copy { .. } | Instruction::Reduce { .. } => vec![],
    }
}

fn links_of(instruction: &mut Instruction, index: usize) -> Option<&mut LinkId> {
    links(instruction).into_iter().nth(index)
}
