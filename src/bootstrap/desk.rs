//! What the communicators of one rank in one job share: its connection to the root, whoever that is.
//!
//! When the root is lost, the lowest rank that is left becomes it: each rank's process is ready to
//! ([`Standby`]), and each rank [looks for the successor](failover) by itself.

mod early;
mod failover;
mod gone;
mod outbox;
mod questions;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use annulus_plan::Rank;
use annulus_transports::acceptor::{Acceptor, Registration};
use annulus_transports::host::HostId;

use super::agreement::{Answer, Outcome, RankSet};
use super::connection::{Connection, Inbox};
use super::control::{LastCall, Subscriber};
use super::notice::{Dispatch, Event, Heartbeat, Loss, Report};
use super::reactor::{Appointment, Reactor, Timer, lock};
use super::root::Standby;
use super::roster::Roster;
use super::settlement::Settlements;
use super::wire::{FrameKind, WireError, frame};
use early::{Early, EarlyReports};
use gone::Gone;
use outbox::{Full, Outbox};
use questions::Question;
pub(super) use questions::Unanswered;

/// Of so many communicators a rank remembers what was agreed last, for the next root.
const MAX_SETTLED: usize = 256;
/// A root that has ended after all of its ranks had left is replaced only if this rank is still there so much later: at the end of a
/// job everybody leaves.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Desk {
    roster: Arc<Roster>,
    reactor: Arc<Reactor>,
    state: Mutex<State>,
    /// An answer has come, or the root has changed.
    changed: Condvar,
    last_call: OnceLock<LastCall>,
    this: Weak<Self>,
    /// This rank's own root, should it become one.
    standby: Arc<Standby>,
    /// Opens the door to it.
    door: OnceLock<Registration>,
}

struct State {
    /// To the present root, or the last one.
    connection: Arc<Connection>,
    /// Counts the roots.
    epoch: u64,
    root: RootState,
    /// The ranks that live in the root's process, and are lost with it.
    root_ranks: RankSet,
    subscribers: Vec<Weak<Subscriber>>,
    /// Who has left or was lost, for those who subscribe later.
    gone: Gone,
    /// For the same.
    early: EarlyReports,
    /// What this rank reports, and the root may not pass on.
    outbox: Outbox,
    /// The others have given this rank up.
    expelled: bool,
    /// Questions that somebody waits for an answer to, by their numbers.
    asked: HashMap<u32, Question>,
    answers: HashMap<u32, Outcome>,
    /// What was agreed: the next root may not know.
    settlements: Settlements,
    next_number: u32,
}

enum RootState {
    There,
    /// It has ended after its ranks had left; a successor is looked for at the appointment, or when one is needed.
    Retired(Appointment),
    /// A successor is being looked for.
    Missing,
    /// This rank has come to `candidate`, which has not let it in yet.
    Coming {
        candidate: u32,
    },
    /// There is none.
    Nobody,
}

impl State {
    fn subscribers(&self) -> Vec<Arc<Subscriber>> {
        self.subscribers.iter().filter_map(Weak::upgrade).collect()
    }

    fn knows(&self, tag: u64) -> bool {
        self.subscribers.iter().filter_map(Weak::upgrade).any(|subscriber| subscriber.is_of(tag))
    }
}

