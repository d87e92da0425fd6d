//! Evaluation samples: each exactly once.

use std::ops::Range;

use crate::Error;

/// Divides the indices `0..length` among the ranks so that each belongs to exactly one: nothing is padded or repeated,
/// and a sum over ranks is a sum over samples.
///
/// A rank gets one contiguous range; the first `length mod world` ranks get one index more. In batches, ranks may
/// differ in their number by one: that is no problem as long as evaluation communicates only at its end, by
/// [`Metrics`](crate::Metrics).
#[derive(Clone, Copy, Debug)]
pub struct EvaluationSampler {
    length: usize,
    world: usize,
    rank: usize,
}

impl EvaluationSampler {
    /// Rank `rank` of `world`'s share of `length` samples.
    ///
    /// # Errors
    /// [`Error::Rank`] if there is no such rank.
    pub fn new(length: usize, world: usize, rank: usize) -> Result<Self, Error> {
        super::check(rank, world)?;
        Ok(Self { length, world, rank })
    }

    /// This rank's indices.
    pub fn indices(&self) -> Range<usize> {
        let (share, rest) = (self.length / self.world, self.length % self.world);
        let start = self.rank * share + self.rank.min(rest);
        start..start + share + usize::from(self.rank < rest)
    }

    /// This rank's indices, in batches of `size` but for the last, which may be shorter.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn batches(&self, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.indices();
        (start..end).step_by(size).map(move |first| first..end.min(first + size))
    }
}
