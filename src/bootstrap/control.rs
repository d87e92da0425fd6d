//! A rank's connection to the root, on which ranks tell each other what happens outside of collectives.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use annulus_plan::Rank;

use super::connection::{Connection, Inbox};
use super::notice::{Dispatch, Event, Heartbeat, Loss, Notice, Report};
use super::reactor::{Reactor, lock};
use super::wire::{FrameKind, WireError, frame};

/// Called with each notice, on a thread of the library's own: it must not block, and the notices of all
/// communicators of the process wait while it runs.
pub type OnNotice = Arc<dyn Fn(Notice) + Send + Sync>;

/// Reports about communicators that this rank does not know yet, or no more, that are kept.
const MAX_KEPT: usize = 256;

/// A communicator's part in the control connection. Dropping the last one of the job's tells the others that this rank has left.
#[derive(Clone)]
pub struct Control {
    desk: Option<Arc<Desk>>,
    tag: u64,
}

impl Control {
    /// That of a world of one: there is nobody to tell.
    pub(super) fn alone() -> Self {
        Self { desk: None, tag: 0 }
    }

    /// Takes over the connection to the root of the job's rank `rank`. `root_ranks`: the ranks that live in the root's process,
    /// and are lost with it. A root that says nothing for `heartbeat` is lost.
    pub(super) fn start(
        socket: OwnedFd,
        tag: u64,
        rank: u32,
        root_ranks: Vec<u32>,
        heartbeat: Option<Duration>,
    ) -> io::Result<Self> {
        let reactor = Reactor::shared()?;
        let desk = Arc::new_cyclic(|this: &Weak<Desk>| Desk {
            rank,
            connection: Connection::new(socket, Box::new(DeskInbox(this.clone()))),
            state: Mutex::new(DeskState {
                subscribers: Vec::new(),
                gone: Vec::new(),
                reports: VecDeque::new(),
                root_ranks,
                root_lost: false,
                expelled: false,
            }),
            watched: OnceLock::new(),
        });
        desk.connection.watch(&reactor)?;
        if let Some(patience) = heartbeat {
            desk.connection.beat(&reactor, patience);
        }
        let _ = desk.watched.set(reactor);
        Ok(Self { desk: Some(desk), tag })
    }

    /// The same connection for another communicator of the same job.
    pub(super) fn with_tag(&self, tag: u64) -> Self {
        Self { desk: self.desk.clone(), tag }
    }

    /// Tells all other ranks of this communicator. Does not block; when the root is gone, nobody is told.
    pub fn report(&self, report: Report) {
        if let Some(desk) = &self.desk {
            desk.tell_root(Event::Report { tag: self.tag, report });
        }
    }

    /// Asks the root whether the job's rank `about` is there: a [`Notice`] answers, [`Present`](Notice::Present) or what has
    /// become of it. Does not block. `false`: there is no root to ask any more.
    pub(super) fn inquire(&self, about: u32) -> bool {
        let Some(desk) = &self.desk else { return false };
        let there = !lock(&desk.state).root_lost;
        if there {
            desk.tell_root(Event::Inquiry { about });
        }
        there
    }

