//! The root of a job: gathers its ranks, then relays what they tell each other.
//!
//! Any rank's process can become the root when the first one is lost: [`Standby`].

mod agreements;
mod departures;
mod seats;
mod succession;
mod surveys;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
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
use super::agreement::{Agreement, Ask, Rejoin};
use super::connection::{Connection, Inbox};
use super::gather::Gather;
use super::notice::{Event, Heartbeat};
use super::reactor::{Appointment, Reactor, Timer, lock};
use super::record::{Record, Table};
use super::refusal::Refusal;
use super::roster::Roster;
use super::settlement::{Settlement, Settlements};
use super::wire::{FrameKind, WireError, frame};
use departures::Departures;
pub(super) use succession::Standby;
use surveys::Surveys;

/// What ranks ask an acceptor for when they want the root. No rank has this number.
pub(super) const ROOT: u32 = u32::MAX;

/// How long a root waits for its first rank.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long a root that has refused stays to tell those who come late.
const LONGEST_LINGER: Duration = Duration::from_secs(10);

/// Of so many communicators a root remembers what was agreed last.
const MAX_SETTLED: usize = 4096;

/// The roots of this process. Each stays until its last rank has left; nobody else holds it, because the
/// process that makes a unique id need not keep it.
static ROOTS: Mutex<Vec<(KeyId, Arc<Root>)>> = Mutex::new(Vec::new());

/// The root of one job.
pub(super) struct Root {
    key: KeyId,
    host_id: [u8; 16],
    reactor: Arc<Reactor>,
    /// Where the nonces of this root's agreements come from.
    entropy: Secret,
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
    /// How many times a rank has joined the others in a communicator.
    joins: u64,
    /// When the present phase ends by itself.
    deadline: Instant,
    /// What the reactor is asked for, so that it keeps nothing of a root that is over.
    appointment: Option<Appointment>,
    /// The ranks that are lost or have left.
    gone: BTreeMap<u32, Event>,
    /// By the communicators' tags, and how many of each had been before.
    agreements: HashMap<(u64, u32), Open>,
    /// What has come of those that are over.
    settlements: Settlements,
    agreed: u64,
    departures: Departures,
    surveys: Surveys,
    /// Questions whether a rank is there, each with the seat that asks, while one of them is being answered.
    inquiries: VecDeque<(u64, u32)>,
    inquiring: bool,
    /// Of a root that takes over: what its own rank knows of the job.
    successor: Option<Arc<Roster>>,
}

/// An agreement that some have asked for. A ticket is a seat, and the number of its question.
struct Open {
    agreement: Agreement<(u64, u32)>,
    appointment: Appointment,
}

