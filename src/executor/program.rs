//! A plan made ready to run: spans checked, links open, kernel chosen.

use std::time::Instant;

use annulus_plan::Direction;
use annulus_plan::{Fingerprint, Instruction, LinkId, Plan, Rank, Span};
use annulus_transports::link::{Fabric, LinkError};
use annulus_transports::memory::Store;

use super::Links;
use super::buffers::Extents;
use super::lane::MIN_REFERENCE_BYTES;
use crate::reduce::Kernel;

/// Outputs of at least this many bytes are written past the cache: two such outputs and their inputs
/// exceed the last-level cache of common hosts (measured: the stores lose up to 4 MiB and win from 8 MiB).
const NON_TEMPORAL_OUTPUT_BYTES: usize = 8 << 20;

/// The cached result of planning: everything about a call but its buffers and its sequence number.
pub(crate) struct Program {
    pub(super) lanes: Vec<Lane>,
    pub(super) kernel: Kernel,
    pub(super) element_bytes: usize,
    pub(super) piece_bytes: usize,
    pub(super) by_reference: bool,
    /// Whether a peer may answer a receive with a reference, whatever this rank's own plan says of its sends.
    pub(super) reads_references: bool,
    pub(super) output_store: Store,
    /// The links that the program sends on, once each.
    pub(super) sends: Vec<End>,
    /// The links that the program receives from, once each.
    pub(super) recvs: Vec<usize>,
    scratch_bytes: usize,
}

/// One of the program's instruction lists and how far it has come.
pub(super) struct Lane {
    pub(super) steps: Vec<Step>,
    /// What each step's message says, where that differs from step to step; else empty.
    pub(super) marks: Vec<Fingerprint>,
    pub(super) next: usize,
    /// Bytes of the current step that have been received and dealt with, or sent where nothing is received.
    pub(super) done: usize,
    /// Bytes of the current step that have been passed on.
    pub(super) sent: usize,
}

/// An instruction with its links by number and its peer at hand for messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Send { to: End, src: Span },
    Recv { from: End, dst: Span },
    RecvReduce { from: End, with: Span, dst: Span, finish: bool },
    RecvReduceSend { from: End, to: End, with: Span, dst: Option<Span>, finish: bool },
    RecvCopySend { from: End, to: End, dst: Span },
    Copy { src: Span, dst: Span },
    Reduce { a: Span, b: Span, dst: Span, finish: bool },
}

/// One end of an open link.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) link: usize,
    pub(super) peer: Rank,
}

impl Program {
    /// Makes `plan` ready. Opens the links that it needs, which may block until `deadline`.
    ///
    /// # Panics
    /// When a span of the plan lies outside `extents`: algorithms are proved never to do that, and
    /// running such a plan would corrupt memory.
    pub(crate) fn compile(
        plan: &Plan,
        extents: &Extents,
        kernel: Kernel,
        element_bytes: usize,
        links: &mut Links,
        fabric: &dyn Fabric,
        deadline: Instant,
    ) -> Result<Self, LinkError> {
        let mut linker = Linker { links, fabric, deadline, sends: Vec::new(), recvs: Vec::new() };
        let mut lanes = Vec::with_capacity(plan.lanes.len());
        for lane in &plan.lanes {
            let mut steps = Vec::with_capacity(lane.instructions.len());
            for instruction in &lane.instructions {
                for span in spans(instruction).into_iter().flatten() {
                    assert!(extents.hold(span), "{instruction:?} leaves its buffer ({extents:?})");
                }
                steps.push(linker.step(instruction)?);
            }
            if !steps.is_empty() {
                lanes.push(Lane { steps, marks: Vec::new(), next: 0, done: 0, sent: 0 });
            }
        }
        let Linker { sends, recvs, .. } = linker;
        let reads_references = plan
            .lanes
            .iter()
            .flat_map(|lane| &lane.instructions)
            .any(|step| step.from().is_some() && step.bytes() >= MIN_REFERENCE_BYTES);
        let output_store = if extents.output >= NON_TEMPORAL_OUTPUT_BYTES {
            Store::NonTemporal
        } else {
            Store::Cached
        };
        Ok(Self {
            lanes,
            kernel,
            element_bytes,
            piece_bytes: plan.chunk_bytes,
            by_reference: plan.by_reference,
            reads_references,
            output_store,
            sends,
            recvs,
            scratch_bytes: plan.scratch_bytes,
        })
    }

    /// Bytes of scratch memory that running it needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Gives each message its own fingerprint, in the order of each lane, for calls whose messages differ.
    pub(crate) fn mark(&mut self, mut mark: impl FnMut(Direction, Rank, Span) -> Fingerprint) {
        for lane in &mut self.lanes {
            lane.marks.clear();
            lane.marks.extend(lane.steps.iter().map(|step| match *step {
                Step::Send { to, src } => mark(Direction::Send, to.peer, src),
                Step::Recv { from, dst } => mark(Direction::Receive, from.peer, dst),
                _ => Fingerprint::default(),
            }));
        }
    }

