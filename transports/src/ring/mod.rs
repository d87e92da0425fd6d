//! The slot ring: one direction between two ranks through memory that both can reach.
//!
//! ```text
//! control   consumed: u64          pieces that the receiver has given back   (written by the receiver)
//!           closed: u32, u32       an end is gone                            (written once by each)
//! headers   line 0 .. line D-1     piece k lies in line k % D                (written by the sender)
//! data      byte 0 .. byte R-1     the pieces' bytes, each piece in one run  (written by the sender)
//! ```
//!
//! A header line is one cache line: 32 bytes of payload, the fingerprint, the piece's length, and last
//! its **flag**, the piece's number plus one. A piece of at most 32 bytes travels inside its line, so
//! that a small message costs the transfer of a single cache line. A longer piece lies in the byte
//! ring and its line says where; or it lies in the sender's own memory and its line refers to that.
//!
//! The byte ring advances through all of its bytes, on purpose: a ring that stays within the L1 or L2 cache makes
//! each line bounce between two caches, which is slower than leaving it behind in the shared L3.
//!
//! The receiver gives pieces back in order. The sender remembers where each ended, and reads
//! `consumed` only when the ring looks full.

mod line;
#[cfg_attr(loom, path = "memory_loom.rs")]
mod memory;
mod receiver;
mod room;
mod sender;

pub use room::Geometry;

pub(crate) use line::Reference;
pub(crate) use memory::RingMemory;
pub(crate) use receiver::RingReceiver;
pub(crate) use sender::RingSender;

use std::ptr::NonNull;

use crate::doorbell::Doorbell;
use crate::link::LinkError;
use annulus_plan::Rank;

/// How a piece of the sender's own memory is named to the receiver.
pub(crate) trait Reach: Send {
    /// The name under which the peer can see `bytes` bytes at `address`; `None` when it cannot.
    fn name(&self, address: *const u8, bytes: usize) -> Option<Reference>;

    /// Where this process sees what the peer named. The peer may name anything: check it.
    fn resolve(&mut self, reference: Reference) -> Result<NonNull<u8>, LinkError>;
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its rank.
    pub(crate) rank: Rank,
    /// How it is woken; `None` when nobody sleeps on this ring.
    pub(crate) doorbell: Option<Doorbell>,
    /// What the transport is called.
    pub(crate) transport: &'static str,
}

impl Peer {
    #[inline]
    fn wake(&self) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.ring();
        }
    }

    fn closed(&self) -> LinkError {
        LinkError::Closed { peer: self.rank, transport: self.transport }
    }

    #[cold]
    fn broke_format(&self, what: String) -> LinkError {
        LinkError::Protocol { peer: self.rank, what }
    }
}

#[cfg(all(test, not(loom)))]
mod hostile_tests;
#[cfg(all(test, loom))]
mod loom_tests;
