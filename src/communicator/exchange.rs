//! Running all-to-all-v and groups of sends and receives.
//!
//! They differ from the other collectives in what their messages say: counts differ from pair to
//! pair, and sends and receives are counted by the two ranks that they concern, not by all.

use std::collections::HashMap;

use annulus_plan::algorithms;
use annulus_plan::{self as plan, Direction};
use annulus_plan::{Buffer, CollectiveKind, DataType, Fingerprint, Rank, Span};

use super::Shared;
use super::engine::Engine;
use super::join::Numbered;
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

/// What an engine keeps for exchanges: the programs of past ones.
#[derive(Default)]
pub(super) struct Exchanges {
    all: Vec<Known>,
    numbers: HashMap<Key, usize>,
    last: usize,
}

/// What a program depends on: the transfers, and the length of each member.
type Key = (plan::Exchange, Vec<usize>);

struct Known {
    key: Key,
    program: Program,
    /// The exchange that came after this one, last time.
    follower: usize,
}

impl Exchanges {
    /// Programs repeat the same few exchanges in the same order, so that is looked at before anything is hashed.
    fn find(&mut self, exchange: &Exchange) -> Option<usize> {
        let number = match self.all.get(self.last) {
            Some(last) if self.all[last.follower].is(exchange) => last.follower,
            Some(last) if last.is(exchange) => self.last,
            _ => *self.numbers.get(&exchange.key())?,
        };
        self.follow(number);
        Some(number)
    }

    fn insert(&mut self, exchange: &Exchange, program: Program) -> usize {
        if self.all.len() == MAX_PROGRAMS {
            *self = Self::default();
        }
        let (number, key) = (self.all.len(), exchange.key());
        self.numbers.insert(key.clone(), number);
        self.all.push(Known { key, program, follower: number });
        self.follow(number);
        number
    }

    fn follow(&mut self, number: usize) {
        self.all[self.last].follower = number;
        self.last = number;
    }
}

impl Known {
    fn is(&self, exchange: &Exchange) -> bool {
        self.key.0 == exchange.call && self.key.1 == exchange.extents.members
    }
}

impl Exchange {
    fn key(&self) -> Key {
        (self.call.clone(), self.extents.members.clone())
    }
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
        let collective = if kind == CollectiveKind::AllToAllV {
            self.sequence += 1;
            let call = all_to_all_v(&exchange.memory, self.sequence, shared.tag);
            Some(Numbered { sequence: self.sequence, call })
        } else {
            None
        };
        if shared.joining.is_active() {
            match collective {
                Some(call) => shared.joining.begin(call)?,
                None => shared.joining.begin_exchange(&peers(&exchange.call))?,
            }
        }
        let begun = self.record(shared, exchange);
        let known = self.exchanges.find(exchange);
        let number = if let Some(number) = known {
            number
        } else {
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
                shared.connected_by(),
            );
            let program = match program {
                Ok(program) => program,
                Err(error) => return Err(self.fail(shared, error.into(), begun)),
            };
            self.exchanges.insert(exchange, program)
        };
        let program = &mut self.exchanges.all[number].program;
        let (sequence, witness) = (self.sequence, shared.witness.as_deref());
        let memory = &exchange.memory;
        let mut sent: HashMap<Rank, Vec<u64>> = HashMap::new();
        program.mark(|direction, peer, span: Span| {
            let dtype = match span.buffer {
                Buffer::Member(member) => memory.dtypes[member],
                _ => memory.dtypes[0],
            };
            let count = (span.bytes / dtype.size()) as u64;
            let sequence = if kind == CollectiveKind::AllToAllV {
                if direction == Direction::Send {
                    sent.entry(peer).or_default().push(count);
                }
                sequence
            } else {
                witness.map_or(0, |witness| witness.count(direction, peer))
            };
            Fingerprint::from_parts(kind, dtype, None, None, count, sequence, shared.tag)
        });
        if let (Some(witness), CollectiveKind::AllToAllV) = (witness, kind) {
            witness.all_to_all_v(sequence, sent);
        }
        let fingerprint = program.first_mark().unwrap_or_default();
        let buffers = Buffers {
            input: memory.input,
            output: memory.output,
            scratch: std::ptr::dangling_mut(),
            members: &memory.members,
        };
        // SAFETY: the program was compiled for these extents, for which the caller vouches.
        let outcome = unsafe { self.executor.run(program, &buffers, fingerprint, &shared.watch()) };
        if let Err(failure) = outcome {
            return Err(self.fail(shared, failure, fingerprint));
        }
        self.recorder.end();
        if let Some(call) = collective {
            self.remember(shared, call);
        }
        Ok(())
    }
}

impl Engine {
    /// Notes that the exchange begins; returns what it, or its first message, is called.
    fn record(&mut self, shared: &Shared, exchange: &Exchange) -> Fingerprint {
        let (call, memory) = (&exchange.call, &exchange.memory);
        let witness = shared.witness.as_deref();
        if call.kind() == CollectiveKind::AllToAllV {
            let fingerprint = all_to_all_v(memory, self.sequence, shared.tag);
            self.recorder.collective(fingerprint, usize::MAX);
            return fingerprint;
        }
        let transfers = call.transfers();
        let first = transfers.iter().find(|transfer| transfer.bytes > 0).or(transfers.first());
        let dtype = match first.map(|transfer| transfer.buffer) {
            Some(Buffer::Member(member)) => memory.dtypes[member],
            _ => DataType::U8,
        };
        let (peer, direction) =
            first.map_or((shared.rank, Direction::Send), |one| (one.peer, one.direction));
        let count = first.map_or(0, |transfer| transfer.bytes / dtype.size()) as u64;
        let number = witness.map_or(0, |witness| witness.counted(direction, peer) + 1);
        let fingerprint =
            Fingerprint::from_parts(call.kind(), dtype, None, None, count, number, shared.tag);
        self.recorder.exchange(fingerprint, peer, transfers.len(), self.sequence);
        fingerprint
    }
}

/// The whole call; its messages have counts of their own.
fn all_to_all_v(memory: &Memory, sequence: u64, tag: u32) -> Fingerprint {
    let (kind, dtype) = (CollectiveKind::AllToAllV, memory.dtypes[0]);
    Fingerprint::from_parts(kind, dtype, None, None, 0, sequence, tag)
}

/// Whom a send or a receive needs.
fn peers(call: &plan::Exchange) -> Vec<Rank> {
    let others = call.transfers().iter().filter(|transfer| transfer.bytes > 0);
    others.map(|transfer| transfer.peer).filter(|&peer| peer != call.rank()).collect()
}
