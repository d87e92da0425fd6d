//! How far the next rank's core is.
//!
//! Two cores that share a cache pass a line on in some 20 to 60 ns, two that do not in 200 ns and more.
//! Slots that are written through the cache are best between the former; between the latter,
//! writing past the cache moves medium messages up to six times faster (measured on a virtual machine
//! whose cores move between both, so once at the start is not enough).

use std::time::{Duration, Instant};

use annulus_plan::{
    Buffer, Collective, DataType, Fingerprint, Instruction, Lane, LinkId, Plan, Rank, ReduceKind,
    Span,
};
use annulus_transports::link::LinkError;
use annulus_transports::memory::Store;

use super::Shared;
use crate::executor::{Buffers, Executor, Extents, Failure, Program};
use crate::reduce::Kernel;

/// Smaller calls hardly touch the slots.
const MIN_BYTES: usize = 8 << 10;
/// How much work passes between two measurements, in calls; a call counts once more for each so many of its bytes. That
/// is a few milliseconds, of which measuring takes less than a hundredth.
const WORK_PER_PROBE: u64 = 512;
const BYTES_PER_WORK: usize = 128 << 10;
const ROUND_TRIPS: usize = 8;
/// Of which the fastest counts; the first also waits for whoever comes last.
const BATCHES: usize = 4;
/// Between the two kinds of distance, both with what the executor itself takes per message.
const FAR: Duration = Duration::from_nanos(190);

/// Measures the distance to the neighbour now and then, at the same calls on every rank.
#[derive(Default)]
pub(super) struct Distance {
    /// Since the last measurement.
    work: u64,
    measured: bool,
    program: Option<Program>,
}

impl Distance {
    /// Whether `call` is so large that the distance matters to it.
    pub(super) fn matters(call: &Collective) -> bool {
        call.bytes() >= MIN_BYTES
    }

    /// Chooses how the executor writes slots for `call` and the calls after it.
    ///
    /// All ranks come to this with the same calls, and so measure at the same time; the messages are marked with the
    /// call's own `fingerprint`, so that a rank which makes another call is found out here as well as later.
    #[inline]
    pub(super) fn consider(
        &mut self,
        shared: &Shared,
        executor: &mut Executor,
        call: &Collective,
        fingerprint: Fingerprint,
    ) -> Result<(), Failure> {
        if !Self::matters(call) || !shared.shares_memory {
            return Ok(());
        }
        self.work += 1 + (call.bytes() / BYTES_PER_WORK) as u64;
        if !self.measured || self.work >= WORK_PER_PROBE {
            (self.work, self.measured) = (0, true);
            executor.slot_store = match self.measure(shared, executor, fingerprint)? {
                Some(one_way) if one_way > FAR => Store::NonTemporal,
                _ => Store::Cached,
            };
        }
        Ok(())
    }

    /// One message's time to the neighbour; `None` without a neighbour.
    #[cold]
    fn measure(
        &mut self,
        shared: &Shared,
        executor: &mut Executor,
        fingerprint: Fingerprint,
    ) -> Result<Option<Duration>, Failure> {
        let neighbour = shared.rank ^ 1;
        if neighbour >= shared.world {
            return Ok(None);
        }
        let program = match &mut self.program {
            Some(program) => program,
            none => none.insert(compile(shared, executor, neighbour)?),
        };
        let mut fastest = Duration::MAX;
        for _ in 0..BATCHES {
            let begin = Instant::now();
            let nothing = Buffers {
                input: std::ptr::dangling(),
                output: std::ptr::dangling_mut(),
                scratch: std::ptr::dangling_mut(),
                members: &[],
            };
            // SAFETY: the messages are empty.
            unsafe {
                executor.run(program, &nothing, fingerprint, &shared.watch())?;
            }
            fastest = fastest.min(begin.elapsed() / (2 * ROUND_TRIPS as u32));
        }
        Ok(Some(fastest))
    }
}

/// Empty messages to and fro.
fn compile(
    shared: &Shared,
    executor: &mut Executor,
    neighbour: Rank,
) -> Result<Program, LinkError> {
    let link = LinkId { peer: neighbour, index: 0 };
    let empty = Span { buffer: Buffer::Scratch, offset: 0, bytes: 0 };
    let mut round_trip =
        [Instruction::Send { to: link, src: empty }, Instruction::Recv { from: link, dst: empty }];
    if shared.rank > neighbour {
        round_trip.reverse();
    }
    let plan = Plan {
        rank: shared.rank,
        world: shared.world,
        lanes: vec![Lane { channel: 0, instructions: round_trip.repeat(ROUND_TRIPS) }],
        scratch_bytes: 0,
        chunk_bytes: 64,
        by_reference: false,
    };
    Program::compile(
        &plan,
        &Extents::default(),
        Kernel::new(DataType::U8, ReduceKind::Sum, shared.world),
        1,
        &mut executor.links,
        &*shared.fabric,
        shared.connected_by(),
    )
}