    /// From now on, and with what has happened before, `on_notice` is called, until the result is dropped.
    /// `members`: the job's ranks that are members, in the communicator's order.
    pub(super) fn subscribe(&self, members: &[u32], on_notice: OnNotice) -> Subscription {
        let local = |(rank, member): (Rank, &u32)| (*member, rank);
        let subscriber = Arc::new(Subscriber {
            tag: self.tag,
            ranks: members.iter().enumerate().map(local).collect(),
            on_notice,
        });
        if let Some(desk) = &self.desk {
            desk.subscribe(&subscriber);
        }
        Subscription { _subscriber: subscriber }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// Keeps a callback called. A call that has begun may still be under way after the drop.
pub(super) struct Subscription {
    _subscriber: Arc<Subscriber>,
}

struct Subscriber {
    tag: u64,
    /// The communicator's rank of each of the job's ranks that is a member.
    ranks: HashMap<u32, Rank>,
    on_notice: OnNotice,
}

impl Subscriber {
    fn deliver(&self, dispatch: &Dispatch) {
        let Some(&rank) = self.ranks.get(&dispatch.rank) else { return };
        let members = self.ranks.len();
        let notice = match &dispatch.event {
            Event::Report { tag, .. } if *tag != self.tag => return,
            Event::Report { report: Report::Broken { reason }, .. } => {
                Notice::Broken { rank, reason: reason.clone() }
            }
            Event::Report { report: Report::Aborted { reason }, .. } => {
                Notice::Aborted { rank, reason: reason.clone() }
            }
            // Ranks of a communicator are numbered alike on all of them.
            Event::Report { report: Report::Lost { rank: lost, noticed }, .. } => {
                if *lost >= members {
                    return;
                }
                Notice::Lost { rank: *lost, noticed: noticed.clone(), last_operation: None }
            }
            Event::Report { report: Report::Departed { panicked: true }, .. } => Notice::Lost {
                rank,
                noticed: "its thread panicked, and dropped the communicator".into(),
                last_operation: None,
            },
            Event::Report { report: Report::Departed { panicked: false }, .. } | Event::Left => {
                Notice::Left { rank }
            }
            Event::Lost(Loss { noticed, last_operation }) => {
                Notice::Lost { rank, noticed: noticed.clone(), last_operation: *last_operation }
            }
            Event::Present => Notice::Present { rank },
            // Only ranks say that.
            Event::Inquiry { .. } | Event::Disowned { .. } => return,
        };
        (self.on_notice)(notice);
    }
}

/// What the communicators of one rank in one job share.
struct Desk {
    /// This rank, in the job.
    rank: u32,
    connection: Arc<Connection>,
    state: Mutex<DeskState>,
    /// Keeps the reactor alive.
    watched: OnceLock<Arc<Reactor>>,
}

struct DeskState {
    subscribers: Vec<Weak<Subscriber>>,
    /// Who has left or was lost, for those who subscribe later.
    gone: Vec<Dispatch>,
    /// The latest reports, for the same.
    reports: VecDeque<Dispatch>,
    root_ranks: Vec<u32>,
    root_lost: bool,
    /// The others have given this rank up.
    expelled: bool,
}

impl Desk {
    fn subscribe(&self, subscriber: &Arc<Subscriber>) {
        let mut state = lock(&self.state);
        state.subscribers.retain(|other| other.strong_count() > 0);
        state.subscribers.push(Arc::downgrade(subscriber));
        let missed: Vec<_> = state.gone.iter().chain(&state.reports).cloned().collect();
        let root_lost = state.root_lost;
        drop(state);
        for dispatch in &missed {
            subscriber.deliver(dispatch);
        }
        if root_lost {
            (subscriber.on_notice)(Notice::RootLost);
        }
    }

    fn dispatch(&self, dispatch: Dispatch) {
        let mut state = lock(&self.state);
        match dispatch.event {
            Event::Left | Event::Lost(_) => {
                state.expelled |= dispatch.rank == self.rank;
                state.gone.push(dispatch.clone());
            }
            Event::Report { .. } => {
                if state.reports.len() == MAX_KEPT {
                    state.reports.pop_front();
                }
                state.reports.push_back(dispatch.clone());
            }
            Event::Present | Event::Inquiry { .. } | Event::Disowned { .. } => {}
        }
        let subscribers: Vec<_> = state.subscribers.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for subscriber in subscribers {
            subscriber.deliver(&dispatch);
        }
    }

    /// The root knows which rank this is.
    fn tell_root(&self, event: Event) {
        let dispatch = Dispatch { rank: self.rank, event };
        self.connection.send(frame(FrameKind::Notice, &dispatch.encode()).into());
    }

    /// The root has closed, or is gone: `noticed` so.
    fn root_closed(&self, noticed: &str) {
        let mut state = lock(&self.state);
        let left = |rank: &u32| {
            state
                .gone
                .iter()
                .any(|dispatch| dispatch.rank == *rank && dispatch.event == Event::Left)
        };
        // A root whose ranks have all left has done its work: its process may end.
        if !state.root_ranks.is_empty() && state.root_ranks.iter().all(left) {
            return;
        }
        // A rank that was given up may not conclude from that that others are lost.
        let root_ranks = if state.expelled { &[] } else { state.root_ranks.as_slice() };
        let lost: Vec<u32> = root_ranks
            .iter()
            .copied()
            .filter(|rank| !state.gone.iter().any(|dispatch| dispatch.rank == *rank))
            .collect();
        state.root_lost = true;
        drop(state);
        for rank in lost {
            let loss = Loss { noticed: noticed.into(), last_operation: None };
            self.dispatch(Dispatch { rank, event: Event::Lost(loss) });
        }
        let state = lock(&self.state);
        let subscribers: Vec<_> = state.subscribers.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for subscriber in subscribers {
            (subscriber.on_notice)(Notice::RootLost);
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.connection.send(frame(FrameKind::Goodbye, &[]).into());
        self.connection.close();
    }
}

struct DeskInbox(Weak<Desk>);

impl Inbox for DeskInbox {
    fn frame(&self, kind: FrameKind, payload: &[u8]) -> Result<(), WireError> {
        match kind {
            FrameKind::Notice => {
                let dispatch = Dispatch::decode(payload)?;
                if let Some(desk) = self.0.upgrade() {
                    desk.dispatch(dispatch);
                }
                Ok(())
            }
            FrameKind::Heartbeat => Heartbeat::decode(payload).map(drop),
            _ => Err(WireError::Unexpected { kind: kind as u8 }),
        }
    }

    fn closed(&self, damage: Option<WireError>) {
        if let Some(desk) = self.0.upgrade() {
            desk.root_closed(&match damage {
                None => "its process, which is the root of the job, closed the control connection without a word"
                    .to_owned(),
                Some(damage) => format!("its process, which is the root of the job, sent a damaged frame: {damage}"),
            });
        }
    }

    fn silent(&self, silence: Duration) {
        if let Some(desk) = self.0.upgrade() {
            // It may only have been stopped, and then hears why nobody listens to it any more.
            desk.tell_root(Event::Disowned {
                silence_ms: silence.as_millis().try_into().unwrap_or(u32::MAX),
            });
            desk.connection.close();
            desk.root_closed(&format!(
                "its process, which is the root of the job, has been silent for {silence:.1?} (ANNULUS_HEARTBEAT)"
            ));
        }
    }

    fn heartbeat(&self) -> Vec<u8> {
        Heartbeat { operation: None }.encode()
    }
}
