//! What ranks tell each other at the end of each step: one small all-gather.

use std::time::Duration;

use annulus::Communicator;

/// What one rank says of its step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// Whether the rank takes part: a rank that ran out of data and joined sends zeros only.
    pub(super) alive: bool,
    /// Whether it has a complaint, which makes all ranks exchange theirs.
    pub(super) complains: bool,
    /// Whether it has a parameter without a gradient that may have none.
    pub(super) has_unused: bool,
    pub(super) step: u64,
    /// Backward passes since the last reduction.
    pub(super) passes: u64,
    pub(super) samples: u64,
    /// From the end of the last step to the end of this one's backward pass.
    pub(super) local: Duration,
    /// The part of that spent waiting for input.
    pub(super) input: Duration,
    /// The first parameter with a gradient that is not finite.
    pub(super) non_finite: Option<Broken>,
}

/// A parameter whose gradient is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) parameter: usize,
    /// Whether this rank's own is not; else the sum over ranks is not.
    pub(super) own: bool,
}

const WORDS: usize = 7;

impl Status {
    /// All ranks' statuses, by rank.
    pub(super) fn exchange(self, comm: &Communicator) -> Result<Vec<Self>, annulus::Error> {
        let mut all = vec![0; WORDS * comm.world_size()];
        comm.all_gather_into(&self.encode(), &mut all)?;
        Ok(all.chunks_exact(WORDS).map(Self::decode).collect())
    }

    fn encode(self) -> [u64; WORDS] {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        [
            u64::from(self.alive)
                | u64::from(self.complains) << 1
                | u64::from(self.has_unused) << 2,
            self.step,
            self.passes,
            self.samples,
            nanoseconds(self.local),
            nanoseconds(self.input),
            self.non_finite
                .map_or(0, |broken| 2 * broken.parameter as u64 + 1 + u64::from(broken.own)),
        ]
    }

    fn decode(words: &[u64]) -> Self {
        Self {
            alive: words[0] & 1 != 0,
            complains: words[0] & 2 != 0,
            has_unused: words[0] & 4 != 0,
            step: words[1],
            passes: words[2],
            samples: words[3],
            local: Duration::from_nanos(words[4]),
            input: Duration::from_nanos(words[5]),
            non_finite: words[6]
                .checked_sub(1)
                .map(|word| Broken { parameter: word as usize / 2, own: word % 2 == 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn travels_unchanged() {
        let status = Status {
            alive: true,
            complains: false,
            has_unused: true,
            step: u64::MAX,
            passes: 3,
            samples: 0,
            local: Duration::from_millis(1234),
            input: Duration::from_nanos(5),
            non_finite: Some(Broken { parameter: 0, own: true }),
        };
        assert_eq!(Status::decode(&status.encode()), status);
        // What a joined rank contributes.
        assert!(!Status::decode(&[0; WORDS]).alive);
    }
}
