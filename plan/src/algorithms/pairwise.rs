//! All-to-all, partner by partner: in step k a rank sends to the one k places ahead and receives
//! from the one k places behind, chunk by chunk in turn, so that every rank has one partner in each
//! direction at a time. And the general exchange, where every pair of a peer and a direction is a
//! lane of its own.

use std::collections::BTreeMap;

use crate::exchange::{Direction, Exchange};
use crate::{Instruction, Lane, LinkId, Plan};

use super::Choice;
use super::layout::{Layout, Steps, input, output, piece_bytes, span};
use super::partition::{Part, partition};

pub(super) fn plan(layout: &Layout<'_>) -> Plan {
    let lanes = layout.shares().map(|(channel, share)| {
        let mut steps = Steps::new(channel);
        for distance in 1..layout.world() {
            let (ahead, behind) = (layout.ahead(distance), layout.behind(distance));
            for chunk in layout.chunks(share) {
                let to = LinkId { peer: ahead, index: channel };
                steps.send(to, input(layout.in_block(ahead, chunk)));
                let from = LinkId { peer: behind, index: channel };
                steps.recv(from, output(layout.in_block(behind, chunk)));
            }
        }
        let own = layout.in_block(layout.rank, share);
        steps.copy(input(own), output(own));
        steps
    });
    layout.plan(lanes.collect(), 0, true)
}

/// The plan of an [`Exchange`]: see [`exchange`](super::exchange).
pub(super) fn exchange(exchange: &Exchange, choice: &Choice) -> Plan {
    let mut lanes: BTreeMap<_, Lane> = BTreeMap::new();
    let transfers = exchange.transfers().iter().filter(|t| t.peer != exchange.rank());
    for transfer in transfers {
        let whole = Part { offset: transfer.offset, bytes: transfer.bytes };
        let shares = partition(whole, 64, choice.channels);
        for channel in 0..choice.channels {
            let data = span(transfer.buffer, shares.part(channel));
            if data.bytes == 0 {
                break;
            }
            let link = LinkId { peer: transfer.peer, index: channel };
            let lane = lanes.entry((channel, transfer.peer, transfer.direction)).or_default();
            lane.channel = channel;
            lane.instructions.push(match transfer.direction {
                Direction::Send => Instruction::Send { to: link, src: data },
                Direction::Receive => Instruction::Recv { from: link, dst: data },
            });
        }
    }
    let copies: Vec<_> =
        exchange.copies().map(|(src, dst)| Instruction::Copy { src, dst }).collect();
    let copies = (!copies.is_empty()).then_some(Lane { channel: 0, instructions: copies });
    Plan {
        rank: exchange.rank(),
        world: exchange.world(),
        lanes: lanes.into_values().chain(copies).collect(),
        scratch_bytes: 0,
        chunk_bytes: piece_bytes(choice),
        by_reference: true,
    }
}
