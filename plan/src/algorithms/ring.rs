//! The ring: each rank receives from the one before it and sends to the one after it.
//!
//! Reduce-scatter and all-gather go round by round, one chunk of every rank's block in each; a
//! block's chunk starts at the rank after its owner and is combined on its way round to the owner,
//! who passes the result round once more. All ranks begin a round by sending one chunk, which no
//! link refuses: a rank is never more than one message ahead of what it has received, and a link
//! holds two. Broadcast and reduce are chains that begin or end at the root.
//!
//! What is sent by reference stays: a chunk is overwritten only by its result, which cannot come
//! back before the next rank has read the chunk.

use crate::{CollectiveKind, LinkId, Plan};

use super::layout::{Layout, Steps, input, output};
use super::partition::Part;

pub(super) fn plan(layout: &Layout<'_>) -> Plan {
    let lanes = layout.shares().map(|(channel, share)| {
        let ring = Ring::new(layout, channel);
        match layout.call.kind() {
            CollectiveKind::AllReduce => ring.all_reduce(share),
            CollectiveKind::ReduceScatter => ring.reduce_scatter(share),
            CollectiveKind::AllGather => ring.all_gather(share),
            CollectiveKind::Broadcast => ring.broadcast(share),
            _ => ring.reduce(share),
        }
    });
    layout.plan(lanes.collect(), 0, true)
}

struct Ring<'a> {
    layout: &'a Layout<'a>,
    previous: LinkId,
    next: LinkId,
    steps: Steps,
}

impl<'a> Ring<'a> {
    fn new(layout: &'a Layout<'a>, channel: usize) -> Self {
        Self {
            layout,
            previous: LinkId { peer: layout.behind(1), index: channel },
            next: LinkId { peer: layout.ahead(1), index: channel },
            steps: Steps::new(channel),
        }
    }

    fn all_reduce(mut self, share: Part) -> Steps {
        let (layout, world) = (self.layout, self.layout.world());
        let blocks = layout.split(share, world);
        for round in 0..self.rounds(blocks.part(0)) {
            let behind = |steps| layout.chunk(blocks.part(layout.behind(steps)), round);
            self.combine(behind);
            let own = behind(world);
            self.steps.recv_reduce_send(self.through(), input(own), Some(output(own)), true);
            for steps in 1..world - 1 {
                self.steps.recv_copy_send(self.through(), output(behind(steps)));
            }
            self.steps.recv(self.previous, output(behind(world - 1)));
        }
        self.steps
    }

    fn reduce_scatter(mut self, share: Part) -> Steps {
        let layout = self.layout;
        for round in 0..self.rounds(share) {
            let chunk = layout.chunk(share, round);
            self.combine(|steps| layout.in_block(layout.behind(steps), chunk));
            let own = input(layout.in_block(layout.rank, chunk));
            self.steps.recv_reduce(self.previous, own, output(chunk), true);
        }
        self.steps
    }

    fn all_gather(mut self, share: Part) -> Steps {
        let (layout, world) = (self.layout, self.layout.world());
        for round in 0..self.rounds(share) {
            let chunk = layout.chunk(share, round);
            let behind = |steps| output(layout.in_block(layout.behind(steps), chunk));
            self.steps.send(self.next, input(chunk));
            if !layout.call.in_place() {
                self.steps.copy(input(chunk), behind(0));
            }
            for steps in 1..world - 1 {
                self.steps.recv_copy_send(self.through(), behind(steps));
            }
            self.steps.recv(self.previous, behind(world - 1));
        }
        self.steps
    }

    fn broadcast(mut self, share: Part) -> Steps {
        let layout = self.layout;
        for chunk in layout.chunks(share) {
            if layout.is_root() {
                self.steps.send(self.next, input(chunk));
                if !layout.call.in_place() {
                    self.steps.copy(input(chunk), output(chunk));
                }
            } else if self.next.peer == layout.root() {
                self.steps.recv(self.previous, output(chunk));
            } else {
                self.steps.recv_copy_send(self.through(), output(chunk));
            }
        }
        self.steps
    }

    fn reduce(mut self, share: Part) -> Steps {
        let layout = self.layout;
        for chunk in layout.chunks(share) {
            if layout.is_root() {
                self.steps.recv_reduce(self.previous, input(chunk), output(chunk), true);
            } else if self.previous.peer == layout.root() {
                self.steps.send(self.next, input(chunk));
            } else {
                self.steps.recv_reduce_send(self.through(), input(chunk), None, false);
            }
        }
        self.steps
    }

    /// Starts the chunk of the rank before this one, and adds this rank's contribution to those
    /// that pass by.
    /// `behind(k)` is the chunk that the rank k places behind this one owns.
    fn combine(&mut self, behind: impl Fn(usize) -> Part) {
        self.steps.send(self.next, input(behind(1)));
        for steps in 2..self.layout.world() {
            self.steps.recv_reduce_send(self.through(), input(behind(steps)), None, false);
        }
    }

    fn rounds(&self, largest_block: Part) -> usize {
        largest_block.bytes.div_ceil(self.layout.choice.chunk_bytes)
    }

    fn through(&self) -> (LinkId, LinkId) {
        (self.previous, self.next)
    }
}
