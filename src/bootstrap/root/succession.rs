//! A root that takes over the job of one that is lost.
//!
//! Ranks may take different times to notice that the root is lost, and some may not lose it at all. So that they do not end up with two
//! roots, a successor lets nobody in before its own rank has come to it, which has then lost the root as well and gives up all lower
//! ranks; and before each other rank has come too, is known to be gone, or has not come for long. Whoever is gone to one is gone to all.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use annulus_transports::acceptor::{Handler, Stream};
use annulus_transports::handshake::Hello;
use annulus_transports::secret::Secret;
use annulus_transports::session::Session;

use super::{Phase, Root, Seat, State, stream_of};
use crate::bootstrap::agreement::{RankSet, Rejoin};
use crate::bootstrap::notice::{Dispatch, Event, Loss};
use crate::bootstrap::reactor::lock;
use crate::bootstrap::roster::Roster;
use crate::bootstrap::wire::{FrameKind, WireError, frame};

/// How long the ranks of a job whose root is lost may take to come to the new one, at least.
const COMING_TIME: Duration = Duration::from_secs(5);

/// Called when somebody comes. Says who is gone, as the own rank knows; an error: what has become of that rank itself, so that it can be
/// no root.
pub(in crate::bootstrap) type Visited =
    Box<dyn Fn() -> Result<Vec<Dispatch>, Box<Event>> + Send + Sync>;

/// Opens the door to a root that takes over a job, and starts it when the first rank comes.
pub(in crate::bootstrap) struct Standby {
    secret: Secret,
    roster: Arc<Roster>,
    visited: Visited,
    root: Mutex<Weak<Root>>,
}

impl Standby {
    /// For the job of which this process knows everything but that its root is lost.
    pub(in crate::bootstrap) fn new(roster: Arc<Roster>, visited: Visited) -> Self {
        let secret = Self::secret(&roster.secret);
        Self { secret, roster, visited, root: Mutex::default() }
    }

    /// What ranks prove to a root that takes over the job with `secret`.
    pub(in crate::bootstrap) fn secret(secret: &Secret) -> Secret {
        secret.derive(b"standby root")
    }

    fn root(&self) -> Option<Arc<Root>> {
        lock(&self.root).upgrade()
    }

    /// The own rank has heard that others are gone: whoever of them waits here is told.
    pub(in crate::bootstrap) fn learn(&self, gone: &[Dispatch]) {
        if let Some(root) = self.root() {
            root.learn(gone);
        }
    }

    /// Whom the root still waits for; `None`: it waits for nobody, or does not wait yet.
    pub(in crate::bootstrap) fn absent(&self) -> Option<Vec<u32>> {
        let root = self.root()?;
        let state = root.state();
        state.is_complete_but_for_absent().then(|| state.absent())
    }

    /// The own rank has `event`: those who wait here look further. `false`: nobody waits here, or the root serves them already.
    pub(in crate::bootstrap) fn stand_down(&self, event: &Event) -> bool {
        self.root().is_some_and(|root| root.stand_down(event))
    }
}

impl Handler for Standby {
    fn accepted(&self, _: Hello, stream: Stream, _: Option<Session>) {
        let mut socket = stream_of(stream);
        let mut current = lock(&self.root);
        let root = loop {
            let root = match current.upgrade() {
                Some(root) => Ok(root),
                None => {
                    let host_id = self.roster.own().host_id.to_bytes();
                    Root::new(&self.secret, host_id, false, Some(self.roster.clone()))
                }
            };
            // Without descriptors or threads there is no root here; whoever comes finds the stream closed.
            let Ok(root) = root else { return };
            match root.admit(socket) {
                Ok(()) => break root,
                // It is just over.
                Err(refused) => {
                    socket = refused;
                    *current = Weak::new();
                }
            }
        };
        *current = Arc::downgrade(&root);
        drop(current);
        // What the own rank hears from now on reaches the root.
        match (self.visited)() {
            Ok(gone) => root.learn(&gone),
            Err(event) => {
                root.stand_down(&event);
            }
        }
    }
}

impl State {
    fn own(&self) -> Option<u32> {
        self.successor.as_ref().map(|roster| roster.rank)
    }

    pub(super) fn seat_of(&self, rank: u32) -> Option<u64> {
        self.seats.iter().find(|(_, seat)| seat.rank == Some(rank)).map(|(number, _)| *number)
    }

