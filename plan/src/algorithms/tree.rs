//! Two complementary binary trees, each for half of the bytes, one chunk after another.
//!
//! All-reduce combines up a tree and distributes down the same; reduce and broadcast have the root
//! outside of the trees, which span the other ranks, and joined to both tops. Up and down are lanes
//! of their own, so that a chunk goes up while another comes down.
//!
//! A chunk is overwritten only by its result, which cannot come down before the parent has read what
//! went up, so everything may be sent by reference.

use crate::{CollectiveKind, LinkId, Plan, Rank, Span};

use super::double_tree::{Place, place, top};
use super::layout::{Layout, Steps, input, output, scratch};
use super::partition::Part;

pub(super) fn plan(layout: &Layout<'_>) -> Plan {
    let mut lanes = Vec::new();
    let mut scratch_bytes = 0;
    for (channel, share) in layout.shares() {
        let halves = layout.split(share, 2);
        for tree in 0..2 {
            let (half, index) = (halves.part(tree), 2 * channel + tree);
            match layout.call.kind() {
                CollectiveKind::AllReduce => {
                    let branch = Branch { layout, channel, index, place: over_all(layout, tree) };
                    lanes.extend(branch.all_reduce(half));
                }
                CollectiveKind::Reduce => {
                    let place = beside_root(layout, tree);
                    let accumulator = (place.children.len() > 1).then_some(scratch_bytes);
                    scratch_bytes += accumulator.map_or(0, |_| layout.largest_chunk());
                    let branch = Branch { layout, channel, index, place };
                    lanes.push(branch.reduce(half, accumulator));
                }
                _ => {
                    let branch =
                        Branch { layout, channel, index, place: beside_root(layout, tree) };
                    lanes.push(branch.broadcast(half));
                }
            }
        }
    }
    layout.plan(lanes, scratch_bytes, true)
}

/// This rank's place in a tree of all ranks.
fn over_all(layout: &Layout<'_>, tree: usize) -> Place {
    place(layout.world(), tree, layout.rank)
}

/// This rank's place where the root's only child is the top of a tree of the others.
fn beside_root(layout: &Layout<'_>, tree: usize) -> Place {
    let (world, root) = (layout.world(), layout.root());
    let rank_of = |node: usize| (root + 1 + node) % world;
    if layout.is_root() {
        return Place { parent: None, children: vec![rank_of(top(world - 1, tree))] };
    }
    let node = (layout.rank + world - root - 1) % world;
    let Place { parent, children } = place(world - 1, tree, node);
    Place {
        parent: Some(parent.map_or(root, rank_of)),
        children: children.into_iter().map(rank_of).collect(),
    }
}

/// One rank's part in one tree.
struct Branch<'a> {
    layout: &'a Layout<'a>,
    channel: usize,
    index: usize,
    place: Place,
}

impl Branch<'_> {
    fn all_reduce(&self, half: Part) -> Vec<Steps> {
        let Some(parent) = self.place.parent else { return vec![self.turn(half)] };
        let (mut up, mut down) = (Steps::new(self.channel), Steps::new(self.channel));
        for chunk in self.layout.chunks(half) {
            self.combine_up(&mut up, parent, chunk, output(chunk));
            self.distribute(&mut down, parent, chunk);
        }
        vec![up, down]
    }

    /// At the top, what has come up goes down.
    fn turn(&self, half: Part) -> Steps {
        let mut steps = Steps::new(self.channel);
        for chunk in self.layout.chunks(half) {
            let Some((&last, first)) = self.place.children.split_last() else { continue };
            let with = self.combine_children(&mut steps, first, chunk, output(chunk));
            let ends = (self.link(last), self.link(last));
            steps.recv_reduce_send(ends, with, Some(output(chunk)), true);
            for &child in first {
                steps.send(self.link(child), output(chunk));
            }
        }
        steps
    }

    fn reduce(&self, half: Part, accumulator: Option<usize>) -> Steps {
        let mut steps = Steps::new(self.channel);
        for chunk in self.layout.chunks(half) {
            match (self.place.parent, self.place.children.first()) {
                (Some(parent), _) => {
                    let offset = accumulator.unwrap_or(0);
                    let partial = scratch(Part { offset, ..chunk });
                    self.combine_up(&mut steps, parent, chunk, partial);
                }
                (None, Some(&top)) => {
                    steps.recv_reduce(self.link(top), input(chunk), output(chunk), true);
                }
                (None, None) => {}
            }
        }
        steps
    }

    fn broadcast(&self, half: Part) -> Steps {
        let mut steps = Steps::new(self.channel);
        for chunk in self.layout.chunks(half) {
            match self.place.parent {
                Some(parent) => self.distribute(&mut steps, parent, chunk),
                None => {
                    for &child in &self.place.children {
                        steps.send(self.link(child), input(chunk));
                    }
                    if !self.layout.call.in_place() {
                        steps.copy(input(chunk), output(chunk));
                    }
                }
            }
        }
        steps
    }

    /// Sends what the subtree below this rank contributes to the parent.
    fn combine_up(&self, steps: &mut Steps, parent: Rank, chunk: Part, partial: Span) {
        match self.place.children.split_last() {
            None => steps.send(self.link(parent), input(chunk)),
            Some((&last, first)) => {
                let with = self.combine_children(steps, first, chunk, partial);
                let ends = (self.link(last), self.link(parent));
                steps.recv_reduce_send(ends, with, None, false);
            }
        }
    }

    /// Combines this rank's contribution with those of some children, in `partial` if there are
    /// any. Returns where the result is.
    fn combine_children(
        &self,
        steps: &mut Steps,
        children: &[Rank],
        chunk: Part,
        partial: Span,
    ) -> Span {
        let mut with = input(chunk);
        for &child in children {
            steps.recv_reduce(self.link(child), with, partial, false);
            with = partial;
        }
        with
    }

    /// Receives a chunk of the result and passes it on to the children.
    fn distribute(&self, steps: &mut Steps, parent: Rank, chunk: Part) {
        match self.place.children.split_first() {
            None => steps.recv(self.link(parent), output(chunk)),
            Some((&first, rest)) => {
                steps.recv_copy_send((self.link(parent), self.link(first)), output(chunk));
                for &child in rest {
                    steps.send(self.link(child), output(chunk));
                }
            }
        }
    }

    fn link(&self, peer: Rank) -> LinkId {
        LinkId { peer, index: self.index }
    }
}
