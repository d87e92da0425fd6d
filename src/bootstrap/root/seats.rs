//! What becomes of the ranks once the job runs: their words are relayed, and their ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_plan::Rank;

use super::surveys::Asked;
use super::{Phase, Root, Seat, State};
use crate::bootstrap::notice::{Dispatch, Event, Heartbeat, Loss, Report};
use crate::bootstrap::reactor::Source;
use crate::bootstrap::wire::{FrameKind, WireError, frame};

impl Root {
    /// Tells all ranks but one.
    fn relay(state: &State, dispatch: &Dispatch) {
        let frame: Arc<[u8]> = frame(FrameKind::Notice, &dispatch.encode()).into();
        for seat in state.seats.values() {
            if !seat.left && seat.rank.is_some_and(|rank| rank != dispatch.rank) {
                seat.connection.send(frame.clone());
            }
        }
    }

    /// Tells one rank.
    fn relay_to(state: &State, to: u32, dispatch: &Dispatch) {
        let mut seats = state.seats.values();
        if let Some(seat) = seats.find(|seat| seat.rank == Some(to) && !seat.left) {
            seat.connection.send(frame(FrameKind::Notice, &dispatch.encode()).into());
        }
    }

    pub(super) fn notice(&self, seat: u64, payload: &[u8]) -> Result<(), WireError> {
        let mut dispatch = Dispatch::decode(payload)?;
        let mut state = self.state();
        let Some(&Seat { rank: Some(rank), .. }) = state.seats.get(&seat) else {
            return Err(WireError::Unexpected { kind: FrameKind::Notice as u8 });
        };
        if state.phase != Phase::Running {
            return Ok(()); // to a root that is lost
        }
        dispatch.rank = rank;
        if let Event::Report { report: Report::Joined { order, .. }, .. } = &mut dispatch.event {
            *order = state.joins;
            state.joins += 1;
            // To the sender too, so that all know the order.
            if let Some(seat) = state.seats.get(&seat) {
                seat.connection.send(frame(FrameKind::Notice, &dispatch.encode()).into());
            }
        }
        match dispatch.event {
            Event::Report { tag, ref report } => {
                Self::relay(&state, &dispatch);
                if matches!(report, Report::Departed { .. }) {
                    self.departed(&mut state, tag, rank);
                }
            }
            Event::Stalled { to, .. } => Self::relay_to(&state, to, &dispatch),
            Event::Survey { tag } => match state.surveys.ask(tag, rank, Instant::now()) {
                Asked::First => Self::relay(&state, &dispatch),
                Asked::Joined(answers) => {
                    for (other, status) in answers {
                        let answer = Dispatch { rank: other, event: Event::State { tag, status } };
                        Self::relay_to(&state, rank, &answer);
                    }
                }
                Asked::Refused => {}
            },
            Event::State { tag, ref status } => {
                for asker in state.surveys.answer(tag, rank, status) {
                    Self::relay_to(&state, asker, &dispatch);
                }
            }
            Event::Inquiry { about } if about != rank => {
                drop(state);
                self.inquire(seat, about);
            }
            Event::Disowned { silence_ms } => {
                drop(state);
                self.disowned(seat, Duration::from_millis(silence_ms.into()));
            }
            // Only the root says that.
            Event::Inquiry { .. } | Event::Left | Event::Lost(_) | Event::Present => {}
        }
        Ok(())
    }

    /// Answers the rank of `seat` whether rank `about` is there. To answer means to read what others have sent, which may be
    /// questions too, perhaps about the one who asks: those wait for their turn.
    fn inquire(&self, seat: u64, about: u32) {
        let mut state = self.state();
        state.inquiries.push_back((seat, about));
        if std::mem::replace(&mut state.inquiring, true) {
            return;
        }
        while let Some((seat, about)) = state.inquiries.pop_front() {
            drop(state);
            self.answer_inquiry(seat, about);
            state = self.state();
        }
        state.inquiring = false;
    }

    /// Tells the rank of `seat` whether rank `about` is there, if it is. If not, it is told, or has been, like all others.
    fn answer_inquiry(&self, seat: u64, about: u32) {
        let connection = |state: &State| {
            let mut seats = state.seats.values();
            let found = seats.find(|seat| seat.rank == Some(about) && !seat.left);
            found.map(|seat| seat.connection.clone())
        };
        let Some(suspect) = connection(&self.state()) else { return };
        // The news of its end may be here already, behind what asks for it.
        suspect.ready();
        let state = self.state();
        if connection(&state).is_some()
            && let Some(seat) = state.seats.get(&seat)
        {
            let answer = Dispatch { rank: about, event: Event::Present };
            seat.connection.send(frame(FrameKind::Notice, &answer.encode()).into());
        }
    }

