//! Who has dropped which communicator: those who ask to shrink it may not have heard yet. No socket, no clock.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// So many are remembered, the latest. Only who asks while the news is on its way needs them.
const MAX_DEPARTURES: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Departures {
    by_tag: HashMap<u64, BTreeSet<u32>>,
    /// In the order in which they came to be known, for forgetting.
    order: VecDeque<(u64, u32)>,
}

impl Departures {
    /// `rank` has dropped the communicator `tag`.
    pub(super) fn note(&mut self, tag: u64, rank: u32) {
        if !self.by_tag.entry(tag).or_default().insert(rank) {
            return;
        }
        self.order.push_back((tag, rank));
        if self.order.len() > MAX_DEPARTURES
            && let Some((tag, rank)) = self.order.pop_front()
            && let Some(ranks) = self.by_tag.get_mut(&tag)
        {
            ranks.remove(&rank);
            if ranks.is_empty() {
                self.by_tag.remove(&tag);
            }
        }
    }

    /// Who has dropped the communicator `tag`.
    pub(super) fn of(&self, tag: u64) -> impl Iterator<Item = u32> {
        self.by_tag.get(&tag).into_iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_known() {
        let mut departures = Departures::default();
        for tag in 0..MAX_DEPARTURES as u64 {
            for rank in [3, 1, 3] {
                departures.note(tag, rank);
            }
        }
        let latest = MAX_DEPARTURES as u64 - 1;
        assert!(departures.of(latest).eq([1, 3]));
        assert!(departures.of(latest / 2).next().is_none());
        assert_eq!(departures.by_tag.len(), MAX_DEPARTURES / 2);
        assert_eq!(departures.order.len(), MAX_DEPARTURES);
    }
}
