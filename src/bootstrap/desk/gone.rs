//! Which ranks are gone, as far as this one has heard. No socket, no clock.

use std::collections::HashMap;

use crate::bootstrap::agreement::RankSet;
use crate::bootstrap::notice::{Dispatch, Event};

/// See the module. The first word about a rank counts: a new root repeats what the old one said.
#[derive(Debug, Default)]
pub(super) struct Gone {
    events: HashMap<u32, Event>,
    /// As it became known. Who subscribes later hears it in this order, so that a communicator names the same loss first, whenever a
    /// rank made its part of it.
    order: Vec<u32>,
}

impl Gone {
    /// `event` is the end of `rank`. `false`: that one is known to be gone.
    pub(super) fn learn(&mut self, rank: u32, event: &Event) -> bool {
        if self.contains(rank) {
            return false;
        }
        self.events.insert(rank, event.clone());
        self.order.push(rank);
        true
    }

    pub(super) fn contains(&self, rank: u32) -> bool {
        self.events.contains_key(&rank)
    }

    /// Whether `rank` is gone and was not lost.
    pub(super) fn has_left(&self, rank: u32) -> bool {
        self.events.get(&rank) == Some(&Event::Left)
    }

    /// All words, in the order in which they came.
    pub(super) fn words(&self) -> Vec<Dispatch> {
        let word = |rank: &u32| Dispatch { rank: *rank, event: self.events[rank].clone() };
        self.order.iter().map(word).collect()
    }

    /// Those who have left, and those who are lost.
    pub(super) fn left_and_lost(&self) -> (RankSet, RankSet) {
        self.order.iter().partition(|rank| self.has_left(**rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::notice::Loss;

    #[test]
    fn the_first_word_about_a_rank_counts_and_all_stay_in_order() {
        let lost = |how: &str| Event::Lost(Loss { noticed: how.into(), last_operation: None });
        let mut gone = Gone::default();
        assert!(gone.learn(7, &lost("first")) && gone.learn(2, &Event::Left));
        assert!(!gone.learn(7, &Event::Left) && !gone.learn(2, &lost("late")));
        assert!(gone.learn(5, &lost("last")));
        let words = [(7, lost("first")), (2, Event::Left), (5, lost("last"))];
        assert_eq!(gone.words(), words.map(|(rank, event)| Dispatch { rank, event }));
        assert!(gone.contains(7) && !gone.has_left(7) && gone.has_left(2) && !gone.contains(1));
        assert_eq!(gone.left_and_lost(), ([2].into(), [5, 7].into()));
    }
}
