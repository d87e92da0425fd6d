//! How a bucket of gradients becomes the average over all ranks.

mod all_reduce;
mod compressed;
mod in_rank_order;
mod local_sgd;
mod power_sgd;
mod reduce_scatter;

pub use all_reduce::AllReduce;
pub use compressed::Compressed;
pub use in_rank_order::InRankOrder;
pub use local_sgd::{LocalSgd, PeriodicAverage, average_values};
pub use power_sgd::{PowerSgd, PowerSgdSettings};
pub use reduce_scatter::ReduceScatter;

use annulus::Communicator;

use crate::{Error, GradientBucket};

/// Averages buckets over all ranks.
///
/// A hook is called once for each bucket of each step, also for one without elements, in the order of buckets, on every rank, while the backward pass
/// goes on, on the reducer's thread. It may call any collectives on `comm`, which belongs to the reducer; every
/// rank's hook has to call the same ones.
pub trait Hook: Send {
    /// What it is called, with its settings: must be the same on all ranks, and is compared when a reducer is
    /// constructed.
    fn name(&self) -> String;

    /// Replaces this rank's gradients by the mean over ranks. Returns how many bytes this rank sent for it.
    ///
    /// # Errors
    /// Ends the reducer: all its later calls return the error.
    fn reduce(&mut self, bucket: GradientBucket<'_>, comm: &Communicator) -> Result<u64, Error>;

    /// Called on every rank after all have [joined](crate::Reducer::join), some before others: there were `step` steps so
    /// far, of which this rank may have missed some. What must be the same on all ranks must be made so here.
    fn resume(&mut self, step: u64) {
        let _ = step;
    }
}

/// What each rank sends, at the least, in an all-reduce of `bytes`: `2 (world - 1) / world` of them.
pub fn all_reduce_traffic(bytes: usize, world: usize) -> u64 {
    (2 * bytes * (world - 1) / world) as u64
}
