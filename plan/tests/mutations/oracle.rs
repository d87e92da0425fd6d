//! Runs plans on numbers, in an order that a seed decides.
//!
//! An independent opinion: it knows lanes, links and bytes, and nothing of trees, clocks or loans. Sums wrap; `finish` is not
//! looked at.

use std::collections::{HashMap, VecDeque};

use annulus_plan::verifier::Place;
use annulus_plan::{
    Buffer, Collective, CollectiveKind, Instruction, MIN_LINK_CHUNKS, Plan, Rank, Span,
};

use crate::memory::{Bytes, bytes, reads, write};

type Key = (Rank, Rank, usize);

struct Machine<'a> {
    call: &'a Collective,
    plans: &'a [Plan],
    memories: Vec<[Vec<u8>; 3]>,
    links: HashMap<Key, VecDeque<Sent>>,
}

/// A piece on a link.
enum Sent {
    Copy(Vec<u8>),
    /// The bytes stay with the sender.
    Reference(Rank, Bytes),
}

/// What `rank` contributes.
fn contribution(rank: Rank, at: usize) -> u8 {
    ((rank * 89 + at * 57 + rank * at * 3) % 251) as u8
}

/// Runs `plans` and returns the order in which instructions came to their end; `Err` says what went wrong. What
/// `poisoned` keeps in its rank's memory is replaced by garbage; what it sends is not.
pub(crate) fn run(
    call: &Collective,
    plans: &[Plan],
    seed: u64,
    poisoned: Option<Place>,
) -> Result<Vec<Place>, String> {
    let memories = plans.iter().map(|plan| {
        let span = |buffer, bytes| Span { buffer, offset: 0, bytes };
        let (input, output) = (call.input_bytes(plan.rank), call.output_bytes(plan.rank));
        let input = bytes(call, plan.rank, span(Buffer::Input, input));
        let output = bytes(call, plan.rank, span(Buffer::Output, output));
        let mut regions = [Vec::new(), Vec::new(), vec![0xA5; plan.scratch_bytes]];
        for it in [input, output] {
            let region = &mut regions[it.region];
            region.resize(region.len().max(it.end), 0xA5);
        }
        for (offset, byte) in regions[0][input.start..input.end].iter_mut().enumerate() {
            *byte = contribution(plan.rank, offset);
        }
        regions
    });
    let mut machine = Machine { call, plans, memories: memories.collect(), links: HashMap::new() };
    let lanes = plans.iter().flat_map(|plan| (0..plan.lanes.len()).map(|lane| (plan.rank, lane)));
    let mut lanes: Vec<(Rank, usize, usize, usize)> =
        lanes.map(|(rank, lane)| (rank, lane, 0, 0)).collect();
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut refused = 0;
    let mut order = Vec::new();
    while !lanes.is_empty() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Some lanes are slow: the first ones are mostly passed over.
        let turn = (random >> 20) as usize % lanes.len();
        let turn = if seed.is_multiple_of(2) {
            turn
        } else {
            turn.max((random >> 40) as usize % lanes.len())
        };
        let (rank, lane, at, done) = lanes[turn];
        let Some(instruction) = plans[rank].lanes[lane].instructions.get(at) else {
            lanes.swap_remove(turn);
            continue;
        };
        let place = Place { rank, lane, instruction: at };
        match machine.step(rank, instruction, done, poisoned == Some(place))? {
            None if refused > 200 * lanes.len() => return Err("stuck".to_owned()),
            None => refused += 1,
            Some(moved) => {
                refused = 0;
                let done = done + moved;
                let over = done >= instruction.bytes();
                order.extend(over.then_some(place));
                lanes[turn] = (rank, lane, at + usize::from(over), if over { 0 } else { done });
            }
        }
    }
    machine.check().map(|()| order)
}

impl Machine<'_> {
    /// Does the next piece, if it can; returns its bytes.
    fn step(
        &mut self,
        rank: Rank,
        instruction: &Instruction,
        done: usize,
        poisoned: bool,
    ) -> Result<Option<usize>, String> {
        let plan = &self.plans[rank];
        let from = instruction.from().map(|from| (from.peer, rank, from.index));
        let to = instruction.to().map(|to| (rank, to.peer, to.index));
        let left = instruction.bytes() - done;
        let len = if from.or(to).is_some() { left.min(plan.chunk_bytes) } else { left };
        let full = |key: &Key| self.links.get(key).is_some_and(|it| it.len() >= MIN_LINK_CHUNKS);
        if to.as_ref().is_some_and(full) {
            return Ok(None);
        }
        let arrived = from.map(|key| self.links.get_mut(&key).and_then(VecDeque::pop_front));
        let received = match arrived {
            None => None,
            Some(None) => return Ok(None),
            Some(Some(Sent::Copy(bytes))) => Some(bytes),
            Some(Some(Sent::Reference(owner, at))) => {
                Some(self.memories[owner][at.region][at.start..at.end].to_vec())
            }
        };
        if received.as_ref().is_some_and(|received| received.len() != len) {
            return Err(format!("rank {rank} receives a piece of another length than {len}"));
        }
        let call = self.call;
        let part = |span: Span| bytes(call, rank, span.part(done, len));
        let mut operands: Vec<Vec<u8>> = reads(instruction)
            .into_iter()
            .map(|span| {
                let at = part(span);
                self.memories[rank][at.region][at.start..at.end].to_vec()
            })
            .chain(received)
            .collect();
        let mut result = operands.swap_remove(0);
        for operand in operands {
            result.iter_mut().zip(operand).for_each(|(own, other)| *own = own.wrapping_add(other));
        }
        if let Some(dst) = write(instruction) {
            let at = part(dst);
            let kept = &mut self.memories[rank][at.region][at.start..at.end];
            kept.copy_from_slice(&result);
            if poisoned {
                kept.iter_mut().for_each(|byte| *byte ^= 0x5A);
            }
        }
        if let Some(to) = to {
            let lent = match *instruction {
                Instruction::Send { src, .. } if plan.by_reference => Some(part(src)),
                _ => None,
            };
            let sent = lent.map_or(Sent::Copy(result), |at| Sent::Reference(rank, at));
            self.links.entry(to).or_default().push_back(sent);
        }
        Ok(Some(len))
    }

    fn check(&self) -> Result<(), String> {
        let (call, count) = (self.call, self.call.bytes());
        let sum = |at: usize| {
            (0..call.world()).fold(0_u8, |sum, rank| sum.wrapping_add(contribution(rank, at)))
        };
        for rank in 0..call.world() {
            let whole = Span { buffer: Buffer::Output, offset: 0, bytes: call.output_bytes(rank) };
            let at = bytes(call, rank, whole);
            let held = &self.memories[rank][at.region][at.start..at.end];
            for (offset, &byte) in held.iter().enumerate() {
                let root = call.root().unwrap_or_default();
                let expected = match call.kind() {
                    CollectiveKind::AllReduce | CollectiveKind::Reduce => sum(offset),
                    CollectiveKind::ReduceScatter => sum(rank * count + offset),
                    CollectiveKind::Broadcast => contribution(root, offset),
                    CollectiveKind::Scatter => contribution(root, rank * count + offset),
                    CollectiveKind::AllToAll => {
                        contribution(offset / count, rank * count + offset % count)
                    }
                    _ => contribution(offset / count, offset % count),
                };
                if byte != expected {
                    return Err(format!("rank {rank} holds {byte} for {expected} at {offset}"));
                }
            }
        }
        match self.links.values().all(VecDeque::is_empty) {
            true => Ok(()),
            false => Err("messages are left".to_owned()),
        }
    }
}