    /// Whether the own rank has come, so that only others may be waited for.
    fn is_complete_but_for_absent(&self) -> bool {
        self.phase == Phase::Assembling && self.own().is_some_and(|own| self.seat_of(own).is_some())
    }

    /// How long those may take who have not come yet: as long as one of them, or the own rank's lost root, may take to notice
    /// that something is lost.
    pub(super) fn coming_time(&self) -> Duration {
        let Some(roster) = &self.successor else { return COMING_TIME };
        let waited_for = self.absent().into_iter().chain([roster.rank]);
        let time = |rank: u32| roster.members[rank as usize].notices_within();
        waited_for.map(time).fold(COMING_TIME, Duration::max)
    }

    /// Who has neither come nor is known to be gone.
    pub(super) fn absent(&self) -> Vec<u32> {
        let world = self.successor.as_ref().map_or(0, |roster| roster.world());
        let came: RankSet = self.seats.values().filter_map(|seat| seat.rank).collect();
        let is_absent = |rank: &u32| !came.contains(rank) && !self.gone.contains_key(rank);
        (0..world).filter(is_absent).collect()
    }
}

impl Root {
    /// A rank of a job whose root is lost has come here.
    pub(super) fn rejoin(&self, seat: u64, rejoin: Rejoin) -> Result<(), WireError> {
        let mut state = self.state();
        let rank = rejoin.rank;
        let unexpected = WireError::Unexpected { kind: FrameKind::Rejoin as u8 };
        let Some(roster) = state.successor.clone() else { return Err(unexpected) };
        let is_vacant = state.seats.get(&seat).is_some_and(|seat| seat.rank.is_none());
        let Some(member) = roster.members.get(rank as usize).filter(|_| is_vacant) else {
            return Err(unexpected);
        };
        if let Some(event) = state.gone.get(&rank).cloned() {
            // It was stopped for too long, or has only just lost a root that others have. It must not take this one for lost.
            self.dismiss(&mut state, seat, &Dispatch { rank, event });
            drop(state);
            self.gone(seat, None);
            return Ok(());
        }
        if state.phase != Phase::Assembling {
            return Err(unexpected); // all others have come
        }
        if let Some(earlier) = state.seat_of(rank).and_then(|earlier| state.seats.remove(&earlier))
        {
            earlier.connection.close(); // its connection had broken before
        }
        let Some(Seat { connection, rank: taken, heartbeat, here: is_here, rejoin: said, .. }) =
            state.seats.get_mut(&seat)
        else {
            return Ok(());
        };
        (*taken, *heartbeat) = (Some(rank), member.heartbeat);
        *is_here = member.process() == roster.own().process();
        if let Some(patience) = member.heartbeat {
            connection.beat(&self.reactor, patience);
        }
        *said = Some(rejoin);
        if rank == roster.rank {
            // The others may notice later than this one by as much as a heartbeat allows, and so may the root that it has lost.
            let deadline = Instant::now() + state.coming_time();
            self.end_phase_at(&mut state, deadline);
        }
        self.assemble(&mut state);
        Ok(())
    }

    /// Believes what those who have come say of others, and lets them in if they are all.
    fn assemble(&self, state: &mut State) {
        if !state.is_complete_but_for_absent() {
            return;
        }
        let Some((world, own)) = state.successor.as_ref().map(|job| (job.world(), job.rank)) else {
            return;
        };
        let has_said = |(_, seat): &(&u64, &Seat)| seat.rejoin.is_some();
        let came = state.seats.iter().filter(has_said);
        let mut came: Vec<(u32, u64)> =
            came.filter_map(|(number, seat)| Some((seat.rank?, *number))).collect();
        came.sort_by_key(|(rank, _)| (*rank != own, *rank));
        for (rank, seat) in came {
            // Whoever is gone by the word of one before has no seat any more, and no say.
            let seat = state.seats.get_mut(&seat);
            let Some(said) = seat.and_then(|seat| seat.rejoin.take()) else { continue };
            let others = |other: &u32| *other < world && *other != own && *other != rank;
            for left in said.left.into_iter().filter(others) {
                self.bury(state, left, Event::Left);
            }
            for lost in said.lost.into_iter().filter(others) {
                let noticed =
                    format!("rank {rank} had heard so before the root of the job was lost");
                self.bury(state, lost, Event::Lost(Loss { noticed, last_operation: None }));
            }
        }
        if state.absent().is_empty() {
            self.serve(state);
        }
    }

