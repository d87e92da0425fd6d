//! The tests, generic over the transport. A test drives both ends from one thread where it can, so that a failure repeats.

mod calls;
mod ends;
mod messages;
mod oracle;
mod ranks;
mod references;

use std::ops::DerefMut;
use std::sync::Arc;

use annulus_plan::Rank;
use annulus_transports::link::{Fabric, RecvLink, SendLink};
pub(crate) use calls::{
    pieces_are_consumed_bit_by_bit, refuses_a_piece_longer_than_its_message,
    refuses_a_piece_of_another_call, shows_whose_call_a_piece_belongs_to,
};
pub(crate) use messages::{
    blocks_when_full_and_resumes, cuts_large_messages_into_pieces, delivers_empty_pieces,
    delivers_messages_in_order, holds_two_chunks_without_a_receiver,
    reservations_arrive_as_committed, reservations_have_the_promised_sizes,
    reservations_without_commit_have_no_effect,
};
pub(crate) use oracle::agrees_with_a_queue;
pub(crate) use ranks::{
    carries_both_directions_at_once, links_between_the_same_ranks_are_separate,
    notices_that_the_receiver_has_gone, notices_that_the_sender_has_gone, opens_all_pairs,
    wakes_a_sleeper,
};
pub(crate) use references::{
    references_and_copies_keep_their_order, references_are_idle_once_read,
};

/// How a transport comes into the suite.
pub(crate) trait Harness: Sync {
    /// The fabrics of a fresh communicator.
    fn world(&self, ranks: usize) -> World;

    /// Whether a receiver can see memory that [`World::allocate`] gave its peer.
    const REFERENCES: bool;
}

pub(crate) struct World {
    pub(crate) fabrics: Vec<Arc<dyn Fabric>>,
    /// Memory of a rank, of the kind that peers see if they can see any.
    pub(crate) allocate: Box<dyn Fn(Rank, usize) -> Buffer + Sync>,
}

pub(crate) type Buffer = Box<dyn DerefMut<Target = [u8]> + Send>;

type Ends = (Box<dyn SendLink>, Box<dyn RecvLink>);

/// Instantiates every test for one transport.
macro_rules! conformance {
    ($name:ident, $harness:expr) => {
        conformance!($name, $harness;
            delivers_messages_in_order,
            delivers_empty_pieces,
            cuts_large_messages_into_pieces,
            blocks_when_full_and_resumes,
            holds_two_chunks_without_a_receiver,
            reservations_arrive_as_committed,
            reservations_without_commit_have_no_effect,
            reservations_have_the_promised_sizes,
            shows_whose_call_a_piece_belongs_to,
            refuses_a_piece_of_another_call,
            refuses_a_piece_longer_than_its_message,
            pieces_are_consumed_bit_by_bit,
            references_are_idle_once_read,
            references_and_copies_keep_their_order,
            links_between_the_same_ranks_are_separate,
            carries_both_directions_at_once,
            wakes_a_sleeper,
            opens_all_pairs,
            notices_that_the_sender_has_gone,
            notices_that_the_receiver_has_gone,
            agrees_with_a_queue,
        );
    };
    ($name:ident, $harness:expr; $($test:ident),* $(,)?) => {
        mod $name {
            use super::*;
            $(#[test] fn $test() { suite::$test(&$harness); })*
        }
    };
}
pub(crate) use conformance;
