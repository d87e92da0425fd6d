//! Sums whose bits depend on nothing but the gradients.

use annulus::{Allocation, Communicator};

use super::{Hook, all_reduce_traffic};
use crate::float::{self, Float, with_float};
use crate::{Error, GradientBucket, agreement};

/// The mean in the gradients' own type, summed in the order of ranks for each element by itself: `((g0 + g1) + g2) / 3`.
///
/// So its bits do not depend on how gradients are put into buckets, nor on algorithm, channels, chunks or transport, as those of
/// [`AllReduce`](super::AllReduce) may. The traffic is the same: each rank gets all ranks' gradients of its own part of
/// a bucket, adds them, and sends the mean to all. It takes staging memory as large as the largest bucket.
#[derive(Default)]
pub struct InRankOrder {
    staging: Option<Allocation<u8>>,
    /// Whether a rank has joined and does not add its part, so that each rank adds all of them.
    incomplete: bool,
}

impl InRankOrder {
    /// Without memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn average<T: Float>(
        &mut self,
        mut bucket: GradientBucket<'_>,
        comm: &Communicator,
    ) -> Result<u64, Error> {
        let (rank, world) = (comm.rank(), comm.world_size());
        let parts: Vec<_> = (0..world).map(|rank| bucket.shard(rank, world)).collect();
        let values = bucket.values::<T>();
        if values.is_empty() {
            return Ok(0);
        }
        let bytes = size_of_val(values);
        if self.staging.as_ref().is_none_or(|staging| staging.len() < bytes) {
            self.staging = Some(comm.alloc(bytes)?);
        }
        let staging = self.staging.as_mut().expect("it was just put there");
        let contributions: &mut [T] = bytemuck::cast_slice_mut(&mut staging[..bytes]);
        if self.incomplete {
            for part in parts {
                comm.all_gather_into(&values[part.clone()], contributions)?;
                add_up(&mut values[part], contributions, world);
            }
            return Ok((bytes * (world - 1)) as u64);
        }
        comm.all_to_all_into(values, contributions)?;
        add_up(&mut values[parts[rank].clone()], contributions, world);
        comm.all_gather(values)?;
        Ok(all_reduce_traffic(bytes, world))
    }
}

/// The mean of `world` contributions of the same length, one after another.
fn add_up<T: Float>(mean: &mut [T], contributions: &[T], world: usize) {
    let (first, others) = contributions.split_at(mean.len());
    mean.copy_from_slice(first);
    others.chunks_exact(mean.len()).for_each(|other| float::add(mean, other));
    float::divide(mean, world as f64);
}

impl Hook for InRankOrder {
    fn name(&self) -> String {
        "all-reduce in rank order".to_owned()
    }

    fn reduce(&mut self, bucket: GradientBucket<'_>, comm: &Communicator) -> Result<u64, Error> {
        if bucket.index() == 0 {
            self.incomplete = agreement::present(comm)?.contains(&false);
        }
        let dtype = bucket.dtype();
        with_float!(dtype, T => self.average::<T>(bucket, comm))
    }
}
