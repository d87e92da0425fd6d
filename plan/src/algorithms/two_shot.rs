//! Two exchanges: every rank owns a block, combines it for all, and sends it to all.
//!
//! Each channel has three lanes: one sends this rank's contributions to the owners, one combines
//! the own block chunk by chunk, one receives the results. The stages use links of their own, so
//! each link has one lane at either end. An owner sends a chunk of the result only after it has
//! read that chunk of every contribution, so a result may land on the contribution (in place), and
//! contributions may be sent by reference.
//!
//! Broadcast: the root scatters blocks over the other ranks, who pass theirs on to each other.

use crate::{CollectiveKind, LinkId, Plan, Rank};

use super::layout::{Layout, Steps, input, output};
use super::partition::{Part, Partition};

pub(super) fn plan(layout: &Layout<'_>) -> Plan {
    let lanes = layout.shares().flat_map(|(channel, share)| {
        let stages = Stages { layout, channel };
        match layout.call.kind() {
            CollectiveKind::AllReduce => stages.all_reduce(share),
            _ => stages.broadcast(share),
        }
    });
    layout.plan(lanes.collect(), 0, true)
}

struct Stages<'a> {
    layout: &'a Layout<'a>,
    channel: usize,
}

impl Stages<'_> {
    fn all_reduce(&self, share: Part) -> Vec<Steps> {
        let layout = self.layout;
        let blocks = layout.split(share, layout.world());
        let chunks_of = |owner, round| layout.chunk(blocks.part(owner), round);

        let mut contribute = Steps::new(self.channel);
        let mut collect = Steps::new(self.channel);
        for round in 0..self.rounds(&blocks) {
            for owner in layout.others() {
                let chunk = chunks_of(owner, round);
                contribute.send(self.contribution(owner), input(chunk));
                collect.recv(self.result(owner), output(chunk));
            }
        }

        let mut combine = Steps::new(self.channel);
        for chunk in layout.chunks(blocks.part(layout.rank)) {
            self.combine(&mut combine, chunk);
        }
        vec![contribute, combine, collect]
    }

    /// Adds every contribution to this rank's own and sends the result to everybody, first to the
    /// rank whose contribution comes last.
    fn combine(&self, steps: &mut Steps, chunk: Part) {
        let last = self.layout.behind(1);
        let mut with = input(chunk);
        for peer in self.layout.others().filter(|&peer| peer != last) {
            steps.recv_reduce(self.contribution(peer), with, output(chunk), false);
            with = output(chunk);
        }
        let ends = (self.contribution(last), self.result(last));
        steps.recv_reduce_send(ends, with, Some(output(chunk)), true);
        for peer in self.layout.others().filter(|&peer| peer != last) {
            steps.send(self.result(peer), output(chunk));
        }
    }

    fn broadcast(&self, share: Part) -> Vec<Steps> {
        let layout = self.layout;
        let root = layout.root();
        let blocks = layout.split(share, layout.world() - 1);
        let owned = |owner: Rank| blocks.part((owner + layout.world() - root) % layout.world() - 1);

        if layout.is_root() {
            let mut scatter = Steps::new(self.channel);
            for round in 0..self.rounds(&blocks) {
                for owner in layout.others() {
                    scatter
                        .send(self.contribution(owner), input(layout.chunk(owned(owner), round)));
                }
            }
            if !layout.call.in_place() {
                scatter.copy(input(share), output(share));
            }
            return vec![scatter];
        }

        let peers = || layout.others().filter(|&peer| peer != root);
        let mut pass_on = Steps::new(self.channel);
        for chunk in layout.chunks(owned(layout.rank)) {
            let source = self.contribution(root);
            match peers().next() {
                Some(peer) => {
                    pass_on.recv_copy_send((source, self.result(peer)), output(chunk));
                }
                None => pass_on.recv(source, output(chunk)),
            }
            for peer in peers().skip(1) {
                pass_on.send(self.result(peer), output(chunk));
            }
        }
        let mut collect = Steps::new(self.channel);
        for round in 0..self.rounds(&blocks) {
            for owner in peers() {
                collect.recv(self.result(owner), output(layout.chunk(owned(owner), round)));
            }
        }
        vec![pass_on, collect]
    }

    fn rounds(&self, blocks: &Partition) -> usize {
        blocks.part(0).bytes.div_ceil(self.layout.choice.chunk_bytes)
    }

    /// The link with `peer` of the first exchange: to the owner of a block.
    fn contribution(&self, peer: Rank) -> LinkId {
        LinkId { peer, index: 2 * self.channel }
    }

    /// The link with `peer` of the second exchange: from the owner of a block.
    fn result(&self, peer: Rank) -> LinkId {
        LinkId { peer, index: 2 * self.channel + 1 }
    }
}
