//! Gradients of which each rank needs its own part only.

use annulus::{Communicator, ReduceOp};

use super::Hook;
use crate::float::with_float;
use crate::{Error, GradientBucket};

/// Leaves each rank the mean of its own [part](GradientBucket::shard) of each bucket, and zeros elsewhere: half the
/// traffic of an all-reduce. For [`ShardedOptimizer`](crate::ShardedOptimizer), which needs no more; the reducer's
/// other methods that look at gradients see the part only.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReduceScatter;

impl Hook for ReduceScatter {
    fn name(&self) -> String {
        "reduce-scatter".to_owned()
    }

    fn reduce(
        &mut self,
        mut bucket: GradientBucket<'_>,
        comm: &Communicator,
    ) -> Result<u64, Error> {
        let (dtype, world) = (bucket.dtype(), comm.world_size());
        let part = bucket.shard(comm.rank(), world);
        with_float!(dtype, T => {
            let values = bucket.values::<T>();
            comm.reduce_scatter(values, ReduceOp::Avg)?;
            values[..part.start].fill(T::default());
            values[part.end..].fill(T::default());
            Ok((size_of_val(values) * (world - 1) / world) as u64)
        })
    }
}
