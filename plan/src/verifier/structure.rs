//! What can be checked without running: spans, and who uses which link.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::{Instruction, LinkId, Plan, Rank, Span};

use super::Rules;
use super::fault::{Fault, Link, Place};
use super::layout::{Area, Layout, Role};

/// The plans of all ranks in the form that runs: spans are areas, links are numbers.
pub(super) struct Program {
    pub(super) lanes: Vec<LaneProgram>,
    pub(super) links: Vec<LinkEnds>,
    /// The largest piece of a message, in elements.
    pub(super) piece: usize,
    /// Which ranks hand out references.
    pub(super) by_reference: Vec<bool>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// One lane of one rank.
pub(super) struct LaneProgram {
    pub(super) rank: Rank,
    pub(super) lane: usize,
    pub(super) steps: Vec<Step>,
}

/// An instruction. It writes what it received or read, or the combination of both operands.
pub(super) struct Step {
    pub(super) instruction: usize,
    /// Elements that it moves.
    pub(super) elements: usize,
    /// Numbers of the links.
    pub(super) from: Option<usize>,
    pub(super) to: Option<usize>,
    /// Local operands.
    pub(super) read: Option<Operand>,
    pub(super) also: Option<Operand>,
    pub(super) write: Option<Area>,
    /// Set where it combines: whether that is the last combination.
    pub(super) combine: Option<bool>,
}

/// What a step reads.
pub(super) struct Operand {
    pub(super) area: Area,
    /// Whether the plan names it as input: in place, the same memory has two names.
    pub(super) source: bool,
}

/// A link and the lanes that use it.
pub(super) struct LinkEnds {
    pub(super) link: Link,
    pub(super) writer: Option<usize>,
    pub(super) reader: Option<usize>,
    sent: Vec<(Place, usize)>,
    received: Vec<(Place, usize)>,
}

impl Program {
    /// Checks everything but what depends on running.
    pub(super) fn check(rules: &Rules, layouts: &[Layout], plans: &[Plan]) -> Result<Self, Fault> {
        if plans.len() != rules.world {
            return Err(Fault::World { plans: plans.len(), world: rules.world });
        }
        let first = plans.first().map_or(0, |plan| plan.chunk_bytes);
        for (position, plan) in plans.iter().enumerate() {
            let Plan { rank, world, chunk_bytes, .. } = *plan;
            if rank != position || world != rules.world {
                return Err(Fault::Header { position, rank, world });
            }
            if chunk_bytes != first || chunk_bytes == 0 || chunk_bytes % 8 != 0 {
                return Err(Fault::ChunkBytes { rank, chunk_bytes, first });
            }
        }
        let mut links = Links { world: rules.world, numbers: HashMap::new(), ends: Vec::new() };
        let mut lanes = Vec::new();
        for (plan, layout) in plans.iter().zip(layouts) {
            let rank = plan.rank;
            for (lane, list) in plan.lanes.iter().enumerate() {
                let mut steps = Vec::with_capacity(list.instructions.len());
                for (instruction, it) in list.instructions.iter().enumerate() {
                    let at = Place { rank, lane, instruction };
                    let mut step = check_spans(rules, layout, at, it)?;
                    step.from = it
                        .from()
                        .map(|from| links.receive(at, from, lanes.len(), it))
                        .transpose()?;
                    step.to = it.to().map(|to| links.send(at, to, lanes.len(), it)).transpose()?;
                    steps.push(step);
                }
                lanes.push(LaneProgram { rank, lane, steps });
            }
        }
        links.check_messages()?;
        Ok(Self {
            lanes,
            piece: (first / rules.unit).max(1),
            by_reference: plans.iter().map(|plan| plan.by_reference).collect(),
            messages: links.ends.iter().map(|ends| ends.sent.len()).sum(),
            bytes: links.ends.iter().flat_map(|ends| &ends.sent).map(|(_, bytes)| bytes).sum(),
            links: links.ends,
        })
    }

