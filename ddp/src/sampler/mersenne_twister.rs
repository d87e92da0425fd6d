//! MT19937, the generator behind PyTorch's CPU shuffles, and the shuffle.

const STATE: usize = 624;
const SHIFT: usize = 397;

/// From this many elements on, PyTorch draws 64 bits for each.
const WIDE: usize = (u32::MAX / 20) as usize;

pub(super) struct MersenneTwister {
    state: [u32; STATE],
    used: usize,
}

impl MersenneTwister {
    /// Seeded by `init_genrand(seed mod 2^32)`.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = [0; STATE];
        state[0] = seed as u32;
        for i in 1..STATE {
            let last = state[i - 1];
            state[i] = 1_812_433_253_u32.wrapping_mul(last ^ last >> 30).wrapping_add(i as u32);
        }
        Self { state, used: STATE }
    }

    fn next(&mut self) -> u32 {
        if self.used == STATE {
            self.twist();
        }
        let mut word = self.state[self.used];
        self.used += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9d2c_5680;
        word ^= word << 15 & 0xefc6_0000;
        word ^ word >> 18
    }

    fn twist(&mut self) {
        for i in 0..STATE {
            let word = self.state[i] & 0x8000_0000 | self.state[(i + 1) % STATE] & 0x7fff_ffff;
            let odd = if word & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % STATE] ^ word >> 1 ^ odd;
        }
        self.used = 0;
    }

    /// A random permutation of `0..n`: a forward Fisher-Yates shuffle.
    pub(super) fn permutation(mut self, n: usize) -> Vec<usize> {
        let mut indices: Vec<usize> = (0..n).collect();
        for i in 0..n.saturating_sub(1) {
            let left = (n - i) as u64;
            let drawn = if n < WIDE {
                u64::from(self.next())
            } else {
                u64::from(self.next()) << 32 | u64::from(self.next())
            };
            indices.swap(i, i + (drawn % left) as usize);
        }
        indices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_the_generators_published_sequence() {
        // The first words for the reference implementation's seed 5489; the ten thousandth is C++'s check value.
        let mut twister = MersenneTwister::new(5489);
        let drawn: Vec<u32> = (0..10_000).map(|_| twister.next()).collect();
        assert_eq!(drawn[..2], [3_499_211_612, 581_869_302]);
        assert_eq!(drawn[9_999], 4_123_659_995);
    }

    #[test]
    fn permutes_as_pytorch_does() {
        let permutation = |seed| MersenneTwister::new(seed).permutation(10);
        assert_eq!(permutation(0), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
        assert_eq!(permutation(1), [5, 6, 1, 2, 0, 8, 9, 3, 7, 4]);
        assert_eq!(permutation(1 << 32), permutation(0), "only 32 bits of the seed count");
    }
}
