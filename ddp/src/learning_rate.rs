//! How the learning rate follows the number of ranks: by an explicit call, never by itself.

/// The samples of one optimizer step over all ranks.
///
/// ```
/// use annulus_ddp::GlobalBatch;
///
/// let batch = GlobalBatch { per_rank: 32, world: 8, accumulation: 2 };
/// assert_eq!(batch.samples(), 512);
/// assert_eq!(batch.linear_scaling(0.1, 256), 0.2);
/// assert_eq!(GlobalBatch::divide(512, 8, 2), Some(batch));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalBatch {
    /// Samples of one backward pass of one rank.
    pub per_rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Backward passes per optimizer step.
    pub accumulation: usize,
}

impl GlobalBatch {
    /// How each rank gets its part of `samples`; `None` if they cannot be divided equally.
    pub fn divide(samples: usize, world: usize, accumulation: usize) -> Option<Self> {
        let passes = world.checked_mul(accumulation).filter(|&passes| passes > 0)?;
        samples.is_multiple_of(passes).then(|| Self {
            per_rank: samples / passes,
            world,
            accumulation,
        })
    }

    /// Samples per optimizer step.
    pub fn samples(&self) -> usize {
        self.per_rank * self.world * self.accumulation
    }

    /// The learning rate for this batch, if `rate` is right for a batch of `samples`: in proportion (Goyal et al.,
    /// 2017). Meant for SGD, and to be reached by a [`Warmup`].
    ///
    /// # Panics
    /// If `samples` is 0.
    pub fn linear_scaling(&self, rate: f64, samples: usize) -> f64 {
        assert!(samples > 0, "a batch has samples");
        rate * self.samples() as f64 / samples as f64
    }

    /// The same by the square root of the proportion, which suits Adam better.
    ///
    /// # Panics
    /// If `samples` is 0.
    pub fn square_root_scaling(&self, rate: f64, samples: usize) -> f64 {
        assert!(samples > 0, "a batch has samples");
        rate * (self.samples() as f64 / samples as f64).sqrt()
    }
}

/// A learning rate that rises linearly over the first steps.
///
/// ```
/// use annulus_ddp::Warmup;
///
/// let warmup = Warmup { from: 0.1, to: 0.8, steps: 7 };
/// assert_eq!(warmup.at(0), 0.1);
/// assert_eq!(warmup.at(7), 0.8);
/// assert_eq!(warmup.at(1000), 0.8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// The rate of step 0: usually that of one rank.
    pub from: f64,
    /// The rate from step `steps` on.
    pub to: f64,
    /// Number of steps on the way; 0 for none.
    pub steps: u64,
}

impl Warmup {
    /// The rate of a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step >= self.steps {
            return self.to;
        }
        self.from + (self.to - self.from) * step as f64 / self.steps as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_divided_equally_or_not_at_all() {
        for (samples, world, accumulation) in [(10, 3, 1), (8, 4, 4), (8, 0, 1), (8, 2, 0)] {
            assert_eq!(GlobalBatch::divide(samples, world, accumulation), None);
        }
        let most = GlobalBatch::divide(usize::MAX, usize::MAX, usize::MAX);
        assert_eq!(most, None, "and nothing overflows");
        let batch = GlobalBatch::divide(60, 3, 2).expect("10 each");
        assert_eq!((batch.per_rank, batch.samples()), (10, 60));
    }

    #[test]
    fn rates_follow_the_batch() {
        let batch = GlobalBatch { per_rank: 64, world: 16, accumulation: 1 };
        assert_eq!(batch.linear_scaling(0.1, 256), 0.4);
        assert_eq!(batch.square_root_scaling(0.1, 256), 0.2);
        let warmup = Warmup { from: 0.1, to: 0.4, steps: 4 };
        let rates: Vec<f64> = (0..6).map(|step| warmup.at(step)).collect();
        assert!(rates.windows(2).all(|pair| pair[0] <= pair[1]), "{rates:?}");
        assert!((rates[2] - 0.25).abs() < 1e-12);
        assert_eq!(rates[4..], [0.4, 0.4]);
        assert_eq!(Warmup { from: 0.1, to: 0.4, steps: 0 }.at(0), 0.4);
    }
}