    /// Everybody is here or gone: lets those in who are here.
    fn serve(&self, state: &mut State) {
        state.phase = Phase::Running;
        if let Some(appointment) = state.appointment.take() {
            self.reactor.cancel(appointment);
        }
        let words = state.gone.iter().map(|(rank, event)| {
            let word = Dispatch { rank: *rank, event: event.clone() };
            frame(FrameKind::Notice, &word.encode()).into()
        });
        let words: Vec<Arc<[u8]>> = words.collect();
        for seat in state.seats.values().filter(|seat| seat.rank.is_some()) {
            seat.connection.send(frame(FrameKind::Welcome, &[]).into());
            for word in &words {
                seat.connection.send(word.clone());
            }
        }
    }

    /// Tells the rank of `seat` what has become of it, as the others know, and nothing more.
    pub(super) fn dismiss(&self, state: &mut State, seat: u64, word: &Dispatch) {
        if let Some(Seat { connection, .. }) = state.seats.get(&seat) {
            connection.send(frame(FrameKind::Notice, &word.encode()).into());
            connection.close();
        }
    }

    /// `rank` is gone before it was let in.
    pub(super) fn bury_before_service(&self, state: &mut State, rank: u32, event: Event) {
        if let Some(seat) = state.seat_of(rank) {
            self.dismiss(state, seat, &Dispatch { rank, event });
            state.seats.remove(&seat);
        }
    }

    /// The own rank knows who is `gone`.
    pub(super) fn learn(&self, gone: &[Dispatch]) {
        let mut state = self.state();
        if state.phase != Phase::Assembling {
            return;
        }
        for Dispatch { rank, event } in gone {
            self.bury(&mut state, *rank, event.clone());
        }
        self.assemble(&mut state);
    }

    /// Who has not come to a root that takes over is lost with its predecessor.
    pub(super) fn miss_absent(&self, state: &mut State) {
        for rank in state.absent() {
            let noticed = "it did not come to the new root of the job".to_owned();
            self.bury(state, rank, Event::Lost(Loss { noticed, last_operation: None }));
        }
        self.assemble(state);
    }

    /// The own rank cannot be the root, having `event`; those who have come are told. `false`: nothing happens, because this root serves
    /// already, or is over.
    pub(super) fn stand_down(&self, event: &Event) -> bool {
        let mut state = self.state();
        let Some(own) = state.own().filter(|_| state.phase == Phase::Assembling) else {
            return false;
        };
        let word = Dispatch { rank: own, event: event.clone() };
        let others: Vec<u64> = state
            .seats
            .iter()
            .filter(|(_, seat)| seat.rank != Some(own))
            .map(|(number, _)| *number)
            .collect();
        for seat in others {
            self.dismiss(&mut state, seat, &word);
        }
        state.phase = Phase::Over; // before anybody else can make it serve
        drop(state);
        self.end();
        true
    }

    /// The connection of a seat ends; `true`: its rank had not been let in. `event`: what that means for the rank, if it means anything
    /// before the connection to the last root has ended too.
    pub(super) fn ended_before_service(&self, seat: u64, event: Option<Event>) -> bool {
        let mut state = self.state();
        if state.phase != Phase::Assembling {
            return false;
        }
        let Some(ended) = state.seats.get(&seat) else { return true };
        let (rank, connection) = (ended.rank, ended.connection.clone());
        if rank.is_some() && rank == state.own() {
            drop(state);
            self.stand_down(&event.unwrap_or_else(|| {
                let noticed = "its process closed the control connection without a goodbye".into();
                Event::Lost(Loss { noticed, last_operation: None })
            }));
            return true;
        }
        match (rank, event) {
            (Some(rank), Some(event @ Event::Left)) => self.bury(&mut state, rank, event),
            (Some(rank), Some(event)) if state.is_complete_but_for_absent() => {
                self.bury(&mut state, rank, event);
            }
            _ => {}
        }
        let removed = state.seats.remove(&seat);
        connection.close();
        self.assemble(&mut state);
        let is_over = state.phase == Phase::Assembling && state.seats.is_empty();
        drop(state);
        drop(removed);
        if is_over {
            self.end();
        }
        true
    }
}