    pub(super) fn place(&self, lane: usize, step: usize) -> Place {
        let LaneProgram { rank, lane, ref steps } = self.lanes[lane];
        Place { rank, lane, instruction: steps[step].instruction }
    }
}

/// Checks the spans of one instruction; leaves the links open.
fn check_spans(
    rules: &Rules,
    layout: &Layout,
    at: Place,
    instruction: &Instruction,
) -> Result<Step, Fault> {
    let (read, also, write, combine) = match *instruction {
        Instruction::Send { src, .. } => (Some(src), None, None, None),
        Instruction::Recv { dst, .. } | Instruction::RecvCopySend { dst, .. } => {
            (None, None, Some(dst), None)
        }
        Instruction::RecvReduce { with, dst, finish, .. } => {
            (Some(with), None, Some(dst), Some(finish))
        }
        Instruction::RecvReduceSend { with, dst, finish, .. } => {
            (Some(with), None, dst, Some(finish))
        }
        Instruction::Copy { src, dst } => (Some(src), None, Some(dst), None),
        Instruction::Reduce { a, b, dst, finish } => (Some(a), Some(b), Some(dst), Some(finish)),
    };
    if combine.is_some() && !rules.reduces {
        return Err(Fault::NoOperator { at });
    }
    let bytes = instruction.bytes();
    let talks = instruction.from().is_some() || instruction.to().is_some();
    if talks && bytes == 0 && !rules.empty_messages {
        return Err(Fault::EmptyMessage { at });
    }
    let area = |span: Option<Span>| span.map(|span| resolve(layout, at, span)).transpose();
    let areas = (area(read)?, area(also)?, area(write)?);
    let (read_area, also_area, write_area) = areas;
    let unmoved = matches!(instruction, Instruction::Copy { .. }) && read_area == write_area;
    if let Some(dst) = write {
        for operand in [read, also].into_iter().flatten() {
            if operand.bytes != dst.bytes {
                return Err(Fault::Lengths { at, first: operand, second: dst });
            }
        }
        let source = layout.buffer(dst.buffer).is_some_and(|buffer| buffer.role == Role::Source);
        if source && !unmoved {
            return Err(Fault::ReadOnly { at, span: dst });
        }
        if let (Some(operand), Some(from), Some(to)) = (read, read_area, write_area)
            && from != to
            && from.overlaps(to)
        {
            return Err(Fault::Overlap { at, operand, dst });
        }
        if let (Some(operand), Some(from), Some(to)) = (also, also_area, write_area)
            && from.overlaps(to)
        {
            return Err(Fault::Overlap { at, operand, dst });
        }
    }
    Ok(Step {
        instruction: at.instruction,
        elements: if unmoved { 0 } else { bytes / rules.unit },
        from: None,
        to: None,
        read: operand(layout, read),
        also: operand(layout, also),
        write: write_area,
        combine,
    })
}

/// `span`, which has been checked.
fn operand(layout: &Layout, span: Option<Span>) -> Option<Operand> {
    let source = |span: Span| layout.buffer(span.buffer).is_some_and(|it| it.role == Role::Source);
    span.map(|span| Operand { area: layout.area(span), source: source(span) })
}

fn resolve(layout: &Layout, at: Place, span: Span) -> Result<Area, Fault> {
    if !layout.contains(span) {
        let available = layout.buffer(span.buffer).map_or(0, |buffer| buffer.bytes);
        return Err(Fault::Bounds { at, span, available });
    }
    let unit = layout.unit;
    if !span.offset.is_multiple_of(unit) || !span.bytes.is_multiple_of(unit) {
        return Err(Fault::Alignment { at, span, unit });
    }
    Ok(layout.area(span))
}

/// The links met so far.
struct Links {
    world: usize,
    numbers: HashMap<Link, usize>,
    ends: Vec<LinkEnds>,
}

impl Links {
    fn receive(
        &mut self,
        at: Place,
        from: LinkId,
        lane: usize,
        instruction: &Instruction,
    ) -> Result<usize, Fault> {
        let link = Link { from: from.peer, to: at.rank, index: from.index };
        let number = self.number(at, from.peer, link)?;
        let ends = &mut self.ends[number];
        if *ends.reader.get_or_insert(lane) != lane {
            return Err(Fault::Readers { link, first: ends.received[0].0, second: at });
        }
        ends.received.push((at, instruction.bytes()));
        Ok(number)
    }

    fn send(
        &mut self,
        at: Place,
        to: LinkId,
        lane: usize,
        instruction: &Instruction,
    ) -> Result<usize, Fault> {
        let link = Link { from: at.rank, to: to.peer, index: to.index };
        let number = self.number(at, to.peer, link)?;
        let ends = &mut self.ends[number];
        if *ends.writer.get_or_insert(lane) != lane {
            return Err(Fault::Writers { link, first: ends.sent[0].0, second: at });
        }
        ends.sent.push((at, instruction.bytes()));
        Ok(number)
    }

    fn number(&mut self, at: Place, peer: Rank, link: Link) -> Result<usize, Fault> {
        if peer >= self.world {
            return Err(Fault::Peer { at, peer, world: self.world });
        }
        if peer == at.rank {
            return Err(Fault::SelfLink { at });
        }
        match self.numbers.entry(link) {
            Entry::Occupied(entry) => Ok(*entry.get()),
            Entry::Vacant(entry) => {
                let (sent, received) = (Vec::new(), Vec::new());
                self.ends.push(LinkEnds { link, writer: None, reader: None, sent, received });
                Ok(*entry.insert(self.ends.len() - 1))
            }
        }
    }

    /// The k-th message of each link is sent and received with the same length, and none is left over. A
    /// missing message shows when running, as a lane that waits for it.
    fn check_messages(&self) -> Result<(), Fault> {
        for LinkEnds { link, sent, received, .. } in &self.ends {
            let pairs = sent.iter().zip(received).enumerate();
            for (message, (&(sender, sent), &(receiver, received))) in pairs {
                if sent != received {
                    let link = *link;
                    return Err(Fault::MessageLength {
                        link,
                        message,
                        sent,
                        sender,
                        received,
                        receiver,
                    });
                }
            }
            if let Some(&(sender, _)) = sent.get(received.len()) {
                let messages = sent.len() - received.len();
                return Err(Fault::Unreceived { link: *link, messages, sender });
            }
        }
        Ok(())
    }
}
