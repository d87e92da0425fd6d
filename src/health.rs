//! Whether a communicator still works, and if not, since what.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use annulus_plan::{Fingerprint, Rank};

use crate::Error;
use crate::flight::Page;

/// Shared by everything that may break a communicator or must stop when it is broken. The first
/// error stays: every later call returns it.
#[derive(Debug)]
pub(crate) struct Health {
    broken: AtomicBool,
    first: OnceLock<Error>,
    departures: AtomicUsize,
    ranks: Box<[RankState]>,
    losses: Mutex<Vec<Loss>>,
    /// Where to note what broke the communicator.
    pages: Mutex<Vec<Weak<Page>>>,
}

/// A rank that is lost, and the call that it was last seen in.
#[derive(Clone, Copy, Debug)]
struct Loss {
    rank: Rank,
    last_operation: Option<Fingerprint>,
}

/// What the others may know of one rank. Apart from each other: ranks write to their own at each large call.
#[derive(Debug, Default)]
#[repr(align(128))]
struct RankState {
    departed: AtomicBool,
    /// How often the control plane has answered that the rank is there.
    present: AtomicUsize,
    /// Whether the rank may be reading others' buffers where they lie.
    reading: AtomicBool,
}

/// A rank reads others' buffers while this lives: see [`Health::begin_reading`].
pub(crate) struct Reading<'a>(&'a AtomicBool);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Health {
    pub(crate) fn new(world: usize) -> Self {
        Self {
            broken: AtomicBool::new(false),
            first: OnceLock::new(),
            departures: AtomicUsize::new(0),
            ranks: (0..world).map(|_| RankState::default()).collect(),
            losses: Mutex::default(),
            pages: Mutex::default(),
        }
    }

    /// Breaks the communicator, unless it is broken already; returns what broke it.
    pub(crate) fn break_with(&self, error: Error) -> &Error {
        let first = self.first.get_or_init(|| error);
        if !self.broken.swap(true, Ordering::SeqCst) {
            let pages = std::mem::take(&mut *self.pages());
            let text = first.to_string();
            pages.iter().filter_map(Weak::upgrade).for_each(|page| page.broke(&text));
        }
        first
    }

    /// From now on `page` says what broke the communicator, once something has.
    pub(crate) fn attach(&self, page: &Arc<Page>) {
        let mut pages = self.pages();
        match self.error().filter(|_| self.is_broken()) {
            Some(error) => page.broke(&error.to_string()),
            None => pages.push(Arc::downgrade(page)),
        }
    }

    fn pages(&self) -> MutexGuard<'_, Vec<Weak<Page>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `rank` read what its peers hand out references to, until the result is dropped; `None`: the
    /// communicator is broken, and their buffers may be gone.
    ///
    /// Between ranks that share this, it and [`wait_for_readers`](Self::wait_for_readers) exclude each other: both store before they
    /// load, in one total order.
    pub(crate) fn begin_reading(&self, rank: Rank) -> Option<Reading<'_>> {
        let reading = &self.ranks[rank].reading;
        reading.store(true, Ordering::SeqCst);
        let guard = Reading(reading);
        (!self.broken.load(Ordering::SeqCst)).then_some(guard)
    }

    /// Blocks until no other rank reads `rank`'s buffers, once the communicator is broken: a reader looks at that each
    /// time that it has nothing to do, and begins no more. Ranks of other processes map only memory that outlives
    /// its owner's use, and do not count here.
    pub(crate) fn wait_for_readers(&self, rank: Rank) {
        debug_assert!(self.is_broken());
        for (other, state) in self.ranks.iter().enumerate() {
            while other != rank && state.reading.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }

    /// One relaxed load: it is asked before each call and at each idle turn.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// What broke the communicator.
    pub(crate) fn error(&self) -> Option<Error> {
        let mut error = self.first.get().cloned()?;
        if let Error::RankLost { lost, last_operation, .. } = &mut error {
            let losses = self.losses();
            let known = losses.iter().find(|loss| loss.rank == *lost);
            let known = known.and_then(|loss| loss.last_operation);
            *last_operation = known.map(Fingerprint::describe);
        }
        Some(error)
    }

    /// Notes that `rank` is lost, and breaks the communicator with `error` unless it is broken already.
    pub(crate) fn lose(&self, rank: Rank, last_operation: Option<Fingerprint>, error: Error) {
        let mut losses = self.losses();
        if losses.iter().all(|loss| loss.rank != rank) {
            losses.push(Loss { rank, last_operation });
        }
        drop(losses);
        self.break_with(error);
    }

    /// Notes in which call a lost rank was last seen, if that is later than what is known.
    pub(crate) fn last_seen(&self, rank: Rank, seen: Fingerprint) {
        if let Some(loss) = self.losses().iter_mut().find(|loss| loss.rank == rank) {
            // What it did in another communicator tells less.
            let is_later = |known: Fingerprint| known.tag != seen.tag || known.order < seen.order;
            if loss.last_operation.is_none_or(is_later) {
                loss.last_operation = Some(seen);
            }
        }
    }

    /// The ranks that are known to be lost, in ascending order.
    pub(crate) fn lost(&self) -> Vec<Rank> {
        let mut lost: Vec<Rank> = self.losses().iter().map(|loss| loss.rank).collect();
        lost.sort_unstable();
        lost
    }

    fn losses(&self) -> MutexGuard<'_, Vec<Loss>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the control plane has said of `rank` that it is there.
    pub(crate) fn confirm(&self, rank: Rank) {
        if let Some(state) = self.ranks.get(rank) {
            state.present.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// How often [`confirm`](Self::confirm) was called for `rank`.
    pub(crate) fn confirmations(&self, rank: Rank) -> usize {
        self.ranks.get(rank).map_or(0, |state| state.present.load(Ordering::Acquire))
    }

    /// Notes that `rank` has left in good order: an error only to those who still wait for it.
    pub(crate) fn depart(&self, rank: Rank) {
        if let Some(state) = self.ranks.get(rank)
            && !state.departed.swap(true, Ordering::AcqRel)
        {
            self.departures.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn anybody_departed(&self) -> bool {
        self.departures.load(Ordering::Acquire) > 0
    }

    pub(crate) fn has_departed(&self, rank: Rank) -> bool {
        self.ranks.get(rank).is_some_and(|state| state.departed.load(Ordering::Acquire))
    }
}