impl Desk {
    /// Takes over the connection to the root, which lives in `root_process`.
    pub(super) fn start(
        socket: OwnedFd,
        roster: Roster,
        root_process: (HostId, u32),
        acceptor: &Arc<Acceptor>,
    ) -> io::Result<Arc<Self>> {
        let reactor = Reactor::shared()?;
        let roster = Arc::new(roster);
        let root_ranks = roster.in_process(root_process);
        let outbox = Outbox::new(roster.own().notices_within());
        let desk = Arc::new_cyclic(|this: &Weak<Self>| {
            let desk = this.clone();
            let visited = Box::new(move || desk.upgrade().ok_or(Box::new(Event::Left))?.visited());
            let standby = Arc::new(Standby::new(roster.clone(), visited));
            let inbox = DeskInbox { desk: this.clone(), epoch: 0 };
            Self {
                roster,
                reactor,
                state: Mutex::new(State {
                    connection: Connection::new(socket, Box::new(inbox)),
                    epoch: 0,
                    root: RootState::There,
                    root_ranks,
                    subscribers: Vec::new(),
                    gone: Gone::default(),
                    early: EarlyReports::default(),
                    outbox,
                    expelled: false,
                    asked: HashMap::new(),
                    answers: HashMap::new(),
                    settlements: Settlements::new(MAX_SETTLED),
                    next_number: 0,
                }),
                changed: Condvar::new(),
                last_call: OnceLock::new(),
                this: this.clone(),
                standby,
                door: OnceLock::new(),
            }
        });
        // Only now: to whoever comes to a desk that is not there, it is there no more.
        let secret = Standby::secret(&desk.roster.secret);
        let door = acceptor.register(&secret, desk.roster.rank as Rank, desk.standby.clone());
        let _ = desk.door.set(door);
        let connection = desk.connection();
        desk.listen_to(&connection)?;
        Ok(desk)
    }

    /// See [`Control::speak_of`](super::control::Control::speak_of).
    pub(super) fn speak_of(&self, last_call: LastCall) {
        let _ = self.last_call.set(last_call);
    }

    fn connection(&self) -> Arc<Connection> {
        lock(&self.state).connection.clone()
    }

    fn listen_to(&self, connection: &Arc<Connection>) -> io::Result<()> {
        connection.watch(&self.reactor)?;
        if let Some(patience) = self.roster.own().heartbeat {
            connection.beat(&self.reactor, patience);
        }
        Ok(())
    }

    /// Whether the root is there, as far as this rank knows.
    pub(super) fn has_root(&self) -> bool {
        matches!(lock(&self.state).root, RootState::There)
    }

    /// Reports wait for a root if there is none; what else there is to say is of no use later.
    pub(super) fn tell_root(&self, event: Event) {
        let mut state = lock(&self.state);
        match (&state.root, event) {
            (RootState::There, event) => {
                if let Event::Report { tag, report } = &event {
                    state.outbox.told(*tag, report, Instant::now());
                }
                self.send(&state, event);
            }
            (
                RootState::Retired(_) | RootState::Missing | RootState::Coming { .. },
                Event::Report { tag, report },
            ) => {
                let Err(Full { report }) = state.outbox.keep(tag, report) else { return };
                let subscribers = state.subscribers();
                drop(state);
                let event = Event::Report { tag, report };
                let word = Dispatch { rank: self.roster.rank, event };
                for subscriber in subscribers {
                    subscriber.deliver(&word);
                }
            }
            _ => {}
        }
    }

    /// The root knows which rank this is. With the state locked, so that nothing overtakes what has waited.
    fn send(&self, state: &State, event: Event) {
        let dispatch = Dispatch { rank: self.roster.rank, event };
        state.connection.send(frame(FrameKind::Notice, &dispatch.encode()).into());
    }

    pub(super) fn subscribe(&self, subscriber: &Arc<Subscriber>) {
        let mut state = lock(&self.state);
        state.subscribers.retain(|other| other.strong_count() > 0);
        state.subscribers.push(Arc::downgrade(subscriber));
        let tag = subscriber.tag();
        let Early { reports, missed } = state.early.take(tag);
        let earlier: Vec<_> = state.gone.words().into_iter().chain(reports).collect();
        let has_nobody = matches!(state.root, RootState::Nobody);
        drop(state);
        for dispatch in &earlier {
            subscriber.deliver(dispatch);
        }
        if missed > 0 {
            // Whatever they said: to go on without it could be to wait for ever.
            let reason = format!(
                "more reports about this communicator came before this rank had made its part of it than are kept ({}): dropped {missed}",
                early::MAX_OF_ONE
            );
            let event = Event::Report { tag, report: Report::Broken { reason } };
            self.tell_root(event.clone());
            subscriber.deliver(&Dispatch { rank: self.roster.rank, event });
        }
        if has_nobody {
            subscriber.no_root();
        }
    }

