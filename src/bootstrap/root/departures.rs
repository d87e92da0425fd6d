//! Who has dropped which communicator: those who ask to shrink it may not have heard yet. No socket, no clock.

use std::collections::VecDeque;

/// So many are remembered, the latest. Only who asks while the news is on its way needs them.
const MAX_DEPARTURES: usize = 1 << 12;

/// See the module. Looked through only when an agreement begins; a table by communicator would hold memory for each.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// Communicators and ranks, in the order in which they came to be known.
    latest: VecDeque<(u64, u32)>,
}

impl Departures {
    /// `rank` has dropped the communicator `tag`, which it tells a root once.
    pub(super) fn note(&mut self, tag: u64, rank: u32) {
        if self.latest.len() == MAX_DEPARTURES {
            self.latest.pop_front();
        }
        self.latest.push_back((tag, rank));
    }

    /// Who has dropped the communicator `tag`.
    pub(super) fn of(&self, tag: u64) -> impl Iterator<Item = u32> {
        self.latest.iter().filter(move |(other, _)| *other == tag).map(|(_, rank)| *rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_known() {
        let mut departures = Departures::default();
        for tag in 0..MAX_DEPARTURES as u64 {
            for rank in [3, 1] {
                departures.note(tag, rank);
            }
        }
        let latest = MAX_DEPARTURES as u64 - 1;
        assert!(departures.of(latest).eq([3, 1]));
        assert!(departures.of(latest / 2).next().is_none());
        assert!(departures.of(latest / 2 + 1).eq([3, 1]));
        assert_eq!(departures.latest.len(), MAX_DEPARTURES);
    }
}