    /// The rank of `seat` has heard nothing of this root for too long, and goes its own way. To the others it is lost; but if
    /// this process was stopped, they all go, and the ranks of this process are those that are lost.
    fn disowned(&self, seat: u64, silence: Duration) {
        let mut state = self.state();
        let Some(Seat { rank: Some(rank), connection, .. }) = state.seats.get(&seat) else {
            return;
        };
        if connection.was_stalled() {
            for own in state.seats.values().filter(|own| own.here) {
                let Some(own_rank) = own.rank else { continue };
                let noticed = format!(
                    "rank {rank} has given it up, having heard nothing from its process for {silence:.1?}"
                );
                let loss = Loss { noticed, last_operation: own.operation };
                let word = Dispatch { rank: own_rank, event: Event::Lost(loss) };
                own.connection.send(frame(FrameKind::Notice, &word.encode()).into());
            }
        }
        let noticed = format!("it has heard nothing from the root of the job for {silence:.1?}");
        self.lose(&mut state, seat, noticed);
    }

    /// Tells everybody that the rank of `seat` is lost, once.
    fn lose(&self, state: &mut State, seat: u64, noticed: String) {
        let Some(seat) = state.seats.get_mut(&seat) else { return };
        if let (false, Some(rank)) = (std::mem::replace(&mut seat.left, true), seat.rank)
            && state.phase == Phase::Running
        {
            let event = Event::Lost(Loss { noticed, last_operation: seat.operation });
            self.bury(state, rank, event);
        }
    }

    /// `rank` is gone: tells everybody how, once.
    pub(super) fn bury(&self, state: &mut State, rank: u32, event: Event) {
        if state.gone.contains_key(&rank) {
            return;
        }
        state.gone.insert(rank, event.clone());
        if state.phase == Phase::Assembling {
            self.bury_before_service(state, rank, event);
            return;
        }
        Self::relay(state, &Dispatch { rank, event });
        self.settle_without(state, rank, |_| true);
    }

    /// Nothing has come from a rank for `silence`.
    pub(super) fn silent(&self, seat: u64, silence: Duration) {
        let noticed = format!(
            "the root of the job has heard nothing from it for {silence:.1?} (ANNULUS_HEARTBEAT)"
        );
        let loss = Loss { noticed: noticed.clone(), last_operation: None };
        if self.ended_before_service(seat, Some(Event::Lost(loss))) {
            return;
        }
        let mut state = self.state();
        if let Some(Seat { connection, rank: Some(rank), operation, .. }) = state.seats.get(&seat) {
            // It may only have been stopped, and then hears why nobody listens to it any more.
            let loss = Loss { noticed: noticed.clone(), last_operation: *operation };
            let word = Dispatch { rank: *rank, event: Event::Lost(loss) };
            connection.send(frame(FrameKind::Notice, &word.encode()).into());
            connection.close();
        }
        self.lose(&mut state, seat, noticed);
        drop(state);
        self.gone(seat, None);
    }

    /// A rank's word that it is there.
    pub(super) fn heard(&self, seat: u64, heartbeat: Heartbeat) {
        if let Some(seat) = self.state().seats.get_mut(&seat) {
            seat.operation = heartbeat.operation.or(seat.operation);
        }
    }

    pub(super) fn goodbye(&self, seat: u64) {
        if self.ended_before_service(seat, Some(Event::Left)) {
            return;
        }
        let mut state = self.state();
        let Some(seat) = state.seats.get_mut(&seat) else { return };
        if let (false, Some(rank)) = (std::mem::replace(&mut seat.left, true), seat.rank)
            && state.phase == Phase::Running
        {
            self.bury(&mut state, rank, Event::Left);
        }
    }

    /// The connection of a seat has ended, perhaps because of `damage`.
    pub(super) fn gone(&self, seat: u64, damage: Option<WireError>) {
        if self.ended_before_service(seat, None) {
            return;
        }
        let mut state = self.state();
        self.lose(
            &mut state,
            seat,
            match damage {
                None => {
                    "its process ended, or closed the control connection without a goodbye".into()
                }
                Some(damage) => format!("it sent the root of the job a damaged frame: {damage}"),
            },
        );
        let Some(seat) = state.seats.remove(&seat) else { return };
        if let (Phase::Gathering, Some(rank)) = (&state.phase, seat.rank) {
            let refusal = state.gather.left(rank as Rank);
            self.refuse(&mut state, refusal);
        }
        let over =
            state.phase == Phase::Running && !state.seats.values().any(|seat| seat.rank.is_some());
        drop(state);
        if over {
            self.end();
        }
    }
}