    fn dispatch(&self, dispatch: Dispatch) {
        let mut state = lock(&self.state);
        match dispatch.event {
            Event::Left | Event::Lost(_) => {
                if !state.gone.learn(dispatch.rank, &dispatch.event) {
                    return;
                }
                state.expelled |= dispatch.rank == self.roster.rank;
            }
            // Those who subscribe later are other communicators.
            Event::Report { tag, .. } if state.knows(tag) => {}
            Event::Report { tag, .. } => state.early.keep(tag, dispatch.clone()),
            Event::Stalled { .. }
            | Event::Survey { .. }
            | Event::State { .. }
            | Event::Present
            | Event::Inquiry { .. }
            | Event::Disowned { .. } => {}
        }
        let subscribers = state.subscribers();
        drop(state);
        self.changed.notify_all();
        for subscriber in subscribers {
            subscriber.deliver(&dispatch);
        }
        // Those who have come to this rank, or who ought not to.
        match &dispatch.event {
            event @ (Event::Left | Event::Lost(_)) if dispatch.rank == self.roster.rank => {
                self.standby.stand_down(event);
            }
            Event::Left | Event::Lost(_) => self.standby.learn(std::slice::from_ref(&dispatch)),
            _ => {}
        }
    }

    /// Tells everybody that `rank` is lost.
    fn lose(&self, rank: u32, noticed: String) {
        let loss = Loss { noticed, last_operation: None };
        self.dispatch(Dispatch { rank, event: Event::Lost(loss) });
    }

    /// The root of that epoch has closed, or is gone: `noticed` so.
    fn root_closed(&self, epoch: u64, noticed: &str) {
        let mut state = lock(&self.state);
        if state.epoch != epoch {
            return; // a successor is there already
        }
        state.epoch += 1;
        state.outbox.root_lost(Instant::now());
        let candidate = match state.root {
            RootState::Coming { candidate } => Some(candidate),
            _ => None,
        };
        // A root whose ranks have all left has done its work: its process may end.
        let left = |rank: &u32| state.gone.has_left(*rank);
        if candidate.is_none() && !state.root_ranks.is_empty() && state.root_ranks.iter().all(left)
        {
            let appointment = self.reactor.call_at(Instant::now() + PAUSE, self.this.clone());
            state.root = RootState::Retired(appointment);
            Self::miss_root(state);
            return;
        }
        if state.expelled {
            // Whoever was given up may not conclude from that that others are lost.
            self.find_nobody(state);
            return;
        }
        let is_known = |rank: &u32| state.gone.contains(*rank);
        // One that has said that it cannot be the root may yet have other ranks beside it.
        let lost: Vec<u32> = match candidate {
            Some(candidate) if is_known(&candidate) => Vec::new(),
            _ => state.root_ranks.iter().copied().filter(|rank| !is_known(rank)).collect(),
        };
        state.root = RootState::Missing;
        drop(state);
        // First who is lost, and then that the root is: a join that ends for both reasons ought to name the first. Who joins in between, in a
        // communicator that has lost nobody, is cut off though its report waits for the next root: as if it had joined a moment before.
        for rank in lost {
            self.lose(rank, noticed.to_owned());
        }
        if candidate.is_none() {
            Self::miss_root(lock(&self.state));
        }
        self.find_successor();
    }

    /// The root is lost, or has retired.
    fn miss_root(state: MutexGuard<'_, State>) {
        let subscribers = state.subscribers();
        drop(state);
        for subscriber in subscribers {
            subscriber.root_lost();
        }
    }

    /// There is no root any more.
    fn find_nobody(&self, mut state: MutexGuard<'_, State>) {
        state.root = RootState::Nobody;
        let subscribers = state.subscribers();
        drop(state);
        self.changed.notify_all();
        for subscriber in subscribers {
            subscriber.no_root();
        }
    }