#[derive(PartialEq, Eq)]
enum Phase {
    Gathering,
    /// A root that takes over waits for those who are left.
    Assembling,
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
    /// What it said when it came to a root that takes over, until that is believed.
    rejoin: Option<Rejoin>,
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

/// Blocks until the roots in this process have passed on the goodbyes of its own ranks, at most `limit`: for a process that
/// is about to end, and whose ranks have left.
pub fn pass_on_goodbyes(limit: Duration) {
    let deadline = Instant::now() + limit;
    let roots: Vec<_> = lock(&ROOTS).iter().map(|(_, root)| root.clone()).collect();
    for root in roots {
        while Instant::now() < deadline && root.expects_goodbyes() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Root {
    /// Whether a rank of this process has not said goodbye yet, and there are others to hear it.
    fn expects_goodbyes(&self) -> bool {
        let state = self.state();
        let stays = |here: bool| state.seats.values().any(|seat| seat.here == here && !seat.left);
        state.phase == Phase::Running && stays(true) && stays(false)
    }

    /// Starts the root of the job with `secret`, reached through `acceptor`. `listens_alone`: the acceptor is nobody
    /// else's, and ends once all ranks have come.
    pub(super) fn start(
        acceptor: &Arc<Acceptor>,
        secret: &Secret,
        host_id: [u8; 16],
        listens_alone: bool,
    ) -> io::Result<()> {
        let root = Self::new(secret, host_id, listens_alone, None)?;
        root.end_phase_at(&mut root.state(), Instant::now() + LONGEST_WAIT);
        let door = Arc::new(Door(root.this.clone()));
        let registration = acceptor.register(secret, ROOT as Rank, door);
        root.state().registration = Some(registration);
        Ok(())
    }

    fn new(
        secret: &Secret,
        host_id: [u8; 16],
        listens_alone: bool,
        successor: Option<Arc<Roster>>,
    ) -> io::Result<Arc<Self>> {
        let key = secret.key_id();
        let reactor = Reactor::shared()?;
        let entropy = Secret::random()?;
        let phase = if successor.is_some() { Phase::Assembling } else { Phase::Gathering };
        let root = Arc::new_cyclic(|this| Self {
            key,
            host_id,
            reactor,
            entropy,
            state: Mutex::new(State {
                phase,
                registration: None,
                listens_alone,
                seats: HashMap::new(),
                next_seat: 0,
                gather: Gather::new(VERSION),
                first_came: None,
                deadline: Instant::now(),
                joins: 0,
                appointment: None,
                gone: BTreeMap::new(),
                agreements: HashMap::new(),
                settlements: Settlements::new(MAX_SETTLED),
                agreed: 0,
                departures: Departures::default(),
                surveys: Surveys::default(),
                inquiries: VecDeque::new(),
                inquiring: false,
                successor,
            }),
            this: this.clone(),
        });
        lock(&ROOTS).push((key, root.clone()));
        Ok(root)
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

    /// Takes a connection; gives it back when this root is over.
    fn admit(self: &Arc<Self>, socket: OwnedFd) -> Result<(), OwnedFd> {
        let mut state = self.state();
        if state.phase == Phase::Over {
            return Err(socket);
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
            rejoin: None,
            left: false,
            operation: None,
        };
        state.seats.insert(seat, vacant);
        drop(state);
        if connection.watch(&self.reactor).is_err() {
            self.state().seats.remove(&seat);
        }
        Ok(())
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
        if let Some(Seat { rank: Some(first), .. }) = state.seats.get(&seat) {
            let what = format!("rank {first} describes itself again, as rank {}", record.rank);
            self.refuse(&mut state, Refusal::Damaged { what });
            return Err(WireError::Unexpected { kind: FrameKind::Join as u8 });
        }
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
            Phase::Assembling | Phase::Over => {}
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
        let seated = state.seats.values().filter_map(|seat| Some((seat.rank?, seat)));
        for seat in own_last(seated, &table) {
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
        // As long as the first rank was patient, so that ranks started together all learn it; where the first one is refused itself,
        // as long as it would have waited.
        let patience = state.gather.records().map(|record| record.patience).min();
        let left = state.deadline.saturating_duration_since(now);
        let linger = patience.unwrap_or(left).max(waited).min(LONGEST_LINGER);
        self.end_phase_at(state, now + linger);
    }

    fn end_phase_at(&self, state: &mut State, deadline: Instant) {
        state.deadline = deadline;
        let next = self.reactor.call_at(deadline, self.this.clone());
        if let Some(earlier) = state.appointment.replace(next) {
            self.reactor.cancel(earlier);
        }
    }

    /// Lets go of everything.
    fn end(&self) {
        let mut state = self.state();
        state.phase = Phase::Over;
        if let Some(appointment) = state.appointment.take() {
            self.reactor.cancel(appointment);
        }
        for (_, open) in state.agreements.drain() {
            self.reactor.cancel(open.appointment);
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
        self.expire(&mut state, now);
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
            (Phase::Assembling, _) => self.miss_absent(&mut state),
            (Phase::Running | Phase::Over, _) => {}
        }
    }
}

/// `seats` of these ranks, those of the root's process last: one that goes on at once, and is stopped, stops the root with it.
fn own_last<T>(seats: impl Iterator<Item = (u32, T)>, table: &Table) -> Vec<T> {
    let is_own = |rank: u32| {
        let record = table.records.get(rank as usize);
        record.is_some_and(|r| (r.host_id, r.pid) == (table.root_host_id, table.root_pid))
    };
    let (own, others): (Vec<_>, Vec<_>) = seats.partition(|(rank, _)| is_own(*rank));
    others.into_iter().chain(own).map(|(_, seat)| seat).collect()
}

fn stream_of(stream: Stream) -> OwnedFd {
    match stream {
        Stream::Tcp(stream) => stream.into(),
        Stream::Unix(stream) => stream.into(),
    }
}

impl Handler for Door {
    fn accepted(&self, _: Hello, stream: Stream, _: Option<Session>) {
        if let Some(root) = self.0.upgrade() {
            // A root that is over has told everybody.
            let _ = root.admit(stream_of(stream));
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
            FrameKind::Rejoin => self.root.rejoin(self.seat, Rejoin::decode(payload)?),
            FrameKind::Ask => self.root.ask(self.seat, Ask::decode(payload)?),
            FrameKind::Settled => self.root.settled(self.seat, Settlement::decode(payload)?),
            FrameKind::Table | FrameKind::Refusal | FrameKind::Answer | FrameKind::Welcome => {
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
