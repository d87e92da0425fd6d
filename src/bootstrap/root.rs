//! The root of a job: gathers its ranks, then relays what they tell each other.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::acceptor::{Acceptor, Handler, Registration, Stream};
use annulus_transports::handshake::Hello;
use annulus_transports::secret::{KeyId, Secret};
use annulus_transports::session::Session;

use super::VERSION;
use super::connection::{Connection, Inbox};
use super::gather::Gather;
use super::notice::{Dispatch, Event, Heartbeat, Loss};
use super::reactor::{Appointment, Reactor, Source, Timer, lock};
use super::record::{Record, Table};
use super::refusal::Refusal;
use super::wire::{FrameKind, WireError, frame};

/// What ranks ask an acceptor for when they want the root. No rank has this number.
pub(super) const ROOT: u32 = u32::MAX;

/// How long a root waits for its first rank.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long a root that has refused stays to tell those who come late.
const LONGEST_LINGER: Duration = Duration::from_secs(10);

/// The roots of this process. Each stays until its last rank has left; nobody else holds it, because the
/// process that makes a unique id need not keep it.
static ROOTS: Mutex<Vec<(KeyId, Arc<Root>)>> = Mutex::new(Vec::new());

/// The root of one job.
pub(super) struct Root {
    key: KeyId,
    host_id: [u8; 16],
    reactor: Arc<Reactor>,
    state: Mutex<State>,
    /// For timers and seats.
    this: Weak<Self>,
}

struct State {
    phase: Phase,
    registration: Option<Registration>,
    /// Whether to stop listening once all have come: the port may be wanted again.
    listens_alone: bool,
    seats: HashMap<u64, Seat>,
    next_seat: u64,
    gather: Gather,
    first_came: Option<Instant>,
    /// When the present phase ends by itself.
    deadline: Instant,
    /// What the reactor is asked for, so that it keeps nothing of a root that is over.
    appointment: Option<Appointment>,
}

#[derive(PartialEq, Eq)]
enum Phase {
    Gathering,
    Running,
    /// With the frame that says why.
    Refused(Arc<[u8]>),
    Over,
}

/// A connected process.
struct Seat {
    connection: Arc<Connection>,
    /// Once it has come into the table.
    rank: Option<u32>,
    /// After so long without a word, it is lost.
    heartbeat: Option<Duration>,
    /// Whether it lives in this process.
    here: bool,
    /// It has said goodbye, or the others know already that it is lost.
    left: bool,
    /// The call that it last spoke of.
    operation: Option<Fingerprint>,
}

/// Opens the door of an acceptor to the root, as long as the root is there.
struct Door(Weak<Root>);

/// Takes what arrives from one seat.
struct SeatInbox {
    root: Arc<Root>,
    seat: u64,
}

impl Root {
    /// Starts the root of the job with `secret`, reached through `acceptor`. `listens_alone`: the acceptor is nobody
    /// else's, and ends once all ranks have come.
    pub(super) fn start(
        acceptor: &Arc<Acceptor>,
        secret: &Secret,
        host_id: [u8; 16],
        listens_alone: bool,
    ) -> io::Result<()> {
        let key = secret.key_id();
        let reactor = Reactor::shared()?;
        let deadline = Instant::now() + LONGEST_WAIT;
        let root = Arc::new_cyclic(|this| Self {
            key,
            host_id,
            reactor,
            state: Mutex::new(State {
                phase: Phase::Gathering,
                registration: None,
                listens_alone,
                seats: HashMap::new(),
                next_seat: 0,
                gather: Gather::new(VERSION),
                first_came: None,
                deadline,
                appointment: None,
            }),
            this: this.clone(),
        });
        lock(&ROOTS).push((key, root.clone()));
        root.end_phase_at(&mut root.state(), deadline);
        let door = Arc::new(Door(root.this.clone()));
        let registration = acceptor.register(secret, ROOT as Rank, door);
        root.state().registration = Some(registration);
        Ok(())
    }

