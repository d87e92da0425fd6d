//! Training samples: PyTorch's `DistributedSampler`.

use super::mersenne_twister::MersenneTwister;
use crate::Error;

/// Divides the indices `0..length` among the ranks, the same number to each.
///
/// With the same settings, every rank gets what PyTorch's `DistributedSampler` gives it: rank r takes the elements r,
/// r + world, r + 2 world ... of the (shuffled) list of indices. So that all ranks get equally many, the list is padded
/// with its own beginning, or, with [`drop_last`](Self::drop_last), cut.
///
/// ```
/// use annulus_ddp::DistributedSampler;
///
/// let mut sampler = DistributedSampler::new(10, 3, 1)?.shuffle(true);
/// sampler.set_epoch(0); // before every epoch, or all epochs have the same order
/// assert_eq!(sampler.indices(), [1, 3, 8, 4]);
/// # Ok::<(), annulus_ddp::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistributedSampler {
    length: usize,
    world: usize,
    rank: usize,
    shuffle: bool,
    drop_last: bool,
    seed: u64,
    epoch: u64,
    seeding: Seeding,
}

/// How an epoch's order follows from seed and epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seeding {
    /// As in PyTorch, from `seed + epoch`: epoch 1 of seed 0 has the order of epoch 0 of seed 1.
    #[default]
    Sum,
    /// From a hash of both: runs with neighbouring seeds have nothing in common.
    Hash,
}

impl DistributedSampler {
    /// Rank `rank` of `world`'s share of `length` samples, in order, padded, with seed 0.
    ///
    /// # Errors
    /// [`Error::Rank`] if there is no such rank.
    pub fn new(length: usize, world: usize, rank: usize) -> Result<Self, Error> {
        super::check(rank, world)?;
        Ok(Self {
            length,
            world,
            rank,
            shuffle: false,
            drop_last: false,
            seed: 0,
            epoch: 0,
            seeding: Seeding::Sum,
        })
    }

    /// Whether each epoch has an order of its own.
    #[must_use]
    pub fn shuffle(self, shuffle: bool) -> Self {
        Self { shuffle, ..self }
    }

    /// Whether the list is cut rather than padded where the world size does not divide it.
    #[must_use]
    pub fn drop_last(self, drop_last: bool) -> Self {
        Self { drop_last, ..self }
    }

    /// The seed, which must be the same on all ranks.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// How orders follow from seed and epoch.
    #[must_use]
    pub fn seeding(self, seeding: Seeding) -> Self {
        Self { seeding, ..self }
    }

    /// Sets the epoch, from 0, which must be the same on all ranks.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// The number of indices that each rank gets.
    pub fn len(&self) -> usize {
        if self.drop_last && !self.length.is_multiple_of(self.world) {
            self.length.saturating_sub(self.world).div_ceil(self.world)
        } else {
            self.length.div_ceil(self.world)
        }
    }

    /// Whether this and every other rank gets nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// This rank's indices in this epoch.
    pub fn indices(&self) -> Vec<usize> {
        if self.is_empty() {
            return Vec::new();
        }
        let list: Vec<usize> = if self.shuffle {
            MersenneTwister::new(self.generator_seed()).permutation(self.length)
        } else {
            (0..self.length).collect()
        };
        let total = self.len() * self.world;
        list.iter().copied().cycle().take(total).skip(self.rank).step_by(self.world).collect()
    }

    fn generator_seed(&self) -> u64 {
        match self.seeding {
            Seeding::Sum => self.seed.wrapping_add(self.epoch),
            Seeding::Hash => {
                let both = [self.seed.to_le_bytes(), self.epoch.to_le_bytes()].concat();
                let hash = blake3::hash(&both);
                u64::from(u32::from_le_bytes(hash.as_bytes()[..4].try_into().expect("four bytes")))
            }
        }
    }
}
