//! A rank's connection to the root, on which ranks tell each other what happens outside of collectives.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};

use super::agreement::{Outcome, RankSet};
use super::desk::{Desk, Unanswered};
use super::notice::{Dispatch, Event, Loss, Notice, Report};
use super::reactor::lock;
use super::stall::Hop;
use super::survey::Status;

/// Called with each notice, on a thread of the library's own: it must not block, and the notices of all
/// communicators of the process wait while it runs.
pub type OnNotice = Arc<dyn Fn(Notice) + Send + Sync>;

/// Says which call a rank has started last. It must not block.
pub type LastCall = Arc<dyn Fn() -> Option<Fingerprint> + Send + Sync>;

/// A communicator's part in the control connection. Dropping the last one of the job's tells the others that this rank has left.
#[derive(Clone)]
pub struct Control {
    desk: Option<Arc<Desk>>,
    tag: u64,
    /// How many agreements of the communicator have let this rank go on. Whatever else it agrees on meanwhile, it must not ask for
    /// one of them again; so of two threads that ask, one waits for the other.
    round: Arc<Mutex<u32>>,
}

impl Control {
    /// That of a world of one: there is nobody to tell.
    pub(super) fn alone() -> Self {
        Self { desk: None, tag: 0, round: Arc::default() }
    }

    /// That of the communicator `tag` of all ranks.
    pub(super) fn new(desk: Arc<Desk>, tag: u64) -> Self {
        Self { desk: Some(desk), tag, round: Arc::default() }
    }

    /// The same connection for another communicator of the same job.
    pub(super) fn with_tag(&self, tag: u64) -> Self {
        Self { desk: self.desk.clone(), tag, round: Arc::default() }
    }

    /// Tells all other ranks of this communicator. Does not block. When the root is gone, the next one passes it on, also
    /// what was told to the last one in its last seconds; if none takes over, nobody is told.
    pub fn report(&self, report: Report) {
        if let Some(desk) = &self.desk {
            desk.tell_root(Event::Report { tag: self.tag, report });
        }
    }

    /// From now on each heartbeat says what `last_call` says, so that the others know in which call this rank was should it be
    /// lost. Of several communicators of the job the first speaks.
    pub fn speak_of(&self, last_call: LastCall) {
        if let Some(desk) = &self.desk {
            desk.speak_of(last_call);
        }
    }

    /// Tells the job's rank `to` which ranks need it in this communicator. Does not block.
    pub(super) fn stalled(&self, to: u32, chain: Vec<Hop>) {
        if let Some(desk) = &self.desk {
            desk.tell_root(Event::Stalled { tag: self.tag, to, chain });
        }
    }

    /// Asks all others what they do; a [`Notice`] comes from each. Does not block.
    pub fn survey(&self) {
        if let Some(desk) = &self.desk {
            desk.tell_root(Event::Survey { tag: self.tag });
        }
    }

    /// Says what this rank does. Does not block.
    pub fn answer(&self, status: Status) {
        if let Some(desk) = &self.desk {
            desk.tell_root(Event::State { tag: self.tag, status });
        }
    }

    /// Asks the root whether the job's rank `about` is there: a [`Notice`] answers, [`Present`](Notice::Present) or what has
    /// become of it. Does not block. `false`: there is no root to ask any more.
    pub(super) fn inquire(&self, about: u32) -> bool {
        let Some(desk) = &self.desk else { return false };
        desk.has_root() && {
            desk.tell_root(Event::Inquiry { about });
            true
        }
    }

    /// Asks to go on without `exclude`, and blocks until all `members` have that are still there, at most for `patience`
    /// and a little more. `None`: this is a world of one.
    pub(super) fn agree(
        &self,
        members: RankSet,
        exclude: RankSet,
        patience: Duration,
    ) -> Option<Result<Outcome, Unanswered>> {
        let desk = self.desk.as_ref()?;
        let deadline = Instant::now() + patience;
        let mut round = lock(&self.round);
        let outcome = desk.agree(self.tag, *round, members, exclude, deadline);
        if matches!(outcome, Ok(Outcome::Agreed { .. })) {
            *round = round.saturating_add(1);
        }
        Some(outcome)
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

pub(super) struct Subscriber {
    tag: u64,
    /// The communicator's rank of each of the job's ranks that is a member.
    ranks: HashMap<u32, Rank>,
    on_notice: OnNotice,
}

impl Subscriber {
    /// The communicator's.
    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    /// Whether it is the communicator `tag`'s.
    pub(super) fn is_of(&self, tag: u64) -> bool {
        self.tag == tag
    }

    pub(super) fn root_lost(&self) {
        (self.on_notice)(Notice::RootLost);
    }

    pub(super) fn no_root(&self) {
        (self.on_notice)(Notice::NoRoot);
    }

    pub(super) fn deliver(&self, dispatch: &Dispatch) {
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
            Event::Report { report: Report::Joined { epoch, sequence, order }, .. } => {
                let (epoch, sequence, order) = (*epoch, *sequence, *order);
                Notice::Joined { rank, epoch, sequence, order }
            }
            Event::Report { report: Report::Announced { sequence, call }, .. } => {
                Notice::Announced { sequence: *sequence, call: *call }
            }
            Event::Present => Notice::Present { rank },
            Event::Report { report: Report::Mismatch { peer, ours, theirs }, .. } => {
                Notice::Mismatch { rank, peer: *peer, ours: *ours, theirs: *theirs }
            }
            Event::Report { report: Report::Deadlock { cycle }, .. } => {
                Notice::Deadlock { rank, cycle: cycle.clone() }
            }
            Event::Stalled { tag, .. } if *tag != self.tag => return,
            Event::Survey { tag } | Event::State { tag, .. } if *tag != self.tag => return,
            Event::Survey { .. } => Notice::Survey,
            Event::State { status, .. } => Notice::State { rank, status: status.clone() },
            Event::Stalled { chain, .. } => Notice::Stalled { chain: chain.clone() },
            // Only ranks say that.
            Event::Inquiry { .. } | Event::Disowned { .. } => return,
        };
        (self.on_notice)(notice);
    }
}
