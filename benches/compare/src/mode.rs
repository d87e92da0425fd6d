//! Where the host has put the two cores, as a bouncing cache line tells.

use std::fmt;

use annulus_rig::Sample;

/// How near the cores of ranks 0 and 1 are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Under 40 ns one way: threads of one core.
    Near,
    /// Under 120 ns: cores that share a cache.
    Mid,
    /// 120 ns and more.
    Far,
    /// One core, where nothing can be probed.
    Single,
}

/// Beyond this the probe itself was interrupted.
const INTERRUPTED_NANOS: u64 = 1_000;

impl Mode {
    /// The mode that a sample was taken in; `None` when it changed meanwhile, or the probes were interrupted.
    pub(crate) fn of(sample: &Sample) -> Option<Self> {
        let [before, after] = sample.one_way.map(Self::of_probe);
        before.filter(|_| before == after)
    }

    fn of_probe(nanos: u64) -> Option<Self> {
        match nanos {
            0 => Some(Self::Single),
            1..40 => Some(Self::Near),
            40..120 => Some(Self::Mid),
            120..INTERRUPTED_NANOS => Some(Self::Far),
            _ => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Near => "near",
            Self::Mid => "mid",
            Self::Far => "far",
            Self::Single => "single",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_probes_must_agree() {
        let mode = |before, after| Mode::of(&Sample { one_way: [before, after], nanos: 1 });
        assert_eq!(mode(20, 39), Some(Mode::Near));
        assert_eq!(mode(40, 119), Some(Mode::Mid));
        assert_eq!(mode(120, 250), Some(Mode::Far));
        assert_eq!(mode(0, 0), Some(Mode::Single));
        assert_eq!(mode(50, 250), None);
        assert_eq!(mode(5_000, 5_000), None);
    }
}
