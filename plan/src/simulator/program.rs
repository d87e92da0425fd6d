//! Plans, reduced to what their timing depends on.

use crate::topology::Topology;
use crate::{Buffer, Instruction, Plan, Rank, Span};

use super::SimulationError;
use super::link_table::LinkTable;

/// No link.
pub(super) const NONE: u32 = 1 << 31;

/// `count` equal instructions, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Link that each receives from, or [`NONE`].
    pub(super) input: u32,
    /// Link that each sends to, or [`NONE`].
    pub(super) output: u32,
    /// Bytes of each.
    pub(super) bytes: usize,
    pub(super) count: u32,
    pub(super) work: Work,
    /// How many of the call's own bytes each byte reads and writes.
    pub(super) touches: u8,
}

/// What the rank's core does beside moving pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Move,
    Copy,
    Reduce,
}

/// One lane of one rank.
#[derive(Clone, Debug)]
pub(super) struct Track {
    pub(super) rank: u32,
    /// Its number in the rank's plan.
    pub(super) lane: u32,
    /// Where its runs begin in [`Program::runs`] ...
    pub(super) begin: usize,
    /// ... and end.
    pub(super) end: usize,
    /// The largest piece of its plan.
    pub(super) chunk_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) tracks: Vec<Track>,
    pub(super) runs: Vec<Run>,
    pub(super) links: LinkTable,
    /// Bytes of the call's buffers on each host.
    pub(super) footprint: Vec<usize>,
    host_of_rank: Vec<usize>,
    given: Vec<bool>,
}

impl Program {
    pub(super) fn new(topology: &Topology) -> Self {
        Self {
            tracks: Vec::new(),
            runs: Vec::new(),
            links: LinkTable::default(),
            footprint: vec![0; topology.hosts().len()],
            host_of_rank: topology.places().iter().map(|place| place.host).collect(),
            given: vec![false; topology.world()],
        }
    }

    pub(super) fn add(&mut self, plan: &Plan) -> Result<(), SimulationError> {
        let (rank, world) = (plan.rank, self.given.len());
        if plan.world != world {
            return Err(SimulationError::World { rank, plan: plan.world, topology: world });
        }
        if rank >= world {
            return Err(SimulationError::NoSuchRank { rank, named: rank, world });
        }
        if std::mem::replace(&mut self.given[rank], true) {
            return Err(SimulationError::Twice { rank });
        }
        let mut extent = Extent::default();
        for (number, lane) in plan.lanes.iter().enumerate() {
            let begin = self.runs.len();
            for instruction in &lane.instructions {
                let run = self.reduced(rank, instruction, &mut extent)?;
                match self.runs[begin..].last_mut() {
                    Some(last) if repeats(last, &run) => last.count += 1,
                    _ => self.runs.push(run),
                }
            }
            if self.tracks.len() as u32 == NONE {
                return Err(SimulationError::TooMany);
            }
            self.tracks.push(Track {
                rank: rank as u32,
                lane: number as u32,
                begin,
                end: self.runs.len(),
                chunk_bytes: plan.chunk_bytes.max(1),
            });
        }
        self.footprint[self.host_of_rank[rank]] += extent.bytes();
        Ok(())
    }

    pub(super) fn check_complete(&self) -> Result<(), SimulationError> {
        match self.given.iter().position(|given| !given) {
            Some(rank) => Err(SimulationError::Missing { rank }),
            None => Ok(()),
        }
    }

    pub(super) fn is_given(&self, rank: Rank) -> bool {
        self.given[rank]
    }

    fn reduced(
        &mut self,
        rank: Rank,
        instruction: &Instruction,
        extent: &mut Extent,
    ) -> Result<Run, SimulationError> {
        let world = self.given.len();
        let mut number = |peer: Rank, from, to, index| {
            if peer >= world {
                return Err(SimulationError::NoSuchRank { rank, named: peer, world });
            }
            self.links.number(from, to, index).ok_or(SimulationError::TooMany)
        };
        let input = match instruction.from() {
            Some(link) => number(link.peer, link.peer, rank, link.index)?,
            None => NONE,
        };
        let output = match instruction.to() {
            Some(link) => number(link.peer, rank, link.peer, link.index)?,
            None => NONE,
        };
        let mut read = |span: Span| extent.touch(span, false);
        let (work, reads, writes) = match *instruction {
            Instruction::Send { src, .. } => (Work::Move, read(src), None),
            Instruction::Recv { dst, .. } | Instruction::RecvCopySend { dst, .. } => {
                (Work::Move, 0, Some(dst))
            }
            Instruction::RecvReduce { with, dst, .. } => {
                (Work::Reduce, read(with), (with != dst).then_some(dst))
            }
            Instruction::RecvReduceSend { with, dst, .. } => {
                (Work::Reduce, read(with), dst.filter(|&dst| with != dst))
            }
            Instruction::Copy { src, dst } if src == dst => (Work::Move, 0, None),
            Instruction::Copy { src, dst } => (Work::Copy, read(src), Some(dst)),
            Instruction::Reduce { a, b, dst, .. } => {
                (Work::Reduce, read(a) + read(b), (a != dst).then_some(dst))
            }
        };
        let touches = reads + writes.map_or(0, |dst| extent.touch(dst, true));
        Ok(Run { input, output, bytes: instruction.bytes(), count: 1, work, touches })
    }
}

fn repeats(last: &Run, run: &Run) -> bool {
    last.count < u32::MAX && Run { count: run.count, ..*last } == *run
}

/// How far a plan reaches into the call's buffers.
#[derive(Default)]
struct Extent {
    input: usize,
    output: usize,
    members: usize,
}

impl Extent {
    /// Notes a span; returns how many bytes of memory outside the caches each of its bytes may mean. What a plan
    /// reads from its output it has just written, so it is still in a cache.
    fn touch(&mut self, span: Span, writes: bool) -> u8 {
        let end = span.offset.saturating_add(span.bytes);
        match span.buffer {
            Buffer::Input => self.input = self.input.max(end),
            Buffer::Output => {
                self.output = self.output.max(end);
                return u8::from(writes);
            }
            // Each member is touched by one message.
            Buffer::Member(_) => self.members = self.members.saturating_add(span.bytes),
            Buffer::Scratch => return 0,
        }
        1
    }

    fn bytes(&self) -> usize {
        self.input.saturating_add(self.output).saturating_add(self.members)
    }
}
