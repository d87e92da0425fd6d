//! What has come of agreements, as the root and the ranks remember it: when the root is lost between its answers, those who have
//! got theirs tell the next root, which answers the others alike. No socket, no clock.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::agreement::{Outcome, RankSet, put_ranks, ranks};
use super::wire::{Reader, WireError, Writer};

/// How one agreement has ended, as one who goes on tells it to a new root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settlement {
    /// The communicator.
    pub(super) tag: u64,
    /// How many agreements of that communicator had ended so before.
    pub(super) round: u32,
    /// What all who go on were given.
    pub(super) nonce: [u8; 32],
    /// Who goes on.
    pub(super) survivors: RankSet,
    /// Whom the one who tells this has excluded.
    pub(super) exclude: RankSet,
}

/// A rank tells of another result of an agreement than somebody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contradiction;

/// The latest settlement of each communicator. A rank asks for the next round only when it has the result of the last one, so nobody
/// lacks an earlier result but those who were excluded from it.
#[derive(Debug)]
pub(super) struct Settlements {
    most: usize,
    latest: HashMap<u64, Known>,
    /// The one whose latest round is the oldest first, for forgetting.
    order: VecDeque<u64>,
}

#[derive(Debug)]
struct Known {
    settlement: Settlement,
    /// Who was excluded, in this round or an earlier one, and by whom.
    excluders: BTreeMap<u32, u32>,
}

impl Settlements {
    /// Remembers those of at most `most` communicators, the latest.
    pub(super) fn new(most: usize) -> Self {
        Self { most, latest: HashMap::new(), order: VecDeque::new() }
    }

    /// `rank` tells of a settlement.
    pub(super) fn learn(&mut self, rank: u32, settlement: Settlement) -> Result<(), Contradiction> {
        let excluded = settlement.exclude.iter().map(|other| (*other, rank)).collect();
        self.settle(settlement, excluded)
    }

    /// The root has settled an agreement, from which some were excluded, each by another.
    pub(super) fn settle(
        &mut self,
        settlement: Settlement,
        excluded: BTreeMap<u32, u32>,
    ) -> Result<(), Contradiction> {
        let tag = settlement.tag;
        let Some(known) = self.latest.get_mut(&tag) else {
            if self.latest.len() == self.most
                && let Some(oldest) = self.order.pop_front()
            {
                self.latest.remove(&oldest);
            }
            self.order.push_back(tag);
            self.latest.insert(tag, Known { settlement, excluders: excluded });
            return Ok(());
        };
        let same_round = settlement.round == known.settlement.round;
        if same_round && settlement.nonce != known.settlement.nonce {
            return Err(Contradiction);
        }
        for (other, by) in excluded {
            known.excluders.entry(other).or_insert(by);
        }
        if settlement.round > known.settlement.round {
            known.settlement = settlement;
            self.order.retain(|other| *other != tag);
            self.order.push_back(tag);
        }
        Ok(())
    }

    /// What `rank`, which asks in round `round`, is to hear, if that is settled.
    pub(super) fn outcome(&self, tag: u64, round: u32, rank: u32) -> Option<Outcome> {
        let Known { settlement, excluders } = self.latest.get(&tag)?;
        if round > settlement.round {
            return excluders.get(&rank).map(|by| Outcome::Excluded { by: *by });
        }
        if round == settlement.round && settlement.survivors.contains(&rank) {
            let (nonce, survivors) = (settlement.nonce, settlement.survivors.clone());
            return Some(Outcome::Agreed { nonce, survivors });
        }
        // Whoever has excluded it may be gone, and one of those who go on without it stands for them.
        let by = excluders.get(&rank).or_else(|| settlement.survivors.first())?;
        Some(Outcome::Excluded { by: *by })
    }

    /// All of them, the latest of each communicator.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Settlement> {
        self.order.iter().filter_map(|tag| self.latest.get(tag)).map(|known| &known.settlement)
    }
}

