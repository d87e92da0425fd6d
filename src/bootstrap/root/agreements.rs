//! Agreements on who goes on: all members of a communicator that are still there ask, and get one answer.

use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use super::{Open, Phase, Root, State};
use crate::bootstrap::agreement::{Agreement, Answer, Ask, Outcome, RankSet};
use crate::bootstrap::settlement::{Contradiction, Settlement};
use crate::bootstrap::wire::{FrameKind, WireError, frame};

/// No rank waits longer for an answer.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

/// A rank may wait for the answers of so many agreements at a time, each of another communicator.
pub(super) const MAX_OPEN: usize = 64;

impl Root {
    /// The rank of `seat` asks to go on without some.
    pub(super) fn ask(&self, seat: u64, ask: Ask) -> Result<(), WireError> {
        let mut guard = self.state();
        let state = &mut *guard;
        let unexpected = WireError::Unexpected { kind: FrameKind::Ask as u8 };
        let rank = state.seats.get(&seat).and_then(|seat| seat.rank);
        let Some(rank) = rank.filter(|rank| ask.members.contains(rank)) else {
            return Err(unexpected);
        };
        if state.phase != Phase::Running {
            return Err(unexpected);
        }
        // The one who tells how it ended may have come first, and who was excluded comes too late.
        if let Some(outcome) = state.settlements.outcome(ask.tag, ask.round, rank) {
            Self::reply(state, seat, ask.number, outcome);
            return Ok(());
        }
        let asked = |open: &&Open| open.agreement.has_asked(rank);
        let key = (ask.tag, ask.round);
        let here = state.agreements.get(&key);
        if here.filter(asked).is_none()
            && state.agreements.values().filter(asked).count() >= MAX_OPEN
        {
            Self::reply(state, seat, ask.number, Outcome::TooMany { most: MAX_OPEN as u32 });
            return Ok(());
        }
        let now = Instant::now();
        let deadline = now + ask.patience.min(LONGEST_WAIT);
        let open = match state.agreements.entry(key) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(vacant) => {
                let mut agreement = Agreement::new(ask.members, now, deadline);
                for rank in state.gone.keys().copied().chain(state.departures.of(ask.tag)) {
                    agreement.lose(rank);
                }
                let appointment = self.reactor.call_at(deadline, self.this.clone());
                vacant.insert(Open { agreement, appointment })
            }
        };
        if !open.agreement.concerns(rank) {
            return Err(unexpected);
        }
        if deadline < open.agreement.deadline() {
            self.reactor.cancel(open.appointment);
            open.appointment = self.reactor.call_at(deadline, self.this.clone());
        }
        open.agreement.ask(rank, &ask.exclude, deadline, (seat, ask.number));
        self.settle(state, key);
        Ok(())
    }

    /// The rank of `seat` had got an answer of the root before: others may still ask.
    pub(super) fn settled(&self, seat: u64, settlement: Settlement) -> Result<(), WireError> {
        let mut state = self.state();
        let unexpected = WireError::Unexpected { kind: FrameKind::Settled as u8 };
        let rank = state.seats.get(&seat).and_then(|seat| seat.rank);
        let Some(rank) = rank.filter(|rank| settlement.survivors.contains(rank)) else {
            return Err(unexpected);
        };
        if state.successor.is_none() {
            return Err(unexpected);
        }
        let key = (settlement.tag, settlement.round);
        state.settlements.learn(rank, settlement).map_err(|Contradiction| unexpected)?;
        let Some(Open { agreement, appointment }) = state.agreements.remove(&key) else {
            return Ok(());
        };
        self.reactor.cancel(appointment);
        for (rank, (seat, number)) in agreement.askers() {
            if let Some(outcome) = state.settlements.outcome(key.0, key.1, rank) {
                Self::reply(&state, *seat, *number, outcome);
            }
        }
        Ok(())
    }

    /// `rank` has dropped the communicator `tag`: those who have asked to shrink it already did not know, nor may those who ask next.
    pub(super) fn departed(&self, state: &mut State, tag: u64, rank: u32) {
        state.departures.note(tag, rank);
        self.settle_without(state, rank, |key| key.0 == tag);
    }

    /// `rank` is gone, as far as that `concerns` an agreement: nobody waits for it there any more.
    pub(super) fn settle_without(
        &self,
        state: &mut State,
        rank: u32,
        concerns: impl Fn(&(u64, u32)) -> bool,
    ) {
        let keys = state.agreements.keys().copied().filter(concerns);
        for key in keys.collect::<Vec<_>>() {
            if let Some(open) = state.agreements.get_mut(&key) {
                open.agreement.lose(rank);
            }
            self.settle(state, key);
        }
    }

    /// Answers if all have asked who are still there. Where nobody asks any more, there is nothing to answer.
    fn settle(&self, state: &mut State, key: (u64, u32)) {
        let Some(Open { agreement, appointment }) = state.agreements.get(&key) else { return };
        if agreement.askers().next().is_none() {
            self.reactor.cancel(*appointment);
            state.agreements.remove(&key);
        } else if let Some(survivors) = agreement.survivors() {
            state.agreed += 1;
            let nonce = *self.entropy.derive(&state.agreed.to_le_bytes()).as_bytes();
            self.answer(state, key, &Outcome::Agreed { nonce, survivors });
        }
    }

    /// Answers where time is up.
    pub(super) fn expire(&self, state: &mut State, now: Instant) {
        let is_over = |open: &&Open| open.agreement.deadline() <= now;
        let over: Vec<(u64, u32)> = state
            .agreements
            .iter()
            .filter(|(_, open)| is_over(open))
            .map(|(key, _)| *key)
            .collect();
        for key in over {
            let agreement = &state.agreements[&key].agreement;
            let (ranks, waited) = (agreement.missing(), agreement.waited(now));
            self.answer(state, key, &Outcome::Missing { ranks, waited });
        }
    }

    fn answer(&self, state: &mut State, key: (u64, u32), outcome: &Outcome) {
        let Some(Open { agreement, appointment }) = state.agreements.remove(&key) else { return };
        self.reactor.cancel(appointment);
        for (rank, (seat, number)) in agreement.askers() {
            let outcome = match agreement.excluder(rank) {
                Some(by) => Outcome::Excluded { by },
                None => outcome.clone(),
            };
            Self::reply(state, *seat, *number, outcome);
        }
        if let Outcome::Agreed { nonce, survivors } = outcome {
            let (tag, round) = key;
            let (nonce, survivors) = (*nonce, survivors.clone());
            let exclude = RankSet::new();
            let settlement = Settlement { tag, round, nonce, survivors, exclude };
            // A round is answered once, so there is nothing to contradict.
            let _ = state.settlements.settle(settlement, agreement.into_excluded());
        }
    }

    fn reply(state: &State, seat: u64, number: u32, outcome: Outcome) {
        if let Some(seat) = state.seats.get(&seat) {
            let answer = Answer { number, outcome };
            seat.connection.send(frame(FrameKind::Answer, &answer.encode()).into());
        }
    }
}
