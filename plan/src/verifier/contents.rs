//! What output memory must hold at the end.

use std::collections::{HashMap, VecDeque};

use crate::exchange::{Direction, Transfer};
use crate::{Buffer, Collective, CollectiveKind, Exchange, Rank, Span};

use super::fault::Fault;
use super::layout::{Layout, Role};
use super::progress::Run;
use super::value::Value;

/// Bytes that belong into the memory of a rank at the end of an exchange.
pub(super) struct Arrival {
    /// Where to.
    dst: Span,
    /// Whose bytes.
    from: Rank,
    /// Which; as many.
    src: Span,
}

/// For each rank, what must have arrived: the k-th receive from a peer gets the peer's k-th send. Every
/// rank's exchange is in its place.
pub(super) fn arrivals(exchanges: &[Exchange]) -> Result<Vec<Vec<Arrival>>, Fault> {
    let mut sends: HashMap<(Rank, Rank), VecDeque<Span>> = HashMap::new();
    let transfers = |direction| {
        exchanges.iter().flat_map(move |exchange| {
            let chosen = move |it: &&Transfer| it.direction == direction && it.bytes > 0;
            exchange.transfers().iter().filter(chosen).map(|it| (exchange.rank(), it))
        })
    };
    for (from, it) in transfers(Direction::Send) {
        sends.entry((from, it.peer)).or_default().push_back(it.span());
    }
    let mut arrivals: Vec<Vec<Arrival>> = exchanges.iter().map(|_| Vec::new()).collect();
    for (to, it) in transfers(Direction::Receive) {
        let src = sends.get_mut(&(it.peer, to)).and_then(VecDeque::pop_front);
        match src.filter(|src| src.bytes == it.bytes) {
            Some(src) => arrivals[to].push(Arrival { dst: it.span(), from: it.peer, src }),
            None => return Err(Fault::Unpaired { rank: to, peer: it.peer, span: it.span() }),
        }
    }
    let left = sends.into_iter().find_map(|(ranks, left)| Some((ranks, *left.front()?)));
    match left {
        Some(((rank, peer), span)) => Err(Fault::Unpaired { rank, peer, span }),
        None => Ok(arrivals),
    }
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

/// Every arrival has arrived, and nothing else was written but scratch.
pub(super) fn check_exchange(
    arrivals: &[Vec<Arrival>],
    layouts: &[Layout],
    run: &Run,
) -> Result<(), Fault> {
    for (rank, (arrivals, layout)) in arrivals.iter().zip(layouts).enumerate() {
        let mut covered: Vec<Vec<bool>> =
            layout.regions.iter().map(|&elements| vec![false; elements]).collect();
        for &Arrival { dst, from, src } in arrivals {
            let area = layout.area(dst);
            covered[area.region][area.start..area.start + area.len].fill(true);
            for (element, value) in output(layout, run, rank, dst).enumerate() {
                let element_there = src.offset / layout.unit + element;
                let wanted =
                    Wanted::Source { rank: from, buffer: src.buffer, element: element_there };
                if !wanted.is(run, value) {
                    return Err(Fault::Output {
                        rank,
                        span: element_of(dst, layout.unit, element),
                        found: run.values.describe(value),
                        expected: wanted.describe(),
                    });
                }
            }
        }
        for buffer in layout.buffers.iter().filter(|buffer| buffer.role == Role::Destination) {
            for (element, covered) in covered[buffer.region].iter().enumerate() {
                if !covered && run.memories[rank].was_written(buffer.region, element) {
                    let span = layout.span(buffer.region, element);
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
