//! What happens before what: vector clocks over the lanes of all ranks.
//!
//! An event is what a lane does with one piece of a message, or one local instruction. An event comes after
//! the one before it in its lane, and after the sending of the piece that it receives.
//! That a sender waits for room orders nothing: a larger link would not make it wait.

use std::collections::{HashMap, HashSet};

use crate::Rank;

use super::fault::{Fault, Place};
use super::layout::Layout;

/// Number of an event, in an order in which they can happen.
pub(super) type EventId = u32;

/// Number of a loan.
pub(super) type LoanId = u32;

/// Everything that happened, and which pairs of events must be ordered.
#[derive(Default)]
pub(super) struct History {
    events: Vec<Event>,
    /// The last event of each lane that has begun.
    latest: HashMap<usize, EventId>,
    loans: Vec<Loan>,
    required: Vec<Requirement>,
    known: HashSet<(EventId, EventId)>,
    /// The pair met last: neighbouring elements mostly ask for the same.
    recent: Option<(EventId, EventId)>,
}

#[derive(Clone, Copy)]
struct Event {
    place: Place,
    /// Number of the lane among all ranks' lanes.
    lane: usize,
    /// Number of the event in its lane, from 1.
    number: u32,
    previous: Option<EventId>,
    /// The event that sent what this one received.
    heard: Option<EventId>,
}

/// Bytes that were sent by reference.
struct Loan {
    send: EventId,
    returned: Option<EventId>,
}

/// `first` must happen before `second`, because both touch the same element.
struct Requirement {
    first: EventId,
    second: EventId,
    /// Set where `first` is the receipt of a loan.
    send: Option<EventId>,
    rank: Rank,
    region: usize,
    element: usize,
}

/// How many lanes' clocks are computed at once: bounds the memory that it takes.
const CLOCKS: usize = 32;

impl History {
    /// The next event of `lane`, which receives what `heard` sent.
    pub(super) fn push(&mut self, lane: usize, place: Place, heard: Option<EventId>) -> EventId {
        let id = self.events.len() as EventId;
        let previous = self.latest.insert(lane, id);
        let number = previous.map_or(1, |previous| self.events[previous as usize].number + 1);
        self.events.push(Event { place, lane, number, previous, heard });
        id
    }

    /// Begins a loan by the send in the event that comes next in `send`'s place.
    pub(super) fn lend(&mut self, send: EventId) -> LoanId {
        self.loans.push(Loan { send, returned: None });
        self.loans.len() as LoanId - 1
    }

    /// `event` has received the loan.
    pub(super) fn give_back(&mut self, loan: LoanId, event: EventId) {
        self.loans[loan as usize].returned = Some(event);
    }

    pub(super) fn place(&self, event: EventId) -> Place {
        self.events[event as usize].place
    }

    pub(super) fn same_lane(&self, first: EventId, second: EventId) -> bool {
        self.events[first as usize].lane == self.events[second as usize].lane
    }

    /// `first`, which has happened, must happen before `second` in every schedule.
    pub(super) fn require(
        &mut self,
        first: EventId,
        second: EventId,
        rank: Rank,
        region: usize,
        element: usize,
    ) {
        if !self.same_lane(first, second) && self.is_new(first, second) {
            self.required.push(Requirement { first, second, send: None, rank, region, element });
        }
    }

    /// `loan` must be over before `second` in every schedule. `Err`: it is not even over now.
    pub(super) fn require_returned(
        &mut self,
        loan: LoanId,
        second: EventId,
        rank: Rank,
        region: usize,
        element: usize,
    ) -> Result<(), Place> {
        let Loan { send, returned } = self.loans[loan as usize];
        let first = returned.ok_or_else(|| self.place(send))?;
        if self.is_new(first, second) {
            let send = Some(send);
            self.required.push(Requirement { first, second, send, rank, region, element });
        }
        Ok(())
    }

    fn is_new(&mut self, first: EventId, second: EventId) -> bool {
        let pair = (first, second);
        self.recent.replace(pair) != Some(pair) && self.known.insert(pair)
    }

    /// How many pairs had to be ordered.
    pub(super) fn requirements(&self) -> usize {
        self.required.len()
    }

    /// Every pair that must be ordered is.
    pub(super) fn check(&self, layouts: &[Layout]) -> Result<(), Fault> {
        let mut lanes: Vec<usize> =
            self.required.iter().map(|it| self.events[it.first as usize].lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        for lanes in lanes.chunks(CLOCKS) {
            let clocks = self.clocks(lanes);
            for it in &self.required {
                let first = self.events[it.first as usize];
                let Ok(column) = lanes.binary_search(&first.lane) else { continue };
                if clocks[it.second as usize][column] < first.number {
                    let span = layouts[it.rank].span(it.region, it.element);
                    let (first, second) = (first.place, self.place(it.second));
                    return Err(match it.send {
                        None => Fault::Race { first, second, span },
                        Some(send) => {
                            Fault::Overwritten { send: self.place(send), write: second, span }
                        }
                    });
                }
            }
        }
        Ok(())
    }

    /// For each event, how many events of each of `lanes` have surely happened when it happens.
    fn clocks(&self, lanes: &[usize]) -> Vec<[u32; CLOCKS]> {
        let mut clocks: Vec<[u32; CLOCKS]> = Vec::with_capacity(self.events.len());
        for event in &self.events {
            let mut clock = event.previous.map_or([0; CLOCKS], |it| clocks[it as usize]);
            if let Some(heard) = event.heard {
                let heard = &clocks[heard as usize];
                clock.iter_mut().zip(heard).for_each(|(own, heard)| *own = (*own).max(*heard));
            }
            if let Ok(column) = lanes.binary_search(&event.lane) {
                clock[column] = event.number;
            }
            clocks.push(clock);
        }
        clocks
    }

    /// No rank ends before every rank has begun.
    pub(super) fn everybody_hears_of_everybody(&self, world: usize) -> Result<(), Fault> {
        let words = world.div_ceil(64);
        let mut come: Vec<u64> = Vec::with_capacity(self.events.len() * words);
        let mut ends = vec![0_u64; world * words];
        for event in &self.events {
            let rank = event.place.rank;
            for word in 0..words {
                let of = |it: Option<EventId>| it.map_or(0, |it| come[it as usize * words + word]);
                let own = if rank / 64 == word { 1 << (rank % 64) } else { 0 };
                let ranks = own | of(event.previous) | of(event.heard);
                come.push(ranks);
                ends[rank * words + word] |= ranks;
            }
        }
        for early in 0..world {
            let knows = |late: Rank| ends[early * words + late / 64] & 1 << (late % 64) != 0;
            if let Some(late) = (0..world).find(|&late| late != early && !knows(late)) {
                return Err(Fault::Barrier { early, late });
            }
        }
        Ok(())
    }
}
