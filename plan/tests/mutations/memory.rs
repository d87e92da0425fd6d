//! Which bytes a span names, and which spans an instruction touches.

use annulus_plan::{Buffer, Collective, CollectiveKind, Instruction, Rank, Span};

/// Bytes of one rank: equal addresses are the same memory, whatever buffer they were named by.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Bytes {
    pub(crate) region: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

pub(crate) fn bytes(call: &Collective, rank: Rank, span: Span) -> Bytes {
    let at_root = call.root() == Some(rank);
    let block = rank * call.bytes();
    // Where the input and the output begin, in memory that holds both.
    let shared = match call.kind() {
        CollectiveKind::ReduceScatter => Some((0, block)),
        CollectiveKind::AllGather => Some((block, 0)),
        CollectiveKind::Gather => at_root.then_some((block, 0)),
        CollectiveKind::Scatter => at_root.then_some((0, block)),
        _ => Some((0, 0)),
    };
    let shared = shared.filter(|_| call.in_place());
    let (region, base) = match (span.buffer, shared) {
        (Buffer::Input, Some((input, _))) => (0, input),
        (Buffer::Output, Some((_, output))) => (0, output),
        (Buffer::Input, None) => (0, 0),
        (Buffer::Output, None) => (1, 0),
        (Buffer::Scratch, _) => (2, 0),
        (Buffer::Member(member), _) => (3 + member, 0),
    };
    let start = base + span.offset;
    Bytes { region, start, end: start + span.bytes }
}

impl Bytes {
    pub(crate) fn holds(self, other: Self) -> bool {
        self.region == other.region && self.start <= other.start && other.end <= self.end
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.region == other.region && self.start < other.end && other.start < self.end
    }
}

pub(crate) fn reads(instruction: &Instruction) -> Vec<Span> {
    match *instruction {
        Instruction::Send { src, .. } | Instruction::Copy { src, .. } => vec![src],
        Instruction::Recv { .. } | Instruction::RecvCopySend { .. } => vec![],
        Instruction::RecvReduce { with, .. } | Instruction::RecvReduceSend { with, .. } => {
            vec![with]
        }
        Instruction::Reduce { a, b, .. } => vec![a, b],
    }
}

pub(crate) fn write(instruction: &Instruction) -> Option<Span> {
    match *instruction {
        Instruction::Send { .. } => None,
        Instruction::RecvReduceSend { dst, .. } => dst,
        Instruction::Recv { dst, .. }
        | Instruction::RecvReduce { dst, .. }
        | Instruction::RecvCopySend { dst, .. }
        | Instruction::Copy { dst, .. }
        | Instruction::Reduce { dst, .. } => Some(dst),
    }
}

/// Every span of an instruction.
pub(crate) fn spans(instruction: &mut Instruction) -> Vec<&mut Span> {
    match instruction {
        Instruction::Send { src, .. } => vec![src],
        Instruction::Recv { dst, .. } | Instruction::RecvCopySend { dst, .. } => vec![dst],
        Instruction::RecvReduce { with, dst, .. } => vec![with, dst],
        Instruction::RecvReduceSend { with, dst, .. } => {
            std::iter::once(with).chain(dst.as_mut()).collect()
        }
        Instruction::Copy { src, dst } => vec![src, dst],
        Instruction::Reduce { a, b, dst, .. } => vec![a, b, dst],
    }
}
