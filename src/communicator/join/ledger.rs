//! What one rank knows of who has joined and which calls there are to answer: pure bookkeeping.
//!
//! A rank that has joined at sequence number s has made the calls up to s and must answer those after it, in order. Somebody who has
//! made them announces them: the lowest rank that has not joined, as it begins each call, and whoever learns that a
//! rank joined before calls that it has made already. For the latter a rank remembers calls, but only those since the
//! last that waits for everybody: when such a call has ended, everybody has begun it, and nobody joins before it any more.
//!
//! Joins are counted in epochs: every rank joins once in each. All ranks hear of all joins, in any order; the root's
//! number on each says which was last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use annulus_plan::{Fingerprint, Rank};

/// So many calls that wait for nobody are remembered.
const MAX_REMEMBERED: usize = 4096;

/// A call of the communicator, with its sequence number in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Numbered {
    pub(in super::super) sequence: u64,
    pub(in super::super) call: Fingerprint,
}

/// That a rank has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Arrival {
    /// How many times the rank had joined before.
    pub(in super::super) epoch: u64,
    /// How many collectives it had made.
    pub(in super::super) sequence: u64,
    /// Greater than that of every earlier join of any rank.
    pub(in super::super) order: u64,
}

/// What a rank that has joined does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Next {
    /// Tell the others of these calls.
    Announce(Vec<Numbered>),
    /// Take part in this call.
    Answer(Numbered),
    /// All have joined, in this order, and have made so many collectives.
    Over { order: Vec<Rank>, sequence: u64 },
    /// Nothing, until something becomes known.
    Wait,
}

/// Somebody has joined who has not made calls that are no longer remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Forgotten {
    pub(in super::super) rank: Rank,
    pub(in super::super) sequence: u64,
}

#[derive(Debug)]
pub(in super::super) struct Ledger {
    rank: Rank,
    world: usize,
    /// How many times this rank has joined, to the end.
    epoch: u64,
    /// Who has joined, in this epoch and the next.
    arrivals: BTreeMap<u64, Vec<Option<Arrival>>>,
    /// Calls that others have told of and this rank may have to answer.
    announced: BTreeMap<u64, Fingerprint>,
    /// Own calls since the last that waited for everybody.
    remembered: VecDeque<Numbered>,
    /// The last call that was remembered and is no more.
    forgotten: u64,
    /// Calls that all ranks have been told of, by this one or by another, as far as this one may still have to tell of them.
    told: BTreeSet<u64>,
    /// Whether this rank has joined in this epoch.
    joined: bool,
}

impl Ledger {
    pub(in super::super) fn new(rank: Rank, world: usize) -> Self {
        Self {
            rank,
            world,
            epoch: 0,
            arrivals: BTreeMap::new(),
            announced: BTreeMap::new(),
            remembered: VecDeque::new(),
            forgotten: 0,
            told: BTreeSet::new(),
            joined: false,
        }
    }

    pub(in super::super) fn world(&self) -> usize {
        self.world
    }

