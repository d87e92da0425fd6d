//! Where a rank learns of joins and of calls to answer, and where it tells of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use annulus_plan::{CollectiveKind, Rank};

use super::super::peers::Peers;
use super::ledger::{Arrival, Forgotten, Ledger, Next, Numbered};
use crate::Error;
use crate::health::Health;
use crate::monitor::{Observer, Wait};

/// How long a rank that has joined sleeps between looks at its communicator's health. News end the sleep.
const SLEEP: Duration = Duration::from_millis(20);

/// A rank that has left without having joined is missed after so long: its last news may still be on their way.
const GRACE: Duration = Duration::from_millis(500);

/// How long a rank in a send or receive is blocked before it looks whether its peer has joined.
const LOOK_AFTER: Duration = Duration::from_millis(1);

/// What one rank knows of joins. The news come to it from another thread.
pub(in super::super) struct Board {
    /// Whether anybody has joined: all that a call looks at while nobody has.
    active: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    ledger: Ledger,
    /// No more news will come.
    cut_off: bool,
    /// The root was lost while this rank had joined in that epoch.
    interrupted: Option<u64>,
}

impl Board {
    pub(in super::super) fn new(rank: Rank, world: usize) -> Self {
        let state = State { ledger: Ledger::new(rank, world), cut_off: false, interrupted: None };
        Self { active: AtomicBool::new(false), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Notes that `rank` has joined. Does not block.
    pub(in super::super) fn arrive(&self, rank: Rank, arrival: Arrival) {
        let mut state = self.lock();
        state.ledger.arrive(rank, arrival);
        self.active.store(state.ledger.is_active(), Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }

    /// Notes a call that somebody tells of. Does not block.
    pub(in super::super) fn hear(&self, call: Numbered) {
        self.lock().ledger.hear(call);
        self.changed.notify_all();
    }

    /// Notes that the root is lost. If this rank has joined, the others may not know, nor it all that they have said. Its join fails, and
    /// breaks the communicator; so the joins that go on all come to the same root, which numbers them.
    pub(in super::super) fn root_lost(&self) {
        let mut state = self.lock();
        if let Some(epoch) = state.ledger.joined_in() {
            state.interrupted = Some(epoch);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that nobody will hear of joins any more.
    pub(in super::super) fn cut_off(&self) {
        self.lock().cut_off = true;
        self.changed.notify_all();
    }

    #[inline]
    fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank's part in joins, of others and its own. Cloned for the monitor, which looks while the rank waits in a call.
#[derive(Clone)]
pub(in super::super) struct Joining {
    pub(in super::super) rank: Rank,
    pub(in super::super) board: Arc<Board>,
    pub(in super::super) peers: Arc<dyn Peers>,
    pub(in super::super) health: Arc<Health>,
}

/// What [`Joining::wait`] comes back with.
pub(super) enum Task {
    Answer(Numbered),
    Over { order: Vec<Rank>, sequence: u64 },
}

impl Joining {
    /// Whether anybody has joined. One relaxed load: it is asked before each call.
    #[inline]
    pub(in super::super) fn is_active(&self) -> bool {
        self.board.is_active()
    }

    /// This rank begins `call`, or waits in it, while others have joined: tells them of it, if that is its part. An error
    /// breaks the communicator.
    #[cold]
    pub(in super::super) fn begin(&self, call: Numbered) -> Result<(), Error> {
        let mut state = self.board.lock();
        if let Some(error) = self.objection(&state.ledger, call) {
            drop(state);
            return Err(self.break_with(error));
        }
        let news = state.ledger.witness(Some(call));
        drop(state);
        self.tell(news)
    }

    /// This rank begins sends and receives with `peers`.
    #[cold]
    pub(in super::super) fn begin_exchange(&self, peers: &[Rank]) -> Result<(), Error> {
        let state = self.board.lock();
        let joined = peers.iter().copied().find(|&peer| state.ledger.has_joined(peer));
        drop(state);
        match joined {
            None => Ok(()),
            Some(joined) => Err(self.break_with(self.exchange_with(joined))),
        }
    }

    /// Tells those who have joined of the calls that this rank has made, if that is its part. It may be in none now, and not come to the
    /// next one for long: so this is for the thread that brings the news, too.
    pub(in super::super) fn look(&self) -> Result<(), Error> {
        if !self.is_active() {
            return Ok(());
        }
        let news = self.board.lock().ledger.witness(None);
        self.tell(news)
    }

    /// This rank has made `call`, which does not wait for everybody. An error is in the communicator's health.
    pub(in super::super) fn remember(&self, call: Numbered) {
        self.board.lock().ledger.remember(call);
        // Who has joined since the call began is to hear of it now: whoever brought that news knew nothing of the call.
        let _ = self.look();
    }

    /// This rank has made a call that waits for everybody.
    pub(in super::super) fn forget(&self) {
        self.board.lock().ledger.forget();
    }

    /// This rank, which has made `sequence` collectives, joins.
    pub(super) fn join(&self, sequence: u64) -> Result<(), Error> {
        // What it has made and nobody has told of, it tells of before it hands over.
        self.look()?;
        let mut state = self.board.lock();
        state.ledger.join();
        let epoch = state.ledger.epoch();
        drop(state);
        self.peers.join(self.rank, epoch, sequence);
        Ok(())
    }

    /// Blocks until there is something to do for this rank, which has joined and has made or answered `sequence` collectives.
    pub(super) fn wait(&self, sequence: u64) -> Result<Task, Error> {
        let mut missed: Option<(Rank, Instant)> = None;
        let mut state = self.board.lock();
        loop {
            if self.health.is_broken() {
                return Err(self.error());
            }
            let cut_off = state.cut_off || state.interrupted == Some(state.ledger.epoch());
            match state.ledger.next(sequence) {
                Ok(Next::Answer(call)) => return Ok(Task::Answer(call)),
                Ok(Next::Over { order, sequence }) => {
                    self.board.active.store(state.ledger.is_active(), Ordering::Relaxed);
                    return Ok(Task::Over { order, sequence });
                }
                Ok(Next::Announce(calls)) => {
                    drop(state);
                    self.tell(Ok(calls))?;
                    state = self.board.lock();
                    continue;
                }
                Ok(Next::Wait) if cut_off => {
                    drop(state);
                    return Err(self.break_with(Error::CutOff { rank: self.rank }));
                }
                Ok(Next::Wait) => {}
                Err(forgotten) => {
                    drop(state);
                    self.tell(Err(forgotten))?;
                    state = self.board.lock();
                    continue;
                }
            }
            missed = self.missing(&state.ledger, missed);
            if let Some((rank, since)) = missed
                && since.elapsed() >= GRACE
            {
                drop(state);
                return Err(self.lose(rank));
            }
            let woken = self.board.changed.wait_timeout(state, SLEEP);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A rank that has left and has not joined, and since when that is known.
    fn missing(&self, ledger: &Ledger, known: Option<(Rank, Instant)>) -> Option<(Rank, Instant)> {
        if !self.health.anybody_departed() {
            return None;
        }
        let is_missing = |rank: &Rank| self.health.has_departed(*rank) && !ledger.has_joined(*rank);
        match known {
            Some((rank, _)) if is_missing(&rank) => known,
            _ => (0..ledger.world()).find(is_missing).map(|rank| (rank, Instant::now())),
        }
    }

    fn lose(&self, lost: Rank) -> Error {
        let (host, pid) = self.peers.whereabouts(lost);
        let noticed = format!(
            "it left the communicator without having joined, while rank {} waited for that",
            self.rank
        );
        let error = Error::RankLost { lost, host, pid, last_operation: None, noticed };
        self.health.lose(lost, None, error);
        let error = self.error();
        self.peers.report(&error);
        error
    }

    fn tell(&self, news: Result<Vec<Numbered>, Forgotten>) -> Result<(), Error> {
        match news {
            Ok(calls) => {
                for call in calls {
                    self.peers.announce(call);
                }
                Ok(())
            }
            Err(Forgotten { rank: joined, sequence }) => {
                let what = format!(
                    "rank {} is thousands of calls ahead of operation {sequence}, after which it",
                    self.rank
                );
                let remedy = "call barrier now and then between broadcasts";
                Err(self.break_with(Error::RankJoined { rank: self.rank, joined, what, remedy }))
            }
        }
    }

    /// Why ranks that have joined cannot answer `call`.
    pub(super) fn refuse(&self, call: Numbered) -> Option<Error> {
        self.objection(&self.board.lock().ledger, call)
    }

    fn objection(&self, ledger: &Ledger, call: Numbered) -> Option<Error> {
        let Numbered { sequence, call } = call;
        let joined_before = |rank: &Rank| ledger.joined_before(*rank, sequence);
        let (joined, remedy) = match (call.kind()?, call.root()) {
            (CollectiveKind::Broadcast | CollectiveKind::Scatter, Some(root))
                if joined_before(&root) =>
            {
                (root, "let a rank be the root that has not joined")
            }
            (CollectiveKind::AllToAllV, _) => {
                let joined = (0..ledger.world()).find(joined_before)?;
                (
                    joined,
                    "use all_to_all, whose counts are equal, or stop when the first rank joins",
                )
            }
            _ => return None,
        };
        let what = format!("{} needs data of rank {joined}, which", call.describe());
        Some(Error::RankJoined { rank: self.rank, joined, what, remedy })
    }

    fn exchange_with(&self, joined: Rank) -> Error {
        let what = format!("rank {} sends to or receives from rank {joined}, which", self.rank);
        let remedy = "exchange messages only with ranks that have not joined";
        Error::RankJoined { rank: self.rank, joined, what, remedy }
    }

    pub(super) fn break_with(&self, error: Error) -> Error {
        let already = self.health.is_broken();
        self.health.break_with(error);
        let first = self.error();
        if !already {
            self.peers.report(&first);
        }
        first
    }

    fn error(&self) -> Error {
        self.health.error().expect("a broken communicator knows since what")
    }
}

impl Observer for Joining {
    /// The rank waits in a call, perhaps for one that has joined.
    fn waiting(&self, wait: &mut Wait<'_>) {
        if !self.is_active() {
            return;
        }
        // An error is in the communicator's health, where the executor finds it at once.
        if wait.fingerprint.kind() == Some(CollectiveKind::PointToPoint) {
            if wait.quiet >= LOOK_AFTER {
                let _ = self.begin_exchange(&wait.blocked_on());
            }
            return;
        }
        let sequence = self.board.lock().ledger.widen(wait.fingerprint.sequence());
        let _ = self.begin(Numbered { sequence, call: wait.fingerprint });
    }
}
