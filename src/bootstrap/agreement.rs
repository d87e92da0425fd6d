//! Who goes on after a loss: what ranks ask, and how one answer for all comes about. No socket, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::record::MAX_WORLD;
use super::wire::{Reader, WireError, Writer};

/// Some of a job's ranks.
pub(crate) type RankSet = BTreeSet<u32>;

/// Most bytes of an encoded [`RankSet`]: a bit for each rank.
const MAX_SET: u16 = (MAX_WORLD / 8) as u16;
/// Most bytes of a frame of this module.
pub(super) const MAX_ASK: usize = 64 + 2 * (2 + MAX_SET as usize);

/// The members of one communicator, as they ask to go on without some of them. Everybody who asks gets the same answer, once
/// all have asked whom nobody excludes and who are not gone.
#[derive(Debug)]
pub(crate) struct Agreement<T> {
    members: RankSet,
    /// Who is excluded, and by whom first.
    excluded: BTreeMap<u32, u32>,
    gone: RankSet,
    /// Who has asked, with what leads the answer there.
    asked: BTreeMap<u32, T>,
    begun: Instant,
    deadline: Instant,
}

impl<T> Agreement<T> {
    /// Nobody of `members` has asked.
    pub(crate) fn new(members: RankSet, now: Instant, deadline: Instant) -> Self {
        Self {
            members,
            excluded: BTreeMap::new(),
            gone: RankSet::new(),
            asked: BTreeMap::new(),
            begun: now,
            deadline,
        }
    }

    /// `rank` asks to go on without `exclude`, and waits until `deadline`; a second time instead of the first. One that is gone gets
    /// no answer.
    pub(crate) fn ask(&mut self, rank: u32, exclude: &RankSet, deadline: Instant, ticket: T) {
        for other in exclude {
            self.excluded.entry(*other).or_insert(rank);
        }
        if !self.gone.contains(&rank) {
            self.asked.insert(rank, ticket);
        }
        self.deadline = self.deadline.min(deadline);
    }

    /// `rank` is lost, or has left: nobody waits for it.
    pub(crate) fn lose(&mut self, rank: u32) {
        self.gone.insert(rank);
        self.asked.remove(&rank);
    }

    /// Who goes on, once that is certain.
    pub(crate) fn survivors(&self) -> Option<RankSet> {
        self.missing().is_empty().then(|| self.remaining().collect())
    }

    /// Who has yet to ask.
    pub(crate) fn missing(&self) -> RankSet {
        self.remaining().filter(|rank| !self.asked.contains_key(rank)).collect()
    }

    /// Who excludes `rank`.
    pub(crate) fn excluder(&self, rank: u32) -> Option<u32> {
        self.excluded.get(&rank).copied()
    }

    /// Who is excluded, and by whom.
    pub(crate) fn into_excluded(self) -> BTreeMap<u32, u32> {
        self.excluded
    }

    /// Whether `rank` may ask.
    pub(super) fn concerns(&self, rank: u32) -> bool {
        self.members.contains(&rank)
    }

    /// Whether `rank` has asked.
    pub(super) fn has_asked(&self, rank: u32) -> bool {
        self.asked.contains_key(&rank)
    }

    /// When the first of those who have asked gives up.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// For how long the first who asked has waited.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }

    /// Those who have asked.
    pub(super) fn askers(&self) -> impl Iterator<Item = (u32, &T)> {
        self.asked.iter().map(|(rank, ticket)| (*rank, ticket))
    }

    /// The ranks that have asked.
    pub(crate) fn asked(&self) -> RankSet {
        self.asked.keys().copied().collect()
    }

    fn remaining(&self) -> impl Iterator<Item = u32> {
        let is_out = |rank: &&u32| self.excluded.contains_key(*rank) || self.gone.contains(*rank);
        self.members.iter().filter(move |rank| !is_out(rank)).copied()
    }
}

/// Rank to root: let us go on without some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// The communicator.
    pub(super) tag: u64,
    /// Tells this question from others of the same rank.
    pub(super) number: u32,
    /// How many agreements of the communicator have ended before, with this rank among those who went on.
    pub(super) round: u32,
    /// How long the rank is going to wait for the answer.
    pub(super) patience: Duration,
    /// All ranks of the communicator.
    pub(super) members: RankSet,
    /// Those that this rank does not want, or knows to be gone.
    pub(super) exclude: RankSet,
}

