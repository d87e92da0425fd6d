//! What output memory must hold at the end.

use crate::{Buffer, Collective, CollectiveKind, Rank, Span};

use super::fault::Fault;
use super::layout::{Layout, Placement, Role};
use super::progress::Run;
use super::value::Value;

/// What one rank of an exchange begins with and must end with. Its buffers do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The buffers that it sends from, with their lengths in bytes. They are never written.
    pub sources: Vec<(Buffer, usize)>,
    /// The buffers that it receives into, with their lengths in bytes. Bytes that nothing arrives at keep
    /// what they hold.
    pub destinations: Vec<(Buffer, usize)>,
    /// What the destinations must hold.
    pub arrivals: Vec<Arrival>,
}

/// Bytes of one rank that belong into the destination of another, or of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Where to.
    pub dst: Span,
    /// Whose bytes.
    pub rank: Rank,
    /// Which, in one of that rank's sources; as long as `dst`.
    pub src: Span,
}

/// Every output element holds what the collective promises, and ranks that hold the same reduction hold it in
/// the same order.
pub(super) fn check_collective(
    calls: &[Collective],
    layouts: &[Layout],
    run: &Run,
) -> Result<(), Fault> {
    for (rank, (call, layout)) in calls.iter().zip(layouts).enumerate() {
        let span = Span { buffer: Buffer::Output, offset: 0, bytes: call.output_bytes(rank) };
        for (element, value) in output(layout, run, rank, span).enumerate() {
            let wanted = Wanted::of(call, rank, element);
            if !wanted.is(run, value) {
                return Err(Fault::Output {
                    rank,
                    span: element_of(span, layout.unit, element),
                    found: run.values.describe(value),
                    expected: wanted.describe(),
                });
            }
        }
        if call.kind() == CollectiveKind::AllReduce {
            let theirs = output(&layouts[0], run, 0, span);
            for (element, (own, other)) in output(layout, run, rank, span).zip(theirs).enumerate() {
                if !own.same_order(other) {
                    return Err(Fault::OrderDiffers {
                        rank,
                        span: element_of(span, layout.unit, element),
                        found: run.values.describe(own),
                        other: 0,
                        other_found: run.values.describe(other),
                    });
                }
            }
        }
    }
    Ok(())
}

/// The description of an exchange makes sense: each arrival names whole elements of buffers that exist.
pub(super) fn check_description(contents: &[Contents], layouts: &[Layout]) -> Result<(), Fault> {
    let whole = |layout: &Layout, span: Span| {
        layout.contains(span)
            && span.offset.is_multiple_of(layout.unit)
            && span.bytes.is_multiple_of(layout.unit)
    };
    for (rank, (contents, layout)) in contents.iter().zip(layouts).enumerate() {
        for arrival in &contents.arrivals {
            let dst = whole(layout, arrival.dst) && arrival.src.bytes == arrival.dst.bytes;
            let source = layouts.get(arrival.rank);
            if !dst || !source.is_some_and(|source| whole(source, arrival.src)) {
                return Err(Fault::Arrival { rank, arrival: *arrival });
            }
        }
    }
    Ok(())
}

/// Every arrival has arrived, and nothing else was written but scratch.
pub(super) fn check_exchange(
    contents: &[Contents],
    layouts: &[Layout],
    run: &Run,
) -> Result<(), Fault> {
    for (rank, (contents, layout)) in contents.iter().zip(layouts).enumerate() {
        let unit = layout.unit;
        let mut covered: Vec<Vec<bool>> =
            layout.regions.iter().map(|&elements| vec![false; elements]).collect();
        for arrival in &contents.arrivals {
            let area = layout.area(arrival.dst);
            covered[area.region][area.start..area.start + area.len].fill(true);
            let first = arrival.src.offset / unit;
            for (element, value) in output(layout, run, rank, arrival.dst).enumerate() {
                let (from, buffer) = (arrival.rank, arrival.src.buffer);
                let wanted = Wanted::Source { rank: from, buffer, element: first + element };
                if !wanted.is(run, value) {
                    return Err(Fault::Output {
                        rank,
                        span: element_of(arrival.dst, unit, element),
                        found: run.values.describe(value),
                        expected: wanted.describe(),
                    });
                }
            }
        }
        let destinations = layout.buffers.iter().filter(|buffer| buffer.role == Role::Destination);
        for &Placement { buffer, region, .. } in destinations {
            for (element, covered) in covered[region].iter().enumerate() {
                if !covered && run.memories[rank].was_written(region, element) {
                    let span = Span { buffer, offset: element * unit, bytes: unit };
                    return Err(Fault::Touched { rank, span });
                }
            }
        }
    }
    Ok(())
}

fn output(layout: &Layout, run: &Run, rank: Rank, span: Span) -> impl Iterator<Item = Value> {
    run.memories[rank].values(layout.area(span))
}

fn element_of(span: Span, unit: usize, element: usize) -> Span {
    Span { offset: span.offset + element * unit, bytes: unit, ..span }
}

/// What an element must hold.
enum Wanted {
    /// The complete reduction of the n-th elements of all inputs.
    Reduction { element: usize },
    /// A copy.
    Source { rank: Rank, buffer: Buffer, element: usize },
}

impl Wanted {
    fn of(call: &Collective, rank: Rank, element: usize) -> Self {
        let count = call.count();
        let root = call.root().unwrap_or_default();
        let input = |rank, element| Self::Source { rank, buffer: Buffer::Input, element };
        match call.kind() {
            CollectiveKind::AllReduce | CollectiveKind::Reduce => Self::Reduction { element },
            CollectiveKind::ReduceScatter => Self::Reduction { element: rank * count + element },
            CollectiveKind::AllGather | CollectiveKind::Gather => {
                input(element / count, element % count)
            }
            CollectiveKind::AllToAll => input(element / count, rank * count + element % count),
            CollectiveKind::Scatter => input(root, rank * count + element),
            CollectiveKind::Broadcast
            | CollectiveKind::AllToAllV
            | CollectiveKind::Barrier
            | CollectiveKind::PointToPoint => input(root, element),
        }
    }

    fn is(&self, run: &Run, value: Value) -> bool {
        match *self {
            Self::Reduction { element } => run.values.is_complete(value, element),
            Self::Source { rank, buffer, element } => {
                run.values.is_source(value, rank, buffer, element)
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Reduction { element } => format!("the finished reduction of element {element}"),
            Self::Source { rank, buffer: Buffer::Input, element } => {
                format!("{rank} of element {element}")
            }
            Self::Source { rank, buffer, element } => {
                format!("{rank}'s {buffer:?} of element {element}")
            }
        }
    }
}
