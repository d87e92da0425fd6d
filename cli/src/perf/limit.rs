//! How fast memory is, measured beside the ranks' own work: the limit of every large collective on one host.

use std::time::Instant;

use annulus::{Communicator, ReduceOp};
use annulus_transports::memory::{Store, copy};

use super::{Failure, statistics::Statistics};

/// Of all ranks together: several times what caches hold.
const BYTES: usize = 256 << 20;

const MOST_PER_RANK: usize = 64 << 20;

const ROUNDS: usize = 7;

/// Bytes per second that all ranks together read and write when all copy at once, past the cache: the median of several
/// rounds, each as long as its slowest rank's. All ranks call it.
pub(super) fn copy_bandwidth(comm: &Communicator) -> Result<f64, Failure> {
    let world = comm.world_size();
    let bytes = (BYTES / world).min(MOST_PER_RANK);
    let source = vec![1_u8; bytes];
    let mut target = vec![2_u8; bytes];
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        comm.barrier()?;
        let begun = Instant::now();
        // SAFETY: two separate buffers of that size.
        unsafe { copy(target.as_mut_ptr(), source.as_ptr(), bytes, Store::NonTemporal) };
        std::hint::black_box(&target);
        let mut seconds = [begun.elapsed().as_secs_f64()];
        comm.all_reduce(&mut seconds, ReduceOp::Max)?;
        rounds.push((2 * bytes * world) as f64 / seconds[0]);
    }
    Ok(Statistics::of(rounds).map_or(0.0, |rounds| rounds.p50))
}