    /// The epoch that this rank's next join, or the one under way, belongs to.
    pub(in super::super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether anybody has joined in this epoch.
    pub(in super::super) fn is_active(&self) -> bool {
        self.arrivals.contains_key(&self.epoch)
    }

    /// Whether `rank` has joined in this epoch.
    pub(in super::super) fn has_joined(&self, rank: Rank) -> bool {
        self.arrivals.get(&self.epoch).is_some_and(|arrivals| arrivals[rank].is_some())
    }

    /// Whether `rank` has joined in this epoch without having made the call `sequence`.
    pub(in super::super) fn joined_before(&self, rank: Rank, sequence: u64) -> bool {
        let arrivals = self.arrivals.get(&self.epoch);
        arrivals.and_then(|arrivals| arrivals[rank]).is_some_and(|one| one.sequence < sequence)
    }

    /// Notes that `rank` has joined. What no rank of this version says is ignored.
    pub(in super::super) fn arrive(&mut self, rank: Rank, arrival: Arrival) {
        if rank < self.world && (self.epoch..=self.epoch + 1).contains(&arrival.epoch) {
            let nobody = || vec![None; self.world];
            self.arrivals.entry(arrival.epoch).or_insert_with(nobody)[rank].get_or_insert(arrival);
        }
    }

    /// Notes a call that somebody tells all others of.
    pub(in super::super) fn hear(&mut self, call: Numbered) {
        self.announced.insert(call.sequence, call.call);
        self.told.insert(call.sequence);
    }

    /// The join that has made the fewest calls in this epoch.
    fn earliest(&self) -> Option<(Rank, Arrival)> {
        let arrivals = self.arrivals.get(&self.epoch)?;
        let joined = arrivals.iter().enumerate().filter_map(|(rank, one)| Some((rank, (*one)?)));
        joined.min_by_key(|(_, arrival)| arrival.sequence)
    }

    /// The number in full of a call that some rank is in, from its lower half.
    pub(in super::super) fn widen(&self, sequence: u32) -> u64 {
        let near = self.earliest().map_or(0, |(_, arrival)| arrival.sequence);
        let ahead = sequence.wrapping_sub(near as u32) as i32;
        near.saturating_add_signed(ahead.into())
    }

    /// This rank has made a call that does not wait for everybody.
    pub(in super::super) fn remember(&mut self, call: Numbered) {
        if self.remembered.len() == MAX_REMEMBERED
            && let Some(oldest) = self.remembered.pop_front()
            && !self.told.contains(&oldest.sequence)
        {
            self.forgotten = oldest.sequence;
        }
        self.remembered.push_back(call);
    }

    /// This rank has made a call that waits for everybody.
    pub(in super::super) fn forget(&mut self) {
        self.remembered.clear();
        self.forgotten = 0;
    }

    /// The calls that this rank, perhaps in the call `current`, should tell the others of.
    pub(in super::super) fn witness(
        &mut self,
        current: Option<Numbered>,
    ) -> Result<Vec<Numbered>, Forgotten> {
        if let Some(current) = current {
            self.announced = self.announced.split_off(&(current.sequence + 1));
            let oldest = self.remembered.front().map_or(current.sequence, |call| call.sequence);
            self.told = self.told.split_off(&oldest);
        }
        let Some((rank, Arrival { sequence: floor, .. })) = self.earliest() else {
            return Ok(Vec::new());
        };
        if !self.joined && (0..self.rank).any(|lower| !self.has_joined(lower)) {
            return Ok(Vec::new());
        }
        if floor < self.forgotten {
            return Err(Forgotten { rank, sequence: floor });
        }
        let own = self.remembered.iter().copied().chain(current);
        let is_news =
            |call: &Numbered| call.sequence > floor && !self.told.contains(&call.sequence);
        let news: Vec<_> = own.filter(is_news).collect();
        self.told.extend(news.iter().map(|call| call.sequence));
        Ok(news)
    }

    /// This rank joins: its own arrival is still to come back, with its number.
    pub(in super::super) fn join(&mut self) {
        self.joined = true;
    }

    /// The epoch in which this rank has joined, and the others have not all.
    pub(in super::super) fn joined_in(&self) -> Option<u64> {
        self.joined.then_some(self.epoch)
    }

    /// What this rank, which has joined and has made or answered the calls up to `sequence`, does next.
    pub(in super::super) fn next(&mut self, sequence: u64) -> Result<Next, Forgotten> {
        let news = self.witness(None)?;
        if !news.is_empty() {
            return Ok(Next::Announce(news));
        }
        self.announced = self.announced.split_off(&(sequence + 1));
        let arrivals = self.arrivals.get(&self.epoch);
        let all: Option<Vec<Arrival>> =
            arrivals.and_then(|arrivals| arrivals.iter().copied().collect());
        let end = all.as_ref().and_then(|all| all.iter().map(|arrival| arrival.sequence).max());
        // What is announced after the end belongs to the next epoch.
        let (Some(all), Some(end), true) = (all, end, end.is_none_or(|end| sequence >= end)) else {
            let call = self.announced.remove(&(sequence + 1));
            let answer = |call| Next::Answer(Numbered { sequence: sequence + 1, call });
            return Ok(call.map_or(Next::Wait, answer));
        };
        let mut order: Vec<Rank> = (0..self.world).collect();
        order.sort_by_key(|&rank| (all[rank].order, rank));
        self.arrivals.remove(&self.epoch);
        self.epoch += 1;
        self.joined = false;
        self.announced = self.announced.split_off(&(end + 1));
        self.told = self.told.split_off(&(end + 1));
        self.forget();
        Ok(Next::Over { order, sequence: end })
    }
}
