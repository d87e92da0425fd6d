//! Runs plans on host memory.
//!
//! [`Program`] is a plan made ready: its links are open, its kernel is chosen. [`Executor::run`] drives
//! its lanes round-robin on the calling thread, one piece at a time, until all are through; when none
//! can move it spins, yields and sleeps. It never asks which transport a link has, or which
//! algorithm a plan came from.

mod buffers;
mod lane;
mod links;
mod program;

use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::link::{Fabric, LinkError};
use annulus_transports::memory::Store;

pub(crate) use buffers::Buffers;
pub(crate) use links::Links;
pub(crate) use program::Program;

use crate::health::Health;
use lane::{Advance, Context};

/// Why a program did not come to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A link failed, or a peer is in another call.
    Link(LinkError),
    /// The deadline passed; `waiting_for` are the peers whose links were blocked.
    Deadline { waited: Duration, waiting_for: Vec<Rank> },
    /// The communicator was broken by somebody else meanwhile: see its [`Health`].
    Broken,
    /// A peer that this rank waited for has left the communicator.
    Departed { peer: Rank },
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

/// What stays the same from call to call.
pub(crate) struct Executor {
    /// How slots are written: past the cache when the peers' cores share none with ours.
    pub(crate) slot_store: Store,
    waiter: annulus_transports::wait::Waiter,
}

impl Executor {
    pub(crate) fn new(spin: bool) -> Self {
        Self {
            slot_store: Store::Cached,
            waiter: annulus_transports::wait::Waiter::new(spin),
        }
    }

    /// Runs `program` to its end, blocking for at most `timeout`.
    ///
    /// # Safety
    /// `buffers` describes valid memory of the sizes that the program was compiled for, which nobody else
    /// accesses during the call, except peers through references that the links hand out.
    pub(crate) unsafe fn run(
        &mut self,
        program: &mut Program,
        links: &mut Links,
        buffers: &Buffers,
        fingerprint: Fingerprint,
        timeout: Duration,
        health: &Health,
        fabric: &dyn Fabric,
    ) -> Result<(), Failure> {
        let _ = (program, links, buffers, fingerprint, timeout, health, fabric);
        unimplemented!()
    }
}
