//! Where the buffers of one rank lie, and which of them are the same memory.

use std::collections::BTreeMap;

use crate::exchange::Direction;
use crate::{Buffer, Collective, CollectiveKind, Exchange, Rank, Span};

/// The memory of one rank: regions that are disjoint, and the buffers that lie in them.
pub(super) struct Layout {
    /// Element size in bytes.
    pub(super) unit: usize,
    /// Lengths of the regions in elements.
    pub(super) regions: Vec<usize>,
    pub(super) buffers: Vec<Placement>,
}

/// One buffer.
pub(super) struct Placement {
    pub(super) buffer: Buffer,
    pub(super) bytes: usize,
    /// Its region, and its first element there.
    pub(super) region: usize,
    pub(super) start: usize,
    pub(super) role: Role,
    /// Whether it holds something at the start.
    pub(super) defined: bool,
}

/// What a buffer is to the call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Never written.
    Source,
    /// Written.
    Destination,
    /// Written, and of no interest at the end.
    Scratch,
}

/// A range of elements in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) region: usize,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Layout {
    /// The memory of `rank` in `call`; its input and output coincide as [`Collective::in_place`] tells.
    pub(super) fn of_collective(call: &Collective, rank: Rank, scratch_bytes: usize) -> Self {
        let count = call.count();
        let at_root = call.root() == Some(rank);
        let starts = match call.kind() {
            _ if !call.in_place() => None,
            CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::Broadcast => {
                Some((0, 0))
            }
            CollectiveKind::ReduceScatter => Some((0, rank * count)),
            CollectiveKind::AllGather => Some((rank * count, 0)),
            CollectiveKind::Gather if at_root => Some((rank * count, 0)),
            CollectiveKind::Scatter if at_root => Some((0, rank * count)),
            _ => None,
        };
        let mut layout = Self::new(call.dtype().size());
        let (input, output) = (call.input_bytes(rank), call.output_bytes(rank));
        let (region, other) = (layout.region(), layout.region());
        let (input_start, output_start) = starts.unwrap_or((0, 0));
        let output_region = if starts.is_some() { region } else { other };
        layout.place(Buffer::Input, input, region, input_start, Role::Source);
        layout.place(Buffer::Output, output, output_region, output_start, Role::Destination);
        layout.with_scratch(scratch_bytes)
    }

    /// The memory of a rank in an exchange: its buffers, as far as transfers name them, none of which overlap.
    pub(super) fn of_exchange(exchange: &Exchange, scratch_bytes: usize) -> Self {
        let mut layout = Self::new(1);
        let mut buffers: BTreeMap<Buffer, (usize, Role)> = BTreeMap::new();
        for it in exchange.transfers() {
            let (bytes, role) = buffers.entry(it.buffer).or_insert((0, Role::Source));
            *bytes = (*bytes).max(it.offset + it.bytes);
            if it.direction == Direction::Receive {
                *role = Role::Destination;
            }
        }
        for (buffer, (bytes, role)) in buffers {
            let region = layout.region();
            layout.place(buffer, bytes, region, 0, role);
        }
        layout.buffers.iter_mut().for_each(|buffer| buffer.defined = true);
        layout.with_scratch(scratch_bytes)
    }

    /// This buffer, if the rank has it.
    pub(super) fn buffer(&self, buffer: Buffer) -> Option<&Placement> {
        self.buffers.iter().find(|placement| placement.buffer == buffer)
    }

    /// Whether the rank has the buffer and `span` lies within it.
    pub(super) fn contains(&self, span: Span) -> bool {
        let bytes = self.buffer(span.buffer).map_or(0, |buffer| buffer.bytes);
        span.offset.checked_add(span.bytes).is_some_and(|end| end <= bytes)
    }

    /// Where `span`, which lies within its buffer and between elements, is.
    pub(super) fn area(&self, span: Span) -> Area {
        let (region, start) =
            self.buffer(span.buffer).map_or((0, 0), |buffer| (buffer.region, buffer.start));
        Area { region, start: start + span.offset / self.unit, len: span.bytes / self.unit }
    }

    /// The name of an element: as part of what is written, if it may be.
    pub(super) fn span(&self, region: usize, element: usize) -> Span {
        let holds = |placement: &&Placement| {
            let elements = placement.bytes.div_ceil(self.unit);
            placement.region == region
                && (placement.start..placement.start + elements).contains(&element)
        };
        let found = self.buffers.iter().rev().find(holds);
        let (buffer, start) =
            found.map_or((Buffer::Scratch, 0), |placement| (placement.buffer, placement.start));
        Span { buffer, offset: (element - start) * self.unit, bytes: self.unit }
    }

    fn new(unit: usize) -> Self {
        Self { unit, regions: Vec::new(), buffers: Vec::new() }
    }

    fn region(&mut self) -> usize {
        self.regions.push(0);
        self.regions.len() - 1
    }

    fn place(&mut self, buffer: Buffer, bytes: usize, region: usize, start: usize, role: Role) {
        let end = start + bytes.div_ceil(self.unit);
        self.regions[region] = self.regions[region].max(end);
        let defined = role == Role::Source;
        self.buffers.push(Placement { buffer, bytes, region, start, role, defined });
    }

    fn with_scratch(mut self, bytes: usize) -> Self {
        let region = self.region();
        self.place(Buffer::Scratch, bytes, region, 0, Role::Scratch);
        self
    }
}

impl Area {
    pub(super) fn part(self, offset: usize, len: usize) -> Self {
        Self { start: self.start + offset, len, ..self }
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.region == other.region
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }
}
