//! No compression.

use annulus::{Communicator, ReduceOp};

use super::Hook;
use crate::float::with_float;
use crate::{Error, GradientBucket};

/// The mean in the gradients' own type: the sum in the order of the communicator's plan, divided once.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllReduce;

impl Hook for AllReduce {
    fn name(&self) -> String {
        "all-reduce".to_owned()
    }

    fn reduce(
        &mut self,
        mut bucket: GradientBucket<'_>,
        comm: &Communicator,
    ) -> Result<u64, Error> {
        let dtype = bucket.dtype();
        with_float!(dtype, T => {
            let values = bucket.values::<T>();
            comm.all_reduce(values, ReduceOp::Avg)?;
            Ok(super::all_reduce_traffic(size_of_val(values), comm.world_size()))
        })
    }
}