impl Settlement {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.tag);
        w.u32(self.round);
        w.raw(&self.nonce);
        put_ranks(&mut w, &self.survivors);
        put_ranks(&mut w, &self.exclude);
        w.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let settlement = Self {
            tag: r.u64("communicator")?,
            round: r.u32("round")?,
            nonce: r.array("nonce")?,
            survivors: ranks(&mut r, "survivors")?,
            exclude: ranks(&mut r, "excluded ranks")?,
        };
        r.finish("a settlement")?;
        Ok(settlement)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::agreement::MAX_ASK;
    use super::super::record::MAX_WORLD;
    use super::*;

    fn set(ranks: &[u32]) -> RankSet {
        ranks.iter().copied().collect()
    }

    fn settlement(tag: u64, round: u32, survivors: &[u32], exclude: &[u32]) -> Settlement {
        let nonce = [tag as u8 ^ round as u8; 32];
        Settlement { tag, round, nonce, survivors: set(survivors), exclude: set(exclude) }
    }

    fn agreed(of: &Settlement) -> Option<Outcome> {
        Some(Outcome::Agreed { nonce: of.nonce, survivors: of.survivors.clone() })
    }

    #[test]
    fn whoever_goes_on_hears_the_same_and_others_by_whom_they_are_excluded() {
        let mut known = Settlements::new(4);
        let first = settlement(7, 0, &[1, 2, 4], &[3]);
        assert_eq!(known.outcome(7, 0, 2), None);
        known.learn(2, first.clone()).expect("the first");
        assert_eq!(known.learn(4, Settlement { exclude: set(&[5]), ..first.clone() }), Ok(()));
        assert_eq!(known.outcome(7, 0, 1), agreed(&first));
        assert_eq!(known.outcome(7, 0, 3), Some(Outcome::Excluded { by: 2 }));
        assert_eq!(known.outcome(7, 0, 5), Some(Outcome::Excluded { by: 4 }));
        assert_eq!(
            known.outcome(7, 0, 6),
            Some(Outcome::Excluded { by: 1 }),
            "its excluder is gone"
        );
        assert_eq!(known.outcome(7, 1, 1), None, "not settled yet");
        let other = Settlement { nonce: [99; 32], ..first };
        assert_eq!(known.learn(4, other), Err(Contradiction));
    }

    #[test]
    fn a_later_round_replaces_an_earlier_one_but_exclusions_stay() {
        let mut known = Settlements::new(4);
        known.learn(1, settlement(7, 1, &[1, 2], &[4])).expect("the first");
        known.learn(2, settlement(7, 0, &[1, 2, 4], &[3])).expect("what it was before");
        assert_eq!(known.outcome(7, 1, 2), agreed(&settlement(7, 1, &[1, 2], &[])));
        for (rank, by) in [(3, 2), (4, 1)] {
            assert_eq!(known.outcome(7, 0, rank), Some(Outcome::Excluded { by }));
            assert_eq!(known.outcome(7, 2, rank), Some(Outcome::Excluded { by }));
        }
        known.learn(2, settlement(7, 2, &[1, 2], &[])).expect("the next");
        assert!(known.iter().map(|one| one.round).eq([2]));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut known = Settlements::new(3);
        for tag in 0..10 {
            known.learn(1, settlement(tag, 0, &[1], &[])).expect("new");
        }
        assert_eq!(known.iter().map(|one| one.tag).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!((known.outcome(6, 0, 1), known.latest.len()), (None, 3));
        known.learn(1, settlement(7, 1, &[1], &[])).expect("the next round");
        known.learn(1, settlement(10, 0, &[1], &[])).expect("new");
        assert_eq!(known.iter().map(|one| one.tag).collect::<Vec<_>>(), [9, 7, 10]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn frames_survive(
            (tag, round, nonce) in any::<(u64, u32, [u8; 32])>(),
            survivors in prop::collection::btree_set(0..MAX_WORLD as u32, 0..40),
            exclude in prop::collection::btree_set(0..100_u32, 0..40),
        ) {
            let settlement = Settlement { tag, round, nonce, survivors, exclude };
            let bytes = settlement.encode();
            prop_assert!(bytes.len() <= MAX_ASK);
            prop_assert!(Settlement::decode(&bytes[..bytes.len() - 1]).is_err());
            prop_assert_eq!(Settlement::decode(&bytes), Ok(settlement));
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Settlement::decode(&bytes);
        }
    }
}