    /// The root of that epoch has let this rank in.
    fn welcomed(&self, epoch: u64) {
        let mut state = lock(&self.state);
        if state.epoch == epoch && matches!(state.root, RootState::Coming { .. }) {
            state.root = RootState::There;
            for (tag, report) in state.outbox.take(Instant::now()) {
                self.send(&state, Event::Report { tag, report });
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Another rank takes this one for the root's successor. Says who is gone; an error: this rank is, or finds no root.
    fn visited(&self) -> Result<Vec<Dispatch>, Box<Event>> {
        let state = lock(&self.state);
        if state.expelled || matches!(state.root, RootState::Nobody) {
            let noticed = "it has been given up itself, or finds no root of the job".into();
            return Err(Box::new(Event::Lost(Loss { noticed, last_operation: None })));
        }
        let gone = state.gone.words();
        self.replace_retired(state);
        Ok(gone)
    }

    /// Looks for a successor now, if the root has retired.
    fn replace_retired(&self, mut state: MutexGuard<'_, State>) {
        let RootState::Retired(appointment) = state.root else { return };
        self.reactor.cancel(appointment);
        state.root = RootState::Missing;
        drop(state);
        self.find_successor();
    }
}

impl Timer for Desk {
    /// This rank is still there although its root has retired.
    fn expired(&self) {
        self.replace_retired(lock(&self.state));
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let RootState::Retired(appointment) = state.root {
            self.reactor.cancel(appointment);
        }
        state.connection.send(frame(FrameKind::Goodbye, &[]).into());
        state.connection.close();
        self.standby.stand_down(&Event::Left);
    }
}

/// Takes what comes from the root of one epoch.
struct DeskInbox {
    desk: Weak<Desk>,
    epoch: u64,
}

impl Inbox for DeskInbox {
    fn frame(&self, kind: FrameKind, payload: &[u8]) -> Result<(), WireError> {
        let desk = self.desk.upgrade();
        match kind {
            FrameKind::Notice => {
                let dispatch = Dispatch::decode(payload)?;
                if let Some(desk) = desk {
                    desk.dispatch(dispatch);
                }
            }
            FrameKind::Answer => {
                let answer = Answer::decode(payload)?;
                if let Some(desk) = desk {
                    desk.answered(answer);
                }
            }
            FrameKind::Heartbeat => drop(Heartbeat::decode(payload)?),
            FrameKind::Welcome => {
                if let Some(desk) = desk {
                    desk.welcomed(self.epoch);
                }
            }
            _ => return Err(WireError::Unexpected { kind: kind as u8 }),
        }
        Ok(())
    }

    fn closed(&self, damage: Option<WireError>) {
        if let Some(desk) = self.desk.upgrade() {
            let what = match damage {
                None => "closed the control connection without a word".to_owned(),
                Some(damage) => format!("sent a damaged frame: {damage}"),
            };
            let noticed = format!("its process, which is the root of the job, {what}");
            desk.root_closed(self.epoch, &noticed);
        }
    }

    fn silent(&self, silence: Duration) {
        if let Some(desk) = self.desk.upgrade() {
            // It may only have been stopped, and then hears why nobody listens to it any more.
            let silence_ms = silence.as_millis().try_into().unwrap_or(u32::MAX);
            desk.tell_root(Event::Disowned { silence_ms });
            desk.connection().close();
            let noticed = format!(
                "its process, which is the root of the job, has been silent for {silence:.1?} (ANNULUS_HEARTBEAT)"
            );
            desk.root_closed(self.epoch, &noticed);
        }
    }

    fn heartbeat(&self) -> Vec<u8> {
        let desk = self.desk.upgrade();
        let last_call = desk.as_ref().and_then(|desk| desk.last_call.get());
        Heartbeat { operation: last_call.and_then(|last_call| last_call()) }.encode()
    }
}
