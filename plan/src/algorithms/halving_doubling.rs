//! Recursive halving to combine, recursive doubling to gather, in ⌈log2 n⌉ steps each.
//!
//! The largest power of two of ranks, the *core*, does the work. The other ranks, the *extras*,
//! first hand their contribution to a neighbour in the core and get their result from it at the
//! end: of the first ranks every odd one is an extra, and the even one before it its neighbour, so
//! that the blocks of both lie side by side.
//!
//! In each step two ranks exchange blocks of any size, chunk by chunk: a rank sends one chunk, then
//! receives one, so it is never more than one chunk ahead and no link fills up. What is sent is
//! overwritten only by the result that the same partner returns later, after it has read it; so it
//! may be sent by reference.

use crate::{CollectiveKind, LinkId, Plan, Rank, Span};

use super::layout::{Layout, Steps, input, output, scratch};
use super::partition::Part;

pub(super) fn plan(layout: &Layout<'_>) -> Plan {
    let mut scratch_bytes = 0;
    let lanes = layout.shares().map(|(channel, share)| {
        let exchange = Exchange { layout, core: Core::new(layout.world()), channel, share };
        match layout.call.kind() {
            CollectiveKind::AllReduce => exchange.all_reduce(),
            CollectiveKind::ReduceScatter => {
                scratch_bytes = exchange.partial_bytes();
                exchange.reduce_scatter()
            }
            _ => exchange.all_gather(),
        }
    });
    let lanes = lanes.collect();
    layout.plan(lanes, scratch_bytes, true)
}

/// The power of two of ranks that halve and double, numbered by their position among themselves.
#[derive(Clone, Copy)]
struct Core {
    size: usize,
    extras: usize,
}

enum Role {
    /// In the core at this position; the extra that it stands for, if any.
    Core(usize, Option<Rank>),
    /// Represented by this rank.
    Extra(Rank),
}

impl Core {
    fn new(world: usize) -> Self {
        let size = 1 << world.ilog2();
        Self { size, extras: world - size }
    }

    fn role(self, rank: Rank) -> Role {
        match rank {
            _ if rank >= 2 * self.extras => Role::Core(rank - self.extras, None),
            _ if rank.is_multiple_of(2) => Role::Core(rank / 2, Some(rank + 1)),
            _ => Role::Extra(rank - 1),
        }
    }

    /// The rank at a position; also the first block that the position stands for. Defined up to
    /// `size`, where it is the world size.
    fn rank(self, position: usize) -> Rank {
        position + position.min(self.extras)
    }
}

/// One step of halving, seen from one position.
struct Halving {
    partner: usize,
    /// The positions whose data this rank goes on with.
    keep: (usize, usize),
    /// The positions whose data the partner goes on with.
    give: (usize, usize),
    last: bool,
}

/// The steps of halving, from the largest distance to the smallest. Doubling is the reverse: what
/// was given is got back.
fn halvings(core: Core, position: usize) -> impl DoubleEndedIterator<Item = Halving> {
    (0..core.size.ilog2()).rev().map(move |bit| {
        let distance = 1 << bit;
        let partner = position ^ distance;
        let range = |position: usize| {
            let first = position >> bit << bit;
            (first, first + distance)
        };
        Halving { partner, keep: range(position), give: range(partner), last: bit == 0 }
    })
}

struct Exchange<'a> {
    layout: &'a Layout<'a>,
    core: Core,
    channel: usize,
    share: Part,
}