/// Root to rank: what has come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) number: u32,
    pub(super) outcome: Outcome,
}

/// What has come of an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// These go on. The nonce is the same for all of them, and was never there before.
    Agreed { nonce: [u8; 32], survivors: RankSet },
    /// These did not ask in time.
    Missing { ranks: RankSet, waited: Duration },
    /// The one who gets this is not to go on.
    Excluded { by: u32 },
    /// The one who gets this waits for so many agreements already.
    TooMany { most: u32 },
}

/// Rank to a new root: I was in the job whose root is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejoin {
    pub(super) rank: u32,
    /// The ranks that this one knows to be lost.
    pub(super) lost: RankSet,
    /// The ranks that have left.
    pub(super) left: RankSet,
}

impl Ask {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.tag);
        w.u32(self.number);
        w.u32(self.round);
        w.u64(millis(self.patience));
        put_ranks(&mut w, &self.members);
        put_ranks(&mut w, &self.exclude);
        w.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let ask = Self {
            tag: r.u64("communicator")?,
            number: r.u32("number")?,
            round: r.u32("round")?,
            patience: Duration::from_millis(r.u64("timeout")?),
            members: ranks(&mut r, "members")?,
            exclude: ranks(&mut r, "excluded ranks")?,
        };
        r.finish("a question")?;
        Ok(ask)
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.number);
        match &self.outcome {
            Outcome::Agreed { nonce, survivors } => {
                w.u8(1);
                w.raw(nonce);
                put_ranks(&mut w, survivors);
            }
            Outcome::Missing { ranks, waited } => {
                w.u8(2);
                w.u64(millis(*waited));
                put_ranks(&mut w, ranks);
            }
            Outcome::Excluded { by } => {
                w.u8(3);
                w.u32(*by);
            }
            Outcome::TooMany { most } => {
                w.u8(4);
                w.u32(*most);
            }
        }
        w.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let number = r.u32("number")?;
        let outcome = match r.u8("outcome")? {
            1 => {
                Outcome::Agreed { nonce: r.array("nonce")?, survivors: ranks(&mut r, "survivors")? }
            }
            2 => Outcome::Missing {
                waited: Duration::from_millis(r.u64("time waited")?),
                ranks: ranks(&mut r, "missing ranks")?,
            },
            3 => Outcome::Excluded { by: r.u32("rank")? },
            4 => Outcome::TooMany { most: r.u32("number of agreements")? },
            code => return Err(WireError::Value { field: "outcome", value: code.into() }),
        };
        r.finish("an answer")?;
        Ok(Self { number, outcome })
    }
}

impl Rejoin {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.rank);
        put_ranks(&mut w, &self.lost);
        put_ranks(&mut w, &self.left);
        w.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let rejoin = Self {
            rank: r.u32("rank")?,
            lost: ranks(&mut r, "lost ranks")?,
            left: ranks(&mut r, "ranks that have left")?,
        };
        r.finish("a rank's return")?;
        Ok(rejoin)
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

/// A bit for each rank, as far as there are any. Ranks that no job has are left out.
pub(super) fn put_ranks(w: &mut Writer, ranks: &RankSet) {
    let known = ranks.iter().map(|rank| *rank as usize).filter(|rank| *rank < MAX_WORLD);
    let mut bits = Vec::new();
    for rank in known {
        bits.resize(rank / 8 + 1, 0_u8);
        bits[rank / 8] |= 1 << (rank % 8);
    }
    w.bytes(&bits, MAX_SET);
}