    /// Ends the root of a job that nobody is going to join.
    pub(super) fn cancel(secret: &Secret) {
        let key = secret.key_id();
        let found = |(other, _): &&(KeyId, Arc<Self>)| *other == key;
        let root = lock(&ROOTS).iter().find(found).map(|(_, root)| root.clone());
        if let Some(root) = root {
            root.end();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn admit(self: &Arc<Self>, socket: OwnedFd) {
        let mut state = self.state();
        if state.phase == Phase::Over {
            return;
        }
        let seat = state.next_seat;
        state.next_seat += 1;
        let inbox = SeatInbox { root: self.clone(), seat };
        let connection = Connection::new(socket, Box::new(inbox));
        let vacant = Seat {
            connection: connection.clone(),
            rank: None,
            heartbeat: None,
            here: false,
            left: false,
            operation: None,
        };
        state.seats.insert(seat, vacant);
        drop(state);
        if connection.watch(&self.reactor).is_err() {
            self.state().seats.remove(&seat);
        }
    }

    fn join(&self, seat: u64, payload: &[u8]) -> Result<(), WireError> {
        let mut state = self.state();
        let record = match Record::decode(payload) {
            Ok(record) => record,
            Err(damage) => {
                let refusal = Refusal::Damaged { what: damage.to_string() };
                self.refuse(&mut state, refusal);
                return Err(damage);
            }
        };
        let (rank, patience, heartbeat) = (record.rank, record.patience, record.heartbeat);
        let here = (record.host_id, record.pid) == (self.host_id, std::process::id());
        match &state.phase {
            Phase::Gathering => {
                let now = Instant::now();
                // The first to come ends the wait for the first; then the least patient counts.
                let patient_until = now.checked_add(patience);
                if state.first_came.is_none() || patient_until.is_some_and(|t| t < state.deadline) {
                    let deadline = patient_until.unwrap_or(now + LONGEST_WAIT);
                    self.end_phase_at(&mut state, deadline);
                }
                state.first_came.get_or_insert(now);
                match state.gather.add(record) {
                    Ok(complete) => {
                        if let Some(seat) = state.seats.get_mut(&seat) {
                            (seat.rank, seat.heartbeat, seat.here) = (Some(rank), heartbeat, here);
                        }
                        if complete {
                            self.complete(state);
                        }
                    }
                    Err(refusal) => self.refuse(&mut state, refusal),
                }
            }
            Phase::Running => {
                // All are there: whoever comes now contradicts one of them, which is only its own fault.
                if let (Err(refusal), Some(seat)) =
                    (state.gather.add(record), state.seats.get(&seat))
                {
                    seat.connection.send(frame(FrameKind::Refusal, &refusal.encode()).into());
                }
            }
            Phase::Refused(frame) => {
                if let Some(seat) = state.seats.get(&seat) {
                    seat.connection.send(frame.clone());
                }
            }
            Phase::Over => {}
        }
        Ok(())
    }

    /// All have come: tells everybody who they are.
    fn complete(&self, mut state: MutexGuard<'_, State>) {
        state.phase = Phase::Running;
        if let Some(appointment) = state.appointment.take() {
            self.reactor.cancel(appointment);
        }
        let table = Table {
            root_host_id: self.host_id,
            root_pid: std::process::id(),
            records: state.gather.records().cloned().collect(),
        };
        let frame: Arc<[u8]> = frame(FrameKind::Table, &table.encode()).into();
        for seat in state.seats.values().filter(|seat| seat.rank.is_some()) {
            seat.connection.send(frame.clone());
            if let Some(patience) = seat.heartbeat {
                seat.connection.beat(&self.reactor, patience);
            }
        }
        let registration = if state.listens_alone { state.registration.take() } else { None };
        drop(state);
        drop(registration); // ends the acceptor's thread, which may be waiting for the state
    }

    /// Tells everybody that there will be no communicator.
    fn refuse(&self, state: &mut State, refusal: Refusal) {
        if state.phase != Phase::Gathering {
            return;
        }
        let frame: Arc<[u8]> = frame(FrameKind::Refusal, &refusal.encode()).into();
        for seat in state.seats.values() {
            seat.connection.send(frame.clone());
        }
        state.phase = Phase::Refused(frame);
        let now = Instant::now();
        let waited = state.first_came.map_or(Duration::ZERO, |first| now - first);
        // As long as the first rank was patient, so that ranks started together all learn it.
        let patience = state.gather.records().map(|record| record.patience).min();
        let linger = patience.unwrap_or_default().max(waited).min(LONGEST_LINGER);
        self.end_phase_at(state, now + linger);
    }

    fn end_phase_at(&self, state: &mut State, deadline: Instant) {
        state.deadline = deadline;
        let next = self.reactor.call_at(deadline, self.this.clone());
        if let Some(earlier) = state.appointment.replace(next) {
            self.reactor.cancel(earlier);
        }
    }

    /// Tells all ranks but one.
    fn relay(state: &State, dispatch: &Dispatch) {
        let frame: Arc<[u8]> = frame(FrameKind::Notice, &dispatch.encode()).into();
        for seat in state.seats.values() {
            if !seat.left && seat.rank.is_some_and(|rank| rank != dispatch.rank) {
                seat.connection.send(frame.clone());
            }
        }
    }

    fn notice(&self, seat: u64, payload: &[u8]) -> Result<(), WireError> {
        let mut dispatch = Dispatch::decode(payload)?;
        let state = self.state();
        let Some(Seat { rank: Some(rank), .. }) = state.seats.get(&seat) else {
            return Err(WireError::Unexpected { kind: FrameKind::Notice as u8 });
        };
        dispatch.rank = *rank;
        match dispatch.event {
            Event::Report { .. } => Self::relay(&state, &dispatch),
            Event::Inquiry { about } if about != *rank => {
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

    /// Tells the rank of `seat` whether rank `about` is there, if it is. If not, it is told, or has been, like all others.
    fn inquire(&self, seat: u64, about: u32) {
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
            Self::relay(state, &Dispatch { rank, event });
        }
    }

    /// Nothing has come from a rank for `silence`.
    fn silent(&self, seat: u64, silence: Duration) {
        let mut state = self.state();
        let noticed = format!(
            "the root of the job has heard nothing from it for {silence:.1?} (ANNULUS_HEARTBEAT)"
        );
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
    fn heard(&self, seat: u64, heartbeat: Heartbeat) {
        if let Some(seat) = self.state().seats.get_mut(&seat) {
            seat.operation = heartbeat.operation.or(seat.operation);
        }
    }

    fn goodbye(&self, seat: u64) {
        let mut state = self.state();
        let Some(seat) = state.seats.get_mut(&seat) else { return };
        if let (false, Some(rank)) = (std::mem::replace(&mut seat.left, true), seat.rank)
            && state.phase == Phase::Running
        {
            Self::relay(&state, &Dispatch { rank, event: Event::Left });
        }
    }

    /// The connection of a seat has ended, perhaps because of `damage`.
    fn gone(&self, seat: u64, damage: Option<WireError>) {
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

    /// Lets go of everything.
    fn end(&self) {
        let mut state = self.state();
        state.phase = Phase::Over;
        if let Some(appointment) = state.appointment.take() {
            self.reactor.cancel(appointment);
        }
        let registration = state.registration.take();
        let seats = std::mem::take(&mut state.seats);
        drop(state);
        for seat in seats.values() {
            seat.connection.close();
        }
        let mut roots = lock(&ROOTS);
        let here = roots
            .iter()
            .position(|(key, root)| *key == self.key && std::ptr::eq(Arc::as_ptr(root), self));
        let this = here.map(|here| roots.swap_remove(here));
        drop(roots);
        drop((registration, this));
    }
}

impl Timer for Root {
    /// A rank's patience is at its end, or nobody has come, or this root has stayed long enough after its refusal.
    fn expired(&self) {
        let mut state = self.state();
        let now = Instant::now();
        if now < state.deadline {
            return; // an earlier deadline that has since been moved
        }
        match (&state.phase, state.first_came) {
            (Phase::Gathering, Some(first)) => {
                let door = state.registration.as_ref().map(Registration::acceptor);
                let starved = door.is_some_and(|acceptor| acceptor.is_starved());
                let refusal = state.gather.missing((now - first).as_millis() as u64, starved);
                self.refuse(&mut state, refusal);
            }
            (Phase::Gathering, None) | (Phase::Refused(_), _) => {
                drop(state);
                self.end();
            }
            (Phase::Running | Phase::Over, _) => {}
        }
    }
}

impl Handler for Door {
    fn accepted(&self, _: Hello, stream: Stream, _: Option<Session>) {
        if let Some(root) = self.0.upgrade() {
            root.admit(match stream {
                Stream::Tcp(stream) => stream.into(),
                Stream::Unix(stream) => stream.into(),
            });
        }
    }
}

impl Inbox for SeatInbox {
    fn frame(&self, kind: FrameKind, payload: &[u8]) -> Result<(), WireError> {
        match kind {
            FrameKind::Join => self.root.join(self.seat, payload),
            FrameKind::Notice => self.root.notice(self.seat, payload),
            FrameKind::Goodbye => {
                self.root.goodbye(self.seat);
                Ok(())
            }
            FrameKind::Heartbeat => {
                self.root.heard(self.seat, Heartbeat::decode(payload)?);
                Ok(())
            }
            FrameKind::Table | FrameKind::Refusal => {
                Err(WireError::Unexpected { kind: kind as u8 })
            }
        }
    }

    fn closed(&self, damage: Option<WireError>) {
        self.root.gone(self.seat, damage);
    }

    fn silent(&self, silence: Duration) {
        self.root.silent(self.seat, silence);
    }

    fn heartbeat(&self) -> Vec<u8> {
        Heartbeat { operation: None }.encode()
    }
}
