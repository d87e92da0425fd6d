//! Agreements on who goes on: all members of a communicator that are still there ask, and get one answer.

use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use super::{Open, Root, State};
use crate::bootstrap::agreement::{Agreement, Answer, Ask, Outcome};
use crate::bootstrap::wire::{FrameKind, WireError, frame};

/// No rank waits longer for an answer.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

impl Root {
    /// The rank of `seat` asks to go on without some.
    pub(super) fn ask(&self, seat: u64, ask: Ask) -> Result<(), WireError> {
        let mut state = self.state();
        let unexpected = WireError::Unexpected { kind: FrameKind::Ask as u8 };
        let rank = state.seats.get(&seat).and_then(|seat| seat.rank);
        let Some(rank) = rank.filter(|rank| ask.members.contains(rank)) else {
            return Err(unexpected);
        };
        if let Some(by) = state.excluded.get(&ask.tag).and_then(|excluded| excluded.get(&rank)) {
            Self::reply(&state, seat, ask.number, Outcome::Excluded { by: *by });
            return Ok(());
        }
        let now = Instant::now();
        let deadline = now + ask.patience.min(LONGEST_WAIT);
        let open = match state.agreements.entry(ask.tag) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Open {
                agreement: Agreement::new(ask.members, now, deadline),
                appointment: self.reactor.call_at(deadline, self.this.clone()),
            }),
        };
        if !open.agreement.concerns(rank) {
            return Err(unexpected);
        }
        if deadline < open.agreement.deadline() {
            self.reactor.cancel(open.appointment);
            open.appointment = self.reactor.call_at(deadline, self.this.clone());
        }
        open.agreement.ask(rank, &ask.exclude, deadline, (seat, ask.number));
        self.settle(&mut state);
        Ok(())
    }

    /// Answers wherever all have asked who are still there.
    pub(super) fn settle(&self, state: &mut State) {
        let gone: Vec<u32> = state.gone.keys().copied().collect();
        let mut settled = Vec::new();
        for (tag, open) in &mut state.agreements {
            for rank in &gone {
                open.agreement.lose(*rank);
            }
            if let Some(survivors) = open.agreement.survivors() {
                settled.push((*tag, survivors));
            }
        }
        for (tag, survivors) in settled {
            state.agreed += 1;
            let nonce = *self.entropy.derive(&state.agreed.to_le_bytes()).as_bytes();
            self.answer(state, tag, &Outcome::Agreed { nonce, survivors });
        }
    }

    /// Answers where time is up.
    pub(super) fn expire(&self, state: &mut State, now: Instant) {
        let is_over = |open: &&Open| open.agreement.deadline() <= now;
        let over: Vec<u64> = state
            .agreements
            .iter()
            .filter(|(_, open)| is_over(open))
            .map(|(tag, _)| *tag)
            .collect();
        for tag in over {
            let agreement = &state.agreements[&tag].agreement;
            let (ranks, waited) = (agreement.missing(), agreement.waited(now));
            self.answer(state, tag, &Outcome::Missing { ranks, waited });
        }
    }

    fn answer(&self, state: &mut State, tag: u64, outcome: &Outcome) {
        let Some(Open { agreement, appointment }) = state.agreements.remove(&tag) else { return };
        self.reactor.cancel(appointment);
        for (rank, (seat, number)) in agreement.askers() {
            let outcome = match agreement.excluder(rank) {
                Some(by) => Outcome::Excluded { by },
                None => outcome.clone(),
            };
            Self::reply(state, *seat, *number, outcome);
        }
        if matches!(outcome, Outcome::Agreed { .. }) {
            state.excluded.entry(tag).or_default().extend(agreement.into_excluded());
        }
    }

    fn reply(state: &State, seat: u64, number: u32, outcome: Outcome) {
        if let Some(seat) = state.seats.get(&seat) {
            let answer = Answer { number, outcome };
            seat.connection.send(frame(FrameKind::Answer, &answer.encode()).into());
        }
    }
}