pub(super) fn ranks(r: &mut Reader<'_>, field: &'static str) -> Result<RankSet, WireError> {
    let bits = r.bytes(MAX_SET, field)?;
    let ranks = bits.iter().enumerate().flat_map(|(byte, bits)| {
        (0..8).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| byte as u32 * 8 + bit)
    });
    Ok(ranks.collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn set(ranks: &[u32]) -> RankSet {
        ranks.iter().copied().collect()
    }

    fn agreement(members: &[u32]) -> (Agreement<()>, Instant) {
        let now = Instant::now();
        (Agreement::new(set(members), now, now + SOON), now)
    }

    #[test]
    fn differing_lists_are_united() {
        let (mut agreement, now) = agreement(&[0, 1, 2, 3, 4]);
        agreement.ask(0, &set(&[1]), now + SOON, ());
        agreement.ask(2, &set(&[]), now + SOON, ());
        assert_eq!(agreement.survivors(), None);
        assert_eq!(agreement.missing(), set(&[3, 4]));
        agreement.ask(4, &set(&[3]), now + SOON / 2, ());
        assert_eq!(agreement.survivors(), Some(set(&[0, 2, 4])));
        assert_eq!((agreement.excluder(3), agreement.excluder(1)), (Some(4), Some(0)));
        assert_eq!(agreement.deadline(), now + SOON / 2, "the least patient counts");
    }

    #[test]
    fn whoever_goes_meanwhile_is_not_waited_for() {
        let (mut agreement, now) = agreement(&[5, 6, 7]);
        agreement.ask(5, &set(&[]), now + SOON, ());
        agreement.ask(6, &set(&[]), now + SOON, ());
        agreement.lose(6);
        assert_eq!(agreement.survivors(), None);
        agreement.lose(7);
        assert_eq!(agreement.survivors(), Some(set(&[5])));
        agreement.ask(7, &set(&[]), now + SOON, ());
        assert!(agreement.asked().into_iter().eq([5]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn frames_survive(
            (tag, number, patience) in any::<(u64, u32, u32)>(),
            members in prop::collection::btree_set(0..MAX_WORLD as u32, 0..40),
            exclude in prop::collection::btree_set(0..100_u32, 0..40),
        ) {
            let patience = Duration::from_millis(patience.into());
            let (round, lost) = (number / 2, members.clone());
            let ask = Ask { tag, number, round, patience, members: lost, exclude: exclude.clone() };
            prop_assert!(ask.encode().len() <= MAX_ASK);
            prop_assert_eq!(Ask::decode(&ask.encode()), Ok(ask));
            let rejoin = Rejoin { rank: number, lost: members.clone(), left: exclude };
            prop_assert_eq!(Rejoin::decode(&rejoin.encode()), Ok(rejoin));
            for outcome in [
                Outcome::Agreed { nonce: [7; 32], survivors: members.clone() },
                Outcome::Missing { ranks: members, waited: patience },
                Outcome::Excluded { by: number },
                Outcome::TooMany { most: number },
            ] {
                let answer = Answer { number, outcome };
                let bytes = answer.encode();
                prop_assert!(bytes.len() <= MAX_ASK);
                prop_assert!(Answer::decode(&bytes[..bytes.len() - 1]).is_err());
                prop_assert_eq!(Answer::decode(&bytes), Ok(answer));
            }
        }

        /// In whatever order members ask and go: the answer holds exactly those who asked, stayed, and are not excluded.
        #[test]
        fn survivors_have_all_asked(
            events in prop::collection::vec((0..6_u32, prop::option::of(0..6_u32)), 0..20),
            lost in prop::collection::btree_set(0..6_u32, 0..4),
        ) {
            let (mut agreement, now) = agreement(&[0, 1, 2, 3, 4, 5]);
            for (rank, excluded) in &events {
                agreement.ask(*rank, &excluded.iter().copied().collect(), now + SOON, ());
            }
            for rank in &lost {
                agreement.lose(*rank);
            }
            let excluded: RankSet = events.iter().filter_map(|(_, excluded)| *excluded).collect();
            let stay = (0..6).filter(|rank| !lost.contains(rank) && !excluded.contains(rank));
            let stay: RankSet = stay.collect();
            let all_asked = stay.iter().all(|rank| events.iter().any(|(asker, _)| asker == rank));
            prop_assert_eq!(agreement.survivors(), all_asked.then_some(stay));
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (Ask::decode(&bytes), Answer::decode(&bytes), Rejoin::decode(&bytes));
        }
    }
}