    /// One of the fingerprints that [`mark`](Self::mark) gave.
    pub(crate) fn first_mark(&self) -> Option<Fingerprint> {
        self.lanes
            .iter()
            .flat_map(|lane| &lane.marks)
            .copied()
            .find(|&mark| mark != Fingerprint::default())
    }

    /// Puts every lane at its beginning.
    pub(super) fn rewind(&mut self) {
        for lane in &mut self.lanes {
            (lane.next, lane.done, lane.sent) = (0, 0, 0);
        }
    }
}

impl Lane {
    pub(super) fn is_finished(&self) -> bool {
        self.next == self.steps.len()
    }

    /// What the current step is blocked on: the peer whose message has not come, and the one whose link has no room.
    pub(super) fn waits_for(&self, links: &mut Links) -> [Option<(Rank, Direction)>; 2] {
        let (from, to, bytes) = match self.steps[self.next] {
            Step::Send { to, .. } => return [Some((to.peer, Direction::Send)), None],
            Step::Recv { from, .. } | Step::RecvReduce { from, .. } => {
                return [Some((from.peer, Direction::Receive)), None];
            }
            Step::RecvReduceSend { from, to, with, .. } => (from, to, with.bytes),
            Step::RecvCopySend { from, to, dst } => (from, to, dst.bytes),
            Step::Copy { .. } | Step::Reduce { .. } => return [None, None],
        };
        // A link that fails is its own error at the next turn.
        let arrived = matches!(links.recvs[from.link].try_peek(), Ok(Some(_)));
        let awaits_message = self.done < bytes && !arrived;
        let awaits_room = self.sent < self.done || arrived;
        [
            awaits_message.then_some((from.peer, Direction::Receive)),
            awaits_room.then_some((to.peer, Direction::Send)),
        ]
    }

    /// What the messages to `peer` say, where each says something of its own.
    pub(super) fn sent_to(&self, peer: Rank) -> impl Iterator<Item = &Fingerprint> {
        self.steps.iter().zip(&self.marks).filter_map(move |(step, mark)| match step {
            Step::Send { to, .. } if to.peer == peer => Some(mark),
            _ => None,
        })
    }
}

/// Turns link identities into numbers, and remembers which ones the program uses.
struct Linker<'a> {
    links: &'a mut Links,
    fabric: &'a dyn Fabric,
    deadline: Instant,
    sends: Vec<End>,
    recvs: Vec<usize>,
}

impl Linker<'_> {
    fn step(&mut self, instruction: &Instruction) -> Result<Step, LinkError> {
        Ok(match *instruction {
            Instruction::Send { to, src } => Step::Send { to: self.send(to)?, src },
            Instruction::Recv { from, dst } => Step::Recv { from: self.recv(from)?, dst },
            Instruction::RecvReduce { from, with, dst, finish } => {
                Step::RecvReduce { from: self.recv(from)?, with, dst, finish }
            }
            Instruction::RecvReduceSend { from, to, with, dst, finish } => Step::RecvReduceSend {
                from: self.recv(from)?,
                to: self.send(to)?,
                with,
                dst,
                finish,
            },
            Instruction::RecvCopySend { from, to, dst } => {
                Step::RecvCopySend { from: self.recv(from)?, to: self.send(to)?, dst }
            }
            Instruction::Copy { src, dst } => Step::Copy { src, dst },
            Instruction::Reduce { a, b, dst, finish } => Step::Reduce { a, b, dst, finish },
        })
    }

    fn send(&mut self, link: LinkId) -> Result<End, LinkError> {
        let number = self.links.send(link, self.fabric, self.deadline)?;
        let end = End { link: number, peer: link.peer };
        if self.sends.iter().all(|known| known.link != number) {
            self.sends.push(end);
        }
        Ok(end)
    }

    fn recv(&mut self, link: LinkId) -> Result<End, LinkError> {
        let number = self.links.recv(link, self.fabric, self.deadline)?;
        if !self.recvs.contains(&number) {
            self.recvs.push(number);
        }
        Ok(End { link: number, peer: link.peer })
    }
}

fn spans(instruction: &Instruction) -> [Option<Span>; 3] {
    match *instruction {
        Instruction::Send { src, .. } => [Some(src), None, None],
        Instruction::Recv { dst, .. } | Instruction::RecvCopySend { dst, .. } => {
            [Some(dst), None, None]
        }
        Instruction::RecvReduce { with, dst, .. } => [Some(with), Some(dst), None],
        Instruction::RecvReduceSend { with, dst, .. } => [Some(with), dst, None],
        Instruction::Copy { src, dst } => [Some(src), Some(dst), None],
        Instruction::Reduce { a, b, dst, .. } => [Some(a), Some(b), Some(dst)],
    }
}
