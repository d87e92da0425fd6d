//! One exchange, straight between those who have the data and those who need it.
//!
//! A rank that reduces combines the contributions in rank order (a sum is ((x0 + x1) + x2) + ...),
//! so every rank that does so gets the same bits, whatever the channels and chunks. All-reduce
//! sends before it receives, in one lane: that takes messages of one chunk, which links accept
//! without waiting.

use crate::{CollectiveKind, LinkId, Plan, Rank, Span};

use super::layout::{Layout, Steps, input, output, scratch};
use super::partition::Part;

/// Why there is no all-reduce, if there is none.
pub(super) fn obstacle(layout: &Layout<'_>) -> Option<String> {
    let (_, share) = layout.shares().next()?;
    let chunk = layout.choice.chunk_bytes;
    (layout.call.kind() == CollectiveKind::AllReduce && share.bytes > chunk)
        .then(|| format!("its message of {} bytes does not fit one chunk of {chunk}", share.bytes))
}

pub(super) fn plan(layout: &Layout<'_>) -> Plan {
    let lanes = layout.shares().flat_map(|(channel, share)| {
        let exchange = Exchange { layout, channel };
        match layout.call.kind() {
            CollectiveKind::AllReduce => exchange.all_reduce(share),
            CollectiveKind::Reduce => exchange.reduce(share),
            CollectiveKind::ReduceScatter => exchange.reduce_scatter(share),
            CollectiveKind::AllGather => exchange.all_gather(share),
            CollectiveKind::Broadcast => exchange.broadcast(share),
            CollectiveKind::Gather => exchange.gather(share),
            _ => exchange.scatter(share),
        }
    });
    let lanes = lanes.collect();
    // In place, all-reduce overwrites its contribution without knowing who has read it.
    let all_reduce = layout.call.kind() == CollectiveKind::AllReduce;
    layout.plan(lanes, scratch_bytes(layout), !(all_reduce && layout.call.in_place()))
}

/// In place, contributions of lower ranks are combined in scratch memory, as the output still is
/// this rank's contribution.
fn scratch_bytes(layout: &Layout<'_>) -> usize {
    let combines = match layout.call.kind() {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => true,
        CollectiveKind::Reduce => layout.is_root(),
        _ => false,
    };
    if combines && layout.call.in_place() && layout.rank >= 2 {
        layout.choice.channels * layout.largest_chunk()
    } else {
        0
    }
}

struct Exchange<'a> {
    layout: &'a Layout<'a>,
    channel: usize,
}

impl Exchange<'_> {
    fn all_reduce(&self, share: Part) -> Vec<Steps> {
        let mut steps = self.steps();
        for peer in self.layout.others() {
            steps.send(self.link(peer), input(share));
        }
        self.combine(&mut steps, input(share), share);
        vec![steps]
    }

    fn reduce(&self, share: Part) -> Vec<Steps> {
        let layout = self.layout;
        let mut steps = self.steps();
        for chunk in layout.chunks(share) {
            if layout.is_root() {
                self.combine(&mut steps, input(chunk), chunk);
            } else {
                steps.send(self.link(layout.root()), input(chunk));
            }
        }
        vec![steps]
    }

    fn reduce_scatter(&self, share: Part) -> Vec<Steps> {
        let layout = self.layout;
        let (mut contribute, mut combine) = (self.steps(), self.steps());
        for chunk in layout.chunks(share) {
            for owner in layout.others() {
                contribute.send(self.link(owner), input(layout.in_block(owner, chunk)));
            }
            self.combine(&mut combine, input(layout.in_block(layout.rank, chunk)), chunk);
        }
        vec![contribute, combine]
    }

    fn all_gather(&self, share: Part) -> Vec<Steps> {
        let layout = self.layout;
        let (mut distribute, mut collect) = (self.steps(), self.steps());
        for chunk in layout.chunks(share) {
            for peer in layout.others() {
                distribute.send(self.link(peer), input(chunk));
                collect.recv(self.link(peer), output(layout.in_block(peer, chunk)));
            }
        }
        self.keep(&mut distribute, input(share), layout.in_block(layout.rank, share));
        vec![distribute, collect]
    }

    fn broadcast(&self, share: Part) -> Vec<Steps> {
        let layout = self.layout;
        let mut steps = self.steps();
        for chunk in layout.chunks(share) {
            if layout.is_root() {
                for peer in layout.others() {
                    steps.send(self.link(peer), input(chunk));
                }
            } else {
                steps.recv(self.link(layout.root()), output(chunk));
            }
        }
        if layout.is_root() {
            self.keep(&mut steps, input(share), share);
        }
        vec![steps]
    }

    fn gather(&self, share: Part) -> Vec<Steps> {
        let layout = self.layout;
        let mut steps = self.steps();
        if layout.is_root() {
            self.keep(&mut steps, input(share), layout.in_block(layout.rank, share));
        }
        for chunk in layout.chunks(share) {
            if layout.is_root() {
                for peer in layout.others() {
                    steps.recv(self.link(peer), output(layout.in_block(peer, chunk)));
                }
            } else {
                steps.send(self.link(layout.root()), input(chunk));
            }
        }
        vec![steps]
    }

    fn scatter(&self, share: Part) -> Vec<Steps> {
        let layout = self.layout;
        let mut steps = self.steps();
        for chunk in layout.chunks(share) {
            if layout.is_root() {
                for peer in layout.others() {
                    steps.send(self.link(peer), input(layout.in_block(peer, chunk)));
                }
            } else {
                steps.recv(self.link(layout.root()), output(chunk));
            }
        }
        if layout.is_root() {
            self.keep(&mut steps, input(layout.in_block(layout.rank, share)), share);
        }
        vec![steps]
    }

    /// Combines a chunk of all contributions in rank order into the output. `own` is this rank's.
    fn combine(&self, steps: &mut Steps, own: Span, chunk: Part) {
        let (rank, last) = (self.layout.rank, self.layout.world() - 1);
        let result = output(chunk);
        let mut next = 2;
        if rank < 2 {
            // x0 + x1 or x1 + x0, which is the same.
            steps.recv_reduce(self.link(1 - rank), own, result, last == 1);
        } else {
            let in_place = self.layout.call.in_place();
            let offset = self.channel * self.layout.largest_chunk();
            let lower = if in_place { scratch(Part { offset, ..chunk }) } else { result };
            steps.recv(self.link(0), lower);
            for peer in 1..rank {
                steps.recv_reduce(self.link(peer), lower, lower, false);
            }
            // The operand that lies where the result goes comes first.
            let (a, b) = if in_place { (own, lower) } else { (lower, own) };
            steps.reduce(a, b, result, rank == last);
            next = rank + 1;
        }
        for peer in next..=last {
            steps.recv_reduce(self.link(peer), result, result, peer == last);
        }
    }

    /// This rank's own part of the result, unless it is there already.
    fn keep(&self, steps: &mut Steps, src: Span, dst: Part) {
        if !self.layout.call.in_place() {
            steps.copy(src, output(dst));
        }
    }

    fn steps(&self) -> Steps {
        Steps::new(self.channel)
    }

    fn link(&self, peer: Rank) -> LinkId {
        LinkId { peer, index: self.channel }
    }
}
