//! Running all-to-all-v and groups of sends and receives.
//!
//! They differ from the other collectives in what their messages say: counts differ from pair to
//! pair, and sends and receives are counted by the two ranks that they concern, not by all.

use std::collections::HashMap;
use std::time::Instant;

use annulus_plan::algorithms;
use annulus_plan::{self as plan, Direction};
use annulus_plan::{Buffer, CollectiveKind, DataType, Fingerprint, Rank, Span};

use super::Shared;
use super::engine::Engine;
use crate::Error;
use crate::executor::{Buffers, Extents, Program};
use crate::reduce::Kernel;

/// After so many different exchanges the cached programs are dropped.
const MAX_PROGRAMS: usize = 256;

/// An exchange with its buffers.
pub(super) struct Exchange {
    pub(super) call: plan::Exchange,
    pub(super) memory: Memory,
    pub(super) extents: Extents,
}

/// Where an exchange's buffers are and what they hold.
pub(super) struct Memory {
    pub(super) input: *const u8,
    pub(super) output: *mut u8,
    /// Of a group's members.
    pub(super) members: Vec<*mut u8>,
    /// Element type of each member; of an all-to-all-v the one type.
    pub(super) dtypes: Vec<DataType>,
}

// SAFETY: a description; whoever runs it vouches for its pointers.
unsafe impl Send for Exchange {}

/// What an engine keeps for exchanges.
#[derive(Default)]
pub(super) struct Exchanges {
    programs: HashMap<(plan::Exchange, Vec<usize>), Program>,
    /// Messages so far to and from each peer, outside collectives. The peer counts the same.
    counted: HashMap<(Direction, Rank), u64>,
}

impl Engine {
    /// Runs one exchange to its end on the calling thread.
    ///
    /// # Safety
    /// The memory is valid for the extents, and nobody else accesses it meanwhile.
    pub(super) unsafe fn run_exchange(
        &mut self,
        shared: &Shared,
        exchange: &Exchange,
    ) -> Result<(), Error> {
        if shared.health.is_broken() {
            return Err(self.broken(shared));
        }
        // The next collective has a record of its own.
        self.last = None;
        let kind = exchange.call.kind();
        if kind == CollectiveKind::AllToAllV {
            self.sequence += 1;
        }
        let key = (exchange.call.clone(), exchange.extents.members.clone());
        if !self.exchanges.programs.contains_key(&key) {
            let choice = shared.tuner.choose_exchange();
            let plan = algorithms::exchange(&exchange.call, &choice)
                .expect("pairwise plans every exchange");
            let program = Program::compile(
                &plan,
                &exchange.extents,
                Kernel::new(DataType::U8, annulus_plan::ReduceKind::Sum, shared.world),
                1,
                &mut self.executor.links,
                &*shared.fabric,
                Instant::now() + shared.timeout,
            );
            let nameless = Fingerprint { tag: shared.tag, ..Fingerprint::default() };
            let program = match program {
                Ok(program) => program,
                Err(error) => return Err(self.fail(shared, error.into(), nameless)),
            };
            if self.exchanges.programs.len() == MAX_PROGRAMS {
                self.exchanges.programs.clear();
            }
            self.exchanges.programs.insert(key.clone(), program);
        }
        let program = self.exchanges.programs.get_mut(&key).expect("it was just put there");
        let (sequence, counted) = (self.sequence, &mut self.exchanges.counted);
        let memory = &exchange.memory;
        program.mark(|direction, peer, span: Span| {
            let dtype = match span.buffer {
                Buffer::Member(member) => memory.dtypes[member],
                _ => memory.dtypes[0],
            };
            let sequence = if kind == CollectiveKind::AllToAllV {
                sequence
            } else {
                let counted = counted.entry((direction, peer)).or_insert(0);
                *counted += 1;
                *counted
            };
            let count = (span.bytes / dtype.size()) as u64;
            Fingerprint::from_parts(kind, dtype, None, None, count, sequence, shared.tag)
        });
        let fingerprint = program.first_mark().unwrap_or_default();
        let transfers = exchange.call.transfers();
        match kind {
            CollectiveKind::AllToAllV => self
                .recorder
                .collective(all_to_all_v(memory, self.sequence, shared.tag), usize::MAX),
            _ => {
                let peer = transfers.first().map_or(shared.rank, |transfer| transfer.peer);
                self.recorder.exchange(fingerprint, peer, transfers.len(), self.sequence);
            }
        }
        let buffers = Buffers {
            input: memory.input,
            output: memory.output,
            scratch: std::ptr::dangling_mut(),
            members: &memory.members,
        };
        // SAFETY: the program was compiled for these extents, for which the caller vouches.
        let outcome = unsafe { self.executor.run(program, &buffers, fingerprint, &shared.watch()) };
        match outcome {
            Ok(()) => {
                self.recorder.end();
                Ok(())
            }
            Err(failure) => Err(self.fail(shared, failure, fingerprint)),
        }
    }
}

/// The whole call; its messages have counts of their own.
fn all_to_all_v(memory: &Memory, sequence: u64, tag: u32) -> Fingerprint {
    let (kind, dtype) = (CollectiveKind::AllToAllV, memory.dtypes[0]);
    Fingerprint::from_parts(kind, dtype, None, None, 0, sequence, tag)
}
