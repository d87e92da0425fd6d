//! What all algorithms share: where a rank stands, where its bytes lie, and how its plan is put
//! together.

use crate::{Buffer, Collective, Instruction, Lane, LinkId, MAX_CHUNK_PIECES, Plan, Rank, Span};

use super::partition::{Part, Partition, partition};
use super::{Choice, Protocol};

/// Pieces of the low-latency protocol are this long, in bytes, unless chunks would take too many.
const LOW_LATENCY_PIECE: usize = 1024;

/// One rank's view of a call and of how it is to be cut.
#[derive(Clone, Copy)]
pub(super) struct Layout<'a> {
    pub(super) call: &'a Collective,
    pub(super) choice: &'a Choice,
    pub(super) rank: Rank,
}

impl Layout<'_> {
    pub(super) fn world(&self) -> usize {
        self.call.world()
    }

    /// The root; 0 for calls that have none.
    pub(super) fn root(&self) -> Rank {
        self.call.root().unwrap_or(0)
    }

    pub(super) fn is_root(&self) -> bool {
        self.rank == self.root()
    }

    /// The rank `steps` (at most the world size) after this one, round the ring.
    pub(super) fn ahead(&self, steps: usize) -> Rank {
        (self.rank + steps) % self.world()
    }

    /// The rank `steps` (at most the world size) before this one, round the ring.
    pub(super) fn behind(&self, steps: usize) -> Rank {
        (self.rank + self.world() - steps) % self.world()
    }

    /// All other ranks, from the next one on round the ring, so that ranks do not all begin with
    /// the same peer.
    pub(super) fn others(&self) -> impl Iterator<Item = Rank> {
        let (rank, world) = (self.rank, self.world());
        (1..world).map(move |steps| (rank + steps) % world)
    }

    /// Each channel's share of one rank's block (of the whole, for calls with one block), without
    /// those that have none.
    pub(super) fn shares(&self) -> impl Iterator<Item = (usize, Part)> {
        let block = Part { offset: 0, bytes: self.call.bytes() };
        let shares = self.split(block, self.choice.channels);
        (0..self.choice.channels)
            .map(move |channel| (channel, shares.part(channel)))
            .take_while(|(_, share)| share.bytes > 0)
    }

    pub(super) fn split(&self, whole: Part, parts: usize) -> Partition {
        partition(whole, self.call.dtype().size(), parts)
    }

    /// Where a part of one rank's block lies in a buffer that holds all ranks' blocks.
    pub(super) fn in_block(&self, of: Rank, part: Part) -> Part {
        part.shifted(of * self.call.bytes())
    }

    pub(super) fn chunk(&self, part: Part, index: usize) -> Part {
        part.chunk(index, self.choice.chunk_bytes)
    }

    pub(super) fn chunks(&self, part: Part) -> impl Iterator<Item = Part> + use<> {
        part.chunks(self.choice.chunk_bytes)
    }

    /// Room in bytes, a multiple of 64, for any chunk of any share.
    pub(super) fn largest_chunk(&self) -> usize {
        let largest_share = self.shares().next().map_or(0, |(_, share)| share.bytes);
        self.choice.chunk_bytes.min(largest_share.next_multiple_of(64))
    }

    /// The plan of these lanes, without those that have nothing to do.
    pub(super) fn plan(&self, steps: Vec<Steps>, scratch_bytes: usize, by_reference: bool) -> Plan {
        let lanes = steps.into_iter().map(|steps| steps.lane);
        Plan {
            rank: self.rank,
            world: self.world(),
            lanes: lanes.filter(|lane| !lane.instructions.is_empty()).collect(),
            scratch_bytes,
            chunk_bytes: piece_bytes(self.choice),
            by_reference,
        }
    }
}

/// How messages are cut on the wire. An algorithm's own chunks do not depend on the protocol.
pub(super) fn piece_bytes(choice: &Choice) -> usize {
    let chunk = choice.chunk_bytes;
    match choice.protocol {
        Protocol::Simple => chunk,
        Protocol::LowLatency => {
            let fewest = chunk.div_ceil(MAX_CHUNK_PIECES).next_multiple_of(64);
            fewest.max(LOW_LATENCY_PIECE).min(chunk)
        }
    }
}

/// In the call's input: this rank's own contribution. Nothing else is ever read from there.
pub(super) fn input(part: Part) -> Span {
    span(Buffer::Input, part)
}

/// In the call's output.
pub(super) fn output(part: Part) -> Span {
    span(Buffer::Output, part)
}

/// In the scratch memory.
pub(super) fn scratch(part: Part) -> Span {
    span(Buffer::Scratch, part)
}

pub(super) fn span(buffer: Buffer, part: Part) -> Span {
    Span { buffer, offset: part.offset, bytes: part.bytes }
}

/// A lane under construction. Steps that would move nothing are left out, by both ends of a link
/// alike.
pub(super) struct Steps {
    lane: Lane,
}

impl Steps {
    pub(super) fn new(channel: usize) -> Self {
        Self { lane: Lane { channel, instructions: Vec::new() } }
    }

    pub(super) fn send(&mut self, to: LinkId, src: Span) {
        self.push(Instruction::Send { to, src });
    }

    pub(super) fn recv(&mut self, from: LinkId, dst: Span) {
        self.push(Instruction::Recv { from, dst });
    }

    pub(super) fn recv_reduce(&mut self, from: LinkId, with: Span, dst: Span, finish: bool) {
        self.push(Instruction::RecvReduce { from, with, dst, finish });
    }

    pub(super) fn recv_reduce_send(
        &mut self,
        (from, to): (LinkId, LinkId),
        with: Span,
        dst: Option<Span>,
        finish: bool,
    ) {
        self.push(Instruction::RecvReduceSend { from, to, with, dst, finish });
    }

    pub(super) fn recv_copy_send(&mut self, (from, to): (LinkId, LinkId), dst: Span) {
        self.push(Instruction::RecvCopySend { from, to, dst });
    }

    pub(super) fn copy(&mut self, src: Span, dst: Span) {
        self.push(Instruction::Copy { src, dst });
    }

    pub(super) fn reduce(&mut self, a: Span, b: Span, dst: Span, finish: bool) {
        self.push(Instruction::Reduce { a, b, dst, finish });
    }

    /// A message that says no more than that this rank has come so far.
    pub(super) fn signal(&mut self, to: LinkId) {
        self.lane.instructions.push(Instruction::Send { to, src: input(NOTHING) });
    }

    /// Waits for a [`signal`](Self::signal).
    pub(super) fn wait(&mut self, from: LinkId) {
        self.lane.instructions.push(Instruction::Recv { from, dst: output(NOTHING) });
    }

    fn push(&mut self, instruction: Instruction) {
        if instruction.bytes() > 0 {
            self.lane.instructions.push(instruction);
        }
    }
}

const NOTHING: Part = Part { offset: 0, bytes: 0 };