impl Exchange<'_> {
    fn all_reduce(&self) -> Steps {
        let mut steps = Steps::new(self.channel);
        let (position, extra) = match self.core.role(self.layout.rank) {
            Role::Core(position, extra) => (position, extra),
            Role::Extra(neighbour) => {
                for chunk in self.layout.chunks(self.share) {
                    steps.send(self.link(neighbour), input(chunk));
                }
                for chunk in self.layout.chunks(self.share) {
                    steps.recv(self.link(neighbour), output(chunk));
                }
                return steps;
            }
        };

        let mut held: fn(Part) -> Span = input;
        if let Some(extra) = extra {
            for chunk in self.layout.chunks(self.share) {
                steps.recv_reduce(self.link(extra), input(chunk), output(chunk), false);
            }
            held = output;
        }
        let blocks = self.layout.split(self.share, self.core.size);
        let chunks = |(first, end)| self.layout.chunks(blocks.range(first, end));
        for halving in halvings(self.core, position) {
            let link = self.link(self.core.rank(halving.partner));
            alternate(
                &mut steps,
                chunks(halving.give),
                |steps, chunk| steps.send(link, held(chunk)),
                chunks(halving.keep),
                |steps, chunk| steps.recv_reduce(link, held(chunk), output(chunk), halving.last),
            );
            held = output;
        }
        for doubling in halvings(self.core, position).rev() {
            let link = self.link(self.core.rank(doubling.partner));
            alternate(
                &mut steps,
                chunks(doubling.keep),
                |steps, chunk| steps.send(link, output(chunk)),
                chunks(doubling.give),
                |steps, chunk| steps.recv(link, output(chunk)),
            );
        }
        if let Some(extra) = extra {
            for chunk in self.layout.chunks(self.share) {
                steps.send(self.link(extra), output(chunk));
            }
        }
        steps
    }

    fn reduce_scatter(&self) -> Steps {
        let layout = self.layout;
        let mut steps = Steps::new(self.channel);
        let (position, extra) = match self.core.role(layout.rank) {
            Role::Core(position, extra) => (position, extra),
            Role::Extra(neighbour) => {
                for chunk in self.chunks_of_blocks(0, layout.world()) {
                    steps.send(self.link(neighbour), input(chunk));
                }
                for chunk in layout.chunks(self.share) {
                    steps.recv(self.link(neighbour), output(chunk));
                }
                return steps;
            }
        };

        let base = self.partial_base(position, extra);
        let partial = |chunk: Part| scratch(Part { offset: chunk.offset - base, ..chunk });
        let mut combined = extra.is_some();
        if let Some(extra) = extra {
            for chunk in self.chunks_of_blocks(0, layout.world()) {
                steps.recv_reduce(self.link(extra), input(chunk), partial(chunk), false);
            }
        }
        for halving in halvings(self.core, position) {
            let link = self.link(self.core.rank(halving.partner));
            let held = |chunk| if combined { partial(chunk) } else { input(chunk) };
            let send = |steps: &mut Steps, chunk| steps.send(link, held(chunk));
            if halving.last {
                // Single blocks: one for this rank, perhaps one for its extra.
                let blocks = |(first, end)| self.core.rank(first)..self.core.rank(end);
                alternate(
                    &mut steps,
                    blocks(halving.give).flat_map(|block| self.chunks_of_block(block)),
                    send,
                    blocks(halving.keep).flat_map(|block| self.chunks_of_block(block)),
                    |steps, chunk| match extra {
                        Some(extra) if chunk.offset >= extra * layout.call.bytes() => {
                            steps.recv_reduce_send(
                                (link, self.link(extra)),
                                held(chunk),
                                None,
                                true,
                            );
                        }
                        _ => {
                            let offset = chunk.offset - layout.rank * layout.call.bytes();
                            let result = output(Part { offset, ..chunk });
                            steps.recv_reduce(link, held(chunk), result, true);
                        }
                    },
                );
            } else {
                alternate(
                    &mut steps,
                    self.chunks_of_positions(halving.give),
                    send,
                    self.chunks_of_positions(halving.keep),
                    |steps, chunk| steps.recv_reduce(link, held(chunk), partial(chunk), false),
                );
            }
            combined = true;
        }
        steps
    }

    fn all_gather(&self) -> Steps {
        let layout = self.layout;
        let mut steps = Steps::new(self.channel);
        let own = layout.in_block(layout.rank, self.share);
        let (position, extra) = match self.core.role(layout.rank) {
            Role::Core(position, extra) => (position, extra),
            Role::Extra(neighbour) => {
                for chunk in self.layout.chunks(self.share) {
                    steps.send(self.link(neighbour), input(chunk));
                }
                if !layout.call.in_place() {
                    steps.copy(input(self.share), output(own));
                }
                for chunk in self.chunks_beside(layout.rank) {
                    steps.recv(self.link(neighbour), output(chunk));
                }
                return steps;
            }
        };

        if !layout.call.in_place() {
            steps.copy(input(self.share), output(own));
        }
        if let Some(extra) = extra {
            for chunk in self.chunks_of_block(extra) {
                steps.recv(self.link(extra), output(chunk));
            }
        }
        for doubling in halvings(self.core, position).rev() {
            let link = self.link(self.core.rank(doubling.partner));
            alternate(
                &mut steps,
                self.chunks_of_positions(doubling.keep),
                |steps, chunk| steps.send(link, output(chunk)),
                self.chunks_of_positions(doubling.give),
                |steps, chunk| steps.recv(link, output(chunk)),
            );
        }
        if let Some(extra) = extra {
            for chunk in self.chunks_beside(extra) {
                steps.send(self.link(extra), output(chunk));
            }
        }
        steps
    }

    /// How much of the input's layout a reduce-scatter keeps as partial results in scratch memory.
    fn partial_bytes(&self) -> usize {
        match self.core.role(self.layout.rank) {
            Role::Extra(_) => 0,
            Role::Core(_, Some(_)) => self.layout.world() * self.layout.call.bytes(),
            Role::Core(position, None) => match halvings(self.core, position).next() {
                Some(Halving { keep: (first, end), last: false, .. }) => {
                    (self.core.rank(end) - self.core.rank(first)) * self.layout.call.bytes()
                }
                _ => 0,
            },
        }
    }

    /// Where that part of the input's layout begins.
    fn partial_base(&self, position: usize, extra: Option<Rank>) -> usize {
        match halvings(self.core, position).next() {
            Some(halving) if extra.is_none() => {
                self.core.rank(halving.keep.0) * self.layout.call.bytes()
            }
            _ => 0,
        }
    }

    fn chunks_of_positions(&self, (first, end): (usize, usize)) -> impl Iterator<Item = Part> {
        self.chunks_of_blocks(self.core.rank(first), self.core.rank(end))
    }

    /// All blocks but one.
    fn chunks_beside(&self, block: Rank) -> impl Iterator<Item = Part> {
        let after = self.chunks_of_blocks(block + 1, self.layout.world());
        self.chunks_of_blocks(0, block).chain(after)
    }

    /// This channel's share of the blocks of ranks `first` to `end`, `end` excluded: block by
    /// block, or across blocks where the share is all of them.
    fn chunks_of_blocks(&self, first: Rank, end: Rank) -> impl Iterator<Item = Part> {
        let block = self.layout.call.bytes();
        let contiguous = self.share.bytes == block;
        let runs = if contiguous { first..first + usize::from(first < end) } else { first..end };
        let bytes = if contiguous { (end - first) * block } else { self.share.bytes };
        let run = Part { bytes, ..self.share };
        let layout = self.layout;
        runs.flat_map(move |rank| layout.chunks(layout.in_block(rank, run)))
    }

    fn chunks_of_block(&self, block: Rank) -> impl Iterator<Item = Part> + use<> {
        self.layout.chunks(self.layout.in_block(block, self.share))
    }

    fn link(&self, peer: Rank) -> LinkId {
        LinkId { peer, index: self.channel }
    }
}

/// Sends one chunk and receives one, in turn, until there are no more.
fn alternate(
    steps: &mut Steps,
    mut sent: impl Iterator<Item = Part>,
    send: impl Fn(&mut Steps, Part),
    mut received: impl Iterator<Item = Part>,
    receive: impl Fn(&mut Steps, Part),
) {
    loop {
        let (outgoing, incoming) = (sent.next(), received.next());
        if let Some(chunk) = outgoing {
            send(steps, chunk);
        }
        if let Some(chunk) = incoming {
            receive(steps, chunk);
        }
        if outgoing.is_none() && incoming.is_none() {
            return;
        }
    }
}
