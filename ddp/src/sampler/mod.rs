//! Which samples a rank sees.
//!
//! * [`DistributedSampler`]: training, as PyTorch's class of that name, index for index.
//! * [`EvaluationSampler`]: each sample exactly once over all ranks; neither padded nor repeated.
//! * [`Shard`]: every world-th item of a stream whose length is not known.

mod distributed;
mod evaluation;
mod mersenne_twister;
mod stream;

pub use distributed::{DistributedSampler, Seeding};
pub use evaluation::EvaluationSampler;
pub use stream::{Shard, Tail};

use crate::Error;

/// # Errors
/// [`Error::Rank`] if there is no such rank.
fn check(rank: usize, world: usize) -> Result<(), Error> {
    if rank < world { Ok(()) } else { Err(Error::Rank { rank, world }) }
}
